//! A distributed lock on a real Redis whose lease the wheel renews, as Redisson's watchdog does.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin redis_lock
//! ```
//!
//! It starts a `redis-server` on a free port of loopback, and itself three more times. The three processes fight for one
//! lock and count, in what it guards. Meanwhile holders are killed (`kill -9`), and stopped for longer than the lease; Redis
//! is stopped, and killed and started again. What has to come of it:
//!
//! - Nobody is let in while somebody is in: each access carries the holder's fencing token, and none is refused to a holder
//!   whose lease is not over. Who was stopped for longer than that does not have the lock any more, and learns it: its accesses
//!   are refused, and its unlock leaves the lock to whom it is.
//! - The lock of a holder that was killed is free when the lease is over, and not before.
//! - After a thousand quick pairs of lock and unlock there is one renewal for the lock that is kept, and none for what was given
//!   back. (Redisson's `RenewalTask.java`, as of its commit 56bbaa3, reads otherwise: who unlocks clears a flag and leaves
//!   the task on the wheel, the next lock sets the flag and puts one more there, and if it is set when they fire, all of them
//!   go on. Its issue 7272 is another way for a renewal to outlive the lock: there the unlock overtakes the beginning of it.)
//! - Renewals of many locks go to Redis together.
//! - Without Redis nobody hangs, and all say what is the matter; with it they go on. Where it has lost its data, the holder is
//!   told that the lock is lost.
//!
//! At the end it says PASS or FAIL and why. Exit status: 0 is PASS, 1 is FAIL, 2 is bad options, 77 is no `redis-server`.
//! `lock.rs` is the part to copy, and says what such a lock can promise and what it cannot.

mod alone;
mod counter;
mod fight;
mod lock;
mod redis_server;
mod trial;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use hashed_wheel_examples::server::{Missing, NO_SERVER};
use hashed_wheel_examples::top::Top;

/// A lock on Redis whose lease the wheel renews: three processes fight for it while holders and Redis are killed.
#[derive(Debug, Parser)]
#[command(
    name = "redis_lock",
    after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options, 77 is no redis-server."
)]
struct Options {
    /// A Redis that nobody else uses meanwhile, in place of one that this starts; then that is not killed
    #[arg(long, value_parser = redis_url)]
    url: Option<String>,

    /// How long a lock is kept for a holder that does not renew it: longer than this machine ever stands still
    #[arg(long, value_name = "TIME", default_value = "900ms", value_parser = lease)]
    lease: Duration,

    /// How long the three processes fight before Redis is killed
    #[arg(long, value_name = "S", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,

    #[command(flatten)]
    top: Top,

    /// Break something, to see that it is noticed
    #[arg(long)]
    sabotage: Option<Sabotage>,

    /// Be one of the three, for the lock of this name
    #[arg(long, hide = true, requires = "url")]
    worker: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sabotage {
    /// Who has lost the lock unlocks it all the same, whosever it is
    NoOwnerCheck,
}

fn redis_url(text: &str) -> Result<String, redis::RedisError> {
    redis::Client::open(text).map(|_| text.to_owned())
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let can_be = Duration::from_millis(300)..=Duration::from_secs(10);
    if can_be.contains(&lease) { Ok(lease) } else { Err("it is between 300ms and 10s".into()) }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let (Some(name), Some(url)) = (&options.worker, &options.url) {
        return worker::run(url, name, &options);
    }
    match trial::run(&options) {
        Ok(verdict) => verdict.print(),
        Err(error) if error.is::<Missing>() => {
            eprintln!("{error}");
            ExitCode::from(NO_SERVER)
        }
        Err(error) => {
            println!("\nFAIL\n  {error}");
            ExitCode::FAILURE
        }
    }
}
