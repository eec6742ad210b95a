//! Sessions that end after a time without a request. The callback comes when a session ends, not at
//! the next access.
//!
//! ```text
//! ada has 2 requests
//! bob has logged out
//! the session of ada has ended after 2 requests
//! ```

use std::sync::mpsc;
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_util::{ExpiringMap, Removed};

fn main() -> Result<(), NewTimeoutError> {
    const IDLE: Duration = Duration::from_millis(200);

    let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
    let (sender, ended) = mpsc::channel();
    let sessions = ExpiringMap::with_handler(&timer, move |session: Removed<&'static str, u32>| {
        _ = sender.send((session.key, session.value));
    });

    sessions.insert("ada", 1, IDLE)?;
    sessions.insert("bob", 1, IDLE)?;
    // A request changes the value under its lock, and moves the deadline.
    sessions.with("ada", |requests| *requests += 1);
    sessions.touch("ada", IDLE);
    println!(
        "ada has {:?} requests",
        sessions.get("ada").unwrap_or_default()
    );
    if sessions.remove("bob").is_some() {
        println!("bob has logged out");
    }

    let (user, requests) = ended.recv().expect("the map lives");
    println!("the session of {user} has ended after {requests} requests");
    Ok(())
}
