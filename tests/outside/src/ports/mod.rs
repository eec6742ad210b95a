//! Small ports of what others have built on timers. They stay possible, and short.

mod cache;
mod http_read;
mod mailbox;
mod reactor;

use std::time::Duration;

use hashed_wheel::{Driver, HashedWheelTimer, ManualClock};

const SECOND: Duration = Duration::from_secs(1);

/// A driven timer on a manual clock.
struct Driven {
    timer: HashedWheelTimer,
    driver: Driver,
    clock: ManualClock,
}

impl Driven {
    fn new() -> Self {
        let clock = ManualClock::new();
        let (timer, driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven().unwrap();
        Self { timer, driver, clock }
    }

    fn pass(&mut self, time: Duration) -> usize {
        self.clock.advance(time);
        self.driver.turn()
    }
}
