//! The client: a deadline for the whole call, retries after a pause that grows, and a second request where the first one is
//! slow.
//!
//! The part to copy. It knows nothing of a network: a request is a future, and to drop it has to give the request up, as
//! it does with a socket or with hyper's. What a call waits for is dropped with it, and so cancelled there and then: of all
//! its timeouts none is left when it returns.

#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, TimeoutError};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    /// For the whole call: all attempts, and the pauses in between.
    pub(crate) deadline: Duration,
    /// For one attempt, its hedge included.
    pub(crate) attempt: Duration,
    /// How many attempts there may be after the first one.
    pub(crate) retries: u32,
    /// How long the pause before the first retry is at most; before each further one it is twice that. How long it really is
    /// is left to chance, or all who were cut off at the same moment would come back at the same moment.
    pub(crate) backoff: Duration,
    /// Who has no answer after so long asks a second time, and takes the answer that comes first. Best what 95 in 100
    /// requests take: then 5 in 100 are sent twice.
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
    /// The call has taken too long.
    Deadline,
    /// The last attempt has taken too long.
    Unanswered,
    /// The last attempt has failed.
    Failed(E),
    /// The timer is stopped, or has refused a timeout.
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

    /// For what may be done twice: `send` makes the same request as often as it is called. What comes as `Err` is tried again:
    /// an answer that says no belongs into `Ok`.
    pub(crate) async fn call<T, E, F>(&self, send: impl FnMut(Reason) -> F) -> Result<T, GaveUp<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.budget.earn();
        self.timer.timeout(self.policy.deadline, self.attempts(send)).await?
    }

    /// For what may not: one request, and the deadline. Whether it was done is not known if there is no answer.
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
        // By reference, so that it goes on when the time is over.
        match self.timer.timeout(after, first.as_mut()).await {
            Ok(end) => return end,
            Err(TimeoutError::Elapsed) if self.budget.spend() => {}
            Err(_) => return first.await,
        }
        let mut second = pin!(send(Reason::Hedge));
        // An answer ends both; where one has failed, the other one may still be answered.
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

/// How many retries and hedges may be sent: one for so many calls, beside some in reserve. A server that is slow because it
/// has too much to do would get several times as much to do otherwise.
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
