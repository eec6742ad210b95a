//! The timer of a command, and the steps that the workloads share.

use std::ops::Range;
use std::thread::sleep;
use std::time::Duration;

use crate::command::Command;
use crate::competitors::{Caller, Competitor, Setup};
use crate::process;
use crate::task::{self, Task};

/// How many ticks it takes until the worker has inserted all scheduled timeouts.
const TICKS_TO_INSERT: u32 = 30;

/// How many ticks it takes at least until the memory of all cancelled timeouts is free.
const TICKS_TO_FREE: u32 = 3;

/// Delays in milliseconds that are typical of services.
pub(crate) const LONG: Range<u64> = 30_000..90_000;

/// Returns a new timer.
pub(crate) fn start<C: Competitor>(command: &Command) -> C {
    task::reset(0);
    let timer = C::start(command.setup());
    // The first timeout starts lazy parts of a timer.
    let mut caller = timer.caller();
    let handle = caller.schedule(Duration::from_secs(30), Task::count());
    caller.cancel(handle);
    drop(caller);
    timer
}

/// Returns a timer that, with `warm=1`, held `count` timeouts before, as in a service that has been
/// running for a while.
pub(crate) fn start_warm<C: Competitor>(command: &Command, count: usize) -> C {
    let timer = start::<C>(command);
    if command.get("warm") == Ok(1) {
        let mut caller = timer.caller();
        let handles = fill(&mut caller, &command.random().delays(count, LONG));
        wait_until_inserted(command.setup());
        handles.into_iter().for_each(|handle| caller.cancel(handle));
        drop(caller);
        wait_until_freed(command.setup());
    }
    timer
}

/// Schedules a timeout per delay and returns the handles.
pub(crate) fn fill<D: Caller>(caller: &mut D, delays: &[Duration]) -> Vec<D::Handle> {
    let mut handles = Vec::with_capacity(delays.len());
    handles.extend(delays.iter().map(|&delay| caller.schedule(delay, Task::count())));
    handles
}

/// Waits until all scheduled timeouts are in the timer's data structure.
pub(crate) fn wait_until_inserted(setup: Setup) {
    wait(TICKS_TO_INSERT, setup);
}

/// Waits until the memory of all cancelled timeouts is free.
pub(crate) fn wait_until_freed(setup: Setup) {
    wait(TICKS_TO_FREE, setup);
}

fn wait(ticks: u32, setup: Setup) {
    sleep(ticks * setup.tick);
    process::wait_until_idle(Duration::from_secs(5));
}
