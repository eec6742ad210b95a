//! Several locks as one, for code that is not async.

use std::sync::Arc;
use std::time::Duration;

use crate::blocking_lock::may_block;
use crate::error::{LockError, Loss};
use crate::own_runtime::OwnRuntime;

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
    lock: crate::multi::MultiLock,
    runtime: Arc<OwnRuntime>,
}

impl MultiLock {
    pub(crate) fn new(lock: crate::multi::MultiLock, runtime: &Arc<OwnRuntime>) -> Self {
        Self {
            lock,
            runtime: Arc::clone(runtime),
        }
    }

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
/// Dropping it is like dropping a [`Guard`](crate::blocking::Guard) of each of them.
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
    guard: Option<crate::multi::MultiGuard>,
    runtime: Arc<OwnRuntime>,
}

impl MultiGuard {
    fn new(guard: crate::multi::MultiGuard, runtime: &Arc<OwnRuntime>) -> Self {
        Self {
            guard: Some(guard),
            runtime: Arc::clone(runtime),
        }
    }

    fn guard(&self) -> &crate::multi::MultiGuard {
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
        self.guard
            .take()
            .map_or(Ok(()), |guard| self.runtime.block_on(guard.unlock()))
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else {
            return;
        };
        if guard.check().is_ok() && may_block() {
            _ = self.runtime.block_on(guard.unlock());
        }
    }
}
