//! Schedulers are killed and stopped at random, then all are gone for a while; then it is counted.

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

/// What the tasks do, and nobody else touches.
const EFFECT: &str =
    "CREATE TABLE effect (job bigint NOT NULL, due timestamptz NOT NULL, attempt integer NOT NULL)";

/// A dead scheduler's runs stay where they are.
const NO_TAKEOVER: &str = "
    CREATE FUNCTION stay() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER stay BEFORE UPDATE ON run FOR EACH ROW WHEN (NEW.owner <> OLD.owner) EXECUTE FUNCTION stay()";

/// Before the first job is due.
const SETTLING: Duration = Duration::from_secs(1);

/// For as long it goes on after all were gone.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// How long what is due may take to its end, beside takeovers.
const PATIENCE: Duration = Duration::from_secs(20);

/// What was done to the schedulers, and when.
pub(crate) struct Outcome {
    /// With the number that the database knows each by.
    pub(crate) jobs: Vec<(i64, Job)>,
    pub(crate) killed: u64,
    pub(crate) stopped: u64,
    /// From then on there was none, for a while.
    pub(crate) down: Time,
    /// All that fell due until then is to be accounted for.
    pub(crate) end: Time,
    /// What fell due after this is too young for a misfire.
    pub(crate) last_misfire: Time,
    /// Whether others went on while somebody else had a job locked.
    pub(crate) went_on: bool,
    /// How many schedulers left in peace, of those that were there at the end.
    pub(crate) content: u64,
}

/// How long none is there: so long that some of what is due is not read ahead by those that are gone, and is too old when
/// others come.
pub(crate) fn downtime(settings: &Settings) -> Duration {
    settings.lead + settings.misfire_after + Duration::from_millis(1_500)
}

pub(crate) fn create_tables(client: &mut Client, has_takeover: bool) -> Result<(), postgres::Error> {
    client.batch_execute(SCHEMA)?;
    client.batch_execute(EFFECT)?;
    client.batch_execute(if has_takeover { "" } else { NO_TAKEOVER })
}

/// `more` is what a scheduler's process is to be told.
pub(crate) fn run(
    options: &Options,
    config: &Config,
    client: &mut Client,
    more: &[String],
) -> Result<Outcome, Box<dyn Error>> {
    let settings = options.settings();
    let length = Duration::from_secs(options.seconds);
    let mut random = Rng::with_seed(options.seed);

    let start = now(client)? + micros(SETTLING);
    let last = start + micros(length + downtime(&settings));
    let mut store = Store::connect(config, PATIENCE)?;
    let add = |job: Job| {
        let first = Timestamp::from_microsecond(job.due.first())?;
        Ok((store.add(job.task, &job.due.schedule(), job.misfire, first)?, job))
    };
    let jobs = jobs::seeded(&mut random, options.jobs, start, last).into_iter().map(add);
    let jobs = jobs.collect::<Result<_, Box<dyn Error>>>()?;
    // Not by `add`, which would refuse it.
    client.execute(
        "INSERT INTO job (task, schedule, next_run) VALUES ('', 'now and then', clock_timestamp())",
        &[],
    )?;

    let mut outcome =
        Outcome { jobs, killed: 0, stopped: 0, down: 0, end: 0, last_misfire: 0, went_on: false, content: 0 };
    let begin = || (0..options.schedulers).map(|_| process::start(more)).collect::<io::Result<Vec<_>>>();
    let mut schedulers = begin()?;
    thread::sleep(SETTLING);
    let middle = Instant::now() + length / 2;
    harass(&mut schedulers, more, middle, settings.lease, &mut random, &mut outcome)?;
    outcome.went_on = lock_one(client, settings.lease)?;
    harass(&mut schedulers, more, middle + length / 2, settings.lease, &mut random, &mut outcome)?;
    for scheduler in &mut schedulers {
        scheduler.kill()?;
    }
    outcome.killed += schedulers.len() as u64;
    outcome.down = now(client)?;
    thread::sleep(downtime(&settings));
    let schedulers = begin()?;
    thread::sleep(AFTERWARDS);
    outcome.end = now(client)?;

    // What was sabotaged does not come right by waiting.
    let patience = if options.sabotage.is_some() { Duration::ZERO } else { PATIENCE } + settings.lease * 3;
    let end = Timestamp::from_microsecond(outcome.end)?;
    wait_for_none(client, patience, "SELECT FROM job WHERE enabled AND next_run <= $1", &[&end])?;
    client.execute("UPDATE job SET enabled = false", &[])?;
    outcome.last_misfire = now(client)? - micros(settings.misfire_after);
    wait_for_none(client, patience, "SELECT FROM run WHERE state IN ('claimed', 'running')", &[])?;
    for mut scheduler in schedulers {
        // That closes its standard input: so it leaves.
        outcome.content += u64::from(scheduler.wait()?.success());
    }
    Ok(outcome)
}

/// Every half a lease or so one is killed, and another started in its place; or it is stopped until its lease has run out.
fn harass(
    schedulers: &mut [Process],
    more: &[String],
    end: Instant,
    lease: Duration,
    random: &mut Rng,
    outcome: &mut Outcome,
) -> io::Result<()> {
    let count = schedulers.len();
    while Instant::now() < end {
        let mut running: Vec<_> =
            schedulers.iter_mut().filter_map(|it| (!it.is_stopped()).then_some(it)).collect();
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

/// Locks the job that all schedulers want next, until more than what was under way is claimed beside it. False: it takes too
/// long.
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
        if begin.elapsed() > PATIENCE {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(10));
    }
    // It was only locked.
    transaction.rollback()?;
    Ok(true)
}

/// If it takes too long, what is missing will tell.
fn wait_for_none(
    client: &mut Client,
    patience: Duration,
    query: &str,
    parameters: &[&(dyn postgres::types::ToSql + Sync)],
) -> Result<(), postgres::Error> {
    let begin = Instant::now();
    while begin.elapsed() < patience && !client.query(query, parameters)?.is_empty() {
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
