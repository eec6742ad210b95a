//! The settings of a client, and their checks.

use std::fmt;

use hashed_wheel::HashedWheelTimer;
use redis::RedisResult;
use tokio::runtime::Handle;

use crate::connection::Server;
use crate::{LockClient, LockError};

/// The maximum length of a prefix in bytes. Each call of a script has it in each of its keys.
const MAX_PREFIX: usize = 128;

/// Makes a [`LockClient`] with settings. [`LockClient::builder`], `LockClient::cluster` and
/// `LockClient::sentinel` return it.
///
/// # Examples
///
/// ```no_run
/// use redis_lock::{LockClient, redis};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let locks = LockClient::builder(client).prefix("shop:").build()?;
/// # let _ = locks;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder makes no client before `build` is called"]
pub struct LockClientBuilder {
    /// Or the reason why there is none. `build` returns it.
    server: RedisResult<Server>,
    timer: Option<HashedWheelTimer>,
    prefix: String,
}

impl LockClientBuilder {
    pub(crate) fn new(server: RedisResult<Server>) -> Self {
        Self { server, timer: None, prefix: String::new() }
    }

    /// Sets the timer that times leases, renewals, waiting and calls. By default, that is
    /// [`HashedWheelTimer::global`], whose ticks are 100 ms.
    ///
    /// The tick is how late a holder may learn that its lease has ended. It should be at most a
    /// thirtieth of the shortest lease, and a lease is at least three ticks. Keep the timer until
    /// all guards are gone: if it is stopped, the locks that are held are lost.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use redis_lock::hashed_wheel::HashedWheelTimer;
    /// use redis_lock::{LockClient, redis};
    /// use std::time::Duration;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
    /// let locks = LockClient::builder(client).timer(&timer).build()?;
    /// # let _ = locks;
    /// # Ok(())
    /// # }
    /// ```
    pub fn timer(mut self, timer: &HashedWheelTimer) -> Self {
        self.timer = Some(timer.clone());
        self
    }

    /// Sets the text with which all keys and channels in Redis begin. By default it is empty.
    /// Clients with different prefixes have different locks, even if the names are equal.
    ///
    /// It has at most 128 bytes, and no braces, white space or control characters. With the prefix
    /// `shop:`, the lock `a` has the key `shop:{lock:a}`: the part in braces still decides the slot
    /// on a cluster.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use redis_lock::{LockClient, redis};
    /// # async fn example(client: redis::Client) -> Result<(), redis_lock::LockError> {
    /// let locks = LockClient::builder(client).prefix("shop:").build()?;
    /// // In Redis, its key is `shop:{lock:invoices}`.
    /// let invoices = locks.lock("invoices");
    /// # let _ = invoices;
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Makes the client, on the current runtime. It does not call Redis.
    ///
    /// # Errors
    ///
    /// - [`NoRuntime`](LockError::NoRuntime): it is called outside of a tokio runtime.
    /// - [`Options`](LockError::Options): the prefix is not valid.
    /// - [`Redis`](LockError::Redis): the URL of a node of a cluster is not valid.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use redis_lock::{LockClient, redis};
    /// # async fn example(client: redis::Client) -> Result<(), redis_lock::LockError> {
    /// let locks = LockClient::builder(client).build()?;
    /// # let _ = locks;
    /// # Ok(())
    /// # }
    /// ```
    pub fn build(self) -> Result<LockClient, LockError> {
        let runtime = Handle::try_current().map_err(|_| LockError::NoRuntime)?;
        let Self { server, timer, prefix } = self;
        check_prefix(&prefix)?;
        let timer = timer.unwrap_or_else(|| HashedWheelTimer::global().clone());
        Ok(LockClient::start(server?, &timer, &prefix, runtime))
    }

    /// Makes the client for code that is not async. Needs feature `blocking`.
    ///
    /// # Errors
    ///
    /// - [`Options`](LockError::Options): the prefix is not valid.
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
    #[cfg(feature = "blocking")]
    pub fn build_blocking(self) -> Result<crate::blocking::LockClient, LockError> {
        crate::blocking::LockClient::start(self)
    }
}

impl fmt::Debug for LockClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClientBuilder").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// A brace would decide the slot on a cluster, for all locks alike or for each key differently. A
/// message is split at its white space.
fn check_prefix(prefix: &str) -> Result<(), LockError> {
    let wrong = |c: char| matches!(c, '{' | '}') || c.is_whitespace() || c.is_control();
    let why = if prefix.len() > MAX_PREFIX {
        format!("a prefix of {} bytes is longer than {MAX_PREFIX}", prefix.len())
    } else if let Some(found) = prefix.chars().find(|&c| wrong(c)) {
        format!(
            "the prefix {prefix:?} contains {found:?}: braces, white space and control characters are not allowed"
        )
    } else {
        return Ok(());
    };
    Err(LockError::Options(why))
}
