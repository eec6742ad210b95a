//! futures-core's `Stream` for intervals, queues and maps: feature `stream`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_core::{FusedStream, Stream};
use hashed_wheel::{Interval, NewTimeoutError};

use crate::delay_queue::{DelayQueue, Expired};
use crate::{Removed, RemovedEntries, time};

/// A `Stream` of the ticks of an [`Interval`], with feature `stream`: tokio-stream's
/// `IntervalStream`.
///
/// The stream ends when the timer is stopped. The error [`Stopped`](NewTimeoutError::Stopped) is
/// its last item, as is [`ZeroPeriod`](NewTimeoutError::ZeroPeriod). After any other error the next
/// poll tries again.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::IntervalStream;
/// use std::pin::Pin;
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # use futures_core::Stream;
/// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
/// let mut ticks = IntervalStream::new(timer.interval(Duration::from_millis(5)));
/// let tick = std::future::poll_fn(|context| Pin::new(&mut ticks).poll_next(context)).await;
/// assert!(tick.is_some_and(|tick| tick.is_ok()));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a stream does nothing unless it is polled"]
pub struct IntervalStream {
    interval: Interval,
    /// It has returned its last item.
    has_ended: bool,
}

impl IntervalStream {
    /// Makes a stream of the ticks of `interval`.
    pub fn new(interval: Interval) -> Self {
        Self {
            interval,
            has_ended: false,
        }
    }

    /// Returns the interval.
    pub fn into_inner(self) -> Interval {
        self.interval
    }
}

impl Stream for IntervalStream {
    type Item = Result<Instant, NewTimeoutError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let tick = ready!(self.interval.poll_tick(context));
        self.has_ended = matches!(
            tick,
            Err(NewTimeoutError::Stopped | NewTimeoutError::ZeroPeriod)
        );
        Poll::Ready(Some(tick))
    }
}

impl FusedStream for IntervalStream {
    fn is_terminated(&self) -> bool {
        self.has_ended
    }
}

/// The stream never ends. tokio-stream's `IntervalStream`.
impl Stream for time::Interval {
    type Item = time::Instant;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<time::Instant>> {
        self.get_mut().poll_tick(context).map(Some)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

impl FusedStream for time::Interval {
    fn is_terminated(&self) -> bool {
        false
    }
}

/// The stream waits while the queue is empty. It ends when the timer is stopped and no value is
/// due: the error [`Stopped`](NewTimeoutError::Stopped) is its last item. After any other error the
/// next poll tries again.
///
/// Values that are left can be [received](DelayQueue::try_recv) or [drained](DelayQueue::drain)
/// after the end of the stream. Each handle is a stream of its own.
impl<T: Send + 'static> Stream for DelayQueue<T> {
    type Item = Result<Expired<T>, NewTimeoutError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let expired = ready!(self.poll_expired(context));
        self.has_ended = matches!(expired, Err(NewTimeoutError::Stopped));
        Poll::Ready(Some(expired))
    }
}

impl<T: Send + 'static> FusedStream for DelayQueue<T> {
    fn is_terminated(&self) -> bool {
        self.has_ended
    }
}

/// The stream ends when the map is gone, as [`recv`](RemovedEntries::recv) does.
impl<K, V> Stream for RemovedEntries<K, V> {
    type Item = Removed<K, V>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_recv(context)
    }
}

impl<K, V> FusedStream for RemovedEntries<K, V> {
    fn is_terminated(&self) -> bool {
        self.has_ended()
    }
}
