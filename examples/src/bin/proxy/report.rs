//! What is printed at the end: a table, ready for a page.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;

use crate::process::On;
use crate::trial::Turn;

/// Of so many rounds it says something if those of one proxy are all above those of the other.
const ENOUGH: usize = 5;

pub(crate) struct Report<'a>(pub(crate) &'a [Turn]);

/// What a row says of a turn. `None` where the system does not tell.
type Figure = fn(&Turn) -> Option<f64>;

const ROWS: [(&str, Figure); 7] = [
    ("requests a second", |turn| Some(turn.load.requests as f64 / turn.load.time.as_secs_f64())),
    ("latency, median, ms", |turn| Some(millis(turn.load.p50))),
    ("latency, 99 %, ms", |turn| Some(millis(turn.load.p99))),
    ("CPU time of the proxy for a request, µs", |turn| {
        Some(turn.cpu?.as_secs_f64() * 1e6 / turn.load.requests as f64)
    }),
    ("memory of the proxy at most, MiB", |turn| Some(turn.memory? as f64 / f64::from(1 << 20))),
    ("lateness of timeouts, seen by clients, median, ms", |turn| Some(millis(turn.lateness.p50()))),
    ("lateness of timeouts, 99 %, ms", |turn| Some(millis(turn.lateness.p99()))),
];

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proxies: Vec<_> =
            On::value_variants().iter().copied().filter(|&on| !self.of(on).is_empty()).collect();
        let row = |name, figure: &dyn Fn(On) -> String, ratio: &dyn Fn(On) -> String| {
            let cells = proxies.iter().flat_map(|&on| match on {
                On::Tokio => vec![figure(on)],
                On::Wheel | On::Task => vec![figure(on), ratio(on)],
            });
            let cells: Vec<_> = std::iter::once(String::from(name)).chain(cells).collect();
            format!("| {} |", cells.join(" | "))
        };
        writeln!(f, "{}", row("", &|on| on.to_string(), &|_| "ratio".into()))?;
        writeln!(f, "{}", row("---", &|_| "--:".into(), &|_| "--:".into()))?;
        for (name, figure) in ROWS {
            let spread = |on| Spread::new(&self.of(on), figure);
            let ratio = |on| Some(spread(on)?.beside(spread(On::Tokio)?));
            let text = |on| spread(on).map(|spread| spread.to_string());
            let or_none = |text: Option<String>| text.unwrap_or("–".into());
            writeln!(f, "{}", row(name, &|on| or_none(text(on)), &|on| or_none(ratio(on))))?;
        }
        let rounds = proxies.iter().map(|&on| self.of(on).len()).min().unwrap_or_default();
        if proxies.len() > 1 && rounds >= ENOUGH {
            writeln!(
                f,
                "\nMedians of {rounds} rounds, and what these range over. Where the ranges have nothing in common"
            )?;
            writeln!(f, "the ratio is bold, unless it is 1.00; elsewhere no difference was seen.")?;
        } else if proxies.len() > 1 {
            writeln!(f, "\nToo few rounds to tell a difference from noise: that takes --rounds {ENOUGH}.")?;
        }
        for on in [On::Wheel, On::Task] {
            let wheel = self.of(on);
            let Some(Turn { said, .. }) = wheel.last() else { continue };
            let per_request = |count: u64| count as f64 / said.answered as f64;
            let (scheduled, reset) = (per_request(said.scheduled), per_request(said.reset));
            let late = wheel.iter().map(|turn| turn.said.late).max().unwrap_or_default() as f64 / 1e3;
            writeln!(
                f,
                "\n{on}: a request takes {scheduled:.1} timeouts and {reset:.1} re-arms of the idle one. The wheel itself was at most"
            )?;
            writeln!(
                f,
                "{late:.0} ms late, 99 % of the time; the rest is what it takes until a task that was woken has its turn, and the client hears of it."
            )?;
        }
        Ok(())
    }
}

impl Report<'_> {
    fn of(&self, on: On) -> Vec<&Turn> {
        self.0.iter().filter(|turn| turn.on == on).collect()
    }
}

/// A figure over the rounds.
#[derive(Clone, Copy)]
struct Spread {
    rounds: usize,
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn new(turns: &[&Turn], figure: Figure) -> Option<Self> {
        let mut figures = turns.iter().map(|turn| figure(turn)).collect::<Option<Vec<_>>>()?;
        figures.sort_unstable_by(f64::total_cmp);
        let (&least, &most) = (figures.first()?, figures.last()?);
        let rounds = figures.len();
        let median = (figures[(rounds - 1) / 2] + figures[rounds / 2]) / 2.0;
        Some(Self { rounds, least, median, most })
    }

    fn beside(self, other: Self) -> String {
        let ratio = format!("{:.2}", self.median / other.median);
        let is_apart = self.most < other.least || other.most < self.least;
        if is_apart && self.rounds >= ENOUGH && ratio != "1.00" { format!("**{ratio}**") } else { ratio }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, least, median, most } = *self;
        let digits = if median < 10.0 { 2 } else { usize::from(median < 1000.0) };
        write!(f, "{median:.digits$}")?;
        if rounds > 1 {
            write!(f, " ({least:.digits$} – {most:.digits$})")?;
        }
        Ok(())
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_bold_where_enough_rounds_tell_the_two_apart() {
        let spread = |rounds, least, median, most| Spread { rounds, least, median, most };
        let ratio = |rounds| spread(rounds, 1.9, 2.0, 2.1).beside(spread(rounds, 0.9, 1.0, 1.1));
        assert_eq!(ratio(ENOUGH), "**2.00**");
        assert_eq!(ratio(ENOUGH - 1), "2.00");
        assert_eq!(spread(ENOUGH, 1.0, 2.0, 2.1).beside(spread(ENOUGH, 0.9, 1.0, 1.1)), "2.00");
        let close = spread(ENOUGH, 1.0021, 1.0022, 1.0023).beside(spread(ENOUGH, 1.0, 1.0, 1.0));
        assert_eq!(close, "1.00");
    }
}
