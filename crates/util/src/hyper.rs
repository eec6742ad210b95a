//! hyper's `Timer`: feature `hyper`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{self, Timer};

use hashed_wheel::{HashedWheelTimer, Sleep};

/// A timer from which hyper's servers and clients take their timeouts, with feature `hyper`.
///
/// hyper's interface has no error. A [`Sleep`] may resolve with one: the timer is stopped, or the
/// limit of pending timeouts is reached. Then the timer is tried once more when the task runs
/// again, and after that the time counts as over. So a connection without a timeout is closed, and
/// not left open permanently.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::HyperTimer;
/// use hyper::server::conn::http1;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
/// let mut server = http1::Builder::new();
/// server.timer(HyperTimer::new(&timer)).header_read_timeout(Duration::from_secs(10));
/// ```
#[derive(Debug, Clone)]
pub struct HyperTimer {
    timer: HashedWheelTimer,
}

impl HyperTimer {
    /// Makes hyper's view of `timer`. It is a handle: it keeps the timer running.
    #[must_use]
    pub fn new(timer: &HashedWheelTimer) -> Self {
        Self {
            timer: timer.clone(),
        }
    }
}

impl Timer for HyperTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(UntilOver {
            sleep: self.timer.sleep(duration),
            has_failed: false,
        })
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(UntilOver {
            sleep: self.timer.sleep_until(deadline),
            has_failed: false,
        })
    }

    /// Returns [`HashedWheelTimer::now`]: hyper computes its deadlines from the timer's clock.
    fn now(&self) -> Instant {
        self.timer.now()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<UntilOver>() {
            Some(mut sleep) => {
                sleep.sleep.reset_at(new_deadline);
                sleep.has_failed = false;
            }
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

/// A sleep without an error. `has_failed`: the last poll of `sleep` returned an error.
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
            // Yield once, so that a task that sleeps in a loop does not keep others from running.
            self.has_failed = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}
