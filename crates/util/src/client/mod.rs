//! A client with a deadline, retries, a budget for them and hedged requests: feature `client`.
//!
//! [`Client::call`] makes an operation that may be repeated; the [`Policy`] says how often and
//! when. A request is a future, so this works with every protocol and on every runtime. It is one
//! type and not a set of layers, because the parts depend on each other: the deadline limits the
//! pauses, the limit of an attempt includes its hedge, and retries and hedges share one [`Budget`].
//!
//! When a call ends, it drops everything that it waits for. That cancels its timeouts immediately,
//! so no timeout of a call is left when it returns.

mod budget;
mod error;
mod latencies;
mod policy;
mod stats;

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, TimeoutError};

use self::latencies::Latencies;
use self::stats::Counters;
use crate::deadline_of_task as deadline;
use crate::sync::Arc;

pub use self::budget::Budget;
pub use self::error::CallError;
pub use self::policy::{AllErrors, Policy, Retry};
pub use self::stats::ClientStats;

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
    /// The request before it has not been answered for the time of [`Policy::hedge_after`] or
    /// [`Policy::hedge_at_percentile`]. It is not withdrawn.
    Hedge,
}

/// Makes calls with a [`Policy`]. Clones share the [`Budget`], the observed answer times and the
/// [counters](Self::stats).
///
/// A call also ends at the [deadline of the request](crate::deadline) during which it is made. What
/// it sends has the nearest of these deadlines as its own.
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
/// let client = Client::new(&timer, Policy::new(Duration::from_secs(1)).retries(2));
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(look_up(&client, &Key)).unwrap();
/// ```
#[derive(Clone)]
#[doc(alias("retry", "hedge", "BackupRequestFilter"))]
pub struct Client<R = AllErrors> {
    timer: HashedWheelTimer,
    policy: Policy<R>,
    /// `None` is no limit.
    budget: Option<Budget>,
    /// For a policy that hedges at a percentile.
    latencies: Option<Arc<Latencies>>,
    counters: Arc<Counters>,
}

impl<R> Client<R> {
    /// Makes a client with the default [`Budget`].
    #[must_use]
    pub fn new(timer: &HashedWheelTimer, policy: Policy<R>) -> Self {
        Self::with_budget(timer, policy, Budget::default())
    }

    /// Makes a client with this budget. Clients of one server should share one. With `None` only
    /// the policy limits the retries and hedges.
    #[must_use]
    pub fn with_budget(
        timer: &HashedWheelTimer,
        policy: Policy<R>,
        budget: impl Into<Option<Budget>>,
    ) -> Self {
        let latencies = policy
            .hedge_percent
            .map(|percent| Arc::new(Latencies::new(percent)));
        Self {
            timer: timer.clone(),
            policy,
            budget: budget.into(),
            latencies,
            counters: Arc::default(),
        }
    }

    /// Returns how many calls, attempts, retries and hedges there have been, and how they ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::client::{Client, Policy};
    /// use std::time::Duration;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let client = Client::new(&HashedWheelTimer::default(), Policy::new(Duration::from_secs(1)));
    /// client.call(|_| async { Ok::<_, &str>("answer") }).await.unwrap();
    /// let stats = client.stats();
    /// assert_eq!((stats.calls, stats.answers, stats.retries), (1, 1, 0));
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        self.counters.stats()
    }

    fn earn(&self) {
        if let Some(budget) = &self.budget {
            budget.earn();
        }
    }

    /// Pays for one retry or hedge. Returns false if the budget does not suffice.
    fn spend(&self) -> bool {
        let is_paid = self.budget.as_ref().is_none_or(Budget::spend);
        if !is_paid {
            self.counters.over_budget.add_one();
        }
        is_paid
    }

    /// Calls an operation that may be repeated.
    ///
    /// Each call of `send` must make the same request. It receives the reason, for example for a
    /// header or a counter. Dropping the returned future must abort the request, as with a socket
    /// or with hyper. An `Err` is retried, unless [`Policy::retry_if`] says otherwise, so an answer
    /// that is negative belongs in `Ok`.
    ///
    /// An attempt with a hedge has failed if both requests have. If only one of them has, the call
    /// waits for the other.
    ///
    /// # Errors
    ///
    /// A [`CallError`] says why there is no answer. It is the failure of the last attempt if that
    /// is not retried: the policy does not retry the error, the retries or the budget are
    /// exhausted, or the pause before the next retry would last until the deadline.
    ///
    /// # Examples
    ///
    /// A retry is marked for the server:
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::Backoff;
    /// use hashed_wheel_util::client::{CallError, Client, Policy, Reason};
    /// use std::time::Duration;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let pauses = Backoff::new(Duration::from_millis(2));
    /// let policy = Policy::new(Duration::from_secs(1)).retries(1).backoff(pauses);
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
        R: Retry<E>,
    {
        let deadline = self.deadline();
        self.limited(deadline, self.attempts(deadline, send)).await
    }

    /// [`call`](Self::call) with the rest of a request's time: the call ends at `deadline`, or at
    /// the deadline of the [`Policy`] if that is earlier. gRPC's deadlines.
    ///
    /// If `deadline` has passed, nothing is sent.
    ///
    /// For an operation that must not be repeated, use
    /// [`timeout_at`](hashed_wheel::HashedWheelTimer::timeout_at).
    ///
    /// # Errors
    ///
    /// As for [`call`](Self::call).
    ///
    /// # Examples
    ///
    /// A handler whose own client waits for half a second asks two servers:
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::client::{CallError, Client, Policy};
    /// use std::time::Duration;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let client = Client::new(&timer, Policy::new(Duration::from_secs(10)).retries(2));
    /// let deadline = timer.now() + Duration::from_millis(500);
    /// let user = client.call_until(deadline, |_| async { Ok::<_, &str>("ada") }).await?;
    /// let orders = client.call_until(deadline, |_| async move { Ok::<_, &str>(user.len()) }).await?;
    /// assert_eq!(orders, 3);
    /// # Ok::<(), CallError<&str>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn call_until<T, E, F>(
        &self,
        deadline: Instant,
        send: impl FnMut(Reason) -> F,
    ) -> Result<T, CallError<E>>
    where
        F: Future<Output = Result<T, E>>,
        R: Retry<E>,
    {
        let deadline = Some(self.deadline().map_or(deadline, |own| own.min(deadline)));
        self.limited(deadline, self.attempts(deadline, send)).await
    }

    /// Returns the deadline of a call that begins now; `None` if it is too far to be represented.
    fn deadline(&self) -> Option<Instant> {
        deadline::nearest(self.timer.now().checked_add(self.policy.deadline))
    }

    /// Ends a call at its deadline, which is that of everything it awaits.
    async fn limited<T, E>(
        &self,
        deadline: Option<Instant>,
        call: impl Future<Output = Result<T, CallError<E>>>,
    ) -> Result<T, CallError<E>> {
        self.counters.calls.add_one();
        let call = deadline::until(deadline, call);
        let end = match deadline {
            _ if self.until(deadline).is_zero() => Err(TimeoutError::Elapsed),
            Some(deadline) => self.timer.timeout_at(deadline, call).await,
            None => self.timer.timeout(Duration::MAX, call).await,
        };
        let end = end.unwrap_or_else(|error| Err(error.into()));
        match end {
            Ok(_) => self.counters.answers.add_one(),
            Err(CallError::Deadline) => self.counters.past_deadline.add_one(),
            Err(_) => {}
        }
        end
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
        let request = async {
            self.counters.attempts.add_one();
            let end = request.await.map_err(CallError::Failed);
            end.inspect_err(|_| self.counters.failures.add_one())
        };
        self.limited(self.deadline(), request).await
    }

    /// Makes attempts until the `deadline`. An attempt in progress goes on after that.
    async fn attempts<T, E, F>(
        &self,
        deadline: Option<Instant>,
        mut send: impl FnMut(Reason) -> F,
    ) -> Result<T, CallError<E>>
    where
        F: Future<Output = Result<T, E>>,
        R: Retry<E>,
    {
        self.earn();
        let mut reason = Reason::First;
        let backoff = self.policy.backoff.clone();
        let mut pauses = backoff.take(self.policy.retries as usize);
        loop {
            self.counters.attempts.add_one();
            let attempt = self.hedged(deadline, reason, &mut send);
            let end = match self.policy.attempt_timeout {
                Some(limit) => self.timer.timeout(limit, attempt).await,
                None => Ok(attempt.await),
            };
            self.count(reason, &end);
            let failure = match end {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) if !self.policy.retry.retries(&error) => {
                    return Err(CallError::Failed(error));
                }
                Ok(Err(error)) => CallError::Failed(error),
                Err(TimeoutError::Elapsed) => CallError::AttemptTimeout,
                Err(TimeoutError::Timer(error)) => return Err(CallError::Timer(error)),
            };
            let Some(pause) = pauses.next() else {
                return Err(failure);
            };
            // Here too, because attempts that fail without waiting never let the deadline end the
            // call.
            let left = self.until(deadline);
            if left.is_zero() {
                return Err(CallError::Deadline);
            }
            if pause >= left || !self.spend() {
                return Err(failure);
            }
            self.timer.sleep(pause).await.map_err(CallError::Timer)?;
            // The timer may be late: then the deadline ends the call after this poll.
            if self.until(deadline).is_zero() {
                return Err(CallError::Deadline);
            }
            self.counters.retries.add_one();
            reason = Reason::Retry;
        }
    }

    /// Counts the end of an attempt.
    fn count<T, E>(&self, reason: Reason, end: &Result<Result<T, E>, TimeoutError>) {
        match end {
            Ok(Ok(_)) if reason == Reason::Retry => self.counters.retry_answers.add_one(),
            Ok(Ok(_)) | Err(TimeoutError::Timer(_)) => {}
            Ok(Err(_)) => self.counters.failures.add_one(),
            Err(TimeoutError::Elapsed) => self.counters.attempt_timeouts.add_one(),
        }
    }

    /// Returns the time until the deadline.
    fn until(&self, deadline: Option<Instant>) -> Duration {
        deadline.map_or(Duration::MAX, |deadline| {
            deadline.saturating_duration_since(self.timer.now())
        })
    }

    async fn hedged<T, E, F>(
        &self,
        deadline: Option<Instant>,
        reason: Reason,
        send: &mut impl FnMut(Reason) -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let Some(latencies) = &self.latencies else {
            return self
                .hedged_after(self.policy.hedge_after, deadline, reason, send)
                .await;
        };
        let began = self.timer.now();
        let after = latencies.percentile().or(self.policy.hedge_after);
        let end = self.hedged_after(after, deadline, reason, send).await;
        if end.is_ok() {
            latencies.record(self.timer.now().saturating_duration_since(began));
        }
        end
    }

    async fn hedged_after<T, E, F>(
        &self,
        after: Option<Duration>,
        deadline: Option<Instant>,
        reason: Reason,
        send: &mut impl FnMut(Reason) -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut first = pin!(send(reason));
        let Some(after) = after else {
            return first.await;
        };
        // By reference, so that the first request continues after the time has passed.
        match self.timer.timeout(after, first.as_mut()).await {
            Ok(end) => return end,
            Err(TimeoutError::Elapsed) if !self.until(deadline).is_zero() && self.spend() => {}
            Err(_) => return first.await,
        }
        self.counters.hedges.add_one();
        let hedge = send(Reason::Hedge);
        let count = |_: &T| self.counters.hedge_answers.add_one();
        let second = pin!(async { hedge.await.inspect(count) });
        first_answer(first, second).await
    }
}

impl<R> fmt::Debug for Client<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("timer", &self.timer)
            .field("policy", &self.policy)
            .field("budget", &self.budget)
            .field("latencies", &self.latencies)
            .field("stats", &self.stats())
            .finish()
    }
}

/// Returns the first answer. If one request fails, the other one may still be answered.
async fn first_answer<T, E>(
    mut first: Pin<&mut impl Future<Output = Result<T, E>>>,
    mut second: Pin<&mut impl Future<Output = Result<T, E>>>,
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
