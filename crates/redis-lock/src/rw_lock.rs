//! Read-write locks.

use std::fmt;
use std::sync::Arc;

use crate::client::LockClient;
use crate::error::LockError;
use crate::lock::Lock;
use crate::options::LockOptions;
use crate::scripts::Kind;
use crate::state::{SharedHolder, SharedState};

/// A read-write lock in Redis: either several owners hold it for reading, or one for writing.
///
/// [`read`](Self::read) and [`write`](Self::write) return owners. They are [`Lock`]s, so leases,
/// the watchdog, re-entry, timeouts and cancel safety are those of a lock.
///
/// A waiting writer that is the first of the queue is not overtaken by readers. If the lock is not
/// [fair](LockOptions::fair), a writer may overtake all that wait, so readers can starve while
/// writers come without a pause. With the fair option, all get the lock in the order in which they
/// began to wait, and readers that wait one after the other get it together.
///
/// A waiting writer whose process has died keeps new readers out until 500 ms after the other
/// readers are gone, or its place in the queue ends: a lease after its last attempt.
///
/// # Examples
///
/// ```no_run
/// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
/// let prices = locks.rw_lock("prices");
/// let (mut first, mut second) = (prices.read(), prices.read());
/// let readers = [first.lock().await?, second.lock().await?];
/// assert!(prices.write().try_lock().await?.is_none());
/// for reader in readers {
///     reader.unlock().await?;
/// }
/// let writer = prices.write().lock().await?;
/// writer.unlock().await
/// # }
/// ```
///
/// # One task with several owners
///
/// A reading and a writing owner are different, and exclude each other also within one task. So a
/// task that holds one and waits for another one of the same lock can wait for itself, and no error
/// tells:
///
/// | it holds | it waits for | |
/// |---|---|---|
/// | reading | writing | waits for itself: release the reading guard first |
/// | writing | reading | waits for itself: a writer may read under its writing guard |
/// | reading | reading, with the same owner | never waits: that is re-entry |
/// | reading | reading, with another owner | waits for itself if a writer waits in between |
///
/// Use [`lock_timeout`](Lock::lock_timeout) where that cannot be excluded.
///
/// # Tokens
///
/// The [token](crate::Guard::token) of each hold is greater than those of all earlier holds, for
/// reading and for writing. A resource needs the greatest token of a read and that of a write:
///
/// - It rejects a read with a token that is less than the greatest token of a write.
/// - It rejects a write with a token that is less than the greatest token of a read or a write.
///
/// Then no reader sees a half of a write, and no former writer changes what a reader has seen, even
/// if their leases have ended. It must not reject a read because of a later read.
pub struct RwLock {
    read: Lock,
    write: Lock,
}

impl LockClient {
    /// Returns the read-write lock with this name, with the default options. It does not call
    /// Redis. A [lock](Self::lock) with the same name is independent of it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
    /// let reader = locks.rw_lock("prices").read().lock().await?;
    /// println!("the token of this hold is {}", reader.token());
    /// reader.unlock().await
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
    /// # use redis_lock::{LockClient, LockOptions};
    /// # fn example(locks: &LockClient) {
    /// let prices = locks.rw_lock_with("prices", LockOptions::new().fair(true));
    /// # let _ = prices;
    /// # }
    /// ```
    pub fn rw_lock_with(&self, name: &str, options: LockOptions) -> RwLock {
        let [read, write] = [Kind::Read, Kind::Write]
            .map(|kind| Lock::new(Arc::clone(&self.shared), kind, name, options.clone()));
        RwLock { read, write }
    }
}

impl RwLock {
    /// Returns the name of the lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::LockClient) {
    /// assert_eq!(locks.rw_lock("prices").name(), "prices");
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.read.name()
    }

    /// Returns a new owner, which takes the lock for reading.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(prices: redis_lock::RwLock) -> Result<(), redis_lock::LockError> {
    /// match prices.read().lock_timeout(Duration::from_secs(3)).await? {
    ///     Some(guard) => guard.unlock().await?,
    ///     None => println!("a writer held the lock for 3 s"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(&self) -> Lock {
        self.read.another()
    }

    /// Returns a new owner, which takes the lock for writing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(prices: redis_lock::RwLock) -> Result<(), redis_lock::LockError> {
    /// let guard = prices.write().lock().await?;
    /// // … write, and send guard.token() with each access …
    /// guard.unlock().await
    /// # }
    /// ```
    pub fn write(&self) -> Lock {
        self.write.another()
    }

    /// Asks Redis which owners hold it, for reading or for writing, and how many callers wait.
    ///
    /// The answer may be outdated when it arrives: use it to show it, and not to decide whether to
    /// enter.
    ///
    /// # Errors
    ///
    /// As for [`LockClient::state`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(prices: redis_lock::RwLock) -> Result<(), redis_lock::LockError> {
    /// for holder in prices.state().await?.holders {
    ///     println!("{} holds it, with token {:?}", holder.holder, holder.token);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn state(&self) -> Result<SharedState, LockError> {
        self.read.state().await
    }

    /// Ends the hold with this token, whatever owner has it, and wakes the callers that can enter
    /// then. Returns the holder, or `None` if no hold has this token, or only one whose
    /// [token](crate::SharedHolder::token) is forgotten.
    ///
    /// The holder learns it like that of a lock, and works on until then. See
    /// [`LockClient::force_unlock`] for when that is safe.
    ///
    /// # Errors
    ///
    /// As for [`LockClient::force_unlock`]. If the client of a cluster repeats the call, the answer is
    /// `None` although the hold was ended.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(prices: redis_lock::RwLock) -> Result<(), redis_lock::LockError> {
    /// // Its process hangs, and has been killed.
    /// let state = prices.state().await?;
    /// let hung = state.holders.iter().find(|holder| holder.holder == "worker-7/4711");
    /// if let Some(token) = hung.and_then(|hung| hung.token) {
    ///     prices.force_release(token).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn force_release(&self, token: u64) -> Result<Option<SharedHolder>, LockError> {
        self.read.force_release(token).await
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
