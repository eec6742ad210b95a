//! Costs and lateness of the worker.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{WorkloadResult, nanos_each};
use crate::command::{Answer, Command};
use crate::competitors::{Caller, Competitor};
use crate::process;
use crate::session::with_timer;
use crate::task::{self, Task};

const SECOND: Duration = Duration::from_secs(1);

/// How long it takes from the last call until all timeouts are in the wheel.
const INSERTION_TIME: Duration = Duration::from_millis(300);

/// The times in seconds from scheduling to the first deadline. If a competitor does not insert all
/// timeouts within one of these times, the next one is tried.
const LEAD_SECONDS: [u32; 3] = [1, 3, 8];

/// The waiting time after the last deadline. Timeouts that have not fired by then are considered
/// lost.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// Waits until this number of timeouts has fired.
pub(super) fn wait_for(count: usize, until: Instant) -> Result<(), String> {
    while task::ran() < count as u64 {
        if Instant::now() > until {
            return Err(format!(
                "{} of {count} timeouts never fired",
                count as u64 - task::ran()
            ));
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Measures the CPU time of the worker until all timeouts have fired: from when all are in the
/// wheel (`ns`), and from before the first one is scheduled (`life_ns`; with the
/// caller's `sum_ns`). `schedule` schedules them.
fn expire<C: Competitor>(
    command: &Command,
    schedule: impl Fn(&mut C::Caller<'_>, Duration),
) -> WorkloadResult {
    let count = command.get("count")?;
    for lead in LEAD_SECONDS {
        let mut is_inserted = false;
        let answer = with_timer::<C>(command, |timer| {
            let (start, first) = (Instant::now(), process::others_cpu());
            let calls = process::this_cpu();
            schedule(&mut timer.caller(), lead * SECOND);
            let calls = process::this_cpu() - calls;
            sleep(INSERTION_TIME);
            process::wait_until_idle((lead * SECOND).saturating_sub(start.elapsed()));
            let before = process::others_cpu();
            is_inserted = start.elapsed() < lead * SECOND && task::ran() == 0;
            if is_inserted {
                wait_for(count, start + (lead + 2) * SECOND + GRACE)?;
            }
            let after = process::others_cpu();
            let [used, life] =
                [before, first].map(|from| nanos_each(after.saturating_sub(from), count));
            let sum = life + nanos_each(calls, count);
            Ok(Answer::new([
                ("ns", used),
                ("life_ns", life),
                ("sum_ns", sum),
            ]))
        });
        if is_inserted {
            return answer;
        }
    }
    Err(format!(
        "it has not inserted {count} timeouts within {} s",
        LEAD_SECONDS[LEAD_SECONDS.len() - 1]
    ))
}

/// `expire`: deadlines spread over one second. `ns` is the CPU time of the worker per timeout from
/// when all are in the wheel, `life_ns` from before the first one is scheduled, `sum_ns` with that
/// of the caller. Netty's `packed_` values: after the JVM has compacted its heap.
pub(super) fn spread<C: Competitor>(command: &Command) -> WorkloadResult {
    let spread = command.random().delays(command.get("count")?, 0..1_000);
    expire::<C>(command, |caller, lead| {
        for &delay in &spread {
            caller.schedule(lead + delay, Task::count());
        }
    })
}

/// Returns the smallest value such that at least `fraction` of all values are not larger, in
/// milliseconds.
pub(super) fn percentile(sorted: &[i64], fraction: f64) -> f64 {
    let index = ((sorted.len() as f64 * fraction).ceil() as usize).clamp(1, sorted.len()) - 1;
    sorted[index] as f64 / 1e6
}

/// `lateness`: the time from a deadline to its task, in milliseconds. Some timeouts are scheduled
/// in each millisecond.
pub(super) fn lateness<C: Competitor>(command: &Command) -> WorkloadResult {
    const BURST: Duration = Duration::from_millis(1);
    /// The curve has this number of equal steps, and additional points at the upper end.
    const STEPS: usize = 50;
    const UPPER: [f64; 6] = [0.99, 0.995, 0.998, 0.999, 0.9995, 1.0];

    let (rate, seconds) = (command.get("rate")?, command.get("seconds")?);
    let (bursts, each) = (1_000 * seconds, rate.div_ceil(1_000));
    let count = bursts * each;
    let delays = command.random().delays(count, 0..1_000);
    with_timer::<C>(command, |timer| {
        task::reset(count);
        let mut caller = timer.caller();
        let start = Instant::now();
        for (burst, delays) in delays.chunks(each).enumerate() {
            sleep((burst as u32 * BURST).saturating_sub(start.elapsed()));
            for &delay in delays {
                caller.schedule(delay, Task::record(delay));
            }
        }
        wait_for(count, Instant::now() + SECOND + GRACE)?;
        Ok(Answer::new([]))
    })?;

    let sorted = task::take_lateness();
    let fractions = (1..STEPS)
        .map(|step| step as f64 / STEPS as f64)
        .chain(UPPER);
    let cdf: Vec<_> = fractions
        .map(|fraction| [percentile(&sorted, fraction), fraction])
        .collect();
    let names = [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];
    let mut answer =
        Answer::new(names.map(|(name, fraction)| (name, percentile(&sorted, fraction))));
    if let Answer::Figures(figures) = &mut answer {
        figures.insert("cdf".into(), json!(cdf));
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentile_is_one_of_the_values() {
        let sorted: Vec<_> = (1..=1_000).map(|ms| ms * 1_000_000).collect();
        let values = [0.0, 0.5, 0.99, 0.999, 1.0].map(|fraction| percentile(&sorted, fraction));
        assert_eq!(values, [1.0, 500.0, 990.0, 999.0, 1_000.0]);
    }
}
