//! The locks, read-write locks and semaphores of code that is not async.

use std::sync::Arc;
use std::time::Duration;

use crate::blocking_guard::{Guard, Held};
use crate::error::LockError;
use crate::lock::Patience;
use crate::own_runtime::OwnRuntime;
use crate::state::{SharedHolder, SharedState};

/// A type of this crate whose calls block. The names for it are [`Lock`], [`MultiLock`],
/// [`RwLock`] and [`Semaphore`].
///
/// # Examples
///
/// ```no_run
/// # fn example(locks: redis_lock::blocking::LockClient) -> Result<(), redis_lock::LockError> {
/// let mut lock: redis_lock::blocking::Lock = locks.lock("invoices");
/// lock.lock()?.unlock()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Blocking<T> {
    inner: T,
    runtime: Arc<OwnRuntime>,
}

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
pub type Lock = Blocking<crate::lock::Lock>;

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
pub type MultiLock = Blocking<crate::multi::MultiLock>;

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
pub type RwLock = Blocking<crate::rw_lock::RwLock>;

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
pub type Semaphore = Blocking<crate::semaphore::Semaphore>;

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
pub type MultiGuard = Guard<crate::multi::MultiGuard>;

/// The locks of which an owner takes one or several. Nothing else implements it.
pub trait Owner {
    /// What holds them.
    type Guard: Held;
    /// Takes them. Returns `None` after the patience.
    fn take(
        &mut self,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<Self::Guard>, LockError>>;
}

impl Owner for crate::lock::Lock {
    type Guard = crate::guard::Guard;

    async fn take(&mut self, patience: Patience) -> Result<Option<Self::Guard>, LockError> {
        self.take(patience).await
    }
}

impl Owner for crate::multi::MultiLock {
    type Guard = crate::multi::MultiGuard;

    async fn take(&mut self, patience: Patience) -> Result<Option<Self::Guard>, LockError> {
        self.take(patience).await
    }
}

impl<T> Blocking<T> {
    pub(crate) fn new(inner: T, runtime: &Arc<OwnRuntime>) -> Self {
        let runtime = Arc::clone(runtime);
        Self { inner, runtime }
    }

    fn guard<G: Held>(&self, guard: G) -> Guard<G> {
        Guard::new(guard, &self.runtime)
    }
}

impl<T: Owner> Blocking<T> {
    /// Takes the lock, or all locks. Waits while another owner holds one of them. See
    /// [`MultiLock::lock`](crate::MultiLock::lock) for several.
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
    pub fn lock(&mut self) -> Result<Guard<T::Guard>, LockError> {
        loop {
            if let Some(guard) = self.take(Patience::Forever)? {
                return Ok(guard);
            }
        }
    }

    /// Takes the lock if it is free, or all locks if all are free. See
    /// [`Lock::try_lock`](crate::Lock::try_lock).
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
    pub fn try_lock(&mut self) -> Result<Option<Guard<T::Guard>>, LockError> {
        self.take(Patience::None)
    }

    /// Takes the lock, or all locks. Waits for at most `timeout` in all. See
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
    pub fn lock_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<Guard<T::Guard>>, LockError> {
        self.take(Patience::of(timeout))
    }

    fn take(&mut self, patience: Patience) -> Result<Option<Guard<T::Guard>>, LockError> {
        let guard = self.runtime.block_on(self.inner.take(patience))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }
}

impl Lock {
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
        self.inner.name()
    }
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
        self.inner.names()
    }
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
        self.inner.name()
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
        Blocking::new(self.inner.read(), &self.runtime)
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
        Blocking::new(self.inner.write(), &self.runtime)
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
        self.runtime.block_on(self.inner.state())
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
        self.runtime.block_on(self.inner.force_release(token))
    }
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
        self.inner.name()
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
        let guard = self.runtime.block_on(self.inner.acquire())?;
        Ok(self.guard(guard))
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
        let guard = self.runtime.block_on(self.inner.try_acquire())?;
        Ok(guard.map(|guard| self.guard(guard)))
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
        let guard = self.runtime.block_on(self.inner.acquire_timeout(timeout))?;
        Ok(guard.map(|guard| self.guard(guard)))
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
        self.runtime.block_on(self.inner.state())
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
        self.runtime.block_on(self.inner.force_release(token))
    }
}
