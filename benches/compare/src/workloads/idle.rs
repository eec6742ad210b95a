//! Costs of a timer while nothing is due: memory, CPU time and wake-ups.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::WorkloadResult;
use crate::command::{Answer, Command};
use crate::competitors::{Caller, Competitor};
use crate::process;
use crate::session::{LONG, Session};
use crate::task::Task;

const SECOND: Duration = Duration::from_secs(1);

/// Schedules a timeout per delay. Drops the handles, unless that would cancel the timeouts.
fn schedule<C: Competitor>(timer: &C, delays: &[Duration]) -> Vec<C::Handle> {
    let mut caller = timer.caller();
    let mut kept = Vec::with_capacity(if C::DROP_CANCELS { delays.len() } else { 0 });
    for &delay in delays {
        let handle = caller.schedule(delay, Task::count());
        if C::DROP_CANCELS {
            kept.push(handle);
        }
    }
    kept
}

/// W5.
pub(super) fn pending<C: Competitor>(session: &mut Session<C>, command: &Command) -> WorkloadResult {
    let (count, seconds) = (command.get("count")?, command.seconds()?);
    let delays = command.random().delays(count, 3_600_000..7_200_000);
    let timer = session.take_timer(command);
    let kept = schedule(&timer, &delays);
    sleep(2 * SECOND);

    let (start, before) = (Instant::now(), process::cpu());
    sleep(seconds);
    let share = (process::cpu() - before).as_secs_f64() / start.elapsed().as_secs_f64();
    drop(kept);
    timer.stop();
    Ok(Answer::new([("percent", 100.0 * share)]))
}

/// W6.
pub(super) fn memory<C: Competitor>(session: &mut Session<C>, command: &Command) -> WorkloadResult {
    let count = command.get("count")?;
    let delays = command.random().delays(count, LONG);
    let timer = session.take_timer(command);
    let before = process::resident()?;
    let kept = schedule(&timer, &delays);
    sleep(SECOND);
    let grown = process::resident()?.saturating_sub(before);
    drop(kept);
    timer.stop();
    Ok(Answer::new([("bytes", grown as f64 / count as f64)]))
}

/// W8.
pub(super) fn empty<C: Competitor>(session: &mut Session<C>, command: &Command) -> WorkloadResult {
    let seconds = command.seconds()?;
    let timer = session.take_timer(command);
    sleep(SECOND);

    let (start, sleeps, cpu) = (Instant::now(), process::sleeps()?, process::cpu());
    sleep(seconds);
    let (cpu, sleeps) = (process::cpu() - cpu, process::sleeps()?.saturating_sub(sleeps));
    let elapsed = start.elapsed().as_secs_f64();
    timer.stop();
    let cpu = cpu.as_secs_f64() * 1e3;
    Ok(Answer::new([("wakeups", sleeps as f64 / elapsed), ("cpu_ms", cpu / elapsed)]))
}
