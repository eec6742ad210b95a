//! The guard of a held lock, and its release.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use redis::RedisError;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::calls::Calls;
use crate::error::{LockError, Loss};
use crate::hold::Hold;
use crate::options::LockOptions;
use crate::scripts::{Found, Keys};
use crate::watchdog::Watchdog;

/// Holds a lock until it is dropped or lost.
///
/// It is `Send` and may be held across `.await`. A [`Lock`](crate::Lock) may have several: the last
/// one releases the lock.
///
/// Dropping it is like [`unlock`](Self::unlock) in the background, without the result. It may be
/// dropped anywhere, also outside of a runtime. If the runtime of the client ends before the
/// release, the lock becomes free when its lease ends.
///
/// # Examples
///
/// Work that is given up when the lock is lost:
///
/// ```no_run
/// # async fn work(token: u64) {}
/// # async fn example(mut lock: redis_lock::Lock) -> Result<(), redis_lock::LockError> {
/// let guard = lock.lock().await?;
/// tokio::select! {
///     () = work(guard.token()) => guard.unlock().await?,
///     loss = guard.lost() => println!("the lock is lost: {loss}"),
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    hold: Arc<Hold>,
    /// `None` after the release.
    releaser: Option<Releaser>,
}

impl Guard {
    pub(crate) fn new(hold: Arc<Hold>, releaser: Releaser) -> Self {
        Self {
            hold,
            releaser: Some(releaser),
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// Returns the fencing token. It is greater than the tokens of all earlier holds of this lock.
    /// All guards of one hold have the same.
    ///
    /// It is the clock of Redis in microseconds, or the last token plus one if that is greater, and
    /// less than 2⁵³. So it fits the integers of SQL and the numbers of JSON.
    ///
    /// # Examples
    ///
    /// A table of `PostgreSQL` that rejects a former holder:
    ///
    /// ```no_run
    /// # async fn execute(_sql: &str, _parameters: &[i64]) -> u64 { 1 }
    /// # async fn example(mut lock: redis_lock::Lock) -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = lock.lock().await?;
    /// let update = "update account set balance = $1, token = $2 where id = 7 and token <= $2";
    /// if execute(update, &[100, guard.token() as i64]).await == 0 {
    ///     return Err("a later holder has changed the account".into());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn token(&self) -> u64 {
        self.hold.token
    }

    /// Checks whether the lock was held until now, as far as this process knows: the lease has not
    /// ended, and Redis has not reported a loss. It does not call Redis, so it is cheap. Call it
    /// before each step that could do harm.
    ///
    /// # Errors
    ///
    /// [`Lost`](LockError::Lost). All later calls return it too.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn pay(invoice: u64, token: u64) {}
    /// # async fn example(mut lock: redis_lock::Lock) -> Result<(), redis_lock::LockError> {
    /// let guard = lock.lock().await?;
    /// for invoice in 1..=10 {
    ///     guard.check()?;
    ///     pay(invoice, guard.token()).await;
    /// }
    /// guard.unlock().await
    /// # }
    /// ```
    pub fn check(&self) -> Result<(), LockError> {
        self.hold.check()
    }

    /// Waits until the lock is lost. It returns within one tick of the timer after the end of the
    /// lease by the local clock, and immediately when a renewal reports a loss. As long as the lock
    /// is held, it does not return.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped and called again. A loss is never missed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn work(token: u64) {}
    /// # async fn example(mut lock: redis_lock::Lock) -> Result<(), redis_lock::LockError> {
    /// let guard = lock.lock().await?;
    /// tokio::select! {
    ///     () = work(guard.token()) => guard.unlock().await?,
    ///     loss = guard.lost() => println!("the work was given up: {loss}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) -> Loss {
        self.hold.until_lost().await
    }

    /// Calls `f` when the lock is lost, at about the time when [`lost`](Self::lost) returns, which
    /// may be first. If it is lost already, calls `f` immediately. If it is released before, `f` is
    /// dropped.
    ///
    /// `f` runs on the thread that finds out: that of the timer, one of the runtime, or the caller
    /// of another method, such as [`check`](Self::check). It must not block. A panic in it has no
    /// effect.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
    /// # async fn example(mut lock: redis_lock::Lock) -> Result<(), redis_lock::LockError> {
    /// let guard = lock.lock().await?;
    /// let stop = Arc::new(AtomicBool::new(false));
    /// let stop_worker = Arc::clone(&stop);
    /// guard.on_lost(move |loss| {
    ///     eprintln!("the lock is lost: {loss}");
    ///     stop_worker.store(true, Ordering::Release);
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_lost(&self, f: impl FnOnce(Loss) + Send + 'static) {
        self.hold.on_lost(Box::new(f));
    }

    /// Runs `work` while the lock is held, and then releases the guard like
    /// [`unlock`](Self::unlock). When the lock is lost, the future of `work` is dropped: it is
    /// cancelled at the `.await` at which it waits. After a loss it is not polled again.
    ///
    /// It makes a closure form of [`Lock::try_lock`](crate::Lock::try_lock) and
    /// [`Lock::lock_timeout`](crate::Lock::lock_timeout). For [`Lock::lock`](crate::Lock::lock)
    /// there is [`Lock::with_lock`](crate::Lock::with_lock).
    ///
    /// Code between two `.await`s is not interrupted, and what was started elsewhere is not
    /// cancelled: a task, or a request that is sent already. So send the [token](Self::token) with
    /// each access.
    ///
    /// # Errors
    ///
    /// [`Lost`](LockError::Lost): the lock was lost before `work` was ready, or before the release.
    /// In the second case, the output of `work` is dropped. A release that fails otherwise is
    /// repeated in the background, and is no error.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or `work` panics, `work` is dropped first. Then the release goes
    /// on in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn pay(token: u64) -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn example(mut lock: redis_lock::Lock) -> Result<(), Box<dyn std::error::Error>> {
    /// let Some(guard) = lock.try_lock().await? else {
    ///     return Ok(()); // Another process does this work.
    /// };
    /// // The first `?` is for the lock, the second one for the work.
    /// guard.run(async |guard| pay(guard.token()).await).await??;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<R>(self, work: impl AsyncFnOnce(&Self) -> R) -> Result<R, LockError> {
        let output = unless_lost(self.lost(), || self.check(), work(&self)).await?;
        if let Err(error @ LockError::Lost(_)) = self.unlock().await {
            return Err(error);
        }
        Ok(output)
    }

    /// Releases the lock, if this is the last guard of its hold. After that there is no renewal,
    /// whatever this returns. In the worst case the lock becomes free when its lease ends.
    ///
    /// # Errors
    ///
    /// - [`Lost`](LockError::Lost): the lock was not held to the end. Another owner of it keeps it.
    ///   If the loss was known before, this is returned at once, and the release goes on in the
    ///   background. On a cluster, this may also mean that the answer was lost: the client of a
    ///   cluster repeats the call, which then finds no owner.
    /// - [`Redis`](LockError::Redis): the call failed. It is repeated in the background until the
    ///   lease has ended.
    /// - [`Timer`](LockError::Timer): the timer accepts no timeout for the call. The release goes
    ///   on in the background.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the release goes on in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mut lock: redis_lock::Lock) -> Result<(), redis_lock::LockError> {
    /// use redis_lock::LockError;
    ///
    /// let guard = lock.lock().await?;
    /// match guard.unlock().await {
    ///     Ok(()) => println!("the lock was held to the end"),
    ///     Err(LockError::Lost(loss)) => println!("the work may have been done twice: {loss}"),
    ///     Err(error) => println!("the lock is free after a lease at the latest: {error}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn unlock(mut self) -> Result<(), LockError> {
        // Before the release, which ends the hold.
        let checked = self.check();
        let release = self.release();
        // A loss that is known needs no answer. The release goes on.
        checked?;
        let Some(release) = release else {
            return Ok(());
        };
        match release.await {
            Ok(Ok(Found::Caller)) => Ok(()),
            Ok(Ok(Found::NoOwner)) => Err(LockError::Lost(self.hold.reason_of(Loss::NoOwner))),
            Ok(Ok(Found::OtherOwner)) => {
                Err(LockError::Lost(self.hold.reason_of(Loss::OtherOwner)))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(RedisError::from(std::io::Error::other("the runtime has ended")).into()),
        }
    }

    /// Returns the release in Redis, if this was the last guard.
    fn release(&mut self) -> Option<JoinHandle<Result<Found, LockError>>> {
        let releaser = self.releaser.take()?;
        let is_last = self.hold.leave();
        is_last.then(|| {
            // First, so that the lock becomes free even if the rest fails.
            releaser.watchdog.unwatch(&self.hold);
            let Hold {
                keys,
                owner,
                options,
                ..
            } = &*self.hold;
            releaser.release_later(Arc::clone(keys), Arc::clone(owner), Arc::clone(options))
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.release());
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.hold).finish()
    }
}

/// Waits for `work`, unless the lock is lost before. After a loss, `work` is not polled again.
pub(crate) async fn unless_lost<T>(
    lost: impl Future<Output = Loss>,
    check: impl Fn() -> Result<(), LockError>,
    work: impl Future<Output = T>,
) -> Result<T, LockError> {
    let (mut lost, mut work) = (pin!(lost), pin!(work));
    poll_fn(|context| {
        // It wakes this task. The check comes first: the timer may be late.
        _ = lost.as_mut().poll(context);
        check()?;
        work.as_mut().poll(context).map(Ok)
    })
    .await
}

/// Releases a lock in the background.
pub(crate) struct Releaser {
    pub(crate) calls: Arc<Calls>,
    pub(crate) runtime: Handle,
    pub(crate) watchdog: Arc<Watchdog>,
}

impl Releaser {
    /// Releases the lock of this owner, or removes it from the queue.
    pub(crate) fn release_later(
        &self,
        keys: Arc<Keys>,
        owner: Arc<str>,
        options: Arc<LockOptions>,
    ) -> JoinHandle<Result<Found, LockError>> {
        let calls = Arc::clone(&self.calls);
        self.runtime
            .spawn(async move { calls.release(keys, owner, options).await })
    }
}
