//! Retry crates sleep through a trait or a function of the user: `Sleeper` of backon, `MakeDelay`
//! and the like of others. Here it is this timer.
//!
//! ```text
//! the answer, after 4 attempts
//! ```
use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use backon::{Retryable, Sleeper};
use hashed_wheel::{HashedWheelTimer, Sleep};
use hashed_wheel_util::{Backoff, Jitter};

struct Wheel(HashedWheelTimer);

impl Sleeper for Wheel {
    type Sleep = Pause;

    fn sleep(&self, pause: Duration) -> Pause {
        Pause(self.0.sleep(pause))
    }
}

/// A sleep without a result. If the timer is stopped, the next attempt comes at once.
struct Pause(Sleep);

impl Future for Pause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(drop)
    }
}

fn main() {
    const PAUSE: Duration = Duration::from_millis(20);

    let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    let attempts = Cell::new(0);
    let fetch = || async {
        attempts.set(attempts.get() + 1);
        if attempts.get() < 4 {
            Err("connection reset")
        } else {
            Ok("the answer")
        }
    };
    let pauses = Backoff::new(PAUSE).jitter(Jitter::Equal).take(5);
    let begin = Instant::now();
    let answer = smol::block_on(fetch.retry(pauses).sleep(Wheel(timer)).into_future());
    assert_eq!((answer, attempts.get()), (Ok("the answer"), 4));
    assert!(begin.elapsed() >= (PAUSE + PAUSE * 2 + PAUSE * 4) / 2);
    println!("the answer, after {} attempts", attempts.get());
}
