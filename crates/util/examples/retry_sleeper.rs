//! Retry crates sleep through a trait or a function of the user: `Sleeper` of backon, `MakeDelay`
//! and the like of others. Here it is this timer.
//!
//! ```text
//! the answer, after 4 attempts
//! ```
use std::cell::Cell;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use backon::{ConstantBuilder, Retryable, Sleeper};
use hashed_wheel::{HashedWheelTimer, ManualClock, Sleep};

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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (clock, pause) = (ManualClock::new(), Duration::from_millis(50));
    let (timer, mut driver) = HashedWheelTimer::builder()
        .clock(clock.clone())
        .build_driven()?;
    let attempts = Cell::new(0);
    let fetch = || async {
        attempts.set(attempts.get() + 1);
        if attempts.get() < 4 {
            Err("connection reset")
        } else {
            Ok("the answer")
        }
    };
    let policy = ConstantBuilder::default()
        .with_delay(pause)
        .with_max_times(5);
    let mut answer = pin!(
        fetch
            .retry(policy)
            .sleep(Wheel(timer.clone()))
            .into_future()
    );

    let begin = timer.now();
    let answer = loop {
        if let Poll::Ready(answer) = answer
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            break answer;
        }
        clock.advance(driver.next_turn().expect("it sleeps"));
        driver.turn();
    };
    assert_eq!((answer, attempts.get()), (Ok("the answer"), 4));
    assert!(timer.now() - begin >= pause * 3);
    println!("the answer, after {} attempts", attempts.get());
    Ok(())
}
