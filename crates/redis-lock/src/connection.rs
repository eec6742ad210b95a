//! The connection of a client. It is opened by the first call, and opened again by the next call
//! after it has failed.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, TimeoutError};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError,
    RedisResult, RetryMethod, ServerErrorKind, Value,
};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};

use crate::error::LockError;
use crate::refusal;
use crate::scripts::Call;

/// The maximum time to open a connection. It does not depend on leases: a server that is slow to
/// connect to must not be unusable for locks with short leases.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of connections that are kept for calls that block them.
const MAX_SPARE: usize = 4;

/// The pause before a call is repeated because of its answer. Each pause of a call is twice as long
/// as the one before, up to the maximum.
const PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// The oldest version of Redis that is supported. Valkey continues its numbers.
const OLDEST: (u32, u32) = (6, 2);

/// The server or servers that have the locks.
pub(crate) enum Server {
    Single(Box<Client>),
    #[cfg(feature = "sentinel")]
    Sentinel(Box<Mutex<redis::sentinel::SentinelClient>>),
    #[cfg(feature = "cluster")]
    Cluster {
        cluster: Box<redis::cluster::ClusterClient>,
        /// Each node delivers the messages that were published on any of them.
        nodes: Vec<Client>,
    },
}

/// A connection that many calls use at the same time.
#[derive(Clone)]
enum Link {
    One(MultiplexedConnection),
    #[cfg(feature = "cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
}

impl Link {
    async fn query_all<T: FromRedisValue>(&mut self, commands: &Pipeline) -> RedisResult<T> {
        match self {
            Self::One(link) => commands.query_async(link).await,
            // The keys of the commands decide the node, for all of them.
            #[cfg(feature = "cluster")]
            Self::Cluster(link) => commands.query_async(link).await,
        }
        .map_err(refusal::cause)
    }

    async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        match self {
            Self::One(link) => command.query_async(link).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(link) => command.query_async(link).await,
        }
        .map_err(refusal::cause)
    }
}

impl Server {
    #[cfg(feature = "cluster")]
    pub(crate) fn cluster<T: redis::IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
    ) -> RedisResult<Self> {
        let nodes = nodes
            .into_iter()
            .map(Client::open)
            .collect::<RedisResult<Vec<_>>>()?;
        let infos = nodes.iter().map(|node| node.get_connection_info().clone());
        // The cluster's client follows redirections. `Connection` repeats all other calls that
        // fail, and keeps the reason, which the cluster's client would not report before its last
        // retry.
        let cluster = redis::cluster::ClusterClient::builder(infos)
            .retries(3)
            .min_retry_wait(1)
            .max_retry_wait(20)
            .build()?;
        Ok(Self::Cluster {
            cluster: Box::new(cluster),
            nodes,
        })
    }

    async fn connect(&self) -> RedisResult<Link> {
        let mut link = match self {
            Self::Single(client) => open(client).await?,
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => {
                let client = sentinel.lock().await.async_get_client().await?;
                open(&client).await?
            }
            #[cfg(feature = "cluster")]
            Self::Cluster { cluster, .. } => Link::Cluster(cluster.get_async_connection().await?),
        };
        // Each user has the right to it. On a cluster, any node answers.
        refuse_old(link.query(&redis::cmd("HELLO")).await)?;
        Ok(link)
    }

    /// Opens a connection that receives messages. On a cluster, the node depends on the number of
    /// the attempt, so that one that does not answer prevents no messages.
    #[cfg_attr(not(feature = "cluster"), allow(unused_variables))]
    pub(crate) async fn subscribe(&self, channel: &str, attempt: usize) -> RedisResult<PubSub> {
        match self {
            Self::Single(client) => subscribe(client, channel).await,
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => {
                let client = sentinel.lock().await.async_get_client().await?;
                subscribe(&client, channel).await
            }
            #[cfg(feature = "cluster")]
            Self::Cluster { nodes, .. } => match nodes.get(attempt % nodes.len().max(1)) {
                Some(node) => subscribe(node, channel).await,
                None => Err((ErrorKind::InvalidClientConfig, "the cluster has no nodes").into()),
            },
        }
    }

    /// Returns the group of locks that one call can renew: the slot on a cluster.
    #[cfg_attr(not(feature = "cluster"), allow(unused_variables))]
    pub(crate) fn group(&self, key: &str) -> u16 {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster { .. } => slot(key),
            _ => 0,
        }
    }

    fn is_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster { .. } => true,
            _ => false,
        }
    }
}

/// Each call has a timeout of its own.
async fn open(client: &Client) -> RedisResult<Link> {
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(None);
    Ok(Link::One(
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await?,
    ))
}

/// Refuses a server that is too old by its answer to `HELLO`, which Redis has since 6.0. Another
/// error says nothing about the version.
fn refuse_old(hello: RedisResult<HashMap<String, Value>>) -> RedisResult<()> {
    let version = match hello {
        Ok(mut fields) => fields
            .remove("version")
            .and_then(|version| redis::from_redis_value(version).ok()),
        Err(error) => error
            .detail()
            .filter(|text| text.starts_with("unknown command"))
            // A newer one may have renamed it, and a proxy may not know it.
            .map(|_| "5.0 or older, or does not know HELLO".to_owned()),
    };
    let numbers = |version: &String| {
        let mut parts = version.split(['.', ' ']).map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    match version {
        Some(version) if numbers(&version).is_some_and(|numbers| numbers < OLDEST) => {
            let (major, minor) = OLDEST;
            let text =
                format!("it is {version}, and {major}.{minor} is the oldest that is supported");
            let why = "the version of Redis is too old";
            Err((ErrorKind::InvalidClientConfig, why, text).into())
        }
        _ => Ok(()),
    }
}

async fn subscribe(client: &Client, channel: &str) -> RedisResult<PubSub> {
    let mut pubsub = client.get_async_pubsub().await?;
    pubsub.subscribe(channel).await?;
    Ok(pubsub)
}

/// Returns the slot of a key with a part in braces: CRC-16/XMODEM of that part, modulo 16384.
#[cfg(feature = "cluster")]
fn slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| tag);
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    });
    crc % 16_384
}

/// The connection to the server, if there is one; and spare ones, for calls that block them.
pub(crate) struct Connection {
    pub(crate) server: Arc<Server>,
    timer: HashedWheelTimer,
    runtime: Handle,
    link: Arc<Mutex<Numbered>>,
    /// The number of the last connection that has failed. Not in the mutex: while a connection is
    /// opened that is locked, for longer than the call that has noticed the failure may take.
    failed: AtomicU64,
    spare: Arc<std::sync::Mutex<Spare>>,
}

/// Connections for calls that block them.
#[derive(Default)]
struct Spare {
    links: Vec<Link>,
    /// How often they were discarded.
    discards: u64,
}

impl Spare {
    /// Keeps a connection that was opened or used after this number of discards.
    fn put(&mut self, link: Link, discards: u64) {
        if discards == self.discards && self.links.len() < MAX_SPARE {
            self.links.push(link);
        }
    }

    fn discard(&mut self) {
        self.links.clear();
        self.discards += 1;
    }
}

#[derive(Default)]
struct Numbered {
    /// How many connections there have been.
    number: u64,
    link: Option<Link>,
}

impl Connection {
    pub(crate) fn new(server: Server, timer: &HashedWheelTimer, runtime: &Handle) -> Self {
        Self {
            server: Arc::new(server),
            timer: timer.clone(),
            runtime: runtime.clone(),
            link: Arc::default(),
            failed: AtomicU64::new(0),
            spare: Arc::default(),
        }
    }

    /// Calls a script. Opens a connection first, if there is none. Repeats the call while the
    /// answer is an error that may pass. When the time is over, returns the last of these errors.
    ///
    /// Calls that are made one after the other on one connection are executed in that order, also
    /// if the future of an earlier one was dropped.
    pub(crate) async fn call<T: FromRedisValue>(
        &self,
        script: &Call<'_>,
        timeout: Duration,
    ) -> Result<T, LockError> {
        let end = Instant::now() + timeout;
        let (mut number, mut last) = (None, None);
        match self
            .timer
            .timeout(
                timeout,
                self.call_until(end, script, &mut number, &mut last),
            )
            .await
        {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                self.discard_after(&error, number);
                Err(error.into())
            }
            Err(TimeoutError::Timer(error)) => Err(error.into()),
            Err(_) => {
                let error = io::Error::from(io::ErrorKind::TimedOut).into();
                self.discard_after(&error, number);
                Err(last.unwrap_or(error).into())
            }
        }
    }

    async fn call_until<T: FromRedisValue>(
        &self,
        end: Instant,
        script: &Call<'_>,
        number: &mut Option<u64>,
        last: &mut Option<RedisError>,
    ) -> RedisResult<T> {
        let mut pause = PAUSE;
        loop {
            let error = match self.try_call(script, number).await {
                Err(error) if self.may_pass(&error, number.is_some()) => error,
                answer => return answer,
            };
            if !self.server.is_cluster() {
                self.discard_after(&error, number.take());
            }
            *last = Some(error.clone());
            if Instant::now() + pause >= end || self.timer.sleep(pause).await.is_err() {
                return Err(error);
            }
            pause = MAX_PAUSE.min(pause * 2);
        }
    }

    /// Calls a script. Ends with the connection at the latest: the timer accepts no timeouts.
    pub(crate) async fn call_without_timer<T: FromRedisValue>(
        &self,
        script: &Call<'_>,
    ) -> RedisResult<T> {
        self.try_call(script, &mut None).await
    }

    async fn try_call<T: FromRedisValue>(
        &self,
        script: &Call<'_>,
        number: &mut Option<u64>,
    ) -> RedisResult<T> {
        let mut link = self.link(number).await?;
        match link.query(&script.by_hash()).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                link.query(&script.by_text()).await
            }
            answer => answer,
        }
    }

    /// Returns whether the same call may succeed soon. After the connection to a cluster is opened,
    /// that includes errors of the connections to its nodes, which it opens again.
    fn may_pass(&self, error: &RedisError, is_connected: bool) -> bool {
        refusal::is_transient(error)
            || self.server.is_cluster()
                && is_connected
                && !matches!(error.retry_method(), RetryMethod::NoRetry)
    }

    /// Returns whether another call may succeed on a new connection, because this one may have been
    /// closed before. On a cluster, the call was repeated already.
    pub(crate) fn was_closed(&self, error: &RedisError) -> bool {
        error.is_connection_dropped() && !self.server.is_cluster()
    }

    async fn link(&self, number: &mut Option<u64>) -> RedisResult<Link> {
        let numbered = Arc::clone(&self.link).lock_owned().await;
        let has_failed = numbered.number <= self.failed.load(Relaxed);
        let numbered = match numbered.link {
            Some(_) if !has_failed => numbered,
            _ => self.connect(numbered).await?,
        };
        *number = Some(numbered.number);
        numbered
            .link
            .clone()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
    }

    /// Opens a connection in the background. If the caller gives up before it is open, the next one
    /// uses it. Otherwise callers that wait for less time than it takes would never have one.
    async fn connect(
        &self,
        mut numbered: OwnedMutexGuard<Numbered>,
    ) -> RedisResult<OwnedMutexGuard<Numbered>> {
        let (server, timer) = (Arc::clone(&self.server), self.timer.clone());
        let connecting = self.runtime.spawn(async move {
            let link = timer.timeout(CONNECT_TIMEOUT, server.connect()).await;
            // An error of the timer ends the call too, with the reason.
            numbered.link = Some(link.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??);
            numbered.number += 1;
            Ok(numbered)
        });
        // The runtime has ended, or TLS is not configured: rustls panics then.
        connecting
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error).into()))
    }

    /// Sends commands together, on a connection that no other call uses meanwhile. They may be
    /// executed twice: a spare connection may have failed, or lead to a former master. Repeats them
    /// like [`call`](Self::call).
    pub(crate) async fn call_alone<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
        timeout: Duration,
    ) -> Result<T, LockError> {
        let (end, mut last) = (Instant::now() + timeout, None);
        match self
            .timer
            .timeout(timeout, self.call_alone_until(end, commands, &mut last))
            .await
        {
            Ok(answers) => Ok(answers?),
            Err(TimeoutError::Timer(error)) => Err(error.into()),
            Err(_) => Err(last
                .unwrap_or_else(|| io::Error::from(io::ErrorKind::TimedOut).into())
                .into()),
        }
    }

    async fn call_alone_until<T: FromRedisValue>(
        &self,
        end: Instant,
        commands: &Pipeline,
        last: &mut Option<RedisError>,
    ) -> RedisResult<T> {
        let mut pause = PAUSE;
        loop {
            let spare = self.take_spare();
            let is_new = spare.is_none();
            let (mut link, discards) = match spare {
                Some(spare) => spare,
                None => self.connect_spare().await?,
            };
            let error = match link.query_all(commands).await {
                Ok(answers) => {
                    self.spare().put(link, discards);
                    return Ok(answers);
                }
                Err(error) => error,
            };
            if self.may_pass(&error, true) {
                if self.server.is_cluster() || !refusal::is_of_connection(&error) {
                    self.spare().put(link, discards);
                }
                *last = Some(error.clone());
                if Instant::now() + pause >= end || self.timer.sleep(pause).await.is_err() {
                    return Err(error);
                }
                pause = MAX_PAUSE.min(pause * 2);
            } else if is_new {
                return Err(error);
            }
        }
    }

    /// Opens a connection in the background, on the runtime of the client, because a caller may have
    /// another one. If the caller gives up before it is open, it is a spare one, for the next caller,
    /// as in [`connect`](Self::connect). Returns also how often spare ones were discarded.
    async fn connect_spare(&self) -> RedisResult<(Link, u64)> {
        let (server, timer) = (Arc::clone(&self.server), self.timer.clone());
        let (spare, discards) = (Arc::clone(&self.spare), self.spare().discards);
        let (opened, opening) = oneshot::channel();
        let connecting = self.runtime.spawn(async move {
            let link = timer.timeout(CONNECT_TIMEOUT, server.connect()).await;
            let link = link.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            if let Err(link) = opened.send(link) {
                lock(&spare).put(link, discards);
            }
            Ok(())
        });
        let ended: RedisResult<()> = connecting
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error).into()));
        ended?;
        let link = opening.await.map_err(io::Error::other)?;
        Ok((link, discards))
    }

    /// Returns the spare connection that was used last, and how often the others were discarded.
    fn take_spare(&self) -> Option<(Link, u64)> {
        let mut spare = self.spare();
        let link = spare.links.pop()?;
        Some((link, spare.discards))
    }

    fn spare(&self) -> MutexGuard<'_, Spare> {
        lock(&self.spare)
    }

    /// After an error of the connection, makes the next call open a new one, unless another call
    /// has done so already.
    fn discard_after(&self, error: &RedisError, number: Option<u64>) {
        if !refusal::is_of_connection(error) {
            return;
        }
        // If the call had no connection, then its attempt to open one failed or took too long.
        let Some(number) = number else { return };
        if self.failed.fetch_max(number, Relaxed) < number {
            // They may lead to the same server, which has failed or is a former master.
            self.spare().discard();
        }
    }
}

fn lock(spare: &std::sync::Mutex<Spare>) -> MutexGuard<'_, Spare> {
    // Nothing panics while it is locked.
    spare.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Redis 5.0 answers that it does not know the command.
    #[test]
    fn servers_that_are_too_old_are_refused() {
        let unknown = b"-ERR unknown command `HELLO`, with args beginning with: \r\n";
        let refused = [
            (
                &b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n6.0.16\r\n"[..],
                true,
            ),
            (b"*2\r\n$7\r\nversion\r\n$5\r\n6.2.0\r\n", false),
            (b"*2\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n", false),
            (b"*2\r\n$7\r\nversion\r\n$6\r\n10.0.0\r\n", false),
            (b"*2\r\n$7\r\nversion\r\n$8\r\nunstable\r\n", false),
            (b"*0\r\n", false),
            (unknown, true),
            (b"-NOPERM no permissions\r\n", false),
        ];
        for (answer, is_refused) in refused {
            let answer = redis::parse_redis_value(answer).unwrap();
            let hello = answer
                .extract_error()
                .and_then(|value| Ok(redis::from_redis_value(value)?));
            assert_eq!(refuse_old(hello.clone()).is_err(), is_refused, "{hello:?}");
        }
    }

    /// The values are those of `CLUSTER KEYSLOT`.
    #[cfg(feature = "cluster")]
    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("{foo}:token"), 12_182);
        assert_eq!(slot("{foo}"), 12_182);
        assert_eq!(slot("shop:{foo}:token"), 12_182);
    }
}
