//! `hashed-wheel`, with the hashed or the hierarchical wheel.

use std::time::Duration;

use hashed_wheel::{Cancel, HashedWheelTimer, Timeout};

use super::{Caller, Competitor, Setup};
use crate::task::Task;

pub(crate) struct Ours<const HIERARCHICAL: bool>(HashedWheelTimer);

impl<const HIERARCHICAL: bool> Competitor for Ours<HIERARCHICAL> {
    type Handle = Timeout;

    type Caller<'a> = &'a HashedWheelTimer;

    const HAS_FUTURES: bool = true;

    fn start(setup: Setup) -> Self {
        let builder = HashedWheelTimer::builder()
            .tick(setup.tick)
            .ticks_per_wheel(setup.slots);
        let timer = builder
            .hierarchical(HIERARCHICAL)
            .build()
            .expect("the parameters are valid");
        timer.start().expect("the thread starts");
        Self(timer)
    }

    fn caller(&self) -> &HashedWheelTimer {
        &self.0
    }

    fn stop(self) {
        self.0.stop();
    }
}

impl Caller for &HashedWheelTimer {
    type Handle = Timeout;

    fn schedule(&mut self, delay: Duration, task: Task) -> Timeout {
        self.new_timeout(move |_| task.run(), delay)
            .expect("the timer is neither stopped nor full")
    }

    fn cancel(&mut self, handle: Timeout) {
        handle.cancel_and_drop();
    }

    fn rearm(&mut self, handle: &mut Timeout, delay: Duration) {
        _ = handle.reset(delay);
    }

    fn sleep(&self, delay: Duration) -> impl Future {
        HashedWheelTimer::sleep(self, delay)
    }

    fn timeout<F: Future>(&self, delay: Duration, future: F) -> impl Future {
        HashedWheelTimer::timeout(self, delay, future)
    }
}
