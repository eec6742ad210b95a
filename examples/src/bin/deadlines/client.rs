//! The client: a deadline for the whole call, retries with exponential backoff, and a hedged
//! request if the first one is slow.
//!
//! This is the part to copy. It contains no network code: a request is a future, and dropping the
//! future must abort the request, as with a socket or with hyper. When a call ends, it drops
//! everything that it waits for. That cancels the timeouts immediately, so no timeout of the call
//! is left when it returns.

#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, TimeoutError};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    /// The limit for the whole call: all attempts, and the pauses between them.
    pub(crate) deadline: Duration,
    /// The limit for one attempt, including its hedge.
    pub(crate) attempt: Duration,
    /// The maximum number of attempts after the first one.
    pub(crate) retries: u32,
    /// The maximum pause before the first retry. It doubles for each further retry. The actual
    /// pause is random. Otherwise all calls that failed at the same time would be retried at the
    /// same time.
    pub(crate) backoff: Duration,
    /// The time after which a second request is sent (a hedge). The first answer to arrive is used.
    /// A good value is the 95th percentile of the answer times: then 5 of 100 requests are sent
    /// twice.
    pub(crate) hedge_after: Option<Duration>,
}

/// Why a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    First,
    Retry,
    Hedge,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum GaveUp<E> {
    /// The deadline of the call has passed.
    Deadline,
    /// The last attempt has timed out.
    Unanswered,
    /// The last attempt has failed.
    Failed(E),
    /// The timer is stopped or has rejected a timeout.
    Timer(TimeoutError),
}

pub(crate) struct Client {
    timer: HashedWheelTimer,
    policy: Policy,
    budget: Budget,
}

impl Client {
    pub(crate) fn new(timer: HashedWheelTimer, policy: Policy) -> Self {
        Self { timer, policy, budget: Budget::new() }
    }

    /// Calls an operation that may be repeated. Each call of `send` must make the same request. An
    /// `Err` is retried, so an answer that is negative belongs in `Ok`.
    pub(crate) async fn call<T, E, F>(&self, send: impl FnMut(Reason) -> F) -> Result<T, GaveUp<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.budget.earn();
        self.timer.timeout(self.policy.deadline, self.attempts(send)).await?
    }

    /// Calls an operation that must not be repeated: one request with the deadline. Without an
    /// answer it is unknown whether the operation was done.
    pub(crate) async fn call_once<T, E>(
        &self,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, GaveUp<E>> {
        self.timer.timeout(self.policy.deadline, request).await?.map_err(GaveUp::Failed)
    }

    async fn attempts<T, E, F>(&self, mut send: impl FnMut(Reason) -> F) -> Result<T, GaveUp<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        let Policy { attempt, mut retries, mut backoff, .. } = self.policy;
        let mut reason = Reason::First;
        loop {
            let failure = match self.timer.timeout(attempt, self.hedged(reason, &mut send)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => GaveUp::Failed(error),
                Err(TimeoutError::Elapsed) => GaveUp::Unanswered,
                Err(error) => return Err(GaveUp::Timer(error)),
            };
            if retries == 0 || !self.budget.spend() {
                return Err(failure);
            }
            retries -= 1;
            self.timer.sleep(backoff.mul_f64(fastrand::f64())).await.map_err(TimeoutError::Timer)?;
            backoff = backoff.saturating_mul(2);
            reason = Reason::Retry;
        }
    }

    async fn hedged<T, E, F>(&self, reason: Reason, send: &mut impl FnMut(Reason) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut first = pin!(send(reason));
        let Some(after) = self.policy.hedge_after else { return first.await };
        // By reference, so that the first request continues after the time has passed.
        match self.timer.timeout(after, first.as_mut()).await {
            Ok(end) => return end,
            Err(TimeoutError::Elapsed) if self.budget.spend() => {}
            Err(_) => return first.await,
        }
        let mut second = pin!(send(Reason::Hedge));
        // The first answer ends both requests. If one request fails, the other one may still be
        // answered.
        tokio::select! {
            end = &mut first => if end.is_ok() { end } else { second.await },
            end = &mut second => if end.is_ok() { end } else { first.await },
        }
    }
}

impl<E> From<TimeoutError> for GaveUp<E> {
    fn from(error: TimeoutError) -> Self {
        match error {
            TimeoutError::Elapsed => Self::Deadline,
            error => Self::Timer(error),
        }
    }
}

/// Limits the number of retries and hedges: one per `CALLS` calls, in addition to a reserve.
/// Without a limit, a server that is slow because of overload would get several times as many
/// requests.
pub(crate) struct Budget(AtomicU32);

impl Budget {
    pub(crate) const CALLS: u32 = 10;
    pub(crate) const RESERVE: u32 = 100;

    fn new() -> Self {
        Self(AtomicU32::new(Self::CALLS * Self::RESERVE))
    }

    fn earn(&self) {
        let add = |calls| (calls < Self::CALLS * Self::RESERVE).then_some(calls + 1);
        let _full = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    fn spend(&self) -> bool {
        let take = |calls: u32| calls.checked_sub(Self::CALLS);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}
