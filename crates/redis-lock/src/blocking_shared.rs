//! Read-write locks and semaphores, for code that is not async.

use std::sync::Arc;
use std::time::Duration;

use crate::blocking_lock::{Guard, Lock};
use crate::error::LockError;
use crate::own_runtime::OwnRuntime;
use crate::state::{SharedHolder, SharedState};

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
    lock: crate::rw_lock::RwLock,
    runtime: Arc<OwnRuntime>,
}

impl RwLock {
    pub(crate) fn new(lock: crate::rw_lock::RwLock, runtime: &Arc<OwnRuntime>) -> Self {
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

    /// Asks which owners hold it. See [`RwLock::state`](crate::RwLock::state).
    ///
    /// # Errors
    ///
    /// As for [`RwLock::state`](crate::RwLock::state).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(prices: redis_lock::blocking::RwLock) -> Result<(), redis_lock::LockError> {
    /// println!("{:?}", prices.state()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn state(&self) -> Result<SharedState, LockError> {
        self.runtime.block_on(self.lock.state())
    }

    /// Ends the hold with this token. See
    /// [`RwLock::force_release`](crate::RwLock::force_release) for when that is safe.
    ///
    /// # Errors
    ///
    /// As for [`RwLock::force_release`](crate::RwLock::force_release).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(prices: redis_lock::blocking::RwLock) -> Result<(), redis_lock::LockError> {
    /// if let Some(token) = prices.state()?.holders.first().and_then(|holder| holder.token) {
    ///     prices.force_release(token)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn force_release(&self, token: u64) -> Result<Option<SharedHolder>, LockError> {
        self.runtime.block_on(self.lock.force_release(token))
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
    semaphore: crate::semaphore::Semaphore,
    runtime: Arc<OwnRuntime>,
}

impl Semaphore {
    pub(crate) fn new(semaphore: crate::semaphore::Semaphore, runtime: &Arc<OwnRuntime>) -> Self {
        Self {
            semaphore,
            runtime: Arc::clone(runtime),
        }
    }

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
        let guard = self
            .runtime
            .block_on(self.semaphore.acquire_timeout(timeout))?;
        Ok(guard.map(|guard| Guard::new(guard, &self.runtime)))
    }

    /// Asks which owners hold it. See [`Semaphore::state`](crate::Semaphore::state).
    ///
    /// # Errors
    ///
    /// As for [`Semaphore::state`](crate::Semaphore::state).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(downloads: redis_lock::blocking::Semaphore) -> Result<(), redis_lock::LockError> {
    /// println!("{:?}", downloads.state()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn state(&self) -> Result<SharedState, LockError> {
        self.runtime.block_on(self.semaphore.state())
    }

    /// Ends the hold with this token. See
    /// [`Semaphore::force_release`](crate::Semaphore::force_release) for when that is safe.
    ///
    /// # Errors
    ///
    /// As for [`Semaphore::force_release`](crate::Semaphore::force_release).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(downloads: redis_lock::blocking::Semaphore) -> Result<(), redis_lock::LockError> {
    /// if let Some(token) = downloads.state()?.holders.first().and_then(|holder| holder.token) {
    ///     downloads.force_release(token)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn force_release(&self, token: u64) -> Result<Option<SharedHolder>, LockError> {
        self.runtime.block_on(self.semaphore.force_release(token))
    }
}
