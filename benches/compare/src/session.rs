//! The timer of a command, and the steps that the workloads share.

use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::command::Command;
use crate::competitors::{Caller, Competitor, Setup};
use crate::process;
use crate::task::{self, Task};
use crate::workloads::WorkloadResult;

/// How many ticks it takes until the worker has inserted all scheduled timeouts.
const TICKS_TO_INSERT: u32 = 30;

/// How many ticks it takes at least until the memory of all cancelled timeouts is free.
const TICKS_TO_FREE: u32 = 3;

/// Delays in milliseconds that are typical of services.
pub(crate) const LONG: Range<u64> = 30_000..90_000;

/// Runs `work` with a new timer. With `warm=1`, the timer held `count` timeouts before, as in a
/// service that has been running for a while.
pub(crate) fn with_timer<C: Competitor>(
    command: &Command,
    work: impl FnOnce(&C) -> WorkloadResult,
) -> WorkloadResult {
    task::reset(0);
    let timer = C::start(command.setup());
    let mut caller = timer.caller();
    // The first timeout starts lazy parts of a timer.
    let handle = caller.schedule(Duration::from_secs(30), Task::count());
    caller.cancel(handle);
    if command.get("warm") == Ok(1) {
        let handles = fill(
            &mut caller,
            &command.random().delays(command.get("count")?, LONG),
        );
        wait_until_inserted(command.setup());
        handles.into_iter().for_each(|handle| caller.cancel(handle));
        wait_until_freed(command.setup());
    }
    drop(caller);
    let answer = work(&timer);
    timer.stop();
    answer
}

pub(crate) fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Returns an array for the handles that [`schedule`] keeps.
pub(crate) fn kept<C: Competitor>(count: usize) -> Vec<C::Handle> {
    Vec::with_capacity(if C::DROP_CANCELS { count } else { 0 })
}

/// Schedules a timeout per delay. Drops the handles, or keeps them if that would cancel the
/// timeouts.
pub(crate) fn schedule<C: Competitor>(
    caller: &mut C::Caller<'_>,
    delays: impl IntoIterator<Item = Duration>,
    kept: &mut Vec<C::Handle>,
) {
    for delay in delays {
        let handle = caller.schedule(delay, Task::count());
        if C::DROP_CANCELS {
            kept.push(handle);
        }
    }
}

/// Schedules a timeout per delay and returns the handles.
pub(crate) fn fill<D: Caller>(caller: &mut D, delays: &[Duration]) -> Vec<D::Handle> {
    let mut handles = Vec::with_capacity(delays.len());
    handles.extend(
        delays
            .iter()
            .map(|&delay| caller.schedule(delay, Task::count())),
    );
    handles
}

/// Waits until all scheduled timeouts are in the timer's data structure.
pub(crate) fn wait_until_inserted(setup: Setup) {
    sleep(TICKS_TO_INSERT * setup.tick);
    process::wait_until_idle(Duration::from_secs(5));
}

/// Waits until the memory of all cancelled timeouts is free.
pub(crate) fn wait_until_freed(setup: Setup) {
    sleep(TICKS_TO_FREE * setup.tick);
    process::wait_until_idle(Duration::from_secs(5));
}
