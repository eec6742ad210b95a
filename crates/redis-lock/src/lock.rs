//! Taking a lock: attempts, and waiting between them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::calls::Calls;
use crate::context::Context;
use crate::error::LockError;
use crate::guard::{Guard, Releaser};
use crate::hold::{Hold, NewHold};
use crate::observe;
use crate::options::LockOptions;
use crate::scripts::{Answer, Keys, Kind, Request};
use crate::watchdog;

/// A lock in Redis, and an owner of it.
///
/// While the owner holds the lock, it may take it again, and holds it until all its [`Guard`]s are
/// gone. All other owners are excluded, also those with a `Lock` for the same name of the same
/// client. The methods take `&mut self`, so that one task cannot enter by accident through the hold
/// of another one.
///
/// # Examples
///
/// ```no_run
/// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
/// let mut lock = locks.lock("invoices");
/// if let Some(guard) = lock.try_lock().await? {
///     // … work, and send guard.token() with each access …
///     guard.unlock().await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// If the future of a method is dropped before it is ready, the owner does not hold the lock, or as
/// often as before. What Redis has granted in the meantime is released in the background.
pub struct Lock {
    shared: Arc<Context>,
    name: Arc<str>,
    keys: Arc<Keys>,
    options: Arc<LockOptions>,
    /// The last hold. It may be over.
    hold: Option<Arc<Hold>>,
}

/// For how long a caller waits for the connection that receives messages, before it joins the
/// queue. Without that connection it polls. When it is there, all callers try again.
const READY: Duration = Duration::from_secs(1);

/// How much later than the caller before it in the queue a caller tries at the end of a lease. So
/// they do not call all at once, and a caller that has died delays the others by little.
const STAGGER: Duration = Duration::from_millis(50);

/// How long a caller waits.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    not(feature = "blocking"),
    expect(unreachable_pub, reason = "a trait of `blocking` has it")
)]
pub enum Patience {
    /// It does not wait.
    None,
    /// Until this time.
    Until(Instant),
    /// Without an end.
    Forever,
}

impl Patience {
    /// Returns the patience that ends after this time.
    pub(crate) fn of(timeout: Duration) -> Self {
        Instant::now()
            .checked_add(timeout)
            .map_or(Self::Forever, Self::Until)
    }

    fn limit(self) -> Option<Instant> {
        match self {
            Self::Until(limit) => Some(limit),
            Self::None | Self::Forever => None,
        }
    }

    fn is_over(self) -> bool {
        match self {
            Self::None => true,
            Self::Until(limit) => Instant::now() >= limit,
            Self::Forever => false,
        }
    }

    /// Returns this time, or what is left of the patience if that is less.
    fn at_most(self, time: Duration) -> Duration {
        self.limit().map_or(time, |limit| {
            time.min(limit.saturating_duration_since(Instant::now()))
        })
    }
}

impl Lock {
    pub(crate) fn new(shared: Arc<Context>, kind: Kind, name: &str, options: LockOptions) -> Self {
        let (keys, options) = (
            Arc::new(Keys::new(&shared.prefix, kind, name)),
            Arc::new(options),
        );
        Self {
            shared,
            name: name.into(),
            keys,
            options,
            hold: None,
        }
    }

    /// Returns another owner of the same lock.
    pub(crate) fn another(&self) -> Self {
        let Self {
            shared,
            name,
            keys,
            options,
            ..
        } = self;
        let (shared, name) = (Arc::clone(shared), Arc::clone(name));
        Self {
            shared,
            name,
            keys: Arc::clone(keys),
            options: Arc::clone(options),
            hold: None,
        }
    }

    /// Returns the name of the lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::LockClient) {
    /// assert_eq!(locks.lock("invoices").name(), "invoices");
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what calls to Redis about all owners need.
    pub(crate) fn in_redis(&self) -> (&Calls, &Keys) {
        (&self.shared.calls, &self.keys)
    }

    pub(crate) fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    /// Takes the lock. Waits while another owner holds it.
    ///
    /// # Errors
    ///
    /// Each error ends the waiting: the caller decides whether to try again.
    ///
    /// - [`Redis`](LockError::Redis): Redis did not answer within a sixth of the lease, or the call
    ///   failed. The error has the last answer of Redis, if there was one.
    /// - [`Lost`](LockError::Lost): this owner has lost the lock that it wanted to take again. This
    ///   is returned until all guards of that hold are gone. Or the lock was granted to a task that
    ///   was stalled until the lease had ended. Or Redis had lost it, or given it to another owner,
    ///   when the replicas were asked.
    /// - [`Replicas`](LockError::Replicas): fewer replicas have the lock than the options demand.
    /// - [`Timer`](LockError::Timer): the timer is stopped, or its limit is reached.
    /// - [`Options`](LockError::Options): the options are not valid.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
    /// let mut lock = locks.lock("invoices");
    /// let guard = lock.lock().await?;
    /// // The owner may take it again, for example in a function that needs the lock too.
    /// let again = lock.lock().await?;
    /// assert_eq!(guard.token(), again.token());
    /// again.unlock().await?;
    /// guard.unlock().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lock(&mut self) -> Result<Guard, LockError> {
        loop {
            if let Some(guard) = self.take(Patience::Forever).await? {
                return Ok(guard);
            }
        }
    }

    /// Takes the lock if it is free. Returns `None` if another owner holds it, or if it is fair and
    /// others wait for it.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mut lock: redis_lock::Lock) -> Result<(), redis_lock::LockError> {
    /// let Some(guard) = lock.try_lock().await? else {
    ///     return Ok(()); // Another process does this work.
    /// };
    /// // … work …
    /// guard.unlock().await
    /// # }
    /// ```
    pub async fn try_lock(&mut self) -> Result<Option<Guard>, LockError> {
        self.take(Patience::None).await
    }

    /// Takes the lock. Waits for at most `timeout` while another owner holds it, and returns `None`
    /// after that. It may take longer by the time of one call to Redis, and with
    /// [replicas](LockOptions::replicas) by that of the release.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(mut lock: redis_lock::Lock) -> Result<(), redis_lock::LockError> {
    /// match lock.lock_timeout(Duration::from_secs(3)).await? {
    ///     Some(guard) => guard.unlock().await?,
    ///     None => println!("another owner held the lock for 3 s"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lock_timeout(&mut self, timeout: Duration) -> Result<Option<Guard>, LockError> {
        self.take(Patience::of(timeout)).await
    }

    /// Takes the lock like [`lock`](Self::lock), runs `work`, and releases the lock. When the lock
    /// is lost, the future of `work` is dropped, and cancelled by that. [`Guard::run`] says what
    /// that does and does not stop.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), before `work` is called; and [`Lost`](LockError::Lost) if the
    /// lock is lost before `work` is ready, or before the release.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `work` is dropped first. Then the lock is released in the
    /// background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn pay(token: u64) -> Result<u32, std::io::Error> { Ok(1) }
    /// # async fn example(mut lock: redis_lock::Lock) -> Result<(), Box<dyn std::error::Error>> {
    /// // The first `?` is for the lock, the second one for the work.
    /// let paid = lock.with_lock(async |guard| pay(guard.token()).await).await??;
    /// println!("paid {paid} invoices");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with_lock<R>(
        &mut self,
        work: impl AsyncFnOnce(&Guard) -> R,
    ) -> Result<R, LockError> {
        self.lock().await?.run(work).await
    }

    pub(crate) async fn take(&mut self, patience: Patience) -> Result<Option<Guard>, LockError> {
        if let Some(guard) = self.enter_again() {
            let hold = guard.hold();
            hold.check()?;
            watchdog::renew(&self.shared.calls, std::slice::from_ref(hold)).await?;
            hold.check()?;
            return Ok(Some(guard));
        }
        self.options.check(self.shared.timer.tick_duration())?;
        let begin = Instant::now();
        let granted = Attempt::new(self).wait(patience).await?;
        let Some(hold) = granted else { return Ok(None) };
        observe::acquired(self.keys.lock(), hold.token, begin.elapsed());
        let guard = Guard::new(Arc::clone(&hold), self.releaser());
        // This task may have been stalled for longer than the lease.
        hold.check()?;
        self.hold = Some(hold);
        Ok(Some(guard))
    }

    /// Returns another guard, if this owner has one.
    fn enter_again(&self) -> Option<Guard> {
        let hold = self.hold.as_ref().filter(|hold| hold.enter())?;
        Some(Guard::new(Arc::clone(hold), self.releaser()))
    }

    fn releaser(&self) -> Releaser {
        let Context {
            calls,
            runtime,
            watchdog,
            ..
        } = &*self.shared;
        Releaser {
            calls: Arc::clone(calls),
            runtime: runtime.clone(),
            watchdog: Arc::clone(watchdog),
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}

/// The attempts of one call, under an owner that was never used before. Therefore calls that are
/// delayed in the network cannot affect a later hold.
struct Attempt<'a> {
    lock: &'a Lock,
    owner: Arc<str>,
    id: u64,
    /// Redis may have this owner, as the holder or in the queue.
    may_be_known: bool,
}

/// The end of one attempt.
enum Outcome {
    Granted(Arc<Hold>),
    Busy { next: Instant },
}

impl<'a> Attempt<'a> {
    fn new(lock: &'a Lock) -> Self {
        let (owner, id) = lock.shared.new_owner(&lock.keys);
        Self {
            lock,
            owner,
            id,
            may_be_known: false,
        }
    }

    /// Tries, and waits until the lock is granted or the patience is over.
    async fn wait(&mut self, patience: Patience) -> Result<Option<Arc<Hold>>, LockError> {
        // Without the queue, because most locks are free.
        if let Outcome::Granted(hold) = self.ask(0).await? {
            return Ok(Some(hold));
        }
        if patience.is_over() {
            return Ok(None);
        }
        let options = &*self.lock.options;
        let timeout = patience.at_most(options.call_timeout().min(READY));
        let waiting = self.lock.shared.wakeups.wait(&self.owner, timeout).await;
        loop {
            match self.ask(options.keep_ms(self.lock.keys.kind)).await? {
                Outcome::Granted(hold) => return Ok(Some(hold)),
                // `drop` leaves the queue.
                Outcome::Busy { .. } if patience.is_over() => return Ok(None),
                Outcome::Busy { next } => waiting.until(next, patience.limit()).await,
            }
        }
    }

    /// Asks Redis once. `keep` is for how many milliseconds the queue keeps the owner, or 0 if it
    /// does not join.
    async fn ask(&mut self, keep: u64) -> Result<Outcome, LockError> {
        let Lock {
            shared,
            keys,
            options,
            ..
        } = self.lock;
        let start = Instant::now();
        let lease = options.lease_time();
        let lease = options
            .max_hold_time()
            .map_or(lease, |max_hold| lease.min(max_hold));
        let (owner, lease) = (&*self.owner, lease.as_millis() as u64);
        let (fair, claim) = (options.is_fair(), options.claim());
        let request = Request {
            owner,
            lease,
            fair,
            keep,
            claim,
        };
        self.may_be_known = true;
        match shared
            .calls
            .lock(keys, &request, options.call_timeout())
            .await?
        {
            Answer::Granted { token } => {
                // An error drops this attempt, which releases the lock.
                let until = start + Duration::from_millis(lease);
                shared.calls.replicate(keys, owner, until, options).await?;
                let hold = self.begin(token, start)?;
                self.may_be_known = false;
                Ok(Outcome::Granted(hold))
            }
            Answer::Busy { wait, place } => {
                self.may_be_known = keep > 0;
                // Those behind the first one try soon after it, in case those before them have
                // died. The resolution of Redis is a millisecond.
                let wait = wait.map_or(Duration::MAX, Duration::from_millis);
                let behind = STAGGER.saturating_mul(place.try_into().unwrap_or(u32::MAX));
                let wait = wait
                    .saturating_add(behind)
                    .saturating_add(Duration::from_millis(1));
                Ok(Outcome::Busy {
                    next: Instant::now() + wait.min(options.poll_time(keys.kind)),
                })
            }
        }
    }

    /// Starts the watchdog, and the timeout at the end of the lease.
    fn begin(&self, token: u64, start: Instant) -> Result<Arc<Hold>, LockError> {
        let Lock {
            shared,
            keys,
            options,
            ..
        } = self.lock;
        let new = NewHold {
            group: (
                shared.calls.connection.server.group(keys.lock()),
                options.lease_time(),
            ),
            keys: Arc::clone(keys),
            owner: Arc::clone(&self.owner),
            id: self.id,
            token,
            options: Arc::clone(options),
            start,
        };
        let hold = Hold::start(new, &shared.timer)?;
        // Ends the renewals of a lock that is lost.
        let (watchdog, lost) = (Arc::downgrade(&shared.watchdog), Arc::downgrade(&hold));
        hold.on_lost(Box::new(move |_| {
            if let (Some(watchdog), Some(hold)) = (watchdog.upgrade(), lost.upgrade()) {
                watchdog.unwatch(&hold);
            }
        }));
        if let Err(error) = shared.watchdog.watch(&hold, start) {
            hold.leave();
            shared.watchdog.unwatch(&hold);
            return Err(error.into());
        }
        Ok(hold)
    }
}

/// Releases what Redis may have granted, or leaves the queue, in the background.
impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.may_be_known {
            let (releaser, keys) = (self.lock.releaser(), Arc::clone(&self.lock.keys));
            let (owner, options) = (Arc::clone(&self.owner), Arc::clone(&self.lock.options));
            releaser.release_later(keys, owner, options);
        }
    }
}
