//! The timer of a child, which can be kept from one command to the next.

use std::ops::Range;
use std::thread::sleep;
use std::time::Duration;

use crate::command::Command;
use crate::competitors::{Caller, Competitor, Setup};
use crate::process;
use crate::task::{self, Task};

pub(crate) struct Session<C> {
    kept: Option<(Setup, C)>,
}

/// How many ticks it takes until the worker has inserted all scheduled timeouts.
const TICKS_TO_INSERT: u32 = 30;

/// How many ticks it takes at least until the memory of all cancelled timeouts is free.
const TICKS_TO_FREE: u32 = 3;

impl<C: Competitor> Session<C> {
    pub(crate) fn new() -> Self {
        Self { kept: None }
    }

    /// Returns the kept timer, if there is one and this command accepts it, and otherwise a new
    /// one. It has no pending timeouts.
    pub(crate) fn take_timer(&mut self, command: &Command) -> C {
        task::reset(0);
        let setup = command.setup();
        match self.kept.take() {
            Some((kept, timer)) if kept == setup && command.keeps() => timer,
            other => {
                if let Some((_, unsuitable)) = other {
                    unsuitable.stop();
                }
                start(setup)
            }
        }
    }

    /// As `take_timer`, but the timer held `count` timeouts before, as in a service that has been
    /// running for a while.
    ///
    /// Workloads that drop their handles use it. They cannot cancel their timeouts, so they cannot
    /// return a used timer for the next repetition.
    pub(crate) fn take_warm_timer(&mut self, command: &Command, count: usize) -> C {
        let timer = self.take_timer(command);
        if command.keeps() && C::unsupported_reason("W2").is_none() {
            let mut caller = timer.caller();
            let handles = fill(&mut caller, &command.random().delays(count, LONG));
            wait_until_inserted(command.setup());
            handles.into_iter().for_each(|handle| caller.cancel(handle));
            drop(caller);
            wait_until_freed(command.setup());
        }
        timer
    }

    /// Keeps the timer for the next command, or stops it. It must have no pending timeouts.
    pub(crate) fn return_timer(&mut self, command: &Command, timer: C) {
        if command.keeps() {
            wait_until_freed(command.setup());
            self.kept = Some((command.setup(), timer));
        } else {
            timer.stop();
        }
    }
}

/// Delays in milliseconds that are typical of services.
pub(crate) const LONG: Range<u64> = 30_000..90_000;

/// Returns a new timer.
pub(crate) fn start<C: Competitor>(setup: Setup) -> C {
    let timer = C::start(setup);
    // The first timeout starts lazy parts of a timer. A competitor that cannot cancel has fired one
    // in `start` already.
    if C::unsupported_reason("W2").is_none() {
        let mut caller = timer.caller();
        let handle = caller.schedule(Duration::from_secs(30), Task::count());
        caller.cancel(handle);
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
