//! Kills and stops schedulers at random, then all of them for a while, and then collects the
//! results.

use std::error::Error;
use std::time::{Duration, Instant};
use std::{io, thread};

use fastrand::Rng;
use hashed_wheel_examples::process::Process;
use jiff::Timestamp;
use postgres::{Client, Config};

use crate::Options;
use crate::jobs::{self, Job, Time};
use crate::process;
use crate::scheduler::Settings;
use crate::store::{SCHEMA, Store};

/// The table with the effects of the tasks. The schedulers do not use it.
const EFFECT: &str =
    "CREATE TABLE effect (job bigint NOT NULL, due timestamptz NOT NULL, attempt integer NOT NULL)";

/// Prevents that the runs of a lost scheduler are taken over.
const NO_TAKEOVER: &str = "
    CREATE FUNCTION stay() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER stay BEFORE UPDATE ON run FOR EACH ROW WHEN (NEW.owner <> OLD.owner) EXECUTE FUNCTION stay()";

/// The time before the first job is due.
const LEAD_TIME: Duration = Duration::from_secs(1);

/// The time after the restart until the end.
const REMAINING_TIME: Duration = Duration::from_secs(2);

/// The time limit for pending runs, in addition to takeovers.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The events of the trial and their times.
pub(crate) struct Outcome {
    /// The jobs with their numbers in the database.
    pub(crate) jobs: Vec<(i64, Job)>,
    pub(crate) killed: u64,
    pub(crate) stopped: u64,
    /// The start of the downtime.
    pub(crate) down: Time,
    /// The end of the period that is checked.
    pub(crate) end: Time,
    /// Later due times are too young for a misfire.
    pub(crate) last_misfire: Time,
    /// Whether other jobs were claimed while one job was locked.
    pub(crate) claimed_others: bool,
    /// The number of schedulers that ended regularly at the end.
    pub(crate) ended_regularly: u64,
}

/// Returns the downtime. It is so long that some due times are not claimed by the old schedulers,
/// and are too old for the new ones.
pub(crate) fn downtime(settings: &Settings) -> Duration {
    settings.lead + settings.misfire_after + Duration::from_millis(1_500)
}

pub(crate) fn create_tables(client: &mut Client, has_takeover: bool) -> Result<(), postgres::Error> {
    client.batch_execute(SCHEMA)?;
    client.batch_execute(EFFECT)?;
    client.batch_execute(if has_takeover { "" } else { NO_TAKEOVER })
}

/// Runs the trial. `more` are the additional arguments of a scheduler's process.
pub(crate) fn run(
    options: &Options,
    config: &Config,
    client: &mut Client,
    more: &[String],
) -> Result<Outcome, Box<dyn Error>> {
    let settings = options.settings();
    let length = Duration::from_secs(options.seconds);
    let mut random = Rng::with_seed(options.seed);

    let start = now(client)? + micros(LEAD_TIME);
    let last = start + micros(length + downtime(&settings));
    let mut store = Store::connect(config, TIMEOUT)?;
    let add = |job: Job| {
        let first = Timestamp::from_microsecond(job.due.first())?;
        Ok((store.add(job.task, &job.due.schedule(), job.misfire, first)?, job))
    };
    let jobs = jobs::seeded(&mut random, options.jobs, start, last).into_iter().map(add);
    let jobs = jobs.collect::<Result<_, Box<dyn Error>>>()?;
    // Not with `add`, which would reject the schedule.
    client.execute(
        "INSERT INTO job (task, schedule, next_run) VALUES ('', 'now and then', clock_timestamp())",
        &[],
    )?;

    let mut outcome = Outcome {
        jobs,
        killed: 0,
        stopped: 0,
        down: 0,
        end: 0,
        last_misfire: 0,
        claimed_others: false,
        ended_regularly: 0,
    };
    let begin = || (0..options.schedulers).map(|_| process::start(more)).collect::<io::Result<Vec<_>>>();
    let mut schedulers = begin()?;
    thread::sleep(LEAD_TIME);
    let middle = Instant::now() + length / 2;
    disturb(&mut schedulers, more, middle, settings.lease, &mut random, &mut outcome)?;
    outcome.claimed_others = lock_one(client, settings.lease)?;
    disturb(&mut schedulers, more, middle + length / 2, settings.lease, &mut random, &mut outcome)?;
    for scheduler in &mut schedulers {
        scheduler.kill()?;
    }
    outcome.killed += schedulers.len() as u64;
    outcome.down = now(client)?;
    thread::sleep(downtime(&settings));
    let schedulers = begin()?;
    thread::sleep(REMAINING_TIME);
    outcome.end = now(client)?;

    // Sabotage does not become correct by waiting.
    let timeout = if options.sabotage.is_some() { Duration::ZERO } else { TIMEOUT } + settings.lease * 3;
    let end = Timestamp::from_microsecond(outcome.end)?;
    wait_for_none(client, timeout, "SELECT FROM job WHERE enabled AND next_run <= $1", &[&end])?;
    client.execute("UPDATE job SET enabled = false", &[])?;
    outcome.last_misfire = now(client)? - micros(settings.misfire_after);
    wait_for_none(client, timeout, "SELECT FROM run WHERE state IN ('claimed', 'running')", &[])?;
    for mut scheduler in schedulers {
        // Waiting closes its standard input, which makes it end.
        outcome.ended_regularly += u64::from(scheduler.wait()?.success());
    }
    Ok(outcome)
}

/// At random intervals of about half a lease, kills a scheduler and starts another one, or stops
/// one until its lease has ended.
fn disturb(
    schedulers: &mut [Process],
    more: &[String],
    end: Instant,
    lease: Duration,
    random: &mut Rng,
    outcome: &mut Outcome,
) -> io::Result<()> {
    let count = schedulers.len();
    while Instant::now() < end {
        let mut running: Vec<_> = schedulers
            .iter_mut()
            .filter_map(|scheduler| (!scheduler.is_stopped()).then_some(scheduler))
            .collect();
        let is_one_stopped = running.len() < count;
        if let Some(scheduler) = random.choice(&mut running) {
            if random.u32(..3) == 0 && !is_one_stopped {
                let (stopped, time) = (scheduler.stop()?, lease.mul_f64(1.3 + random.f64()));
                thread::spawn(move || {
                    thread::sleep(time);
                    drop(stopped);
                });
                outcome.stopped += 1;
            } else {
                scheduler.kill()?;
                **scheduler = process::start(more)?;
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
    transaction.execute("SELECT FROM job WHERE enabled ORDER BY next_run LIMIT 1 FOR UPDATE", &[])?;
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

/// Waits until the query returns no rows. If it takes too long, the results will show what is
/// missing.
fn wait_for_none(
    client: &mut Client,
    timeout: Duration,
    query: &str,
    parameters: &[&(dyn postgres::types::ToSql + Sync)],
) -> Result<(), postgres::Error> {
    let begin = Instant::now();
    while begin.elapsed() < timeout && !client.query(query, parameters)?.is_empty() {
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn now(client: &mut Client) -> Result<Time, postgres::Error> {
    let now: Timestamp = client.query_one("SELECT clock_timestamp()", &[])?.get(0);
    Ok(now.as_microsecond())
}

fn micros(duration: Duration) -> Time {
    duration.as_micros() as Time
}
