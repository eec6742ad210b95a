//! The settings of a client, and their checks.

use std::{env, fmt, fs, process};

use hashed_wheel::HashedWheelTimer;
use redis::RedisResult;
use tokio::runtime::Handle;

use crate::client::LockClient;
use crate::connection::Server;
use crate::error::LockError;

/// The maximum length of a prefix or a holder's name in bytes. Each call of a script has them.
const MAX_TEXT: usize = 128;

/// The maximum number of characters of the host's name that are used: it is valid with up to 4
/// bytes per character, and the id of the process.
const MAX_HOST: usize = 29;

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
    holder: Option<String>,
}

impl LockClientBuilder {
    pub(crate) fn new(server: RedisResult<Server>) -> Self {
        Self {
            server,
            timer: None,
            prefix: String::new(),
            holder: None,
        }
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

    /// Sets the name that [`LockState::holder`](crate::LockState::holder) shows for the locks that
    /// the client holds. By default it is `HOST/PID`, with the name of the host where the platform
    /// tells it (else `unknown`), and the id of the process.
    ///
    /// It has 1 to 128 bytes, and no white space or control characters. It is for people: holders
    /// with equal names exclude each other too.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use redis_lock::{LockClient, redis};
    /// # async fn example(client: redis::Client) -> Result<(), redis_lock::LockError> {
    /// let locks = LockClient::builder(client).holder("billing-7").build()?;
    /// let _guard = locks.lock("invoices").lock().await?;
    /// assert_eq!(locks.state("invoices").await?.unwrap().holder, "billing-7");
    /// # Ok(())
    /// # }
    /// ```
    pub fn holder(mut self, holder: &str) -> Self {
        self.holder = Some(holder.to_owned());
        self
    }

    /// Makes the client, on the current runtime. It does not call Redis.
    ///
    /// # Errors
    ///
    /// - [`NoRuntime`](LockError::NoRuntime): it is called outside of a tokio runtime.
    /// - [`Options`](LockError::Options): the prefix or the name of the holder is not valid.
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
        let Self {
            server,
            timer,
            prefix,
            holder,
        } = self;
        let holder = holder.unwrap_or_else(default_holder);
        check("prefix", &prefix, &['{', '}'])?;
        check("name of the holder", &holder, &[])?;
        if holder.is_empty() {
            return Err(LockError::Options(
                "the name of the holder is empty".to_owned(),
            ));
        }
        let timer = timer.unwrap_or_else(|| HashedWheelTimer::global().clone());
        Ok(LockClient::start(
            server?,
            &timer,
            [&prefix, &holder],
            runtime,
        ))
    }
}

impl fmt::Debug for LockClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, holder, .. } = self;
        f.debug_struct("LockClientBuilder")
            .field("prefix", prefix)
            .field("holder", holder)
            .finish_non_exhaustive()
    }
}

/// Checks a text that is in keys, channels or messages. A brace in a key would decide the slot on a
/// cluster. A message is split at its white space.
fn check(what: &str, text: &str, excluded: &[char]) -> Result<(), LockError> {
    let is_wrong = |c: char| excluded.contains(&c) || c.is_whitespace() || c.is_control();
    let why = if text.len() > MAX_TEXT {
        format!("a {what} of {} bytes is longer than {MAX_TEXT}", text.len())
    } else if let Some(found) = text.chars().find(|&c| is_wrong(c)) {
        let also = if excluded.is_empty() { "" } else { "braces, " };
        format!(
            "the {what} {text:?} contains {found:?}: {also}white space and control characters are not allowed"
        )
    } else {
        return Ok(());
    };
    Err(LockError::Options(why))
}

/// Returns `HOST/PID`. The standard library does not know the name of the host.
fn default_holder() -> String {
    let files = ["/proc/sys/kernel/hostname", "/etc/hostname"];
    let host = files.iter().find_map(|file| fs::read_to_string(file).ok());
    let host = host.or_else(|| {
        ["HOSTNAME", "COMPUTERNAME"]
            .iter()
            .find_map(|name| env::var(name).ok())
    });
    let host = host.unwrap_or_default();
    let host = host
        .split(|c: char| c.is_whitespace() || c.is_control())
        .find(|word| !word.is_empty());
    let host: String = host.unwrap_or("unknown").chars().take(MAX_HOST).collect();
    format!("{host}/{}", process::id())
}
