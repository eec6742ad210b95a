//! The trial of the lock, and its demonstration, on a real Redis server.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-redis-lock-trial
//! ```
//!
//! The program starts two `redis-server`s on free ports of the loopback interface, one for locks
//! and one for a counter, then four as a cluster, and itself three more times. The three processes
//! contend for one lock and increment a counter that it protects. Meanwhile, holders are killed
//! (`kill -9`) or stopped for longer than the lease. Redis is stopped, killed and restarted. The
//! program checks:
//!
//! - Only one process has the lock at a time. Each access carries the holder's fencing token, and
//!   no access of a holder within its lease is rejected. A process that was stopped for longer than
//!   the lease has lost the lock and detects it. Its accesses are rejected, and its unlock does not
//!   affect the new owner.
//! - The lock of a killed holder becomes free when the lease ends, and not before.
//! - After a thousand quick pairs of lock and unlock, there is one renewal for a held lock and none
//!   for released ones. (Redisson's `RenewalTask.java`, commit 56bbaa3, appears to behave
//!   differently. An unlock clears a flag and leaves the task on the wheel. The next lock sets the
//!   flag and schedules another task. If the flag is set when the tasks fire, all of them continue.
//!   In its issue 7272 a renewal outlives the lock in another way: the unlock overtakes the start
//!   of the renewal.)
//! - The renewals of many locks are sent to Redis in batches.
//! - Four processes contend for a read-write lock, for two permits of a semaphore, and for a lock
//!   alone or together with another one, while they and Redis are killed or stopped. No reader has
//!   the lock together with a writer, no more than two permits are held at the same time, one owner
//!   has the lock, and tokens increase. A register on the Redis of the counter shows it. Holds
//!   while Redis loses its data are not examined.
//! - Without Redis no process hangs, and all report the problem. When Redis is back, they continue.
//!   If Redis has lost its data, the holder detects that the lock is lost.
//! - The same holds on a cluster of which nodes are killed or stopped, so that a replica takes
//!   over, with the last locks or without them. The holders of the lost ones are told.
//! - No two holders ever have the same token, and the tokens of a process increase. The counter,
//!   which is on a Redis of its own, is correct to the end.
//!
//! At the end the program prints PASS, or FAIL and the reasons. Exit status: 0 is PASS, 1 is FAIL,
//! 2 is bad options, 77 means that there is no `redis-server`.

mod contest;
mod counter;
mod crowd;
mod crowd_worker;
mod failover;
mod goals;
mod parts;
mod register;
mod single_process;
mod trial;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use hashed_wheel_trial::options::positive_duration;
use hashed_wheel_trial::{Verdict, exit_code};

use crate::trial::Servers;

/// A lock on Redis whose lease the wheel renews: three processes contend for it while holders and
/// Redis are killed
#[derive(Debug, Parser)]
#[command(
    name = "redis-lock-trial",
    after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options, 77 is no redis-server."
)]
struct Options {
    /// A Redis that no other program uses, instead of one that this program starts; it is not
    /// killed
    #[arg(long, value_parser = redis_url)]
    url: Option<String>,

    /// How long Redis keeps a lock that is not renewed: longer than this machine ever stalls
    #[arg(long, value_name = "TIME", default_value = "900ms", value_parser = lease)]
    lease: Duration,

    /// How long the three processes contend before Redis is killed
    #[arg(long, value_name = "TIME", default_value = "6s", value_parser = positive_duration)]
    duration: Duration,

    /// Without the part on a cluster, which takes most of the time
    #[arg(long)]
    no_cluster: bool,

    /// Only the part with a read-write lock, a semaphore and two locks as one; Redis is not killed
    #[arg(long)]
    only_crowd: bool,

    /// Measure the costs and times of the lock instead, on a machine that does nothing else
    #[arg(long)]
    goals: bool,

    /// The Redis of the counter, if it is not that of the locks
    #[arg(long, hide = true)]
    resource: Option<String>,

    /// A node of the cluster that has the locks
    #[arg(long, hide = true)]
    node: Vec<String>,

    /// Run as one of the three processes that use the lock with this name
    #[arg(long, hide = true, requires = "url")]
    worker: Option<String>,

    /// Run as one of the four processes that use everything of this name
    #[arg(long, hide = true, requires = "url")]
    crowd: Option<String>,
}

fn redis_url(text: &str) -> Result<String, redis::RedisError> {
    redis::Client::open(text).map(|_| text.to_owned())
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = positive_duration(text)?;
    let permitted = Duration::from_millis(300)..=Duration::from_secs(10);
    if permitted.contains(&lease) {
        Ok(lease)
    } else {
        Err("the lease must be between 300ms and 10s".into())
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let (Some(name), Some(url)) = (
        options.worker.as_ref().or(options.crowd.as_ref()),
        &options.url,
    ) {
        let servers = Servers {
            url: url.clone(),
            nodes: options.node.clone(),
            resource: options.resource.as_ref().unwrap_or(url).clone(),
        };
        let run = if options.crowd.is_some() {
            crowd_worker::run
        } else {
            worker::run
        };
        return run(&servers, name, &options);
    }
    let ran = if options.goals {
        goals::run(options.url.as_deref())
    } else {
        parts::run(&options)
    };
    exit_code(ran.map(Verdict::print))
}
