//! A test of code with timeouts: the test turns the clock, so half an hour passes at once.
//!
//! ```text
//! after 29 min 59 s the session lives
//! after 30 min it has ended
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, ManualClock, NewTimeoutError};

/// The code under test. It takes the timer from its caller.
struct Session(Arc<AtomicBool>);

impl Session {
    fn new(timer: &HashedWheelTimer) -> Result<Self, NewTimeoutError> {
        let has_ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&has_ended);
        timer.new_timeout(
            move |_| flag.store(true, Ordering::Relaxed),
            Duration::from_secs(30 * 60),
        )?;
        Ok(Self(has_ended))
    }

    fn has_ended(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder()
        .clock(clock.clone())
        .build_driven()?;
    let session = Session::new(&timer)?;

    clock.advance(Duration::from_secs(30 * 60 - 1));
    driver.turn();
    assert!(!session.has_ended());
    println!("after 29 min 59 s the session lives");

    clock.advance(Duration::from_secs(1));
    driver.turn();
    assert!(session.has_ended());
    println!("after 30 min it has ended");
    Ok(())
}
