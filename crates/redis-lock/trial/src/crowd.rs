//! Four processes contend for a read-write lock and for the permits of a semaphore while they are
//! killed or stopped.

use std::error::Error;
use std::io;
use std::process::{self, ExitCode};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::redis_server::connect;
use hashed_wheel_trial::when_parent_ends;
use indicatif::HumanCount;
use redis_lock::blocking::{Guard, LockClient};
use redis_lock::{LockError, Loss};

use crate::Options;
use crate::contest::{Report, Worker, reasons};
use crate::register::{Findings, Kind, Register};
use crate::trial::{self, Outcome, PATIENCE, Servers, Trial};
use crate::worker::{Event, WAIT};

const PROCESSES: usize = 4;
const PERMITS: u32 = 2;

/// The pause between two accesses of a hold.
const WORK: Duration = Duration::from_millis(3);

pub(crate) fn run(trial: &mut Trial<'_>) -> Outcome {
    let (sender, reports) = mpsc::channel();
    let workers = (0..PROCESSES).map(|_| Worker::start(trial, "--crowd", &sender));
    let mut workers: Vec<Worker> = workers.collect::<io::Result<_>>()?;
    let mut log = Vec::new();
    until_all_enter(&workers, &reports, &mut log)?;

    let (mut random, end) = (Rng::new(), Instant::now() + trial.options.duration);
    let (mut killed, mut stopped) = (0, 0);
    while Instant::now() < end || killed == 0 || stopped == 0 {
        thread::sleep(trial.options.lease.mul_f64(random.f64()));
        let worker = &mut workers[random.usize(..PROCESSES)];
        if (killed + stopped) % 3 == 1 {
            let continues = worker.0.stop()?;
            thread::sleep(trial.options.lease * 3 / 2);
            drop(continues);
            stopped += 1;
        } else {
            worker.0.kill()?;
            *worker = Worker::start(trial, "--crowd", &sender)?;
            killed += 1;
        }
    }
    let took = until_all_enter(&workers, &reports, &mut log)?;
    let ended = workers.into_iter().map(Worker::end).collect::<io::Result<Vec<_>>>()?;
    let ended = ended.into_iter().filter(|ended| *ended).count();
    drop(sender);
    log.extend(reports);
    let findings = Findings::take(&trial.name, &mut connect(&trial.servers.resource)?)?;
    print(&findings, killed, stopped, took);

    let Findings { reads, writes, permits, most_readers, most_permits, with_a_writer, old_tokens } = findings;
    let lost_early = reasons(&log, Event::LostEarly);
    let verdict = &mut trial.verdict;
    verdict
        .expect(ended == PROCESSES, format!("{ended} of {PROCESSES} processes of the crowd ended in time"));
    verdict.expect(
        reads > 0 && writes > 0 && permits > 0,
        format!("there were {reads} reads, {writes} writes and {permits} holds of permits"),
    );
    verdict.expect(with_a_writer == 0, format!("{with_a_writer} holds overlapped a write"));
    verdict.expect(
        most_permits == PERMITS as usize,
        format!("at most {most_permits} permits of {PERMITS} were held at the same time"),
    );
    verdict.expect(most_readers > 1, "readers never read at the same time");
    verdict.expect(old_tokens.is_empty(), format!("tokens were less than earlier ones: {old_tokens:?}"));
    verdict.expect(lost_early.is_empty(), format!("holds were lost during their lease: {lost_early}"));
    Ok(())
}

fn print(findings: &Findings, killed: usize, stopped: usize, took: Duration) {
    let Findings { reads, writes, permits, most_readers, most_permits, .. } = findings;
    let [reads, writes, permits] = [reads, writes, permits].map(|&count| HumanCount(count as u64));
    println!("crowd        {PROCESSES} processes read {reads} times, wrote {writes} times, and had a permit");
    println!(
        "             {permits} times; at most {most_readers} read together, and {most_permits} had a permit"
    );
    println!("             kill -9 of {killed}, and {stopped} stopped for longer than a lease; then all had");
    println!("             both again within {took:.2?}");
}

/// Waits until all have read or written, and had a permit, from now on. Returns how long that took.
fn until_all_enter(
    workers: &[Worker],
    reports: &Receiver<Report>,
    log: &mut Vec<Report>,
) -> Result<Duration, Box<dyn Error>> {
    log.extend(reports.try_iter());
    let (begin, since) = (Instant::now(), log.len());
    let has_entered = |log: &[Report], worker: &Worker, is_permit| {
        let is_it = |report: &Report| {
            report.process == worker.id()
                && report.event == Event::Entered
                && (report.why == format!("{:?}", Kind::Permit)) == is_permit
        };
        log[since..].iter().any(is_it)
    };
    while !workers.iter().all(|worker| [false, true].iter().all(|&permit| has_entered(log, worker, permit))) {
        if begin.elapsed() > PATIENCE {
            return Err(format!("not within {PATIENCE:?}: all processes of the crowd enter").into());
        }
        log.extend(reports.recv_timeout(Duration::from_millis(2)));
    }
    Ok(begin.elapsed())
}

/// Runs as one of the processes until its standard input is closed. That happens when the parent
/// process ends.
pub(crate) fn work(servers: &Servers, name: &str, options: &Options) -> ExitCode {
    when_parent_ends(|| process::exit(0));
    let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
    let locks = match servers.locks(&timer) {
        Ok(locks) => locks,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            contend(servers, &locks, name, options, |random| {
                if random.u8(..4) == 0 { Kind::Write } else { Kind::Read }
            })
        });
        scope.spawn(|| contend(servers, &locks, name, options, |_| Kind::Permit));
    });
    ExitCode::FAILURE
}

fn contend(
    servers: &Servers,
    locks: &LockClient,
    name: &str,
    options: &Options,
    choose: impl Fn(&mut Rng) -> Kind,
) {
    let settings = trial::options(options.lease);
    let lock = locks.rw_lock_with(name, settings.clone());
    let semaphore = locks.semaphore_with(name, PERMITS, settings);
    let mut register =
        Register::new(&servers.resource, name, options.lease).expect("the resource is never stopped");
    let (mut random, mut entered) = (Rng::new(), 0_u64);
    loop {
        let kind = choose(&mut random);
        let taken = match kind {
            Kind::Read => lock.read().lock_timeout(WAIT),
            Kind::Write => lock.write().lock_timeout(WAIT),
            Kind::Permit => semaphore.acquire_timeout(WAIT),
        };
        match taken {
            Ok(Some(guard)) => {
                Event::Entered.print(&format!("{kind:?}"));
                entered += 1;
                // Sometimes for longer than a lease, because that requires renewals.
                let short = Duration::from_millis(random.u64(1..40));
                let time = if entered % 20 == 0 { options.lease * 3 / 2 } else { short };
                match hold(guard, kind, &mut register, time) {
                    Ok(()) => {}
                    Err(error @ LockError::Lost(Loss::LeaseEnded(_))) => {
                        Event::Lost.print(&error.to_string())
                    }
                    Err(error @ LockError::Lost(_)) => Event::LostEarly.print(&error.to_string()),
                    Err(error) => Event::Trouble.print(&error.to_string()),
                }
            }
            Ok(None) => Event::Trouble.print(&format!("no {kind:?} within {WAIT:?}")),
            Err(error) => Event::Trouble.print(&error.to_string()),
        }
        thread::sleep(Duration::from_millis(random.u64(1..20)));
    }
}

/// Makes accesses, each of which is confirmed by the next one.
fn hold(guard: Guard, kind: Kind, register: &mut Register, time: Duration) -> Result<(), LockError> {
    let begin = Instant::now();
    let mut accesses = register.hold(kind, guard.token());
    while begin.elapsed() < time {
        accesses.access(|| guard.check())?;
        thread::sleep(WORK);
    }
    accesses.access(|| guard.check())?;
    guard.unlock()
}
