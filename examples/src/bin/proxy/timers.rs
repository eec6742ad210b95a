//! What the proxy asks of a timer, and those that it can have: this crate's, and tokio's.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hashed_wheel::{BuildError, Builder, HashedWheelTimer};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

pub(crate) trait Timers: Send + Sync + 'static {
    type Sleep: Sleep;

    fn sleep(&self, delay: Duration) -> Self::Sleep;

    /// `None` if the delay is over first.
    fn timeout<F: Future + Send>(
        &self,
        delay: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + Send;
}

/// tokio's has to stay where it is, so all are used as if they had to.
pub(crate) trait Sleep: Send + 'static {
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()>;

    fn reset(self: Pin<&mut Self>, delay: Duration);
}

/// A timer that is stopped, or refuses, guards nothing any more: then all time is over.
impl Timers for HashedWheelTimer {
    type Sleep = hashed_wheel::Sleep;

    fn sleep(&self, delay: Duration) -> Self::Sleep {
        self.sleep(delay)
    }

    async fn timeout<F: Future + Send>(&self, delay: Duration, future: F) -> Option<F::Output> {
        self.timeout(delay, future).await.ok()
    }
}

/// A wheel without a thread. What falls due is woken from within the runtime then. Where that has more to do than it can, its
/// threads have long queues of their own to go through before they look for what others have woken.
pub(crate) fn turned_by_a_task(builder: Builder, runtime: &Runtime) -> Result<HashedWheelTimer, BuildError> {
    let bell = Arc::new(Notify::new());
    let ring = Arc::clone(&bell);
    let (timer, mut driver) = builder.waker(move || ring.notify_one()).build_driven()?;
    runtime.spawn(async move {
        while !driver.is_stopped() {
            driver.turn();
            match driver.next_turn() {
                Some(wait) => drop(timeout(wait, bell.notified()).await),
                None => bell.notified().await,
            }
        }
    });
    Ok(timer)
}

impl Sleep for hashed_wheel::Sleep {
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Future::poll(self, context).map(drop)
    }

    fn reset(self: Pin<&mut Self>, delay: Duration) {
        self.get_mut().reset(delay);
    }
}

/// The timer of the runtime.
pub(crate) struct Tokio;

impl Timers for Tokio {
    type Sleep = tokio::time::Sleep;

    fn sleep(&self, delay: Duration) -> Self::Sleep {
        tokio::time::sleep(delay)
    }

    async fn timeout<F: Future + Send>(&self, delay: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(delay, future).await.ok()
    }
}

impl Sleep for tokio::time::Sleep {
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Future::poll(self, context)
    }

    fn reset(self: Pin<&mut Self>, delay: Duration) {
        self.reset(Instant::now() + delay);
    }
}
