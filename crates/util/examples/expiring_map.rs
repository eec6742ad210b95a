//! Sessions that are written to a database when they were not used for a while, and read from there
//! when they are used again. The key of a session is reserved until it is written, so no request is
//! lost. (A map stands in for the database, and a manual clock for the time between requests.)
//!
//! ```text
//! ada: request 1
//! ada: request 2
//! written: ada, 2 requests, Expired
//! ada: request 3
//! written: ada, 3 requests, Stopped
//! ```
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, ManualClock, NewTimeoutError};
use hashed_wheel_util::{ExpiringMap, Removed};

const IDLE: Duration = Duration::from_secs(30);

type Rows = Arc<Mutex<HashMap<&'static str, u32>>>;

struct Sessions {
    requests: ExpiringMap<&'static str, u32>,
    rows: Rows,
}

impl Sessions {
    fn new(timer: &HashedWheelTimer) -> Self {
        let rows = Rows::default();
        let table = Arc::clone(&rows);
        let builder = ExpiringMap::builder(timer).time_to_idle(IDLE);
        let requests = builder.build_with_write_back(move |session: Removed<_, _>| {
            let Removed { key, value, cause } = session;
            table.lock().unwrap().insert(key, value);
            println!("written: {key}, {value} requests, {cause:?}");
        });
        Self { requests, rows }
    }

    /// One user's requests come one after the other, while the row is read too.
    fn request(&self, user: &'static str) -> Result<(), NewTimeoutError> {
        let read = || self.rows.lock().unwrap().get(user).copied().unwrap_or(0);
        let entry = self.requests.entry(user);
        let mut count = entry.or_insert_with(read, Duration::MAX)?;
        *count.get_mut() += 1;
        println!("{user}: request {}", count.get());
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().clock(clock.clone());
    let (timer, _driver) = builder.build_driven()?;
    let sessions = Sessions::new(&timer);
    sessions.request("ada")?;
    clock.advance(IDLE / 2);
    sessions.request("ada")?;
    clock.advance(IDLE); // the timer is late: the next request writes the session
    sessions.request("ada")?;
    timer.stop();
    Ok(())
}
