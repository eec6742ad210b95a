//! `hashed_wheel_timer`: another port of Netty's, with no way to cancel.

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

/// It takes tasks that could run again.
struct Once(Option<Task>);

impl TimerTask for Once {
    fn run(&mut self) {
        if let Some(task) = self.0.take() {
            task.run();
        }
    }
}

/// Says that it has run.
struct Probe(Sender<()>);

impl TimerTask for Probe {
    fn run(&mut self) {
        // Who has not waited for it does not care.
        _ = self.0.send(());
    }
}

/// A new one, if it works. (0.1.1 may return before it knows when its worker has started: if the worker was the quicker, the
/// timer takes that for 1970, and nothing fires.)
fn try_start(setup: Setup) -> Option<WithoutCancel> {
    let slots = u32::try_from(setup.slots).ok()?;
    let mut timer = WheelTimer::new(setup.tick.as_millis() as u64, slots).ok()?;
    let (say, hear) = channel();
    timer.new_timeout(Box::new(Probe(say)), 3 * setup.tick);
    let works = hear.recv_timeout(20 * setup.tick + Duration::from_millis(50)).is_ok();
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

    fn lacks(workload: &str) -> Option<&'static str> {
        let cancels = ["W2", "W2s", "W2b", "W9", "W10", "MIX"].contains(&workload);
        cancels.then_some("it cannot cancel")
    }

    fn start(setup: Setup) -> Self {
        const ATTEMPTS: usize = 20;

        (0..ATTEMPTS).find_map(|_| try_start(setup)).expect("one of them works")
    }

    fn caller(&self) -> WheelTimer {
        self.timer.clone()
    }

    fn stop(self) {
        self.timer.stop();
        // Nobody waits for its thread, which looks at each tick.
        thread::sleep(3 * self.tick);
    }
}

impl Caller for WheelTimer {
    type Handle = ();

    fn schedule(&mut self, delay: Duration, task: Task) {
        self.new_timeout(Box::new(Once(Some(task))), delay);
    }

    fn cancel(&mut self, (): ()) {
        unreachable!("whoever asks it to cancel looks at `lacks` first");
    }

    fn rearm(&mut self, (): &mut (), _: Duration) {
        unreachable!("it lacks W9");
    }
}
