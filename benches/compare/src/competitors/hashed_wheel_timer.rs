//! `hashed_wheel_timer`: another port of Netty's timer. It cannot cancel timeouts.

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use hashed_wheel_timer::{TimerTask, WheelTimer};

use super::{Caller, Competitor, Setup};
use crate::task::Task;

pub(crate) struct WithoutCancel {
    timer: WheelTimer,
    tick: Duration,
}

/// Runs its task once. The crate's trait takes `&mut self`, so a task could run repeatedly.
struct Once(Option<Task>);

impl TimerTask for Once {
    fn run(&mut self) {
        if let Some(task) = self.0.take() {
            task.run();
        }
    }
}

/// Sends a message when it runs.
struct Probe(Sender<()>);

impl TimerTask for Probe {
    fn run(&mut self) {
        // An error means that `try_start` has stopped waiting.
        _ = self.0.send(());
    }
}

/// Returns a new timer if it works.
///
/// Version 0.1.1 has a race in its constructor: it may return before it knows the start time of its
/// worker. In that case it assumes a start in 1970, and no timeout ever fires.
fn try_start(setup: Setup) -> Option<WithoutCancel> {
    let slots = u32::try_from(setup.slots).ok()?;
    let mut timer = WheelTimer::new(setup.tick.as_millis() as u64, slots).ok()?;
    let (sender, receiver) = channel();
    timer.new_timeout(Box::new(Probe(sender)), 3 * setup.tick);
    let works = receiver.recv_timeout(20 * setup.tick + Duration::from_millis(50)).is_ok();
    let timer = WithoutCancel { timer, tick: setup.tick };
    if works {
        Some(timer)
    } else {
        timer.stop();
        None
    }
}

impl Competitor for WithoutCancel {
    type Handle = ();

    type Caller<'a> = WheelTimer;

    fn unsupported_reason(workload: &str) -> Option<&'static str> {
        let needs_cancel = ["W2", "W2s", "W2b", "W9", "W10", "MIX"].contains(&workload);
        needs_cancel.then_some("it cannot cancel")
    }

    fn start(setup: Setup) -> Self {
        const ATTEMPTS: usize = 20;

        (0..ATTEMPTS).find_map(|_| try_start(setup)).expect("one of the attempts succeeds")
    }

    fn caller(&self) -> WheelTimer {
        self.timer.clone()
    }

    fn stop(self) {
        self.timer.stop();
        // `stop` does not join the thread. The thread notices the stop at its next tick.
        thread::sleep(3 * self.tick);
    }
}

impl Caller for WheelTimer {
    type Handle = ();

    fn schedule(&mut self, delay: Duration, task: Task) {
        self.new_timeout(Box::new(Once(Some(task))), delay);
    }

    fn cancel(&mut self, (): ()) {
        unreachable!("`unsupported_reason` excludes all workloads that cancel");
    }

    fn rearm(&mut self, (): &mut (), _: Duration) {
        unreachable!("`unsupported_reason` excludes W9");
    }
}
