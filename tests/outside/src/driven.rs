use std::time::Duration;

use hashed_wheel::{Driver, HashedWheelTimer, ManualClock};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A driven timer on a manual clock.
pub(crate) struct Driven {
    pub(crate) timer: HashedWheelTimer,
    pub(crate) driver: Driver,
    pub(crate) clock: ManualClock,
}

impl Driven {
    pub(crate) fn new() -> Self {
        let clock = ManualClock::new();
        let (timer, driver) = HashedWheelTimer::builder()
            .clock(clock.clone())
            .build_driven()
            .unwrap();
        Self {
            timer,
            driver,
            clock,
        }
    }

    /// Lets time pass. Returns how many timeouts expired.
    pub(crate) fn pass(&mut self, time: Duration) -> usize {
        self.clock.advance(time);
        self.driver.turn()
    }
}
