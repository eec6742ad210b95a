//! The same locks for code that is not async. Needs feature `blocking`.
//!
//! A [`LockClient`] has a runtime on one thread of its own. Its calls block the calling thread, so
//! they panic if they are made on a thread of an async runtime. There is no closure form: a thread
//! cannot be cancelled. Call [`Guard::check`] before each step that could do harm.
//!
//! # Examples
//!
//! ```no_run
//! use redis_lock::blocking::LockClient;
//! use redis_lock::redis;
//!
//! let locks = LockClient::new(redis::Client::open("redis://127.0.0.1/")?)?;
//! let guard = locks.lock("invoices").lock()?;
//! println!("the token of this hold is {}", guard.token());
//! guard.unlock()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::Arc;

use redis::{Client, RedisError};
use tokio::runtime;

pub use crate::blocking_guard::Guard;
pub use crate::blocking_lock::{Blocking, Lock, MultiGuard, MultiLock, RwLock, Semaphore};
use crate::builder::LockClientBuilder;
use crate::error::LockError;
use crate::options::LockOptions;
use crate::own_runtime::OwnRuntime;
use crate::state::LockState;

/// [`LockClient`](crate::LockClient) with a runtime of its own.
///
/// The thread of the runtime ends when the client, its locks and their guards are dropped, and the
/// releases in the background have ended. They may be dropped on the thread of another runtime.
///
/// # Examples
///
/// A client is cheap to clone, and may be used by several threads:
///
/// ```no_run
/// # fn example(locks: redis_lock::blocking::LockClient) {
/// let threads = [(); 2].map(|()| {
///     let locks = locks.clone();
///     std::thread::spawn(move || locks.lock("invoices").lock()?.unlock())
/// });
/// for thread in threads {
///     thread.join().unwrap().unwrap();
/// }
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LockClient {
    locks: crate::client::LockClient,
    runtime: Arc<OwnRuntime>,
}

impl LockClientBuilder {
    /// Makes the client for code that is not async. Needs feature `blocking`.
    ///
    /// # Errors
    ///
    /// - [`Options`](LockError::Options): the prefix or the name of the holder is not valid.
    /// - [`Redis`](LockError::Redis): the thread of the runtime cannot be started, or the URL of a
    ///   node of a cluster is not valid.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example() -> Result<(), redis_lock::LockError> {
    /// # #[cfg(feature = "cluster")]
    /// let locks = redis_lock::LockClient::cluster(["redis://10.0.0.1/", "redis://10.0.0.2/"])
    ///     .prefix("shop:")
    ///     .build_blocking()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn build_blocking(self) -> Result<LockClient, LockError> {
        LockClient::start(self)
    }
}

impl LockClient {
    /// Makes a client of a single server, with the default settings.
    /// [`build_blocking`](crate::LockClientBuilder::build_blocking) makes one with others, also of
    /// a cluster or with sentinels.
    ///
    /// # Errors
    ///
    /// [`Redis`](LockError::Redis), if the thread of the runtime cannot be started.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example() -> Result<(), redis_lock::LockError> {
    /// use redis_lock::{blocking::LockClient, redis};
    ///
    /// let locks = LockClient::new(redis::Client::open("redis://127.0.0.1/")?)?;
    /// # let _ = locks;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(client: Client) -> Result<Self, LockError> {
        crate::client::LockClient::builder(client).build_blocking()
    }

    /// Makes the client on a runtime of its own.
    pub(crate) fn start(client: LockClientBuilder) -> Result<Self, LockError> {
        let mut builder = runtime::Builder::new_multi_thread();
        let runtime = builder
            .worker_threads(1)
            .thread_name("redis-lock")
            .enable_all()
            .build();
        // From here on, it may be dropped on the thread of another runtime.
        let runtime = OwnRuntime::new(runtime.map_err(RedisError::from)?);
        let locks = {
            let _entered = runtime.enter();
            client.build()?
        };
        let runtime = Arc::new(runtime);
        locks.keep(&runtime);
        Ok(Self { locks, runtime })
    }

    /// Returns the lock with this name, with the default options. See
    /// [`LockClient::lock`](crate::LockClient::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) -> Result<(), redis_lock::LockError> {
    /// let mut lock = locks.lock("invoices");
    /// lock.lock()?.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&self, name: &str) -> Lock {
        self.lock_with(name, LockOptions::new())
    }

    /// Returns the lock with this name and these options.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) {
    /// use redis_lock::LockOptions;
    ///
    /// let lock = locks.lock_with("invoices", LockOptions::new().fair(true));
    /// # let _ = lock;
    /// # }
    /// ```
    pub fn lock_with(&self, name: &str, options: LockOptions) -> Lock {
        Blocking::new(self.locks.lock_with(name, options), &self.runtime)
    }

    /// Asks which owner has a lock. See [`LockClient::state`](crate::LockClient::state).
    ///
    /// # Errors
    ///
    /// As for [`LockClient::state`](crate::LockClient::state).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) -> Result<(), redis_lock::LockError> {
    /// println!("{:?}", locks.state("invoices")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn state(&self, name: &str) -> Result<Option<LockState>, LockError> {
        self.runtime.block_on(self.locks.state(name))
    }

    /// Ends the hold of any owner. See
    /// [`LockClient::force_unlock`](crate::LockClient::force_unlock) for when that is safe.
    ///
    /// # Errors
    ///
    /// As for [`LockClient::force_unlock`](crate::LockClient::force_unlock).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) -> Result<(), redis_lock::LockError> {
    /// let ended = locks.force_unlock("report")?;
    /// println!("{ended:?}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn force_unlock(&self, name: &str) -> Result<Option<LockState>, LockError> {
        self.runtime.block_on(self.locks.force_unlock(name))
    }

    /// Returns the name of this client. See [`LockClient::name`](crate::LockClient::name).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::blocking::LockClient) {
    /// println!("{}", locks.name());
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.locks.name()
    }

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
        Blocking::new(self.locks.rw_lock_with(name, options), &self.runtime)
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
        Blocking::new(
            self.locks.semaphore_with(name, permits, options),
            &self.runtime,
        )
    }

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
        Blocking::new(self.locks.multi_lock_with(names, options), &self.runtime)
    }
}
