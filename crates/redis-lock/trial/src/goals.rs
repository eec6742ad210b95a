//! Measures what the lock costs Redis, and how fast it is.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::Verdict;
use hashed_wheel_trial::redis_server::{RedisCluster, RedisServer, connect};
use indicatif::HumanCount;
use redis::{Client, Commands, Connection, InfoDict};
use redis_lock::{Guard, Lock, LockClient, LockError, LockOptions};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::trial::{PATIENCE, key};

const WAITERS: usize = 400;
const LOOPS: usize = 8;
const PERMITS: u32 = 4;
const LOCKS: usize = 10_000;
const TICK: Duration = Duration::from_millis(10);

/// A third of the default lease.
const THIRD: Duration = Duration::from_secs(10);

pub(crate) fn run(url: Option<&str>) -> Result<Verdict, Box<dyn Error>> {
    let mut server = None;
    let url = match url {
        Some(url) => url.to_owned(),
        None => server.insert(RedisServer::start("redis-lock-goals")?).url(),
    };
    println!("Redis on {url}; leases and polls are the default: 30s and 10s.\n");
    let mut goals = Goals {
        redis: connect(&url)?,
        timer: HashedWheelTimer::new(TICK, 512),
        verdict: Verdict::default(),
    };
    Runtime::new()?.block_on(async {
        let locks = LockClient::builder(Client::open(&*url)?)
            .timer(&goals.timer)
            .build()?;
        goals.waiters(&locks).await?;
        goals.turns(&locks).await?;
        goals.shared_turns(&locks).await?;
        goals.losses(&locks).await?;
        goals.renewals(&locks).await?;
        // Not with a server that other programs may use.
        if server.is_some() {
            goals.renewals_on_a_cluster().await
        } else {
            Ok(())
        }
    })?;
    Ok(goals.verdict)
}

struct Goals {
    redis: Connection,
    timer: HashedWheelTimer,
    verdict: Verdict,
}

impl Goals {
    /// Returns a counter of Redis: the commands, also those that scripts call, and the scripts.
    fn commands(&mut self) -> redis::RedisResult<[u64; 2]> {
        let stats: InfoDict = redis::cmd("INFO")
            .arg("everything")
            .query(&mut self.redis)?;
        let scripts: String = stats.get("cmdstat_evalsha").unwrap_or_default();
        Ok([
            stats.get("total_commands_processed").unwrap_or_default(),
            calls(&scripts),
        ])
    }

    async fn until_queued(&mut self, name: &str, len: usize) -> Result<(), Box<dyn Error>> {
        let begin = Instant::now();
        while self
            .redis
            .zcard::<_, usize>(format!("{}:queue", key(name)))?
            < len
        {
            if begin.elapsed() > PATIENCE {
                return Err(format!("not within {PATIENCE:?}: {len} callers wait").into());
            }
            sleep(TICK).await;
        }
        Ok(())
    }

    /// Many callers wait for one lock. Then each takes it once.
    async fn waiters(&mut self, locks: &LockClient) -> Result<(), Box<dyn Error>> {
        let holder = locks.lock("contended").lock().await?;
        let released = Arc::new(Mutex::new(Instant::now()));
        let mut tasks = JoinSet::new();
        for _ in 0..WAITERS {
            let (mut lock, released) = (locks.lock("contended"), Arc::clone(&released));
            tasks.spawn(async move {
                let guard = lock.lock().await?;
                let took = released.lock().expect("nothing panics").elapsed();
                // Long enough for the message about the holder.
                sleep(Duration::from_millis(2)).await;
                *released.lock().expect("nothing panics") = Instant::now();
                guard.unlock().await.map(|()| took)
            });
        }
        self.until_queued("contended", WAITERS).await?;
        let (begin, before) = (Instant::now(), self.commands()?);
        sleep(Duration::from_secs(20)).await;
        let (time, after) = (begin.elapsed().as_secs_f64(), self.commands()?);
        let rates = [0, 1].map(|which| (after[which] - before[which]) as f64 / time);
        println!(
            "waiting      {WAITERS} callers caused {:.0} commands per second, in {:.0} calls of scripts",
            rates[0], rates[1]
        );
        self.verdict.expect(
            rates[0] <= 500.0,
            "waiting callers caused more than 500 commands per second",
        );

        let before = self.commands()?;
        *released.lock().expect("nothing panics") = Instant::now();
        holder.unlock().await?;
        let mut times = Vec::new();
        while let Some(took) = tasks.join_next().await {
            times.push(took??);
        }
        let after = self.commands()?;
        times.sort();
        println!(
            "hand-over    median {:.2?}, 99 % {:.2?}, of {}; {:.1} commands and {:.1} calls for each",
            times[WAITERS / 2],
            times[WAITERS * 99 / 100],
            times.len(),
            (after[0] - before[0]) as f64 / WAITERS as f64,
            (after[1] - before[1]) as f64 / WAITERS as f64,
        );
        self.verdict.expect(
            times[WAITERS / 2] < Duration::from_millis(2),
            "the median of the hand-overs is not under 2ms",
        );
        Ok(())
    }

    /// A few callers take the lock in a loop.
    async fn turns(&mut self, locks: &LockClient) -> Result<(), Box<dyn Error>> {
        for fair in [false, true] {
            let end = Instant::now() + Duration::from_secs(3);
            let mut tasks = JoinSet::new();
            for _ in 0..LOOPS {
                let lock = locks.lock_with(&format!("turns-{fair}"), LockOptions::new().fair(fair));
                tasks.spawn(turns_until(end, lock));
            }
            let turns = sorted(tasks).await?;
            println!(
                "turns        {LOOPS} loops, {}: {} to {}",
                if fair { "fair" } else { "not fair" },
                HumanCount(turns[0]),
                HumanCount(turns[LOOPS - 1])
            );
            self.verdict.expect(
                !fair || turns[LOOPS - 1] <= 2 * turns[0],
                "a loop had more than twice the turns of another one on a fair lock",
            );
        }
        Ok(())
    }

    /// A few callers take a read-write lock in a loop, and then a permit of a semaphore.
    async fn shared_turns(&mut self, locks: &LockClient) -> Result<(), Box<dyn Error>> {
        let end = Instant::now() + Duration::from_secs(3);
        let (lock, mut readers, mut writers) =
            (locks.rw_lock("turns"), JoinSet::new(), JoinSet::new());
        for number in 0..LOOPS {
            match number {
                0 | 1 => writers.spawn(turns_until(end, lock.write())),
                _ => readers.spawn(turns_until(end, lock.read())),
            };
        }
        let [reads, writes] = [sorted(readers).await?, sorted(writers).await?];
        println!(
            "read-write   {} loops read: {} to {}; 2 write: {} and {}",
            reads.len(),
            HumanCount(reads[0]),
            HumanCount(reads[reads.len() - 1]),
            HumanCount(writes[0]),
            HumanCount(writes[1])
        );
        self.verdict.expect(
            reads[0] > 0 && writes[0] > 0,
            "a loop of a read-write lock had no turn",
        );

        let (end, mut tasks) = (Instant::now() + Duration::from_secs(3), JoinSet::new());
        for _ in 0..LOOPS {
            let semaphore = locks.semaphore("turns", PERMITS);
            tasks.spawn(async move {
                let mut turns = 0_u64;
                while Instant::now() < end {
                    semaphore.acquire().await?.unlock().await?;
                    turns += 1;
                }
                Ok(turns)
            });
        }
        let turns = sorted(tasks).await?;
        println!(
            "semaphore    {LOOPS} loops, {PERMITS} permits: {} to {}",
            HumanCount(turns[0]),
            HumanCount(turns[LOOPS - 1])
        );
        self.verdict
            .expect(turns[0] > 0, "a loop of a semaphore had no turn");
        Ok(())
    }

    /// Leases that are not renewed.
    async fn losses(&mut self, locks: &LockClient) -> Result<(), Box<dyn Error>> {
        let lease = Duration::from_millis(500);
        let mut tasks = JoinSet::new();
        for number in 0..100 {
            let options = LockOptions::new().lease(lease).watchdog(false);
            let mut lock = locks.lock_with(&format!("lease-{number}"), options);
            tasks.spawn(async move {
                sleep(Duration::from_millis(number * 3)).await;
                let begin = Instant::now();
                let guard = lock.lock().await?;
                guard.lost().await;
                Ok::<_, LockError>(begin.elapsed().checked_sub(lease))
            });
        }
        let mut late = Vec::new();
        while let Some(done) = tasks.join_next().await {
            late.push(done??.ok_or("a loss was reported before the end of the lease")?);
        }
        late.sort();
        println!(
            "losses       known {:.2?} (median) to {:.2?} after the end of the lease; a tick is {TICK:?}",
            late[50], late[99]
        );
        self.verdict.expect(
            late[50] <= TICK + Duration::from_millis(1),
            "losses are known too late",
        );
        Ok(())
    }

    /// Many locks are held.
    async fn renewals(&mut self, locks: &LockClient) -> Result<(), Box<dyn Error>> {
        let begin = Instant::now();
        let guards = take_many(locks).await?;
        println!(
            "many locks   {} were taken one after the other in {:.2?}",
            HumanCount(LOCKS as u64),
            begin.elapsed()
        );
        sleep(THIRD).await;
        let before = self.commands()?;
        sleep(THIRD).await;
        let after = self.commands()?;
        let calls = after[1] - before[1];
        let held = guards.iter().filter(|guard| guard.check().is_ok()).count();
        println!(
            "             renewed by {calls} calls per third of the lease; {} are held",
            HumanCount(held as u64)
        );
        self.verdict
            .expect(calls <= 41, format!("{LOCKS} locks took {calls} calls"));
        self.verdict.expect(
            calls >= 38 && held == LOCKS,
            format!("{held} of {LOCKS} locks were held"),
        );
        let begin = Instant::now();
        for guard in guards {
            guard.unlock().await?;
        }
        println!(
            "             unlocked one after the other in {:.2?}; {} timeouts pending",
            begin.elapsed(),
            self.timer.pending_timeouts()
        );
        Ok(())
    }

    /// Many locks are held on a cluster, where one call can renew only the locks of one slot.
    async fn renewals_on_a_cluster(&mut self) -> Result<(), Box<dyn Error>> {
        let mut cluster = RedisCluster::start("redis-lock-goals-cluster", Duration::from_secs(5))?;
        let locks = LockClient::cluster(cluster.urls())
            .timer(&self.timer)
            .build()?;
        let mut redis = connect(&cluster.node(0).url())?;
        let mut slots = redis::pipe();
        for number in 0..LOCKS {
            slots.cmd("CLUSTER").arg("KEYSLOT").arg(key(&many(number)));
        }
        let slots = slots.query::<BTreeSet<u16>>(&mut redis)?.len() as u64;

        let guards = take_many(&locks).await?;
        let mut all_calls = || {
            let lines =
                (0..cluster.urls().len()).map(|node| cluster.node(node).info("cmdstat_evalsha"));
            lines
                .map(|line| line.map(|line| calls(&line)))
                .sum::<redis::RedisResult<u64>>()
        };
        sleep(THIRD).await;
        let before = all_calls()?;
        sleep(THIRD).await;
        let calls = all_calls()? - before;
        let held = guards.iter().filter(|guard| guard.check().is_ok()).count();
        println!(
            "cluster      {} locks in {} slots of 3 masters were\n             renewed by {} calls per third of the lease; {} are held",
            HumanCount(LOCKS as u64),
            HumanCount(slots),
            HumanCount(calls),
            HumanCount(held as u64)
        );
        self.verdict.expect(
            calls <= slots + 40,
            format!("locks in {slots} slots took {calls} calls"),
        );
        self.verdict.expect(
            held == LOCKS,
            format!("{held} of {LOCKS} locks of the cluster were held"),
        );
        Ok(())
    }
}

/// Takes a lock in a loop. Returns how often.
async fn turns_until(end: Instant, mut lock: Lock) -> Result<u64, LockError> {
    let mut turns = 0;
    while Instant::now() < end {
        lock.lock().await?.unlock().await?;
        turns += 1;
    }
    Ok(turns)
}

/// Returns the turns of all loops, the least one first.
async fn sorted(mut tasks: JoinSet<Result<u64, LockError>>) -> Result<Vec<u64>, Box<dyn Error>> {
    let mut turns = Vec::new();
    while let Some(done) = tasks.join_next().await {
        turns.push(done??);
    }
    turns.sort_unstable();
    Ok(turns)
}

/// Takes many locks one after the other.
async fn take_many(locks: &LockClient) -> Result<Vec<Guard>, LockError> {
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        guards.push(locks.lock(&many(number)).lock().await?);
    }
    Ok(guards)
}

fn many(number: usize) -> String {
    format!("many-{number}")
}

/// Returns the number of calls in a line of `INFO commandstats`.
fn calls(line: &str) -> u64 {
    line.trim_start_matches("calls=")
        .split(',')
        .next()
        .and_then(|calls| calls.parse().ok())
        .unwrap_or_default()
}
