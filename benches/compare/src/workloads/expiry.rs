//! What the worker pays, and how late it is.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Answered, each};
use crate::command::{Answer, Command};
use crate::competitors::{Caller, Competitor};
use crate::process;
use crate::session::Session;
use crate::task::{self, Task};

const SECOND: Duration = Duration::from_secs(1);

/// So long after the last was scheduled all are in the wheel.
const TAKEN_IN: Duration = Duration::from_millis(300);

/// How long before the first is due they are scheduled. The next one is tried where a competitor cannot take them in so soon.
const AHEAD: [u32; 3] = [1, 3, 8];

/// Beyond what is due last; then those that have not fired never will.
const PATIENCE: Duration = Duration::from_secs(10);

fn wait_for(count: usize, until: Instant) -> Result<(), String> {
    while task::ran() < count as u64 {
        if Instant::now() > until {
            return Err(format!("{} of {count} timeouts never fired", count as u64 - task::ran()));
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// CPU time of the worker from when `schedule` is over and all are taken in until all have fired.
fn expire<C: Competitor>(
    session: &mut Session<C>,
    command: &Command,
    schedule: impl Fn(&mut C::Caller<'_>, Duration),
) -> Answered {
    let count = command.get("count")?;
    for ahead in AHEAD {
        let timer = session.take(command);
        let start = Instant::now();
        schedule(&mut timer.caller(), ahead * SECOND);
        sleep(TAKEN_IN);
        process::wait_until_quiet((ahead * SECOND).saturating_sub(start.elapsed()));
        let before = process::others_cpu();
        let is_taken_in = start.elapsed() < ahead * SECOND && task::ran() == 0;
        let fired = is_taken_in.then(|| wait_for(count, start + (ahead + 2) * SECOND + PATIENCE));
        let used = process::others_cpu().saturating_sub(before);
        timer.stop();
        match fired {
            None => continue,
            Some(Err(error)) => return Err(error),
            Some(Ok(())) => return Ok(Answer::new([("ns", each(used, count))])),
        }
    }
    Err(format!("it has not taken in {count} timeouts within {} s", AHEAD[AHEAD.len() - 1]))
}

/// W4.
pub(super) fn spread<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answered {
    let spread = command.random().delays(command.get("count")?, 0..1_000);
    expire(session, command, |caller, ahead| {
        for &delay in &spread {
            caller.let_fire(ahead + delay, Task::count());
        }
    })
}

/// W4p.
pub(super) fn at_once<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answered {
    let count = command.get("count")?;
    expire(session, command, |caller, ahead| {
        let target = Instant::now() + ahead + SECOND / 2;
        for _ in 0..count {
            caller.let_fire(target.saturating_duration_since(Instant::now()), Task::count());
        }
    })
}

/// The value below which so much of the whole lies.
fn percentile(sorted: &[i64], fraction: f64) -> f64 {
    let index = ((sorted.len() as f64 * fraction).ceil() as usize).clamp(1, sorted.len()) - 1;
    sorted[index] as f64 / 1e6
}

/// W7.
pub(super) fn lateness<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answered {
    const BURST: Duration = Duration::from_millis(1);
    /// Fractions for the curve: even steps, and finer ones at the upper end.
    const EVEN: usize = 50;
    const UPPER: [f64; 6] = [0.99, 0.995, 0.998, 0.999, 0.9995, 1.0];

    let (rate, seconds) = (command.get("rate")?, command.get("seconds")?);
    let (bursts, each) = (1_000 * seconds, rate.div_ceil(1_000));
    let count = bursts * each;
    let delays = command.random().delays(count, 0..1_000);
    let timer = session.take(command);
    task::forget(count);
    let mut caller = timer.caller();
    let start = Instant::now();
    for (burst, delays) in delays.chunks(each).enumerate() {
        sleep((burst as u32 * BURST).saturating_sub(start.elapsed()));
        for &delay in delays {
            caller.let_fire(delay, Task::record(delay));
        }
    }
    drop(caller);
    let fired = wait_for(count, Instant::now() + SECOND + PATIENCE);
    timer.stop();
    fired?;

    let sorted = task::take_lateness();
    let fractions = (1..EVEN).map(|step| step as f64 / EVEN as f64).chain(UPPER);
    let cdf: Vec<_> = fractions.map(|fraction| [percentile(&sorted, fraction), fraction]).collect();
    let names = [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];
    let mut answer = Answer::new(names.map(|(name, fraction)| (name, percentile(&sorted, fraction))));
    if let Answer::Figures(figures) = &mut answer {
        figures.insert("cdf".into(), json!(cdf));
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let sorted: Vec<_> = (1..=1_000).map(|ms| ms * 1_000_000).collect();
        let found = [0.0, 0.5, 0.99, 0.999, 1.0].map(|fraction| percentile(&sorted, fraction));
        assert_eq!(found, [1.0, 500.0, 990.0, 999.0, 1_000.0]);
    }
}
