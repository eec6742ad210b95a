//! Costs of a timer while nothing or little happens: memory, CPU time and wake-ups.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::WorkloadResult;
use super::expiry::{GRACE, wait_for};
use crate::command::{Answer, Command};
use crate::competitors::{Caller, Competitor};
use crate::process;
use crate::session::{self, LONG, timed, wait_until_inserted, with_timer};
use crate::task::{self, Task};

const SECOND: Duration = Duration::from_secs(1);

/// `memory`: how much the resident memory grows by scheduling (Netty: the used heap).
pub(super) fn memory<C: Competitor>(command: &Command) -> WorkloadResult {
    let count = command.get("count")?;
    let delays = command.random().delays(count, LONG);
    with_timer::<C>(command, |timer| {
        let before = process::resident()?;
        let mut kept = session::kept::<C>(count);
        session::schedule::<C>(&mut timer.caller(), delays.iter().copied(), &mut kept);
        sleep(SECOND);
        let grown = process::resident()?.saturating_sub(before);
        Ok(Answer::new([("bytes", grown as f64 / count as f64)]))
    })
}

/// `idle`: a timer without timeouts.
pub(super) fn empty<C: Competitor>(command: &Command) -> WorkloadResult {
    let seconds = command.seconds()?;
    with_timer::<C>(command, |_| {
        // This library's worker wakes once more a second after it has reclaimed something.
        sleep(2 * SECOND);
        let (sleeps, cpu) = (process::sleeps()?, process::cpu());
        let elapsed = timed(|| sleep(seconds)).as_secs_f64();
        let cpu = process::cpu().saturating_sub(cpu);
        let sleeps = process::sleeps()?.saturating_sub(sleeps);
        let cpu_ms = 1e3 * cpu.as_secs_f64();
        Ok(Answer::new([
            ("wakeups", sleeps as f64 / elapsed),
            ("cpu_ms", cpu_ms / elapsed),
        ]))
    })
}

/// `burst`: the resident memory some seconds after many timeouts were pending, as a share of its
/// peak. The timeouts end by firing, or with `cancel=1` by being cancelled in random order.
///
/// Both values exclude what was resident before and the array of the handles.
pub(super) fn memory_after_burst<C: Competitor>(command: &Command) -> WorkloadResult {
    let (count, seconds) = (command.get("count")?, command.seconds()?);
    // The time in milliseconds from scheduling to the deadlines of timeouts that fire. A
    // microsecond each is enough to schedule all of them before the first one fires.
    let soon = 1_000 + count as u64 / 1_000;
    let is_cancelled = command.get("cancel")? == 1;
    let mut random = command.random();
    with_timer::<C>(command, |timer| {
        let mut caller = timer.caller();
        let before = process::resident()?;
        let mut handles = Vec::with_capacity(if is_cancelled { count } else { 0 });
        let array = handles.capacity() * size_of::<C::Handle>();
        let start = Instant::now();
        for _ in 0..count {
            let spread = random.below(1_000);
            if is_cancelled {
                let delay = Duration::from_millis(LONG.start + spread);
                handles.push(caller.schedule(delay, Task::count()));
            } else {
                caller.schedule(Duration::from_millis(soon + spread), Task::count());
            }
        }
        if is_cancelled {
            random.shuffle(&mut handles);
            wait_until_inserted(command.setup());
            // `drain` keeps the array.
            handles.drain(..).for_each(|handle| caller.cancel(handle));
        } else {
            if task::ran() > 0 {
                return Err("a timeout fired before all were pending".into());
            }
            wait_for(
                count,
                start + 2 * Duration::from_millis(soon) + SECOND + GRACE,
            )?;
        }
        sleep(seconds);
        let grown = |now: usize| now.saturating_sub(before + array) as f64;
        let (peak, after) = (
            grown(process::peak_resident()?),
            grown(process::resident()?),
        );
        let share = if peak > 0.0 { after / peak } else { 0.0 };
        Ok(Answer::new([
            ("percent", 100.0 * share),
            ("peak_bytes", peak / count as f64),
        ]))
    })
}
