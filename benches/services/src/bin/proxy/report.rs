//! The report at the end: a table in Markdown.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;

use crate::trial::Measurement;
use hashed_wheel_services::On;

/// The minimum number of rounds for a significant difference: all values of one proxy are above all
/// values of the other.
const MIN_ROUNDS: usize = 5;

pub(crate) struct Report<'a>(pub(crate) &'a [Measurement]);

/// The value of a row for a measurement. `None` if the system does not provide it.
type Value = fn(&Measurement) -> Option<f64>;

const ROWS: [(&str, Value); 7] = [
    ("requests per second", |measurement| {
        Some(measurement.load.requests as f64 / measurement.load.time.as_secs_f64())
    }),
    ("latency, median, ms", |measurement| {
        Some(millis(measurement.load.p50))
    }),
    ("latency, 99th percentile, ms", |measurement| {
        Some(millis(measurement.load.p99))
    }),
    ("CPU time of the proxy per request, µs", |measurement| {
        Some(measurement.cpu?.as_secs_f64() * 1e6 / measurement.load.requests as f64)
    }),
    ("peak memory of the proxy, MiB", |measurement| {
        Some(measurement.memory? as f64 / f64::from(1 << 20))
    }),
    (
        "lateness of timeouts, seen by clients, median, ms",
        |measurement| Some(millis(measurement.lateness.p50())),
    ),
    ("lateness of timeouts, 99th percentile, ms", |measurement| {
        Some(millis(measurement.lateness.p99()))
    }),
];

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proxies: Vec<_> = On::value_variants()
            .iter()
            .copied()
            .filter(|&on| !self.of(on).is_empty())
            .collect();
        let row = |name, value: &dyn Fn(On) -> String, ratio: &dyn Fn(On) -> String| {
            let cells = proxies.iter().flat_map(|&on| match on {
                On::Tokio => vec![value(on)],
                On::Wheel | On::Task => vec![value(on), ratio(on)],
            });
            let cells: Vec<_> = std::iter::once(String::from(name)).chain(cells).collect();
            format!("| {} |", cells.join(" | "))
        };
        writeln!(f, "{}", row("", &|on| on.to_string(), &|_| "ratio".into()))?;
        writeln!(f, "{}", row("---", &|_| "--:".into(), &|_| "--:".into()))?;
        for (name, value) in ROWS {
            let spread = |on| Spread::new(&self.of(on), value);
            let ratio = |on| Some(spread(on)?.ratio_to(spread(On::Tokio)?));
            let text = |on| spread(on).map(|spread| spread.to_string());
            let or_none = |text: Option<String>| text.unwrap_or("–".into());
            writeln!(
                f,
                "{}",
                row(name, &|on| or_none(text(on)), &|on| or_none(ratio(on)))
            )?;
        }
        let rounds = proxies
            .iter()
            .map(|&on| self.of(on).len())
            .min()
            .unwrap_or_default();
        if proxies.len() > 1 && rounds >= MIN_ROUNDS {
            writeln!(
                f,
                "\nMedians and ranges of {rounds} rounds. A ratio is bold if the ranges are disjoint and"
            )?;
            writeln!(f, "it is not 1.00. Other differences are not significant.")?;
        } else if proxies.len() > 1 {
            writeln!(
                f,
                "\nToo few rounds for significant differences: use --rounds {MIN_ROUNDS}."
            )?;
        }
        for on in [On::Wheel, On::Task] {
            let wheel = self.of(on);
            let Some(Measurement { counters, .. }) = wheel.last() else {
                continue;
            };
            let scheduled = counters.scheduled as f64 / counters.answered as f64;
            let late = wheel
                .iter()
                .map(|measurement| measurement.counters.late)
                .max()
                .unwrap_or_default();
            let late = Duration::from_micros(late);
            writeln!(
                f,
                "\n{on}: a request takes {scheduled:.1} timeouts. The 99th percentile of the wheel's own"
            )?;
            writeln!(
                f,
                "lateness was at most {late:.1?}. The rest is the time until the woken task runs and the client receives the answer."
            )?;
        }
        Ok(())
    }
}

impl Report<'_> {
    fn of(&self, on: On) -> Vec<&Measurement> {
        self.0
            .iter()
            .filter(|measurement| measurement.on == on)
            .collect()
    }
}

/// The values over all rounds.
#[derive(Clone, Copy)]
struct Spread {
    rounds: usize,
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    fn new(measurements: &[&Measurement], value: Value) -> Option<Self> {
        let mut values = measurements
            .iter()
            .map(|measurement| value(measurement))
            .collect::<Option<Vec<_>>>()?;
        values.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let rounds = values.len();
        let median = (values[(rounds - 1) / 2] + values[rounds / 2]) / 2.0;
        Some(Self {
            rounds,
            min,
            median,
            max,
        })
    }

    fn ratio_to(self, other: Self) -> String {
        let ratio = format!("{:.2}", self.median / other.median);
        let is_disjoint = self.max < other.min || other.max < self.min;
        if is_disjoint && self.rounds >= MIN_ROUNDS && ratio != "1.00" {
            format!("**{ratio}**")
        } else {
            ratio
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rounds,
            min,
            median,
            max,
        } = *self;
        let digits = if median < 10.0 {
            2
        } else {
            usize::from(median < 1000.0)
        };
        write!(f, "{median:.digits$}")?;
        if rounds > 1 {
            write!(f, " ({min:.digits$} – {max:.digits$})")?;
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
    fn significant_ratios_are_bold() {
        let spread = |rounds, min, median, max| Spread {
            rounds,
            min,
            median,
            max,
        };
        let ratio = |rounds| spread(rounds, 1.9, 2.0, 2.1).ratio_to(spread(rounds, 0.9, 1.0, 1.1));
        assert_eq!(ratio(MIN_ROUNDS), "**2.00**");
        assert_eq!(ratio(MIN_ROUNDS - 1), "2.00");
        assert_eq!(
            spread(MIN_ROUNDS, 1.0, 2.0, 2.1).ratio_to(spread(MIN_ROUNDS, 0.9, 1.0, 1.1)),
            "2.00"
        );
        let close =
            spread(MIN_ROUNDS, 1.0021, 1.0022, 1.0023).ratio_to(spread(MIN_ROUNDS, 1.0, 1.0, 1.0));
        assert_eq!(close, "1.00");
    }
}
