//! Kills, stops and replaces nodes at random, with accidents of the server in between. Then kills
//! all nodes for a while, and then collects the results.

use std::error::Error;
use std::time::{Duration, Instant};
use std::{io, thread};

use fastrand::Rng;
use hashed_wheel_job_scheduler::Jobs;
use hashed_wheel_trial::process::Process;
use jiff::Timestamp;
use job_scheduler_trial::Database;
use postgres::Client;
use tokio_postgres::Config;

use crate::Options;
use crate::accident::{Accident, Accidents};
use crate::connection::{connect, now};
use crate::jobs::{self, Job, Time};
use crate::process::Launch;
use crate::strain::{Network, strain};

/// The table with the effects of the runs. The nodes do not use it.
const EFFECT: &str = "
    CREATE TABLE effect (
        job bigint NOT NULL, due timestamptz NOT NULL, attempt integer NOT NULL, interrupted integer NOT NULL,
        execution bigint PRIMARY KEY, began timestamptz NOT NULL,
        -- The wall clock of the node.
        wall timestamptz NOT NULL,
        ended timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    -- The runs that their handlers have postponed.
    CREATE TABLE snooze (job bigint, due timestamptz, PRIMARY KEY (job, due))";

/// The time before the first job is due.
const LEAD_TIME: Duration = Duration::from_secs(2);

/// The time after the restart until the end.
const REMAINING_TIME: Duration = Duration::from_secs(2);

/// The time limit for the first tables, and for the first claim while a job is locked.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The events of the trial and their times.
#[derive(Default)]
pub(crate) struct Outcome {
    /// The jobs with their numbers in the database.
    pub(crate) jobs: Vec<(i64, Job)>,
    pub(crate) killed: u64,
    pub(crate) stopped: u64,
    /// The number of nodes that were shut down and replaced, and of those that ended regularly.
    pub(crate) replaced: u64,
    pub(crate) replaced_regularly: u64,
    pub(crate) accidents: Accidents,
    /// The numbers of changes of the network, of statements that added cron jobs, and of changes of
    /// a limit.
    pub(crate) strained: [u64; 3],
    /// The start of the downtime.
    pub(crate) down: Time,
    /// The end of the period that is checked.
    pub(crate) end: Time,
    /// Later due times are too young for a misfire.
    pub(crate) last_misfire: Time,
    /// Whether other jobs were claimed while one job was locked.
    pub(crate) claimed_others: bool,
    /// The number of nodes that ended regularly at the end.
    pub(crate) ended_regularly: u64,
}

/// Returns the downtime. It is so long that some due times are not claimed by the old nodes, and
/// are too old for the new ones.
pub(crate) fn downtime(options: &Options) -> Duration {
    options.prefetch + options.misfire_after + Duration::from_millis(1_500)
}

/// Runs the trial. The accidents need a server of its own. With a network, the nodes are strained
/// instead of killed.
pub(crate) fn run(
    options: &Options,
    schema: &str,
    config: &Config,
    mut own: Option<(&mut Database, &[Accident])>,
    network: Option<&Network>,
    launch: &Launch,
) -> Result<Outcome, Box<dyn Error>> {
    let length = options.duration;
    let mut random = Rng::with_seed(options.seed);
    let mut client = connect(config)?;
    client.batch_execute(&format!("CREATE SCHEMA {schema}_effects; {EFFECT}"))?;

    let begin = || {
        (0..options.nodes)
            .map(|slot| launch.start(slot))
            .collect::<io::Result<Vec<_>>>()
    };
    // All of them create the tables, at the same time.
    let mut nodes = begin()?;
    wait_for_tables(&mut client, schema)?;
    let start = now(&mut client)? + micros(LEAD_TIME);
    let last = start + micros(length + downtime(options));
    let jobs = jobs::seeded(&mut random, options.jobs, start, last);
    let mut outcome = Outcome {
        jobs: add(config, schema, jobs)?,
        ..Outcome::default()
    };
    // Not with `enqueue`, which would reject the schedule.
    client.execute(INVALID_JOB, &[&jobs::HANDLER])?;

    sleep_until(&mut client, start)?;
    let begun = Instant::now();
    let accidents = own.as_ref().map_or(&[][..], |(_, accidents)| accidents);
    // Between two of these, and at the end.
    let pauses = accidents.len() as u32 + 2;
    let mut disturb_until = |pause: u32, outcome: &mut Outcome| {
        let (end, lease) = (begun + length * pause / pauses, options.lease);
        match network {
            Some(network) => {
                let counts = &mut outcome.strained;
                strain(config, network, end, lease, &mut random, counts)
            }
            None => Ok(disturb(
                &mut nodes,
                launch,
                end,
                lease,
                &mut random,
                outcome,
            )?),
        }
    };
    disturb_until(1, &mut outcome)?;
    outcome.claimed_others = lock_one(&mut client, options.lease)?;
    if let Some((own, accidents)) = &mut own {
        for (&accident, pause) in accidents.iter().zip(2..) {
            disturb_until(pause, &mut outcome)?;
            // Long enough that leases end.
            outcome
                .accidents
                .happen(accident, own, config, options.lease * 5 / 4)?;
        }
        client = connect(config)?;
    }
    disturb_until(pauses, &mut outcome)?;
    for node in &mut nodes {
        node.kill()?;
    }
    outcome.killed += nodes.len() as u64;
    outcome.down = now(&mut client)?;
    thread::sleep(downtime(options));
    let nodes = begin()?;
    thread::sleep(REMAINING_TIME);
    outcome.end = now(&mut client)?;

    let patience = options.patience + options.lease * 3;
    let end = Timestamp::from_microsecond(outcome.end)?;
    let due = "SELECT FROM job WHERE enabled AND next_run <= $1";
    wait_for_none(patience, || Ok(client.query(due, &[&end])?.len()))?;
    client.execute("UPDATE job SET next_run = NULL", &[])?;
    outcome.last_misfire = now(&mut client)? - micros(options.misfire_after);
    let unfinished = "SELECT FROM run WHERE state IN ('waiting', 'claimed', 'running', 'blocked')";
    wait_for_none(patience + options.prefetch, || {
        Ok(client.query(unfinished, &[])?.len())
    })?;
    for mut node in nodes {
        // Waiting closes its standard input, which makes it end.
        outcome.ended_regularly += u64::from(node.wait()?.success());
    }
    Ok(outcome)
}

const INVALID_JOB: &str = "
    INSERT INTO job (handler, payload, schedule, time_zone, jitter_us, misfire, overlap, retries,
        retry_first_us, retry_max_us, first_run, next_run)
    SELECT $1, 'null', 'now and then', 'UTC', 0, 'skip', 'allow', 0, 0, 0, now, now FROM clock_timestamp() AS now";

/// Adds the jobs through the crate.
fn add(config: &Config, schema: &str, jobs: Vec<Job>) -> Result<Vec<(i64, Job)>, Box<dyn Error>> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            let handle = Jobs::new(schema)?;
            handle
                .set_kind(&client, jobs::RATED, jobs::rate(jobs.len()))
                .await?;
            let (count, mut added) = (jobs.len(), Vec::new());
            for job in jobs {
                added.push((
                    handle.enqueue(&client, job.to_new_job(count)).await?.job,
                    job,
                ));
            }
            Ok(added)
        })
}

fn wait_for_tables(client: &mut Client, schema: &str) -> Result<(), Box<dyn Error>> {
    let begin = Instant::now();
    let table = format!("{schema}.slot");
    while !client
        .query_one("SELECT to_regclass($1) IS NOT NULL", &[&table])?
        .get::<_, bool>(0)
    {
        if begin.elapsed() > TIMEOUT {
            return Err("no node has created the tables".into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn sleep_until(client: &mut Client, time: Time) -> Result<(), postgres::Error> {
    let remaining = time - now(client)?;
    thread::sleep(Duration::from_micros(remaining.max(0) as u64));
    Ok(())
}

/// At random intervals of about half a lease, kills a node and starts another one, or stops one
/// until its lease has ended, or shuts one down and starts another one.
fn disturb(
    nodes: &mut [Process],
    launch: &Launch,
    end: Instant,
    lease: Duration,
    random: &mut Rng,
    outcome: &mut Outcome,
) -> io::Result<()> {
    let count = nodes.len();
    while Instant::now() < end {
        let mut running: Vec<_> = (0..)
            .zip(&mut *nodes)
            .filter_map(|(slot, node)| (!node.is_stopped()).then_some((slot, node)))
            .collect();
        let is_one_stopped = running.len() < count;
        if let Some((slot, node)) = random.choice(&mut running) {
            let what = random.u32(..6);
            if what < 2 && !is_one_stopped {
                let (stopped, time) = (node.stop()?, lease.mul_f64(1.3 + random.f64()));
                thread::spawn(move || {
                    thread::sleep(time);
                    drop(stopped);
                });
                outcome.stopped += 1;
            } else if what == 2 {
                // It gives its runs back, and the next node starts at the same time.
                let mut old = std::mem::replace(*node, launch.start(*slot)?);
                outcome.replaced += 1;
                outcome.replaced_regularly += u64::from(old.wait()?.success());
            } else {
                node.kill()?;
                **node = launch.start(*slot)?;
                outcome.killed += 1;
            }
        }
        thread::sleep(lease.mul_f64(0.2 + 0.6 * random.f64()));
    }
    Ok(())
}

/// Locks the first due job until more other runs are claimed than were in progress. Returns false
/// if that takes too long.
fn lock_one(client: &mut Client, lease: Duration) -> Result<bool, postgres::Error> {
    let mut transaction = client.transaction()?;
    transaction.execute(
        "SELECT FROM job WHERE enabled ORDER BY next_run LIMIT 1 FOR UPDATE",
        &[],
    )?;
    thread::sleep(lease / 2);
    let mut claimed = || {
        let count = transaction.query_one("SELECT count(*) FROM run", &[])?;
        Ok::<i64, postgres::Error>(count.get(0))
    };
    let (before, begin) = (claimed()?, Instant::now());
    while claimed()? == before {
        if begin.elapsed() > TIMEOUT {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(10));
    }
    // The transaction has only locked the row.
    transaction.rollback()?;
    Ok(true)
}

/// Waits until nothing is left. A busy machine may need long for a backlog, so it gives up only if
/// their number has not fallen below the smallest one for this time; and in any case after ten times
/// this time. The results will show what is missing.
fn wait_for_none(
    patience: Duration,
    mut left: impl FnMut() -> Result<usize, postgres::Error>,
) -> Result<(), postgres::Error> {
    let (begin, limit) = (Instant::now(), patience.saturating_mul(10));
    let (mut fewest, mut fell) = (usize::MAX, begin);
    while fewest > 0 && fell.elapsed() < patience && begin.elapsed() < limit {
        let left = left()?;
        if left < fewest {
            (fewest, fell) = (left, Instant::now());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

pub(crate) fn micros(duration: Duration) -> Time {
    duration.as_micros() as Time
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits while these are left. Returns how often it has looked.
    fn looks(patience: Duration, left: impl Fn(usize) -> usize) -> usize {
        let mut looks = 0;
        let look = || {
            looks += 1;
            assert!(looks < 1_000, "it does not give up");
            Ok(left(looks))
        };
        wait_for_none(patience, look).unwrap();
        looks
    }

    #[test]
    fn the_end_waits_only_while_fewer_are_left() {
        let [short, long] = [1, 1_000].map(|ms| Duration::from_millis(200) * ms);
        assert_eq!(looks(long, |look| 5 - look), 5);
        // Others come as fast as these go.
        looks(short, |look| 7 + look % 2);
        // They would go at last.
        looks(short, |look| 10_000 - look);
    }
}
