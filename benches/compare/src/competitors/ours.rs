//! `hashed-wheel`, with the hashed or the hierarchical wheel.

use std::marker::PhantomData;
use std::time::Duration;

use hashed_wheel::{Builder, HashedWheelTimer, Timeout};

use super::{Caller, Competitor, Setup};
use crate::task::Task;

pub(crate) trait Wheel: Sync {
    fn choose(builder: Builder) -> Builder;
}

pub(crate) struct Hashed;

impl Wheel for Hashed {
    fn choose(builder: Builder) -> Builder {
        builder
    }
}

pub(crate) struct Hierarchical;

impl Wheel for Hierarchical {
    fn choose(builder: Builder) -> Builder {
        builder.hierarchical(true)
    }
}

pub(crate) struct Ours<W> {
    timer: HashedWheelTimer,
    wheel: PhantomData<W>,
}

impl<W: Wheel> Competitor for Ours<W> {
    type Handle = Timeout;

    type Caller<'a>
        = &'a HashedWheelTimer
    where
        W: 'a;

    fn start(setup: Setup) -> Self {
        let builder = HashedWheelTimer::builder().tick(setup.tick).ticks_per_wheel(setup.slots);
        let timer = W::choose(builder).build().expect("the parameters are valid");
        timer.start().expect("the thread starts");
        Self { timer, wheel: PhantomData }
    }

    fn caller(&self) -> &HashedWheelTimer {
        &self.timer
    }

    fn stop(self) {
        self.timer.stop();
    }
}

impl Caller for &HashedWheelTimer {
    type Handle = Timeout;

    fn schedule(&mut self, delay: Duration, task: Task) -> Timeout {
        self.new_timeout(move |_| task.run(), delay).expect("the timer is neither stopped nor full")
    }

    fn cancel(&mut self, handle: Timeout) {
        handle.cancel();
    }

    fn rearm(&mut self, handle: &mut Timeout, delay: Duration) {
        _ = handle.reset(delay);
    }
}
