//! A pool of idle connections. Each is closed after an idle time, or at the end of its life.
//!
//! ```text
//! a and b are closed after 10 s, c after a minute
//! ```
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hashed_wheel::{CancelOnDrop, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout};

const IDLE_TIME: Duration = Duration::from_secs(10);
const TIME_TO_LIVE: Duration = Duration::from_secs(60);

struct Pool<T> {
    timer: HashedWheelTimer,
    idle: Arc<Mutex<Vec<Idle<T>>>>,
}

type Idle<T> = ((T, Instant), CancelOnDrop);

impl<T: Send + 'static> Pool<T> {
    fn take(&self) -> Option<(T, Instant)> {
        let mut idle = self.idle.lock().unwrap();
        // The last one, so that the others stay idle. The clock decides, even if the timer is late.
        let is_open = |(_, close): &Idle<T>| !close.remaining().is_zero();
        idle.iter().rposition(is_open).map(|at| idle.remove(at).0)
    }

    fn give_back(&self, connection: (T, Instant)) -> Result<(), NewTimeoutError> {
        let end = (self.timer.now() + IDLE_TIME).min(connection.1 + TIME_TO_LIVE);
        let weak = Arc::downgrade(&self.idle); // a pool that is dropped closes its connections
        let close = move |own: &Timeout| {
            let Some(idle) = weak.upgrade() else { return };
            let mut idle = idle.lock().unwrap();
            let is_own = |(_, close): &Idle<T>| **close == *own;
            let _closed = idle.iter().position(is_own).map(|at| idle.remove(at));
            drop(idle); // the connection is closed without the lock
        };
        let mut idle = self.idle.lock().unwrap(); // until the task can find the connection
        let close = self.timer.new_timeout_at(close, end)?.cancel_on_drop();
        idle.push((connection, close));
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (clock, idle, second) = (ManualClock::new(), Arc::default(), Duration::from_secs(1));
    let builder = HashedWheelTimer::builder().clock(clock.clone());
    let (timer, mut driver) = builder.build_driven()?;
    let pool = Pool { timer, idle };
    for name in ["a", "b", "c"] {
        pool.give_back((name, pool.timer.now()))?;
    }
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
