//! A throttle and a debouncer per key. The first runs the first of many events, and none for a
//! second. The other one runs the last of them, when no more has come for a second.
//!
//! ```text
//! alert: disk full (a.example)
//! alert: disk full (b.example)
//! saved: draft 3 of a.txt
//! alert: still full (a.example)
//! ```
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, ManualClock, NewTimeoutError};
use hashed_wheel_util::{Cause, ExpiringMap, InsertError, Removed};

const SECOND: Duration = Duration::from_secs(1);

struct Throttle(ExpiringMap<&'static str, ()>);

impl Throttle {
    fn alert(&self, host: &'static str, text: &str) -> Result<(), InsertError<&'static str, ()>> {
        // Atomic: of several threads, one inserts.
        if self.0.insert_if_absent(host, (), SECOND)?.is_none() {
            println!("alert: {text} ({host})");
        }
        Ok(())
    }
}

struct Debouncer(ExpiringMap<&'static str, u32>);

impl Debouncer {
    fn new(timer: &HashedWheelTimer) -> Self {
        // Without `causes`, the end of the program would save too.
        let builder = ExpiringMap::builder(timer).causes([Cause::Expired]);
        Self(builder.build_with_handler(|Removed { key, value, .. }| {
            println!("saved: draft {value} of {key}");
        }))
    }

    fn change(&self, file: &'static str, draft: u32) -> Result<(), NewTimeoutError> {
        self.0.insert(file, draft, SECOND)?; // replaces the draft before it, and its time
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().clock(clock.clone());
    let (timer, mut driver) = builder.build_driven()?;
    let (alerts, drafts) = (Throttle(ExpiringMap::new(&timer)), Debouncer::new(&timer));
    for draft in 1..=3 {
        alerts.alert("a.example", "disk full")?;
        alerts.alert("b.example", "disk full")?;
        drafts.change("a.txt", draft)?;
        clock.advance(SECOND / 4);
        driver.turn();
    }
    clock.advance(SECOND);
    driver.turn();
    alerts.alert("a.example", "still full")?;
    Ok(())
}
