//! A limiter per key: each user has three calls per second. Many threads may ask: no call too many
//! is let through.
//!
//! ```text
//! ada: 3 of 5 calls
//! bob: 2 of 2 calls
//! a second later, ada: 3 of 4 calls
//! 4 threads, grace: 3 of 400 calls
//! ```
use std::thread;
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, ManualClock, NewTimeoutError};
use hashed_wheel_util::ExpiringMap;

struct Limiter(ExpiringMap<&'static str, u32>);

impl Limiter {
    fn may_call(&self, user: &'static str) -> Result<bool, NewTimeoutError> {
        // The first call begins the second. Until `calls` is dropped, other calls for this user
        // wait, and those for other users do not.
        let mut calls = self.0.entry(user).or_insert(0, Duration::from_secs(1))?;
        *calls.get_mut() += 1;
        Ok(*calls.get() <= 3)
    }

    fn count(&self, user: &'static str, calls: usize) -> usize {
        let may_call = |_: &usize| self.may_call(user).expect("the timer is not stopped");
        (0..calls).filter(may_call).count()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().clock(clock.clone());
    let (timer, _driver) = builder.build_driven()?;
    let limiter = Limiter(ExpiringMap::new(&timer));
    println!("ada: {} of 5 calls", limiter.count("ada", 5));
    println!("bob: {} of 2 calls", limiter.count("bob", 2));
    clock.advance(Duration::from_secs(1)); // the clock decides, even if the timer is late
    println!(
        "a second later, ada: {} of 4 calls",
        limiter.count("ada", 4)
    );
    let calls: usize = thread::scope(|scope| {
        let call = |_| scope.spawn(|| limiter.count("grace", 100));
        let threads: Vec<_> = (0..4).map(call).collect();
        let counts = threads.into_iter().map(|thread| thread.join().unwrap());
        counts.sum()
    });
    println!("4 threads, grace: {calls} of 400 calls");
    Ok(())
}
