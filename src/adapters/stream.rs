//! [`Interval`] as a stream of futures-core.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};

use crate::error::NewTimeoutError;
use crate::future::Interval;

/// Without end, until the timer is stopped: the error is the last item. So is
/// [`ZeroPeriod`](NewTimeoutError::ZeroPeriod); after another error the timer is asked again.
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
