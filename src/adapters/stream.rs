//! futures-core's `Stream` for [`Interval`], [`DelayQueue`] and [`ExpiredEntries`]: feature
//! `stream`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};

use crate::delay_queue::{DelayQueue, Expired};
use crate::error::NewTimeoutError;
use crate::future::Interval;
use crate::keyed::ExpiredEntries;

/// The stream ends when the timer is stopped. The error [`Stopped`](NewTimeoutError::Stopped) is
/// its last item, as is [`ZeroPeriod`](NewTimeoutError::ZeroPeriod). After any other error the next
/// poll tries again.
impl Stream for Interval {
    type Item = Result<(), NewTimeoutError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let tick = ready!(self.poll_tick(context));
        self.has_ended = matches!(tick, Err(NewTimeoutError::Stopped | NewTimeoutError::ZeroPeriod));
        Poll::Ready(Some(tick))
    }
}

impl FusedStream for Interval {
    fn is_terminated(&self) -> bool {
        self.has_ended
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

/// The stream ends when the map is gone, as [`recv`](ExpiredEntries::recv) does.
impl<K, V> Stream for ExpiredEntries<K, V> {
    type Item = (K, V);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<(K, V)>> {
        self.poll_recv(context)
    }
}

impl<K, V> FusedStream for ExpiredEntries<K, V> {
    fn is_terminated(&self) -> bool {
        self.has_ended()
    }
}
