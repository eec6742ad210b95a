//! Locks and guards of code that is not async.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::error::{LockError, Loss};
use crate::own_runtime::OwnRuntime;

/// A lock in Redis, and an owner of it. See [`Lock`](crate::Lock).
///
/// # Examples
///
/// ```no_run
/// # fn example(mut lock: redis_lock::blocking::Lock) -> Result<(), redis_lock::LockError> {
/// if let Some(guard) = lock.try_lock()? {
///     // … work, and send guard.token() with each access …
///     guard.unlock()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Lock {
    lock: crate::lock::Lock,
    runtime: Arc<OwnRuntime>,
}

impl Lock {
    pub(crate) fn new(lock: crate::lock::Lock, runtime: &Arc<OwnRuntime>) -> Self {
        Self {
            lock,
            runtime: Arc::clone(runtime),
        }
    }

    /// Returns the name of the lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) {
    /// assert_eq!(locks.lock("invoices").name(), "invoices");
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Takes the lock. Waits while another owner holds it.
    ///
    /// # Errors
    ///
    /// As for [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(mut lock: redis_lock::blocking::Lock) -> Result<(), redis_lock::LockError> {
    /// let guard = lock.lock()?;
    /// guard.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&mut self) -> Result<Guard, LockError> {
        let guard = self.runtime.block_on(self.lock.lock())?;
        Ok(self.guard(guard))
    }

    /// Takes the lock if it is free. See [`Lock::try_lock`](crate::Lock::try_lock).
    ///
    /// # Errors
    ///
    /// As for [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(mut lock: redis_lock::blocking::Lock) -> Result<(), redis_lock::LockError> {
    /// match lock.try_lock()? {
    ///     Some(guard) => guard.unlock()?,
    ///     None => println!("another owner holds the lock"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_lock(&mut self) -> Result<Option<Guard>, LockError> {
        let guard = self.runtime.block_on(self.lock.try_lock())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Takes the lock. Waits for at most `timeout`. See
    /// [`Lock::lock_timeout`](crate::Lock::lock_timeout).
    ///
    /// # Errors
    ///
    /// As for [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(mut lock: redis_lock::blocking::Lock) -> Result<(), redis_lock::LockError> {
    /// # use std::time::Duration;
    /// match lock.lock_timeout(Duration::from_secs(3))? {
    ///     Some(guard) => guard.unlock()?,
    ///     None => println!("another owner held the lock for 3 s"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_timeout(&mut self, timeout: Duration) -> Result<Option<Guard>, LockError> {
        let guard = self.runtime.block_on(self.lock.lock_timeout(timeout))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    fn guard(&self, guard: crate::guard::Guard) -> Guard {
        Guard::new(guard, &self.runtime)
    }
}

/// Holds a lock until it is dropped or lost. See [`Guard`](crate::Guard).
///
/// Dropping it is like [`unlock`](Self::unlock) without the result. It waits for Redis. If the lock
/// is lost, or on a thread of an async runtime, the release goes on in the background instead.
///
/// While it holds the lock, do not unlock or drop it in a task of the timer: without an answer from
/// Redis that would wait forever, because the timer ends the call.
///
/// # Examples
///
/// ```no_run
/// # fn work(token: u64) {}
/// # fn example(mut lock: redis_lock::blocking::Lock) -> Result<(), redis_lock::LockError> {
/// let guard = lock.lock()?;
/// guard.on_lost(|loss| eprintln!("the lock is lost: {loss}"));
/// work(guard.token());
/// guard.unlock()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    /// `None` after the release.
    guard: Option<crate::guard::Guard>,
    runtime: Arc<OwnRuntime>,
}

impl Guard {
    pub(crate) fn new(guard: crate::guard::Guard, runtime: &Arc<OwnRuntime>) -> Self {
        Self {
            guard: Some(guard),
            runtime: Arc::clone(runtime),
        }
    }

    /// Returns the fencing token. See [`Guard::token`](crate::Guard::token).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::Guard) -> Result<(), redis_lock::LockError> {
    /// println!("this is hold {}", guard.token());
    /// # Ok(())
    /// # }
    /// ```
    pub fn token(&self) -> u64 {
        self.guard().token()
    }

    /// Checks whether the lock was held until now. See [`Guard::check`](crate::Guard::check).
    ///
    /// # Errors
    ///
    /// [`Lost`](LockError::Lost).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::Guard) -> Result<(), redis_lock::LockError> {
    /// guard.check()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> Result<(), LockError> {
        self.guard().check()
    }

    /// Waits until the lock is lost. See [`Guard::lost`](crate::Guard::lost).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::Guard) -> Result<(), redis_lock::LockError> {
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| println!("the lock is lost: {}", guard.lost()));
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost(&self) -> Loss {
        self.runtime.block_on(self.guard().lost())
    }

    /// Calls `f` when the lock is lost. See [`Guard::on_lost`](crate::Guard::on_lost).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::Guard) -> Result<(), redis_lock::LockError> {
    /// guard.on_lost(|loss| eprintln!("the lock is lost: {loss}"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_lost(&self, f: impl FnOnce(Loss) + Send + 'static) {
        self.guard().on_lost(f);
    }

    /// Releases the lock, if this is the last guard of its hold. See
    /// [`Guard::unlock`](crate::Guard::unlock).
    ///
    /// # Errors
    ///
    /// As for [`Guard::unlock`](crate::Guard::unlock).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::Guard) -> Result<(), redis_lock::LockError> {
    /// guard.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn unlock(mut self) -> Result<(), LockError> {
        self.guard
            .take()
            .map_or(Ok(()), |guard| self.runtime.block_on(guard.unlock()))
    }

    fn guard(&self) -> &crate::guard::Guard {
        self.guard.as_ref().expect("it was not released")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else {
            return;
        };
        // If the lock is lost, this does not wait. A callback of the loss may drop the guard on the
        // thread of the timer, which ends the calls that Redis does not answer.
        if may_block() {
            _ = self.runtime.block_on(guard.unlock());
        }
    }
}

/// Returns whether this thread is outside of async runtimes.
pub(crate) fn may_block() -> bool {
    Handle::try_current().is_err_and(|error| error.is_missing_context())
}
