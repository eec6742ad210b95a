//! The parts of the trial, one after the other.

use std::error::Error;
use std::process;

use hashed_wheel_trial::Verdict;
use hashed_wheel_trial::redis_server::{RedisServer, connect};

use crate::trial::{Servers, Trial};
use crate::{Options, contest, crowd, failover, single_process};

pub(crate) fn run(options: &Options) -> Result<Verdict, Box<dyn Error>> {
    // One for the locks, and one for the counter, which must not lose data.
    let (mut server, mut counter) = (None, None);
    let [url, resource] = match &options.url {
        Some(url) => [url.clone(), url.clone()],
        None => [
            server.insert(RedisServer::start("redis-lock-trial")?).url(),
            counter
                .insert(RedisServer::start("redis-lock-counter")?)
                .url(),
        ],
    };
    let mut trial = Trial {
        options,
        name: format!("trial-{}", process::id()),
        redis: connect(&url)?,
        servers: Servers {
            url,
            nodes: Vec::new(),
            resource,
        },
        verdict: Verdict::default(),
    };
    println!(
        "Redis on {}; a lease is {:?}, and is renewed every {:?}.\n",
        trial.servers.url,
        options.lease,
        trial.third()
    );
    if options.only_crowd {
        crowd::run(&mut trial, None)?;
        trial.clean_up()?;
        return Ok(trial.verdict);
    }
    single_process::run(&mut trial)?;
    crowd::run(&mut trial, server.as_mut())?;
    contest::run(&mut trial, server.as_mut())?;
    match &mut server {
        Some(server) => {
            single_process::lost_data(&mut trial, server)?;
            if !options.no_cluster {
                failover::run(&mut trial)?;
            }
        }
        None => {
            println!(
                "skipped      tests that stop or kill Redis, because this program has not started it"
            );
            trial.clean_up()?;
        }
    }
    Ok(trial.verdict)
}
