//! Several locks as one.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use crate::client::LockClient;
use crate::error::{LockError, Loss};
use crate::guard::Guard;
use crate::guard::unless_lost;
use crate::lock::Lock;
use crate::lock::Patience;
use crate::options::LockOptions;

/// Several locks that are taken as one: all of them, or none.
///
/// They are taken one after the other, in the order of their names. So callers that take several
/// locks by a `MultiLock` never wait for each other in a circle, in whatever order they name them.
/// A caller that holds one of the locks otherwise, and waits for another one, can still close a
/// circle: use [`lock_timeout`](Self::lock_timeout) there.
///
/// On a cluster, the names may have different slots.
///
/// The methods take `&mut self`, and the locks may be taken again by the same owner, as for a
/// [`Lock`].
///
/// # Examples
///
/// ```no_run
/// # async fn transfer(tokens: Vec<u64>) {}
/// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
/// let mut accounts = locks.multi_lock(["account 7", "account 3"]);
/// let guard = accounts.lock().await?;
/// let tokens = guard.tokens().map(|(_, token)| token).collect();
/// tokio::select! {
///     () = transfer(tokens) => guard.unlock().await?,
///     loss = guard.lost() => println!("one of the locks is lost: {loss}"),
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// If the future of a method is dropped before it is ready, the owner holds none of the locks, or
/// as often as before. What Redis has granted in the meantime is released in the background.
#[derive(Debug)]
pub struct MultiLock {
    /// In the order of their names, which differ.
    locks: Vec<Lock>,
}

impl LockClient {
    /// Returns the locks with these names as one, with the default options. It does not call Redis.
    /// Names that occur twice count once.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
    /// let guard = locks.multi_lock(["account 7", "account 3"]).lock().await?;
    /// guard.unlock().await
    /// # }
    /// ```
    pub fn multi_lock<T: AsRef<str>>(&self, names: impl IntoIterator<Item = T>) -> MultiLock {
        self.multi_lock_with(names, LockOptions::new())
    }

    /// Returns the locks with these names as one, with these options for each of them.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use redis_lock::{LockClient, LockOptions};
    /// # use std::time::Duration;
    /// # fn example(locks: &LockClient) {
    /// let options = LockOptions::new().lease(Duration::from_secs(5));
    /// let accounts = locks.multi_lock_with(["account 7", "account 3"], options);
    /// # let _ = accounts;
    /// # }
    /// ```
    pub fn multi_lock_with<T: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = T>,
        options: LockOptions,
    ) -> MultiLock {
        let names: BTreeSet<String> = names
            .into_iter()
            .map(|name| name.as_ref().to_owned())
            .collect();
        MultiLock {
            locks: names
                .iter()
                .map(|name| self.lock_with(name, options.clone()))
                .collect(),
        }
    }
}

impl MultiLock {
    /// Returns the names of the locks, in the order in which they are taken.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::LockClient) {
    /// assert!(locks.multi_lock(["b", "a", "b"]).names().eq(["a", "b"]));
    /// # }
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().map(Lock::name)
    }

    /// Takes all locks. Waits while another owner holds one of them. If one that it has already is
    /// lost in the meantime, it releases the others and returns an error.
    ///
    /// # Errors
    ///
    /// [`Options`](LockError::Options) if there are no names; otherwise as for [`Lock::lock`]. After
    /// an error, the locks that it has are released in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mut accounts: redis_lock::MultiLock) -> Result<(), redis_lock::LockError> {
    /// let guard = accounts.lock().await?;
    /// guard.unlock().await
    /// # }
    /// ```
    pub async fn lock(&mut self) -> Result<MultiGuard, LockError> {
        loop {
            if let Some(guard) = self.take(Patience::Forever).await? {
                return Ok(guard);
            }
        }
    }

    /// Takes all locks if all are free. Otherwise releases those that it has taken, and returns
    /// `None`.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mut accounts: redis_lock::MultiLock) -> Result<(), redis_lock::LockError> {
    /// match accounts.try_lock().await? {
    ///     Some(guard) => guard.unlock().await?,
    ///     None => println!("another owner holds one of them"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_lock(&mut self) -> Result<Option<MultiGuard>, LockError> {
        self.take(Patience::None).await
    }

    /// Takes all locks. Waits for at most `timeout` in all. After that, it releases those that it
    /// has taken, and returns `None`. It may take longer by the time of one call to Redis per lock,
    /// and of the release.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(mut accounts: redis_lock::MultiLock) -> Result<(), redis_lock::LockError> {
    /// match accounts.lock_timeout(Duration::from_secs(3)).await? {
    ///     Some(guard) => guard.unlock().await?,
    ///     None => println!("one of them was not free within 3 s"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lock_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<MultiGuard>, LockError> {
        self.take(Patience::of(timeout)).await
    }

    /// Takes all locks like [`lock`](Self::lock), runs `work`, and releases the locks. When one of
    /// them is lost, the future of `work` is dropped, and cancelled by that. See [`Guard::run`].
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), before `work` is called; and [`Lost`](LockError::Lost) if one
    /// of the locks is lost before `work` is ready, or before its release.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `work` is dropped first. Then the locks are released in the
    /// background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn transfer(tokens: Vec<u64>) {}
    /// # async fn example(mut accounts: redis_lock::MultiLock) -> Result<(), redis_lock::LockError> {
    /// let work = async |guard: &redis_lock::MultiGuard| {
    ///     transfer(guard.tokens().map(|(_, token)| token).collect()).await
    /// };
    /// accounts.with_lock(work).await
    /// # }
    /// ```
    pub async fn with_lock<R>(
        &mut self,
        work: impl AsyncFnOnce(&MultiGuard) -> R,
    ) -> Result<R, LockError> {
        self.lock().await?.run(work).await
    }

    /// If it returns an error, it drops the guards that it has, which releases them.
    pub(crate) async fn take(
        &mut self,
        patience: Patience,
    ) -> Result<Option<MultiGuard>, LockError> {
        if self.locks.is_empty() {
            return Err(LockError::Options(
                "a lock of several has no names; it needs at least one".to_owned(),
            ));
        }
        let mut guards = MultiGuard {
            guards: Vec::with_capacity(self.locks.len()),
        };
        for lock in &mut self.locks {
            let name = Arc::clone(lock.shared_name());
            let taken =
                unless_lost(guards.lost(), || guards.check(), lock.take(patience)).await??;
            let Some(guard) = taken else {
                return Ok(guards.give_up().await);
            };
            guards.guards.push((name, guard));
        }
        Ok(Some(guards))
    }
}

/// Holds several locks until it is dropped, or one of them is lost.
///
/// It is a [`Guard`] of all of them: dropping it releases them in the background. If one is lost,
/// the others are held until the guard is unlocked or dropped.
///
/// # Examples
///
/// ```no_run
/// # async fn transfer() {}
/// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
/// let guard = locks.multi_lock(["account 7", "account 3"]).lock().await?;
/// tokio::select! {
///     () = transfer() => guard.unlock().await?,
///     loss = guard.lost() => println!("one of the locks is lost: {loss}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping the guard releases the locks"]
pub struct MultiGuard {
    guards: Vec<(Arc<str>, Guard)>,
}

impl MultiGuard {
    /// Returns the name and the [token](Guard::token) of each lock, in the order of the names. Send
    /// to a resource the token of the lock that protects it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::MultiGuard) {
    /// for (name, token) in guard.tokens() {
    ///     println!("the token of {name} is {token}");
    /// }
    /// # }
    /// ```
    pub fn tokens(&self) -> impl Iterator<Item = (&str, u64)> {
        self.guards
            .iter()
            .map(|(name, guard)| (&**name, guard.token()))
    }

    /// Checks whether all locks were held until now. See [`Guard::check`].
    ///
    /// # Errors
    ///
    /// [`Lost`](LockError::Lost), if one of them is lost.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::MultiGuard) -> Result<(), redis_lock::LockError> {
    /// guard.check()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> Result<(), LockError> {
        self.guards.iter().try_for_each(|(_, guard)| guard.check())
    }

    /// Waits until one of the locks is lost. See [`Guard::lost`].
    ///
    /// # Cancel safety
    ///
    /// It may be dropped and called again. A loss is never missed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(guard: redis_lock::MultiGuard) {
    /// println!("one of the locks is lost: {}", guard.lost().await);
    /// # }
    /// ```
    pub async fn lost(&self) -> Loss {
        let mut losses: Vec<_> = self
            .guards
            .iter()
            .map(|(_, guard)| Box::pin(guard.lost()))
            .collect();
        poll_fn(|context| {
            let losses = losses.iter_mut().map(|loss| loss.as_mut().poll(context));
            losses
                .into_iter()
                .find(Poll::is_ready)
                .unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Calls `f` once, when the first of the locks is lost. See [`Guard::on_lost`]. `f` is dropped
    /// when all locks are released before that.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::MultiGuard) {
    /// guard.on_lost(|loss| eprintln!("one of the locks is lost: {loss}"));
    /// # }
    /// ```
    pub fn on_lost(&self, f: impl FnOnce(Loss) + Send + 'static) {
        let f = Arc::new(Mutex::new(Some(f)));
        for (_, guard) in &self.guards {
            let f = Arc::clone(&f);
            guard.on_lost(move |loss| {
                let f = f.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(f) = f {
                    f(loss);
                }
            });
        }
    }

    /// Releases all locks, at the same time. See [`Guard::unlock`].
    ///
    /// # Errors
    ///
    /// As for [`Guard::unlock`]. If there are several errors, returns that of the first name. All
    /// locks are released as far as possible, whatever this returns.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the releases go on in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(guard: redis_lock::MultiGuard) -> Result<(), redis_lock::LockError> {
    /// guard.unlock().await
    /// # }
    /// ```
    pub async fn unlock(self) -> Result<(), LockError> {
        self.release_all().await.into_iter().collect()
    }

    /// Runs `work` while all locks are held, and then releases them like [`unlock`](Self::unlock).
    /// When one of them is lost, the future of `work` is dropped, and cancelled by that. See
    /// [`Guard::run`], which says what that does and does not stop.
    ///
    /// # Errors
    ///
    /// [`Lost`](LockError::Lost): one of the locks was lost before `work` was ready, or before its
    /// release. In the second case, the output of `work` is dropped. A release that fails otherwise
    /// is repeated in the background, and is no error.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or `work` panics, `work` is dropped first. Then the releases go on
    /// in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn transfer() -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn example(mut accounts: redis_lock::MultiLock) -> Result<(), Box<dyn std::error::Error>> {
    /// let Some(guard) = accounts.try_lock().await? else {
    ///     return Ok(()); // Another owner holds one of them.
    /// };
    /// // The first `?` is for the locks, the second one for the work.
    /// guard.run(async |_| transfer().await).await??;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<R>(self, work: impl AsyncFnOnce(&Self) -> R) -> Result<R, LockError> {
        let output = unless_lost(self.lost(), || self.check(), work(&self)).await?;
        let released = self.release_all().await;
        match released
            .into_iter()
            .find(|released| matches!(released, Err(LockError::Lost(_))))
        {
            Some(Err(error)) => Err(error),
            _ => Ok(output),
        }
    }

    /// Releases the locks at the same time. Returns the results in the order of their names.
    async fn release_all(self) -> Vec<Result<(), LockError>> {
        let mut releases: Vec<Release> = self
            .guards
            .into_iter()
            .map(|(_, guard)| Release::Pending(Box::pin(guard.unlock())))
            .collect();
        poll_fn(|context| {
            let mut all = Poll::Ready(());
            for release in &mut releases {
                if let Release::Pending(future) = release {
                    match future.as_mut().poll(context) {
                        Poll::Ready(released) => *release = Release::Done(released),
                        Poll::Pending => all = Poll::Pending,
                    }
                }
            }
            all
        })
        .await;
        let released = releases.into_iter().map(|release| match release {
            Release::Done(released) => released,
            Release::Pending(_) => unreachable!("all have ended"),
        });
        released.collect()
    }

    /// Releases the locks, so that other callers find them free after that. In the case of an
    /// error, they are lost, or are released in the background.
    async fn give_up(self) -> Option<Self> {
        _ = self.release_all().await;
        None
    }
}

/// The release of one of the locks.
enum Release {
    Pending(Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>),
    Done(Result<(), LockError>),
}
