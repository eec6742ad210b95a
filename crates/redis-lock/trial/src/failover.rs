//! Three processes contend for a lock on a cluster while nodes of it fail, and replicas take over.

use std::error::Error;
use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::redis_server::{RedisCluster, connect};
use redis_lock::blocking::{Guard, LockClient};

use crate::contest::Contest;
use crate::trial::{self, Outcome, PATIENCE, Servers, Trial, key};

/// After which time without an answer the cluster considers a node to be down.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);

/// The number of locks that are held in several slots.
const LOCKS: usize = 24;

/// The lease of these locks. It is longer than a failover.
const LEASE: Duration = Duration::from_secs(12);

/// The node that has a third of the slots at first.
const FIRST: usize = RedisCluster::PAIR[0];

/// Its replica, which takes over.
const SECOND: usize = RedisCluster::PAIR[1];

pub(crate) fn run(trial: &mut Trial<'_>) -> Outcome {
    let mut cluster = RedisCluster::start("redis-lock-failover", NODE_TIMEOUT)?;
    let nodes = cluster.urls();
    println!(
        "\nA cluster of three masters and a replica, on {}.",
        nodes.join(" ")
    );
    let mut of_cluster = Trial {
        options: trial.options,
        name: contended_name(trial, &mut cluster)?,
        redis: connect(&nodes[1])?,
        servers: Servers {
            url: nodes[1].clone(),
            nodes,
            resource: trial.servers.resource.clone(),
        },
        verdict: mem::take(&mut trial.verdict),
    };
    let done = contend(&mut of_cluster, &mut cluster);
    trial.verdict = of_cluster.verdict;
    done
}

/// Returns the name of a lock in the slots of the node that fails.
fn contended_name(trial: &Trial<'_>, cluster: &mut RedisCluster) -> redis::RedisResult<String> {
    let mut redis = connect(&cluster.node(FIRST).url())?;
    let mut numbers = 0..;
    loop {
        let name = format!("{}-{}", trial.name, numbers.next().unwrap_or_default());
        if is_of_first(&mut redis, &name)? {
            return Ok(name);
        }
    }
}

/// Returns whether the lock is in the slots of the node that fails.
fn is_of_first(redis: &mut redis::Connection, name: &str) -> redis::RedisResult<bool> {
    let slot: usize = redis::cmd("CLUSTER")
        .arg("KEYSLOT")
        .arg(key(name))
        .query(redis)?;
    Ok(RedisCluster::FIRST_SLOTS.contains(&slot))
}

fn contend(trial: &mut Trial<'_>, cluster: &mut RedisCluster) -> Outcome {
    let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
    let locks = trial.locks(&timer)?;
    let mut contest = Contest::start(trial)?;
    contest.all_enter()?;
    kill_a_master(&mut contest, cluster)?;
    stop_a_master(&mut contest, cluster)?;
    lose_locks(&mut contest, cluster, &locks)?;
    contest.end()
}

/// Kills a master whose replica has all data, or all but the last.
fn kill_a_master(contest: &mut Contest<'_, '_>, cluster: &mut RedisCluster) -> Outcome {
    let took = contest.during_data_loss(|_| {
        cluster.node(FIRST).kill()?;
        cluster.until_failed_over(SECOND, &[1, 2, SECOND])
    })?;
    println!("killed       a master. All three processes had the lock again within {took:.2?}");
    cluster.node(FIRST).restart()?;
    cluster.until_replicates(FIRST)
}

/// Stops a master until its replica has taken over. When it continues, it does not know that yet.
fn stop_a_master(contest: &mut Contest<'_, '_>, cluster: &mut RedisCluster) -> Outcome {
    let took = contest.during_data_loss(|contest| {
        cluster.node(SECOND).freeze()?;
        let failed_over = cluster.until_failed_over(FIRST, &[FIRST, 1, 2]);
        let entered = failed_over.and_then(|()| contest.all_enter());
        cluster.node(SECOND).thaw()?;
        entered.map(drop)
    })?;
    println!("stopped      a master. All three processes had the lock again within {took:.2?}");
    cluster.until_replicates(SECOND)
}

/// Kills a master whose replica does not have the last locks and tokens.
fn lose_locks(
    contest: &mut Contest<'_, '_>,
    cluster: &mut RedisCluster,
    locks: &LockClient,
) -> Outcome {
    cluster.stop_replication()?;
    contest.all_enter()?;
    let mut redis = connect(&cluster.node(1).url())?;
    let (mut of_first, mut others) = (Vec::new(), Vec::new());
    for number in 0..LOCKS {
        let name = format!("held-{number}");
        let guard = locks.lock_with(&name, trial::options(LEASE)).lock()?;
        if is_of_first(&mut redis, &name)? {
            of_first.push((name, guard))
        } else {
            others.push(guard)
        }
    }
    let begin = Instant::now();
    let mut told = Duration::ZERO;
    let took = contest.during_data_loss(|_| {
        cluster.node(FIRST).kill()?;
        cluster.until_failed_over(SECOND, &[1, 2, SECOND])?;
        told = until_told(&of_first, begin)?;
        Ok(())
    })?;
    println!(
        "killed       a master without the last locks. All three processes had the lock again within {took:.2?}"
    );
    let kept = others.iter().filter(|guard| guard.check().is_ok()).count();
    println!(
        "             The holders of {} lost locks were told within {told:.2?}; {kept} of {} others kept theirs",
        of_first.len(),
        others.len()
    );
    let larger = of_first
        .into_iter()
        .map(|(name, guard)| has_larger_token(locks, &name, guard));
    let larger = larger
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .filter(|&is_larger| !is_larger)
        .count();
    contest.expect(kept == others.len(), "a lock of another node was lost");
    contest.expect(
        larger == 0,
        "after a failover, the token of a lock was not larger than before",
    );
    Ok(())
}

/// Waits until all holders know that the lock is lost. Returns the time since `begin`.
fn until_told(guards: &[(String, Guard)], begin: Instant) -> Result<Duration, Box<dyn Error>> {
    while guards.iter().any(|(_, guard)| guard.check().is_ok()) {
        if begin.elapsed() > PATIENCE + LEASE {
            return Err("the holder of a lock that a failover has lost was not told".into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(begin.elapsed())
}

/// Takes a lost lock again. Returns whether its token is larger than that of the former holder.
fn has_larger_token(locks: &LockClient, name: &str, former: Guard) -> Result<bool, Box<dyn Error>> {
    let token = former.token();
    drop(former);
    let guard = locks.lock_with(name, trial::options(LEASE)).lock()?;
    let is_larger = guard.token() > token;
    guard.unlock()?;
    Ok(is_larger)
}
