//! hashed-wheel-util's `DelayQueue`, with one thread that receives and runs the expired timeouts.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::delay_queue::{DelayQueue, Key};

use super::{Caller, Competitor, Setup};
use crate::task::Task;

pub(crate) struct UtilQueue {
    timer: HashedWheelTimer,
    queue: DelayQueue<Task>,
    receiver: JoinHandle<()>,
}

impl Competitor for UtilQueue {
    type Handle = Key;

    type Caller<'a> = &'a DelayQueue<Task>;

    fn start(setup: Setup) -> Self {
        let timer = HashedWheelTimer::new(setup.tick, setup.slots);
        let queue = DelayQueue::<Task>::new(&timer);
        let received = queue.clone();
        let receiver = thread::spawn(move || {
            while let Ok(expired) = received.recv() {
                expired.into_inner().run();
            }
        });
        Self {
            timer,
            queue,
            receiver,
        }
    }

    fn caller(&self) -> &DelayQueue<Task> {
        &self.queue
    }

    fn stop(self) {
        self.timer.stop();
        self.receiver.join().expect("the receiver has not panicked");
    }
}

impl Caller for &DelayQueue<Task> {
    type Handle = Key;

    fn schedule(&mut self, delay: Duration, task: Task) -> Key {
        self.insert(task, delay).expect("the timer is not stopped")
    }

    fn cancel(&mut self, handle: Key) {
        self.remove(handle);
    }

    fn rearm(&mut self, handle: &mut Key, delay: Duration) {
        self.reset(*handle, delay);
    }
}
