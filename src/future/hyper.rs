//! hyper's timeouts.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{self, Timer};

use super::Sleep;
use crate::timer::HashedWheelTimer;

/// With feature `hyper`: hyper's servers and clients take their timeouts from this timer.
///
/// hyper knows no error here. Where a [`Sleep`] resolves with one (the timer is stopped, or as many timeouts are pending as
/// are allowed), the timer is asked once more when the task runs again, and then the time counts as over: a connection
/// that nobody watches is closed, rather than left open for ever.
///
/// # Examples
///
/// ```
/// # mod server { pub fn header_read_timeout<T: hyper::rt::Timer + Send + Sync + 'static>(_: T) {} }
/// let timer = hashed_wheel::HashedWheelTimer::default();
/// // hyper::server::conn::http1::Builder::new()
/// //     .timer(timer.clone())
/// //     .header_read_timeout(Duration::from_secs(10))
/// # server::header_read_timeout(timer.clone());
/// ```
impl Timer for HashedWheelTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(UntilOver { sleep: self.sleep(duration), has_failed: false })
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Timer::sleep(self, left(deadline))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<UntilOver>() {
            Some(mut sleep) => {
                sleep.sleep.reset(left(new_deadline));
                sleep.has_failed = false;
            }
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

struct UntilOver {
    sleep: Sleep,
    has_failed: bool,
}

impl rt::Sleep for UntilOver {}

impl Future for UntilOver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let is_over = ready!(Pin::new(&mut self.sleep).poll(context)).is_ok();
        if !is_over && !self.has_failed {
            // Who sleeps in a loop is not to keep others from running.
            self.has_failed = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}
