//! A client of the locks on one server or cluster.

use std::fmt;
use std::sync::Arc;

use hashed_wheel::HashedWheelTimer;
use redis::Client;
use tokio::runtime::Handle;

use crate::builder::LockClientBuilder;
use crate::connection::Server;
use crate::context::Context;
use crate::error::LockError;
use crate::guard::Guard;
use crate::lock::Lock;
use crate::options::LockOptions;
use crate::scripts::Kind;

/// A client of the locks on one Redis server, or on several.
///
/// It is cheap to clone. All its locks share one connection for calls, another one for messages to
/// waiting callers, and the timer. It connects when a lock is first requested, and again after a
/// connection has failed.
///
/// The connections, renewals and releases in the background are on the runtime on which the client
/// was made. It has to be multi-threaded, or its thread must not block, and it has to enable I/O.
/// The methods of locks and guards may be called on any other runtime, and outside of one.
///
/// # Examples
///
/// ```no_run
/// use redis_lock::{LockClient, redis};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockClient::new(redis::Client::open("redis://127.0.0.1/")?)?;
///
/// let mut invoices = locks.lock("invoices");
/// let guard = invoices.lock().await?;
/// println!("the token of this hold is {}", guard.token());
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LockClient {
    pub(crate) shared: Arc<Context>,
}

impl LockClient {
    /// Makes a client of a single server, on the current runtime, with the default settings: the
    /// [timer of the process](HashedWheelTimer::global), whose ticks are 100 ms, and no prefix.
    /// [`builder`](Self::builder) sets others. TLS is used if the URL of `client` says so and a
    /// feature for it is enabled.
    ///
    /// # Errors
    ///
    /// [`NoRuntime`](LockError::NoRuntime), if it is called outside of a tokio runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use redis_lock::{LockClient, LockError, redis};
    /// # async fn example() -> Result<(), LockError> {
    /// let locks = LockClient::new(redis::Client::open("redis://127.0.0.1/")?)?;
    /// # let _ = locks;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(client: Client) -> Result<Self, LockError> {
        Self::builder(client).build()
    }

    /// Returns a builder of a client of a single server.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use redis_lock::{LockClient, LockError, redis};
    /// # async fn example() -> Result<(), LockError> {
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let locks = LockClient::builder(client).prefix("shop:").build()?;
    /// # let _ = locks;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(client: Client) -> LockClientBuilder {
        LockClientBuilder::new(Ok(Server::Single(Box::new(client))))
    }

    /// Returns a builder of a client of the master that sentinels know. After a failover, the next
    /// call that fails makes the client ask the sentinels again. Needs feature `sentinel`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use redis_lock::redis::sentinel::{SentinelClient, SentinelServerType};
    /// # use redis_lock::{LockClient, LockError};
    ///
    /// # async fn example() -> Result<(), LockError> {
    /// let nodes = vec!["redis://10.0.0.1:26379/", "redis://10.0.0.2:26379/"];
    /// let master = SentinelServerType::Master;
    /// let sentinel = SentinelClient::build(nodes, "mymaster", None, master)?;
    /// let locks = LockClient::sentinel(sentinel).build()?;
    /// # let _ = locks;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "sentinel")]
    pub fn sentinel(sentinel: redis::sentinel::SentinelClient) -> LockClientBuilder {
        LockClientBuilder::new(Ok(Server::Sentinel(Box::new(tokio::sync::Mutex::new(
            sentinel,
        )))))
    }

    /// Returns a builder of a client of a cluster with these nodes. The client finds the others.
    /// Needs feature `cluster`.
    ///
    /// Messages to waiting callers are received from the first of these nodes that can be reached.
    /// So pass several nodes: if none of them can be reached, waiting callers poll.
    ///
    /// A node that does not answer delays calls to the others by about 2 s, until another node has
    /// taken over. Leases of more than 12 s avoid failed calls, because a call may take a sixth of
    /// the lease. By default, a cluster refuses all calls while a part of the slots has no master:
    /// see `cluster-require-full-coverage` in the configuration of Redis.
    ///
    /// While a slot moves to another node, Redis executes only calls with one key of it. So the
    /// locks of the slot are renewed, but can neither be taken nor released. The calls fail with
    /// `TRYAGAIN` if that takes longer than a sixth of the lease.
    ///
    /// A URL that is not valid is an error of [`build`](LockClientBuilder::build).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use redis_lock::{LockClient, LockError};
    /// # async fn example() -> Result<(), LockError> {
    /// let locks = LockClient::cluster(["redis://10.0.0.1/", "redis://10.0.0.2/"]).build()?;
    /// # let _ = locks;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "cluster")]
    pub fn cluster<T: redis::IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
    ) -> LockClientBuilder {
        LockClientBuilder::new(Server::cluster(nodes))
    }

    /// Makes a client that uses `runtime`. `prefix` and `holder` are valid.
    pub(crate) fn start(
        server: Server,
        timer: &HashedWheelTimer,
        [prefix, holder]: [&str; 2],
        runtime: Handle,
    ) -> Self {
        Self {
            shared: Arc::new(Context::start(server, timer, [prefix, holder], runtime)),
        }
    }

    /// Returns the lock with this name, with the default options. It does not call Redis.
    ///
    /// Each `Lock` is an owner of its own, even if the names are equal: one that holds the lock
    /// excludes the others. A name may be any text, even an empty one.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
    /// let [mut first, mut second] = [locks.lock("invoices"), locks.lock("invoices")];
    /// let guard = first.lock().await?;
    /// assert!(second.try_lock().await?.is_none());
    /// guard.unlock().await?;
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
    /// # use redis_lock::{LockClient, LockOptions};
    /// # use std::time::Duration;
    /// # fn example(locks: &LockClient) {
    /// let report = locks.lock_with("report", LockOptions::new().lease(Duration::from_secs(5)));
    /// # let _ = report;
    /// # }
    /// ```
    pub fn lock_with(&self, name: &str, options: LockOptions) -> Lock {
        Lock::new(Arc::clone(&self.shared), Kind::Lock, name, options)
    }

    /// Takes the lock with this name, with the default options, runs `work`, and releases the lock.
    /// When the lock is lost, the future of `work` is cancelled. See [`Lock::with_lock`], which
    /// does the same with other options.
    ///
    /// # Errors
    ///
    /// As for [`Lock::with_lock`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn pay(token: u64) {}
    /// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
    /// locks.with_lock("invoices", async |guard| pay(guard.token()).await).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with_lock<R>(
        &self,
        name: &str,
        work: impl AsyncFnOnce(&Guard) -> R,
    ) -> Result<R, LockError> {
        self.lock(name).with_lock(work).await
    }

    /// Returns the name of this client: the first part of the names of its owners in Redis. The
    /// member of a held lock's set `{lock:NAME}` begins with it. It is the
    /// [name of the holder](LockClientBuilder::holder), a colon, and a random number.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::LockClient) {
    /// println!("in Redis, the locks of this process have owners that begin with {}", locks.name());
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        &self.shared.name
    }
}

#[cfg(feature = "blocking")]
impl LockClient {
    /// Keeps the runtime of a blocking client until the calls in the background have ended.
    pub(crate) fn keep(&self, runtime: &Arc<crate::own_runtime::OwnRuntime>) {
        self.shared.calls.keep(runtime);
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}
