//! A client with a deadline, retries, a budget for them and hedged requests: feature `client`.
//!
//! [`Client::call`] makes an operation that may be repeated; the [`Policy`] says how often and
//! when. A request is a future, so this works with every protocol and on every runtime. It is one
//! type and not a set of layers, because the parts depend on each other: the deadline limits the
//! pauses, the limit of an attempt includes its hedge, and retries and hedges share one [`Budget`].
//!
//! When a call ends, it drops everything that it waits for. That cancels its timeouts immediately,
//! so no timeout of a call is left when it returns.

use std::collections::hash_map::RandomState;
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};
use std::{error, fmt};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, TimeoutError};

use crate::deadlines::nanos;
use crate::sync::{Arc, AtomicU32, Ordering};

/// How long a [`Client`] waits, and how often it repeats a request.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::client::Policy;
/// use std::time::Duration;
///
/// let mut policy = Policy::new(Duration::from_secs(1));
/// policy.attempt_timeout = Some(Duration::from_millis(300));
/// policy.retries = 2;
/// policy.hedge_after = Some(Duration::from_millis(50));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// The limit for the whole call: all attempts, and the pauses between them.
    pub deadline: Duration,
    /// The limit for one attempt, including its hedge. `None`, the initial value, is no limit.
    pub attempt_timeout: Option<Duration>,
    /// The maximum number of attempts after the first one. Initially 0.
    pub retries: u32,
    /// The maximum pause before the first retry. It doubles for each further retry. The actual
    /// pause is random, from zero to the maximum: otherwise all calls that failed at the same time
    /// would be repeated at the same time. Initially 100 ms.
    pub backoff: Duration,
    /// The limit up to which the maximum pause doubles. Initially 10 s.
    pub max_backoff: Duration,
    /// The time after which an attempt sends a second request, a hedge. The first answer to arrive
    /// is used. A good value is the 95th percentile of the answer times: then 5 of 100 requests are
    /// sent twice. `None`, the initial value, sends no hedges.
    pub hedge_after: Option<Duration>,
}

impl Policy {
    /// Makes a policy with this deadline, without retries and hedges.
    #[must_use]
    pub const fn new(deadline: Duration) -> Self {
        Self {
            deadline,
            attempt_timeout: None,
            retries: 0,
            backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(10),
            hedge_after: None,
        }
    }

    /// Returns a random pause before a retry, of which there were `retries` before.
    fn pause(&self, retries: u32) -> Duration {
        let longest = self.backoff.saturating_mul(2_u32.saturating_pow(retries)).min(self.max_backoff);
        // Each `RandomState` has other keys, so the hash of a constant is a random number.
        let random = RandomState::new().hash_one(());
        Duration::from_nanos(random % nanos(longest).saturating_add(1))
    }
}

/// Why a request is sent.
///
/// # Examples
///
/// See [`Client::call`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It is the first request of the call.
    First,
    /// The attempt before it has failed or timed out.
    Retry,
    /// The request before it has not been answered for [`Policy::hedge_after`]. It is not
    /// withdrawn.
    Hedge,
}

/// Why a call has no answer.
///
/// # Examples
///
/// What a proxy answers:
///
/// ```
/// use hashed_wheel_util::client::CallError;
///
/// fn status<E>(error: &CallError<E>) -> u16 {
///     match error {
///         CallError::Deadline | CallError::AttemptTimeout => 504, // gateway timeout
///         CallError::Timer(_) => 503,                             // this proxy stops, or is full
///         _ => 502,                                               // bad gateway
///     }
/// }
/// assert_eq!(status::<std::io::Error>(&CallError::Deadline), 504);
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError<E> {
    /// The [deadline](Policy::deadline) of the call has passed.
    Deadline,
    /// The last attempt has [timed out](Policy::attempt_timeout).
    AttemptTimeout,
    /// The last attempt has failed.
    Failed(E),
    /// The timer is stopped or has rejected a timeout.
    Timer(NewTimeoutError),
}

impl<E> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadline => "the deadline of the call has passed",
            Self::AttemptTimeout => "the last attempt has timed out",
            Self::Failed(_) => "the last attempt has failed",
            Self::Timer(_) => "the deadline could not be watched",
        })
    }
}

impl<E: error::Error + 'static> error::Error for CallError<E> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Deadline | Self::AttemptTimeout => None,
            Self::Failed(error) => Some(error),
            Self::Timer(error) => Some(error),
        }
    }
}

/// The end of the time for the whole call.
impl<E> From<TimeoutError> for CallError<E> {
    fn from(error: TimeoutError) -> Self {
        match error {
            TimeoutError::Elapsed => Self::Deadline,
            TimeoutError::Timer(error) => Self::Timer(error),
        }
    }
}

/// Makes calls with a [`Policy`]. Clones share the [`Budget`].
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::client::{CallError, Client, Policy};
/// use std::io;
/// use std::time::Duration;
///
/// # struct Key;
/// # async fn get(_: &Key) -> io::Result<String> { Ok(String::new()) }
/// async fn look_up(client: &Client, key: &Key) -> Result<String, CallError<io::Error>> {
///     client.call(|_| get(key)).await
/// }
///
/// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
/// let mut policy = Policy::new(Duration::from_secs(1));
/// policy.retries = 2;
/// let client = Client::new(&timer, policy);
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(look_up(&client, &Key)).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    timer: HashedWheelTimer,
    policy: Policy,
    budget: Budget,
}

impl Client {
    /// Makes a client with the default [`Budget`].
    #[must_use]
    pub fn new(timer: &HashedWheelTimer, policy: Policy) -> Self {
        Self::with_budget(timer, policy, Budget::default())
    }

    /// Makes a client with this budget. Clients of one server should share one.
    #[must_use]
    pub fn with_budget(timer: &HashedWheelTimer, policy: Policy, budget: Budget) -> Self {
        Self { timer: timer.clone(), policy, budget }
    }

    /// Calls an operation that may be repeated.
    ///
    /// Each call of `send` must make the same request. It receives the reason, for example for a
    /// header or a counter. Dropping the returned future must abort the request, as with a socket
    /// or with hyper. An `Err` is retried, so an answer that is negative belongs in `Ok`.
    ///
    /// An attempt with a hedge has failed if both requests have. If only one of them has, the call
    /// waits for the other.
    ///
    /// # Errors
    ///
    /// A [`CallError`] says why there is no answer. If the retries or the budget are exhausted, or
    /// the pause before the next retry would last until the deadline, it is the failure of the last
    /// attempt.
    ///
    /// # Examples
    ///
    /// A retry is marked for the server:
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::client::{CallError, Client, Policy, Reason};
    /// use std::time::Duration;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let mut policy = Policy::new(Duration::from_secs(1));
    /// (policy.retries, policy.backoff) = (1, Duration::from_millis(2));
    /// let client = Client::new(&timer, policy);
    /// let answer = client.call(|reason| async move {
    ///     match reason {
    ///         Reason::First => Err("connection reset"),
    ///         _ => Ok("the answer to the retry"),
    ///     }
    /// });
    /// assert_eq!(answer.await?, "the answer to the retry");
    /// # Ok::<(), CallError<&str>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn call<T, E, F>(&self, send: impl FnMut(Reason) -> F) -> Result<T, CallError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.budget.earn();
        // None: the deadline is too far to be represented.
        let deadline = self.timer.now().checked_add(self.policy.deadline);
        self.timer.timeout(self.policy.deadline, self.attempts(deadline, send)).await?
    }

    /// Calls an operation that must not be repeated: one request with the deadline.
    ///
    /// # Errors
    ///
    /// As for [`call`](Self::call). Without an answer it is unknown whether the operation was done.
    ///
    /// # Examples
    ///
    /// A payment is not repeated:
    ///
    /// ```
    /// use hashed_wheel_util::client::{CallError, Client};
    ///
    /// # #[derive(Debug)]
    /// # struct Refused;
    /// async fn pay(client: &Client, request: impl Future<Output = Result<(), Refused>>) {
    ///     match client.call_once(request).await {
    ///         Ok(()) => println!("paid"),
    ///         Err(CallError::Failed(refused)) => println!("not paid: {refused:?}"),
    ///         Err(error) => println!("unknown, ask the server: {error:?}"),
    ///     }
    /// }
    /// # let timer = hashed_wheel::HashedWheelTimer::default();
    /// # let client = Client::new(&timer, hashed_wheel_util::client::Policy::new(std::time::Duration::from_secs(1)));
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(pay(&client, async { Ok(()) }));
    /// ```
    pub async fn call_once<T, E>(
        &self,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, CallError<E>> {
        self.timer.timeout(self.policy.deadline, request).await?.map_err(CallError::Failed)
    }

    /// Makes attempts until the `deadline`. An attempt in progress goes on after that.
    async fn attempts<T, E, F>(
        &self,
        deadline: Option<Instant>,
        mut send: impl FnMut(Reason) -> F,
    ) -> Result<T, CallError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut reason = Reason::First;
        let mut retries = 0;
        loop {
            let attempt = self.hedged(reason, &mut send);
            let end = match self.policy.attempt_timeout {
                Some(limit) => self.timer.timeout(limit, attempt).await,
                None => Ok(attempt.await),
            };
            let failure = match end {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => CallError::Failed(error),
                Err(TimeoutError::Elapsed) => CallError::AttemptTimeout,
                Err(TimeoutError::Timer(error)) => return Err(CallError::Timer(error)),
            };
            // Here too, because attempts that fail without waiting never let the deadline end the
            // call.
            let left = deadline
                .map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(self.timer.now()));
            if left.is_zero() {
                return Err(CallError::Deadline);
            }
            let pause = self.policy.pause(retries);
            let is_possible = pause < left;
            if retries == self.policy.retries || !is_possible || !self.budget.spend() {
                return Err(failure);
            }
            self.timer.sleep(pause).await.map_err(CallError::Timer)?;
            retries += 1;
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
        let second = pin!(send(Reason::Hedge));
        first_answer(first, second).await
    }
}

/// Returns the first answer. If one request fails, the other one may still be answered.
async fn first_answer<T, E, F: Future<Output = Result<T, E>>>(
    mut first: Pin<&mut F>,
    mut second: Pin<&mut F>,
) -> Result<T, E> {
    let (end, is_of_first) = poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(end) => Poll::Ready((end, true)),
        Poll::Pending => second.as_mut().poll(context).map(|end| (end, false)),
    })
    .await;
    match end {
        Ok(answer) => Ok(answer),
        Err(_) if is_of_first => second.await,
        Err(_) => first.await,
    }
}

/// Limits the retries and hedges to a fraction of the calls, in addition to a reserve. Without a
/// limit, a server that is slow because of overload would get several times as many requests.
/// Finagle's `RetryBudget`. Clones share their state.
///
/// Only [`Client::call`] adds to it: operations that are not repeated do not count.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::client::{Budget, Client, Policy};
/// use std::time::Duration;
///
/// // 20 retries and hedges, and one more per 5 calls.
/// let budget = Budget::new(20, 5);
/// let timer = HashedWheelTimer::default();
/// let [reader, scanner] = [1, 30].map(|seconds| {
///     Client::with_budget(&timer, Policy::new(Duration::from_secs(seconds)), budget.clone())
/// });
/// ```
#[derive(Debug, Clone)]
pub struct Budget {
    /// One per call. A retry or hedge takes [`price`](Self::price) of them.
    tokens: Arc<AtomicU32>,
    max_tokens: u32,
    price: u32,
}

impl Budget {
    /// Makes a budget of one retry or hedge per `calls_per_retry` calls, in addition to a reserve
    /// of `reserve` of them, which is full now. With zero `calls_per_retry` there is no limit.
    #[must_use]
    pub fn new(reserve: u32, calls_per_retry: u32) -> Self {
        let tokens = reserve.saturating_mul(calls_per_retry);
        // Room to save for one more.
        let max_tokens = tokens.saturating_add(calls_per_retry);
        Self { tokens: Arc::new(AtomicU32::new(tokens)), max_tokens, price: calls_per_retry }
    }

    fn earn(&self) {
        let add = |tokens| (tokens < self.max_tokens).then_some(tokens + 1);
        let _full = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    fn spend(&self) -> bool {
        let take = |tokens: u32| tokens.checked_sub(self.price);
        self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

/// A reserve of 100 retries and hedges, and one per 10 calls.
impl Default for Budget {
    fn default() -> Self {
        Self::new(100, 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_budget_earns_no_more() {
        let budget = Budget::new(1, 1);
        (0..9).for_each(|_| budget.earn());
        assert_eq!([(); 3].map(|()| budget.spend()), [true, true, false], "the reserve and one more");
    }
}
