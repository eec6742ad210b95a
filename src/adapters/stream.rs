//! futures-core's `Stream` for [`Interval`] and [`Expired`]: feature `stream`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};

use crate::error::NewTimeoutError;
use crate::future::Interval;
use crate::keyed::Expired;

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

/// The stream ends when the map is gone, as [`recv`](Expired::recv) does.
impl<K, V> Stream for Expired<K, V> {
    type Item = (K, V);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<(K, V)>> {
        self.poll_recv(context)
    }
}

impl<K, V> FusedStream for Expired<K, V> {
    fn is_terminated(&self) -> bool {
        self.has_ended()
    }
}
