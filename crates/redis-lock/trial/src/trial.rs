//! Common to all parts of the trial: the servers, the locks, and queries to Redis.

use std::error::Error;
use std::thread;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::Verdict;
use redis::{Client, Commands, Connection, InfoDict, RedisResult};
use redis_lock::blocking::{Lock, LockClient};
use redis_lock::{LockClientBuilder, LockError, LockOptions};

use crate::Options;

/// The additional time that a busy machine gets for an expected event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An error means that the trial could not be completed.
pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// Returns the options of the trial's locks. The poll is longer than the patience, so that a
/// missing message is noticed.
pub(crate) fn options(lease: Duration) -> LockOptions {
    LockOptions::new().lease(lease).poll(PATIENCE * 4)
}

/// Returns the key of a lock in Redis.
pub(crate) fn key(name: &str) -> String {
    format!("{{lock:{name}}}")
}

/// Where the locks are, and the counter.
#[derive(Clone)]
pub(crate) struct Servers {
    /// The Redis of the locks, or a node of the cluster.
    pub(crate) url: String,
    /// The nodes, if it is a cluster.
    pub(crate) nodes: Vec<String>,
    /// The Redis of the counter.
    pub(crate) resource: String,
}

impl Servers {
    pub(crate) fn locks(&self, timer: &HashedWheelTimer) -> Result<LockClient, LockError> {
        self.builder(timer)?.build_blocking()
    }

    pub(crate) fn builder(&self, timer: &HashedWheelTimer) -> Result<LockClientBuilder, LockError> {
        let client = if self.nodes.is_empty() {
            redis_lock::LockClient::builder(Client::open(&*self.url)?)
        } else {
            redis_lock::LockClient::cluster(self.nodes.iter().map(|node| &**node))
        };
        Ok(client.timer(timer))
    }

    /// Returns the options of a process that uses these servers.
    pub(crate) fn options(&self) -> Vec<&str> {
        let nodes = self.nodes.iter().flat_map(|node| ["--node", node]);
        ["--url", &self.url, "--resource", &self.resource]
            .into_iter()
            .chain(nodes)
            .collect()
    }
}

pub(crate) struct Trial<'a> {
    pub(crate) options: &'a Options,
    pub(crate) servers: Servers,
    /// The name of the contended lock, and the prefix of the names of other locks.
    pub(crate) name: String,
    /// The connection for the trial's own queries.
    pub(crate) redis: Connection,
    pub(crate) verdict: Verdict,
}

/// Counts of calls to Redis.
pub(crate) struct Calls {
    /// The number of script calls.
    pub(crate) scripts: u64,
    /// The number of leases that these scripts have started or renewed.
    pub(crate) leases: u64,
}

impl Trial<'_> {
    pub(crate) fn third(&self) -> Duration {
        self.options.lease / 3
    }

    pub(crate) fn locks(&self, timer: &HashedWheelTimer) -> Result<LockClient, LockError> {
        self.servers.locks(timer)
    }

    /// Returns a lock whose name begins with that of the trial.
    pub(crate) fn lock(&self, locks: &LockClient, name: &str) -> Lock {
        locks.lock_with(
            &format!("{}-{name}", self.name),
            options(self.options.lease),
        )
    }

    /// Deletes the tokens, which would otherwise expire after a day.
    pub(crate) fn clean_up(&mut self) -> RedisResult<()> {
        for family in ["lock", "rwlock", "semaphore"] {
            let pattern = format!("{{{family}:{}*", self.name);
            let keys: RedisResult<Vec<String>> = self.redis.scan_match(pattern)?.collect();
            let keys = keys?;
            if !keys.is_empty() {
                let () = self.redis.del(keys)?;
            }
        }
        Ok(())
    }

    /// Returns the calls of all clients during the given time.
    pub(crate) fn calls_within(&mut self, time: Duration) -> RedisResult<Calls> {
        let [scripts, leases] = self.calls()?;
        thread::sleep(time);
        let [scripts_then, leases_then] = self.calls()?;
        Ok(Calls {
            scripts: scripts_then - scripts,
            leases: leases_then - leases,
        })
    }

    /// Returns the calls since Redis was started.
    fn calls(&mut self) -> RedisResult<[u64; 2]> {
        let stats: InfoDict = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut self.redis)?;
        let calls = |command| {
            let line: String = stats.get(command)?;
            line.strip_prefix("calls=")?.split(',').next()?.parse().ok()
        };
        Ok(
            ["cmdstat_evalsha", "cmdstat_pexpire"]
                .map(|command| calls(command).unwrap_or_default()),
        )
    }
}
