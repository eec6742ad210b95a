//! The connection of a client. It is opened by the first call, and opened again by the next call
//! after it has failed.

use std::io;
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, TimeoutError};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, RedisError, RedisResult, ScriptInvocation,
    ServerErrorKind,
};
use tokio::sync::Mutex;

use crate::LockError;

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

impl Server {
    async fn connect(&self) -> RedisResult<Link> {
        match self {
            Self::Single(client) => open(client).await,
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => {
                let client = sentinel.lock().await.async_get_client().await?;
                open(&client).await
            }
            #[cfg(feature = "cluster")]
            Self::Cluster { cluster, .. } => Ok(Link::Cluster(cluster.get_async_connection().await?)),
        }
    }

    /// Opens a connection that receives messages.
    pub(crate) async fn subscribe(&self, channel: &str) -> RedisResult<PubSub> {
        match self {
            Self::Single(client) => subscribe(client, channel).await,
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => {
                let client = sentinel.lock().await.async_get_client().await?;
                subscribe(&client, channel).await
            }
            #[cfg(feature = "cluster")]
            Self::Cluster { nodes, .. } => {
                let mut failed = Err((ErrorKind::InvalidClientConfig, "the cluster has no nodes").into());
                for node in nodes {
                    match subscribe(node, channel).await {
                        Ok(pubsub) => return Ok(pubsub),
                        Err(error) => failed = Err(error),
                    }
                }
                failed
            }
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
}

/// Each call has a timeout of its own.
async fn open(client: &Client) -> RedisResult<Link> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    Ok(Link::One(client.get_multiplexed_async_connection_with_config(&config).await?))
}

async fn subscribe(client: &Client, channel: &str) -> RedisResult<PubSub> {
    let mut pubsub = client.get_async_pubsub().await?;
    pubsub.subscribe(channel).await?;
    Ok(pubsub)
}

/// Returns the slot of a key with a part in braces: CRC-16/XMODEM of that part, modulo 16384.
#[cfg(feature = "cluster")]
fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or(key, |(tag, _)| tag);
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16_384
}

/// The connection to the server, if there is one.
pub(crate) struct Connection {
    pub(crate) server: Server,
    timer: HashedWheelTimer,
    link: Mutex<Numbered>,
}

struct Numbered {
    /// How many connections there have been.
    number: u64,
    link: Option<Link>,
}

impl Connection {
    pub(crate) fn new(server: Server, timer: &HashedWheelTimer) -> Self {
        Self { server, timer: timer.clone(), link: Mutex::new(Numbered { number: 0, link: None }) }
    }

    /// Calls a script. Opens a connection first, if there is none.
    ///
    /// Calls that are made one after the other on one connection are executed in that order, also
    /// if the future of an earlier one was dropped.
    pub(crate) async fn call<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
        timeout: Duration,
    ) -> Result<T, LockError> {
        let mut number = None;
        let error = match self.timer.timeout(timeout, self.try_call(script, &mut number)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(TimeoutError::Timer(error)) => return Err(error.into()),
            Err(_) => io::Error::from(io::ErrorKind::TimedOut).into(),
        };
        if is_of_connection(&error) {
            self.discard(number).await;
        }
        Err(error.into())
    }

    async fn try_call<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
        number: &mut Option<u64>,
    ) -> RedisResult<T> {
        let link = self.link(number).await?;
        match link {
            Link::One(mut link) => script.invoke_async(&mut link).await,
            #[cfg(feature = "cluster")]
            Link::Cluster(mut link) => script.invoke_async(&mut link).await,
        }
    }

    async fn link(&self, number: &mut Option<u64>) -> RedisResult<Link> {
        let mut numbered = self.link.lock().await;
        let link = match &numbered.link {
            Some(link) => link.clone(),
            None => {
                let link = self.server.connect().await?;
                numbered.number += 1;
                numbered.link.insert(link).clone()
            }
        };
        *number = Some(numbered.number);
        Ok(link)
    }

    /// Makes the next call open a new connection, unless another call has done so already.
    async fn discard(&self, number: Option<u64>) {
        // If the call had no connection, then its attempt to open one failed or took too long.
        let Some(number) = number else { return };
        let mut numbered = self.link.lock().await;
        if numbered.number == number {
            numbered.link = None;
        }
    }

    /// Waits for a future, at most for this time.
    pub(crate) async fn within<T>(
        &self,
        timeout: Duration,
        future: impl Future<Output = RedisResult<T>>,
    ) -> Option<T> {
        self.timer.timeout(timeout, future).await.ok().and_then(Result::ok)
    }
}

/// Returns whether another connection may succeed: this one failed, or its server has become a
/// replica.
fn is_of_connection(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => {
            matches!(kind, ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown)
        }
        _ => true,
    }
}

#[cfg(all(test, feature = "cluster"))]
mod tests {
    use super::slot;

    /// The values are those of `CLUSTER KEYSLOT`.
    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("{foo}:token"), 12_182);
        assert_eq!(slot("{foo}"), 12_182);
    }
}
