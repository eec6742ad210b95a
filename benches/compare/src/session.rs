//! A child's timer, from one command to the next.

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

/// How many ticks it takes until what was scheduled is where it stays.
const SETTLED: u32 = 30;

/// How many ticks it takes at least until what was cancelled has been given back.
const GIVEN_BACK: u32 = 3;

impl<C: Competitor> Session<C> {
    pub(crate) fn new() -> Self {
        Self { kept: None }
    }

    /// The timer that was kept, if there is one and this command may have it; else a new one. Nothing is pending in it.
    pub(crate) fn take(&mut self, command: &Command) -> C {
        task::forget(0);
        let setup = command.setup();
        match self.kept.take() {
            Some((like, timer)) if like == setup && command.keeps() => timer,
            other => {
                if let Some((_, other)) = other {
                    other.stop();
                }
                start(setup)
            }
        }
    }

    /// As `take`, and it has held so many timeouts already: as it is in a service that has been at work for a while. Who
    /// keeps no handles cannot cancel what it has scheduled, so its timer cannot be kept instead.
    pub(crate) fn take_warm(&mut self, command: &Command, count: usize) -> C {
        let timer = self.take(command);
        if command.keeps() && C::lacks("W2").is_none() {
            let mut caller = timer.caller();
            let handles = fill(&mut caller, &command.random().delays(count, LONG));
            settle(command.setup());
            handles.into_iter().for_each(|handle| caller.cancel(handle));
            drop(caller);
            recover(command.setup());
        }
        timer
    }

    /// Nothing is pending in it.
    pub(crate) fn give_back(&mut self, command: &Command, timer: C) {
        if command.keeps() {
            recover(command.setup());
            self.kept = Some((command.setup(), timer));
        } else {
            timer.stop();
        }
    }
}

/// In milliseconds: what services have.
pub(crate) const LONG: Range<u64> = 30_000..90_000;

fn start<C: Competitor>(setup: Setup) -> C {
    let timer = C::start(setup);
    // Who cannot cancel has had one fire.
    if C::lacks("W2").is_none() {
        let mut caller = timer.caller();
        let handle = caller.schedule(Duration::from_secs(30), Task::count());
        caller.cancel(handle);
    }
    timer
}

/// Schedules them and keeps the handles.
pub(crate) fn fill<D: Caller>(caller: &mut D, delays: &[Duration]) -> Vec<D::Handle> {
    let mut handles = Vec::with_capacity(delays.len());
    handles.extend(delays.iter().map(|&delay| caller.schedule(delay, Task::count())));
    handles
}

/// Returns when all that was scheduled is where it stays.
pub(crate) fn settle(setup: Setup) {
    wait(SETTLED, setup);
}

/// Returns when all that was cancelled has been given back.
pub(crate) fn recover(setup: Setup) {
    wait(GIVEN_BACK, setup);
}

fn wait(ticks: u32, setup: Setup) {
    sleep(ticks * setup.tick);
    process::wait_until_quiet(Duration::from_secs(5));
}
