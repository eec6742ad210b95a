//! Read-write locks, semaphores and several locks as one, for code that is not async.

use std::sync::Arc;
use std::time::Duration;

use crate::blocking::{Guard, Lock, LockClient, OwnRuntime, may_block};
use crate::{LockError, LockOptions, Loss};

impl LockClient {
    /// Returns the read-write lock with this name, with the default options. See
    /// [`LockClient::rw_lock`](crate::LockClient::rw_lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) -> Result<(), redis_lock::LockError> {
    /// let reader = locks.rw_lock("prices").read().lock()?;
    /// reader.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn rw_lock(&self, name: &str) -> RwLock {
        self.rw_lock_with(name, LockOptions::new())
    }

    /// Returns the read-write lock with this name and these options.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) {
    /// use redis_lock::LockOptions;
    ///
    /// let prices = locks.rw_lock_with("prices", LockOptions::new().fair(true));
    /// # let _ = prices;
    /// # }
    /// ```
    pub fn rw_lock_with(&self, name: &str, options: LockOptions) -> RwLock {
        RwLock { lock: self.locks.rw_lock_with(name, options), runtime: Arc::clone(&self.runtime) }
    }

    /// Returns the semaphore with this name and number of permits, with the default options. See
    /// [`LockClient::semaphore`](crate::LockClient::semaphore).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) -> Result<(), redis_lock::LockError> {
    /// let permit = locks.semaphore("downloads", 4).acquire()?;
    /// permit.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        self.semaphore_with(name, permits, LockOptions::new())
    }

    /// Returns the semaphore with this name, number of permits and options.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) {
    /// use redis_lock::LockOptions;
    ///
    /// let downloads = locks.semaphore_with("downloads", 4, LockOptions::new().fair(true));
    /// # let _ = downloads;
    /// # }
    /// ```
    pub fn semaphore_with(&self, name: &str, permits: u32, options: LockOptions) -> Semaphore {
        let semaphore = self.locks.semaphore_with(name, permits, options);
        Semaphore { semaphore, runtime: Arc::clone(&self.runtime) }
    }
}

/// A read-write lock in Redis. See [`RwLock`](crate::RwLock).
///
/// # Examples
///
/// ```no_run
/// # fn example(prices: redis_lock::blocking::RwLock) -> Result<(), redis_lock::LockError> {
/// let (mut first, mut second) = (prices.read(), prices.read());
/// let readers = [first.lock()?, second.lock()?];
/// # drop(readers);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RwLock {
    lock: crate::RwLock,
    runtime: Arc<OwnRuntime>,
}

impl RwLock {
    /// Returns the name of the lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) {
    /// assert_eq!(locks.rw_lock("prices").name(), "prices");
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Returns a new owner, which takes the lock for reading.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(prices: redis_lock::blocking::RwLock) -> Result<(), redis_lock::LockError> {
    /// let guard = prices.read().lock()?;
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(&self) -> Lock {
        Lock::new(self.lock.read(), &self.runtime)
    }

    /// Returns a new owner, which takes the lock for writing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(prices: redis_lock::blocking::RwLock) -> Result<(), redis_lock::LockError> {
    /// let guard = prices.write().lock()?;
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(&self) -> Lock {
        Lock::new(self.lock.write(), &self.runtime)
    }
}

/// A semaphore in Redis. See [`Semaphore`](crate::Semaphore).
///
/// # Examples
///
/// ```no_run
/// # fn example(downloads: redis_lock::blocking::Semaphore) -> Result<(), redis_lock::LockError> {
/// if let Some(permit) = downloads.try_acquire()? {
///     permit.unlock()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Semaphore {
    semaphore: crate::Semaphore,
    runtime: Arc<OwnRuntime>,
}

impl Semaphore {
    /// Returns the name of the semaphore.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) {
    /// assert_eq!(locks.semaphore("downloads", 4).name(), "downloads");
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.semaphore.name()
    }

    /// Takes a permit. Waits while all permits are held. See
    /// [`Semaphore::acquire`](crate::Semaphore::acquire).
    ///
    /// # Errors
    ///
    /// As for [`Semaphore::acquire`](crate::Semaphore::acquire).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(downloads: redis_lock::blocking::Semaphore) -> Result<(), redis_lock::LockError> {
    /// downloads.acquire()?.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(&self) -> Result<Guard, LockError> {
        let guard = self.runtime.block_on(self.semaphore.acquire())?;
        Ok(Guard::new(guard, &self.runtime))
    }

    /// Takes a permit if one is free. See
    /// [`Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    ///
    /// # Errors
    ///
    /// As for [`Semaphore::acquire`](crate::Semaphore::acquire).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(downloads: redis_lock::blocking::Semaphore) -> Result<(), redis_lock::LockError> {
    /// match downloads.try_acquire()? {
    ///     Some(permit) => permit.unlock()?,
    ///     None => println!("all permits are held"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_acquire(&self) -> Result<Option<Guard>, LockError> {
        let guard = self.runtime.block_on(self.semaphore.try_acquire())?;
        Ok(guard.map(|guard| Guard::new(guard, &self.runtime)))
    }

    /// Takes a permit. Waits for at most `timeout`. See
    /// [`Semaphore::acquire_timeout`](crate::Semaphore::acquire_timeout).
    ///
    /// # Errors
    ///
    /// As for [`Semaphore::acquire`](crate::Semaphore::acquire).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(downloads: redis_lock::blocking::Semaphore) -> Result<(), redis_lock::LockError> {
    /// match downloads.acquire_timeout(Duration::from_secs(3))? {
    ///     Some(permit) => permit.unlock()?,
    ///     None => println!("all permits were held for 3 s"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<Guard>, LockError> {
        let guard = self.runtime.block_on(self.semaphore.acquire_timeout(timeout))?;
        Ok(guard.map(|guard| Guard::new(guard, &self.runtime)))
    }
}

impl LockClient {
    /// Returns the locks with these names as one, with the default options. See
    /// [`LockClient::multi_lock`](crate::LockClient::multi_lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) -> Result<(), redis_lock::LockError> {
    /// let guard = locks.multi_lock(["account 7", "account 3"]).lock()?;
    /// guard.unlock()?;
    /// # Ok(())
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
    /// # fn example(locks: redis_lock::blocking::LockClient) {
    /// use redis_lock::LockOptions;
    ///
    /// let options = LockOptions::new().fair(true);
    /// let accounts = locks.multi_lock_with(["account 7", "account 3"], options);
    /// # let _ = accounts;
    /// # }
    /// ```
    pub fn multi_lock_with<T: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = T>,
        options: LockOptions,
    ) -> MultiLock {
        MultiLock { lock: self.locks.multi_lock_with(names, options), runtime: Arc::clone(&self.runtime) }
    }
}

/// Several locks that are taken as one. See [`MultiLock`](crate::MultiLock).
///
/// # Examples
///
/// ```no_run
/// # fn example(locks: redis_lock::blocking::LockClient) -> Result<(), redis_lock::LockError> {
/// let guard = locks.multi_lock(["account 7", "account 3"]).lock()?;
/// guard.unlock()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MultiLock {
    lock: crate::MultiLock,
    runtime: Arc<OwnRuntime>,
}

impl MultiLock {
    /// Returns the names of the locks, in the order in which they are taken.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) {
    /// assert!(locks.multi_lock(["b", "a", "b"]).names().eq(["a", "b"]));
    /// # }
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.lock.names()
    }

    /// Takes all locks. Waits while another owner holds one of them. See
    /// [`MultiLock::lock`](crate::MultiLock::lock).
    ///
    /// # Errors
    ///
    /// As for [`MultiLock::lock`](crate::MultiLock::lock).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(mut accounts: redis_lock::blocking::MultiLock) -> Result<(), redis_lock::LockError> {
    /// accounts.lock()?.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&mut self) -> Result<MultiGuard, LockError> {
        let guard = self.runtime.block_on(self.lock.lock())?;
        Ok(MultiGuard::new(guard, &self.runtime))
    }

    /// Takes all locks if all are free. See [`MultiLock::try_lock`](crate::MultiLock::try_lock).
    ///
    /// # Errors
    ///
    /// As for [`MultiLock::lock`](crate::MultiLock::lock).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(mut accounts: redis_lock::blocking::MultiLock) -> Result<(), redis_lock::LockError> {
    /// if let Some(guard) = accounts.try_lock()? {
    ///     guard.unlock()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_lock(&mut self) -> Result<Option<MultiGuard>, LockError> {
        let guard = self.runtime.block_on(self.lock.try_lock())?;
        Ok(guard.map(|guard| MultiGuard::new(guard, &self.runtime)))
    }

    /// Takes all locks. Waits for at most `timeout`. See
    /// [`MultiLock::lock_timeout`](crate::MultiLock::lock_timeout).
    ///
    /// # Errors
    ///
    /// As for [`MultiLock::lock`](crate::MultiLock::lock).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(mut accounts: redis_lock::blocking::MultiLock) -> Result<(), redis_lock::LockError> {
    /// if let Some(guard) = accounts.lock_timeout(Duration::from_secs(3))? {
    ///     guard.unlock()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_timeout(&mut self, timeout: Duration) -> Result<Option<MultiGuard>, LockError> {
        let guard = self.runtime.block_on(self.lock.lock_timeout(timeout))?;
        Ok(guard.map(|guard| MultiGuard::new(guard, &self.runtime)))
    }
}

/// Holds several locks until it is dropped, or one of them is lost. See
/// [`MultiGuard`](crate::MultiGuard).
///
/// Dropping it is like dropping a [`Guard`] of each of them.
///
/// # Examples
///
/// ```no_run
/// # fn example(mut accounts: redis_lock::blocking::MultiLock) -> Result<(), redis_lock::LockError> {
/// let guard = accounts.lock()?;
/// guard.on_lost(|loss| eprintln!("one of the locks is lost: {loss}"));
/// guard.unlock()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping the guard releases the locks"]
pub struct MultiGuard {
    /// `None` after the release.
    guard: Option<crate::MultiGuard>,
    runtime: Arc<OwnRuntime>,
}

impl MultiGuard {
    fn new(guard: crate::MultiGuard, runtime: &Arc<OwnRuntime>) -> Self {
        Self { guard: Some(guard), runtime: Arc::clone(runtime) }
    }

    fn guard(&self) -> &crate::MultiGuard {
        self.guard.as_ref().expect("it was not released")
    }

    /// Returns the name and the token of each lock. See
    /// [`MultiGuard::tokens`](crate::MultiGuard::tokens).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::MultiGuard) {
    /// for (name, token) in guard.tokens() {
    ///     println!("the token of {name} is {token}");
    /// }
    /// # }
    /// ```
    pub fn tokens(&self) -> impl Iterator<Item = (&str, u64)> {
        self.guard().tokens()
    }

    /// Checks whether all locks were held until now. See
    /// [`MultiGuard::check`](crate::MultiGuard::check).
    ///
    /// # Errors
    ///
    /// [`Lost`](LockError::Lost), if one of them is lost.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::MultiGuard) -> Result<(), redis_lock::LockError> {
    /// guard.check()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> Result<(), LockError> {
        self.guard().check()
    }

    /// Waits until one of the locks is lost. See [`MultiGuard::lost`](crate::MultiGuard::lost).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::MultiGuard) {
    /// println!("one of the locks is lost: {}", guard.lost());
    /// # }
    /// ```
    pub fn lost(&self) -> Loss {
        self.runtime.block_on(self.guard().lost())
    }

    /// Calls `f` once, when the first of the locks is lost. See
    /// [`MultiGuard::on_lost`](crate::MultiGuard::on_lost).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::MultiGuard) {
    /// guard.on_lost(|loss| eprintln!("one of the locks is lost: {loss}"));
    /// # }
    /// ```
    pub fn on_lost(&self, f: impl FnOnce(Loss) + Send + 'static) {
        self.guard().on_lost(f);
    }

    /// Releases all locks, at the same time. See
    /// [`MultiGuard::unlock`](crate::MultiGuard::unlock).
    ///
    /// # Errors
    ///
    /// As for [`MultiGuard::unlock`](crate::MultiGuard::unlock).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::MultiGuard) -> Result<(), redis_lock::LockError> {
    /// guard.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn unlock(mut self) -> Result<(), LockError> {
        self.guard.take().map_or(Ok(()), |guard| self.runtime.block_on(guard.unlock()))
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        if guard.check().is_ok() && may_block() {
            _ = self.runtime.block_on(guard.unlock());
        }
    }
}
