//! A debounced action: it runs once, 100 ms after the last of many changes. An alarm is made once,
//! and each change arms it. (A manual clock stands in for the time between the changes.)
//!
//! ```text
//! 5 changes, saved 0 times
//! 100 ms later: saved 1 time
//! a change, and 100 ms later: saved 2 times
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hashed_wheel::{Alarm, HashedWheelTimer, ManualClock, NewTimeoutError};

const QUIET: Duration = Duration::from_millis(100);

/// A document that is saved when it has not changed for a while.
struct Document {
    save: Alarm,
}

impl Document {
    fn new(timer: &HashedWheelTimer, save: impl Fn() + Send + 'static) -> Self {
        Self {
            save: timer.new_alarm(move |_| save()),
        }
    }

    fn change(&self) -> Result<(), NewTimeoutError> {
        self.save.arm(QUIET) // moves the deadline if the alarm is armed
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().tick(Duration::from_millis(10));
    let (timer, mut driver) = builder.clock(clock.clone()).build_driven()?;
    let saved = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&saved);
    let document = Document::new(&timer, move || _ = count.fetch_add(1, Ordering::Relaxed));

    for _ in 0..5 {
        document.change()?;
        clock.advance(QUIET / 2);
        driver.turn();
    }
    println!("5 changes, saved {} times", saved.load(Ordering::Relaxed));
    clock.advance(QUIET);
    driver.turn();
    println!("100 ms later: saved {} time", saved.load(Ordering::Relaxed));
    document.change()?;
    clock.advance(QUIET);
    driver.turn();
    println!(
        "a change, and 100 ms later: saved {} times",
        saved.load(Ordering::Relaxed)
    );
    Ok(())
}
