//! The interface of the service to a timer, and its implementations: this crate's and tokio's.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use tokio::time::Instant;

pub(crate) trait Timers: Send + Sync + 'static {
    type Sleep: Sleep;

    fn sleep(&self, delay: Duration) -> Self::Sleep;

    /// Returns `None` if the delay ends first.
    fn timeout<F: Future + Send>(
        &self,
        delay: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + Send;
}

/// tokio's `Sleep` must be pinned, so all of them are pinned.
pub(crate) trait Sleep: Send + 'static {
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()>;

    fn reset(self: Pin<&mut Self>, delay: Duration);
}

/// If a timer is stopped or rejects a timeout, it cannot enforce a limit any more. Therefore such a
/// timeout ends immediately.
impl Timers for HashedWheelTimer {
    type Sleep = hashed_wheel::Sleep;

    fn sleep(&self, delay: Duration) -> Self::Sleep {
        self.sleep(delay)
    }

    async fn timeout<F: Future + Send>(&self, delay: Duration, future: F) -> Option<F::Output> {
        self.timeout(delay, future).await.ok()
    }
}

impl Sleep for hashed_wheel::Sleep {
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Future::poll(self, context).map(drop)
    }

    fn reset(self: Pin<&mut Self>, delay: Duration) {
        self.get_mut().reset(delay);
    }
}

/// A module that is `tokio::time`, or takes its place.
macro_rules! implement_on_module {
    ($(#[$doc:meta])* $name:ident, $($time:ident)::+) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Timers for $name {
            type Sleep = $($time)::+::Sleep;

            fn sleep(&self, delay: Duration) -> Self::Sleep {
                $($time)::+::sleep(delay)
            }

            async fn timeout<F: Future + Send>(&self, delay: Duration, future: F) -> Option<F::Output> {
                $($time)::+::timeout(delay, future).await.ok()
            }
        }

        impl Sleep for $($time)::+::Sleep {
            fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
                Future::poll(self, context)
            }

            fn reset(self: Pin<&mut Self>, delay: Duration) {
                self.reset(Instant::now() + delay);
            }
        }
    };
}

implement_on_module!(
    /// The timer of the runtime.
    Tokio,
    tokio::time
);
implement_on_module!(
    /// The module of hashed-wheel-util.
    Module,
    hashed_wheel_util::time
);
