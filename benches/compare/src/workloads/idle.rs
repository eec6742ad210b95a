//! Costs of a timer while nothing or little happens: memory, CPU time and wake-ups.

use std::collections::VecDeque;
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

/// Returns the wake-ups and the CPU time per second while `work` runs.
fn per_second(cpu: fn() -> Duration, work: impl FnOnce()) -> WorkloadResult {
    let (sleeps, before) = (process::sleeps()?, cpu());
    let elapsed = timed(work).as_secs_f64();
    let (cpu, sleeps) = (cpu().saturating_sub(before), process::sleeps()?.saturating_sub(sleeps));
    let cpu_ms = 1e3 * cpu.as_secs_f64();
    Ok(Answer::new([("wakeups", sleeps as f64 / elapsed), ("cpu_ms", cpu_ms / elapsed)]))
}

/// `idle`: a timer without timeouts.
pub(super) fn empty<C: Competitor>(command: &Command) -> WorkloadResult {
    let seconds = command.seconds()?;
    with_timer::<C>(command, |_| {
        // This library's worker wakes once more a second after it has reclaimed something.
        sleep(2 * SECOND);
        per_second(process::cpu, || sleep(seconds))
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
            wait_for(count, start + 2 * Duration::from_millis(soon) + SECOND + GRACE)?;
        }
        sleep(seconds);
        let grown = |now: usize| now.saturating_sub(before + array) as f64;
        let (peak, after) = (grown(process::peak_resident()?), grown(process::resident()?));
        let share = if peak > 0.0 { after / peak } else { 0.0 };
        Ok(Answer::new([("percent", 100.0 * share), ("peak_bytes", peak / count as f64)]))
    })
}

/// Each millisecond schedules some timeouts and cancels those of 20 ms before, as for requests that
/// are answered after that time.
fn answer_requests<C: Competitor>(timer: &C, per_ms: usize, seconds: Duration) {
    const MS: Duration = Duration::from_millis(1);
    const DEADLINE: Duration = Duration::from_secs(5);
    const ANSWERED_AFTER: usize = 20;

    let mut caller = timer.caller();
    let mut open = VecDeque::with_capacity(per_ms * (ANSWERED_AFTER + 1));
    let start = Instant::now();
    for ms in 0..seconds.as_millis() as u32 {
        sleep((ms * MS).saturating_sub(start.elapsed()));
        open.extend((0..per_ms).map(|_| caller.schedule(DEADLINE, Task::count())));
        let answered = open.len().saturating_sub(per_ms * ANSWERED_AFTER);
        open.drain(..answered).for_each(|handle| caller.cancel(handle));
    }
    open.drain(..).for_each(|handle| caller.cancel(handle));
}

/// `traffic`: three timeouts per millisecond, all of which are cancelled.
pub(super) fn wake_ups<C: Competitor>(command: &Command) -> WorkloadResult {
    let seconds = command.seconds()?;
    with_timer::<C>(command, |timer| {
        sleep(SECOND);
        per_second(process::others_cpu, || answer_requests(timer, 3, seconds))
    })
}
