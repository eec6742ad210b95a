//! The trial, and how Redis is asked what it has seen of it.

use std::error::Error;
use std::process;
use std::thread;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_examples::Verdict;
use redis::{Commands, Connection, InfoDict, RedisResult};

use crate::lock::{LockError, LockManager};
use crate::redis_server::{RedisServer, connect};
use crate::{Options, alone, fight};

/// How long what should happen may take beside what it has to wait for, on a machine that is busy with something else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An error means that it did not come to its end.
pub(crate) type Outcome = Result<(), Box<dyn Error>>;

pub(crate) fn run(options: &Options) -> Result<Verdict, Box<dyn Error>> {
    let mut server = None;
    let url = match &options.url {
        Some(url) => url.clone(),
        None => server.insert(RedisServer::start()?).url(),
    };
    let mut trial = Trial {
        options,
        name: format!("redis_lock-{}", process::id()),
        redis: connect(&url)?,
        url,
        verdict: Verdict::default(),
    };
    println!(
        "Redis on {}; a lease is {:?}, and is renewed each {:?}.\n",
        trial.url,
        options.lease,
        trial.third()
    );
    alone::run(&mut trial)?;
    fight::run(&mut trial, server.as_mut())?;
    match &mut server {
        Some(server) => alone::lost_data(&mut trial, server)?,
        None => {
            println!("left out     what would be done to Redis, for this one is not ours");
            trial.clean_up()?;
        }
    }
    Ok(trial.verdict)
}

pub(crate) struct Trial<'a> {
    pub(crate) options: &'a Options,
    pub(crate) url: String,
    /// Of the lock that is fought for; those of others begin with it.
    pub(crate) name: String,
    /// For what Redis itself knows.
    pub(crate) redis: Connection,
    pub(crate) verdict: Verdict,
}

/// What Redis was called for.
pub(crate) struct Calls {
    /// Scripts.
    pub(crate) scripts: u64,
    /// In them: the beginnings and renewals of leases.
    pub(crate) leases: u64,
}

impl Trial<'_> {
    pub(crate) fn third(&self) -> Duration {
        self.options.lease / 3
    }

    pub(crate) fn locks(&self, timer: &HashedWheelTimer) -> Result<LockManager, LockError> {
        LockManager::new(&*self.url, self.options.lease, timer)
    }

    /// Forgets the tokens, which would go by themselves in a day.
    fn clean_up(&mut self) -> RedisResult<()> {
        let keys: RedisResult<Vec<String>> =
            self.redis.scan_match(format!("lock:{{{}*", self.name))?.collect();
        self.redis.del(keys?)
    }

    /// By everybody, from now on and for so long.
    pub(crate) fn calls_within(&mut self, time: Duration) -> RedisResult<Calls> {
        let [scripts, leases] = self.calls()?;
        thread::sleep(time);
        let [scripts_then, leases_then] = self.calls()?;
        Ok(Calls { scripts: scripts_then - scripts, leases: leases_then - leases })
    }

    /// Since Redis was started.
    fn calls(&mut self) -> RedisResult<[u64; 2]> {
        let stats: InfoDict = redis::cmd("INFO").arg("commandstats").query(&mut self.redis)?;
        let calls = |command| {
            let line: String = stats.get(command)?;
            line.strip_prefix("calls=")?.split(',').next()?.parse().ok()
        };
        Ok(["cmdstat_evalsha", "cmdstat_pexpire"].map(|command| calls(command).unwrap_or_default()))
    }
}
