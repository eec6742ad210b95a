//! A pool of idle connections. The last one that was given back is taken first, so those that are
//! not needed stay idle. Each is closed after an idle time, or at the end of its life.
//!
//! ```text
//! a and b are closed after 10 s, c after a minute
//! ```
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hashed_wheel::{CancelOnDrop, HashedWheelTimer, ManualClock};

struct Pool<T> {
    timer: HashedWheelTimer,
    idle_time: Duration,
    time_to_live: Duration,
    idle: Arc<Mutex<Vec<Idle<T>>>>,
}

type Opened<T> = (T, Instant);
type Idle<T> = (Opened<T>, CancelOnDrop);

impl<T: Send + 'static> Pool<T> {
    fn take(&self) -> Option<Opened<T>> {
        let mut idle = self.idle.lock().unwrap();
        // The clock decides, even if the timer is late. Its task closes the others.
        let last = idle
            .iter()
            .rposition(|(_, close)| !close.remaining().is_zero())?;
        Some(idle.remove(last).0)
    }

    fn give_back(&self, connection: Opened<T>) -> Result<(), hashed_wheel::NewTimeoutError> {
        let end = (self.timer.now() + self.idle_time).min(connection.1 + self.time_to_live);
        // A pool that is dropped closes its connections, so they must not keep it.
        let weak = Arc::downgrade(&self.idle);
        // The task cannot look for the connection before it is there.
        let mut idle = self.idle.lock().unwrap();
        let close = self.timer.new_timeout_at(
            move |own| {
                let Some(idle) = weak.upgrade() else { return };
                let mut idle = idle.lock().unwrap();
                let _closed = idle
                    .iter()
                    .position(|(_, timeout)| **timeout == *own)
                    .map(|at| idle.remove(at));
                drop(idle); // the connection is closed without the lock
            },
            end,
        )?;
        idle.push((connection, close.cancel_on_drop()));
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (clock, second) = (ManualClock::new(), Duration::from_secs(1));
    let (timer, mut driver) = HashedWheelTimer::builder()
        .clock(clock.clone())
        .build_driven()?;
    let pool = Pool {
        timer,
        idle_time: second * 10,
        time_to_live: second * 60,
        idle: Arc::default(),
    };
    ["a", "b", "c"]
        .into_iter()
        .try_for_each(|name| pool.give_back((name, pool.timer.now())))?;
    let last = pool.take().unwrap();
    clock.advance(second * 10);
    assert_eq!((last.0, pool.take(), driver.turn()), ("c", None, 2));
    clock.advance(second * 45);
    pool.give_back(last)?;
    clock.advance(second * 5);
    assert_eq!((pool.take(), driver.turn()), (None, 1));
    println!("a and b are closed after 10 s, c after a minute");
    Ok(())
}
