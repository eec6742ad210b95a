//! Four processes contend for a read-write lock, the permits of a semaphore and two locks while
//! they and Redis are killed or stopped.

use std::error::Error;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel_trial::redis_server::{RedisServer, connect};
use indicatif::HumanCount;

use crate::contest::{Report, Worker, reasons};
use crate::crowd_worker::PERMITS;
use crate::register::{self, Findings, Kind};
use crate::trial::{Outcome, PATIENCE, Trial};
use crate::worker::Event;

const PROCESSES: usize = 4;

/// What each process holds in turn.
const GROUPS: [&[Kind]; 3] = [&[Kind::Read, Kind::Write], &[Kind::Permit], &[Kind::Lock]];

pub(crate) fn run(trial: &mut Trial<'_>, server: Option<&mut RedisServer>) -> Outcome {
    let mut crowd = Crowd::start(trial)?;
    crowd.until_all_enter()?;
    let (killed, stopped) = crowd.processes()?;
    let took = crowd.until_all_enter()?;
    let outages = server.map(|server| crowd.kill_redis(server)).transpose()?;
    let findings = crowd.end()?;
    print(&findings, killed, stopped, took);
    if let Some([with_data, without_data]) = outages {
        println!(
            "             Redis was killed twice. All had them again within {with_data:.2?}, and without"
        );
        println!("             its data within {without_data:.2?}");
    }
    Ok(())
}

/// The processes, and what they have reported.
struct Crowd<'a, 'b> {
    trial: &'a mut Trial<'b>,
    workers: Vec<Worker>,
    reports: Receiver<Report>,
    sender: Sender<Report>,
    log: Vec<Report>,
    /// The part of the log, and of the accesses, in which holds may be lost during their lease and
    /// overlap others, because Redis has lost its data.
    data_loss: Option<(Range<usize>, Range<u64>)>,
}

impl<'a, 'b> Crowd<'a, 'b> {
    fn start(trial: &'a mut Trial<'b>) -> io::Result<Self> {
        let (sender, reports) = mpsc::channel();
        let workers = (0..PROCESSES).map(|_| Worker::start(trial, "--crowd", &sender));
        let workers = workers.collect::<io::Result<_>>()?;
        Ok(Self {
            trial,
            workers,
            reports,
            sender,
            log: Vec::new(),
            data_loss: None,
        })
    }

    /// Kills processes, or stops them for longer than a lease. Returns how many of each.
    fn processes(&mut self) -> io::Result<(usize, usize)> {
        let (mut random, end) = (Rng::new(), Instant::now() + self.trial.options.duration);
        let (mut killed, mut stopped) = (0, 0);
        while Instant::now() < end || killed == 0 || stopped == 0 {
            thread::sleep(self.trial.options.lease.mul_f64(random.f64()));
            let worker = &mut self.workers[random.usize(..PROCESSES)];
            if (killed + stopped) % 3 == 1 {
                let continues = worker.0.stop()?;
                thread::sleep(self.trial.options.lease * 3 / 2);
                drop(continues);
                stopped += 1;
            } else {
                worker.0.kill()?;
                *worker = Worker::start(self.trial, "--crowd", &self.sender)?;
                killed += 1;
            }
        }
        Ok((killed, stopped))
    }

    /// Kills Redis, and restarts it with its data, and then without. Returns how long it took until
    /// all had entered again.
    fn kill_redis(&mut self, server: &mut RedisServer) -> Result<[Duration; 2], Box<dyn Error>> {
        server.kill()?;
        let with_data = self.restart(server)?;

        let begin = (self.now(), self.accesses()?);
        server.kill()?;
        server.lose_data()?;
        let without_data = self.restart(server)?;
        // A holder that has lost its hold is told at the end of its lease at the latest.
        thread::sleep(self.trial.options.lease);
        self.data_loss = Some((begin.0..self.now(), begin.1..self.accesses()?));
        self.until_all_enter()?;
        Ok([with_data, without_data])
    }

    fn restart(&mut self, server: &mut RedisServer) -> Result<Duration, Box<dyn Error>> {
        server.restart()?;
        self.trial.redis = connect(&self.trial.servers.url)?;
        self.until_all_enter()
    }

    /// Returns the number of accesses so far.
    fn accesses(&self) -> redis::RedisResult<u64> {
        register::accesses(
            &self.trial.name,
            &mut connect(&self.trial.servers.resource)?,
        )
    }

    /// Returns the length of the log, to select events from now on.
    fn now(&mut self) -> usize {
        self.log.extend(self.reports.try_iter());
        self.log.len()
    }

    /// Waits until all have entered each group from now on. Returns how long that took.
    fn until_all_enter(&mut self) -> Result<Duration, Box<dyn Error>> {
        let (begin, since) = (Instant::now(), self.now());
        while !self.all_have_entered(since) {
            if begin.elapsed() > PATIENCE {
                return Err(
                    format!("not within {PATIENCE:?}: all processes of the crowd enter").into(),
                );
            }
            self.log
                .extend(self.reports.recv_timeout(Duration::from_millis(2)));
        }
        Ok(begin.elapsed())
    }

    fn all_have_entered(&self, since: usize) -> bool {
        let has_entered = |worker: &Worker, group: &[Kind]| {
            let is_it = |report: &Report| {
                report.process == worker.id()
                    && report.event == Event::Entered
                    && group.iter().any(|kind| report.why == format!("{kind:?}"))
            };
            self.log[since..].iter().any(is_it)
        };
        self.workers
            .iter()
            .all(|worker| GROUPS.iter().all(|group| has_entered(worker, group)))
    }

    /// Ends the processes, and checks what they held.
    fn end(self) -> Result<Findings, Box<dyn Error>> {
        let Self {
            trial,
            workers,
            reports,
            sender,
            mut log,
            data_loss,
        } = self;
        let ended = workers
            .into_iter()
            .map(Worker::end)
            .collect::<io::Result<Vec<_>>>()?;
        let ended = ended.into_iter().filter(|ended| *ended).count();
        drop(sender);
        log.extend(reports);
        let (events, accesses) = data_loss.unwrap_or_default();
        log.drain(events);
        let findings = Findings::take(
            &trial.name,
            &mut connect(&trial.servers.resource)?,
            accesses,
        )?;

        let Findings {
            reads,
            writes,
            permits,
            locks,
            ..
        } = findings;
        let Findings {
            most_readers,
            most_permits,
            most_locks,
            with_a_writer,
            ..
        } = findings;
        let lost_early = reasons(&log, Event::LostEarly);
        let verdict = &mut trial.verdict;
        verdict.expect(
            ended == PROCESSES,
            format!("{ended} of {PROCESSES} processes of the crowd ended in time"),
        );
        verdict.expect(
            reads > 0 && writes > 0 && permits > 0 && locks > 0,
            format!(
                "there were {reads} reads, {writes} writes, {permits} holds of permits and {locks} of locks"
            ),
        );
        verdict.expect(
            with_a_writer == 0,
            format!("{with_a_writer} holds overlapped a write"),
        );
        verdict.expect(
            most_permits == PERMITS as usize,
            format!("at most {most_permits} permits of {PERMITS} were held at the same time"),
        );
        verdict.expect(
            most_locks == 1,
            format!("{most_locks} owners held one lock at the same time"),
        );
        verdict.expect(most_readers > 1, "readers never read at the same time");
        let old_tokens = &findings.old_tokens;
        verdict.expect(
            old_tokens.is_empty(),
            format!("tokens were less than earlier ones: {old_tokens:?}"),
        );
        verdict.expect(
            lost_early.is_empty(),
            format!("holds were lost during their lease: {lost_early}"),
        );
        Ok(findings)
    }
}

fn print(findings: &Findings, killed: usize, stopped: usize, took: Duration) {
    let Findings {
        reads,
        writes,
        permits,
        locks,
        most_readers,
        most_permits,
        ..
    } = findings;
    let [reads, writes, permits, locks] =
        [reads, writes, permits, locks].map(|&count| HumanCount(count as u64));
    println!(
        "crowd        {PROCESSES} processes read {reads} times, wrote {writes} times, had a permit"
    );
    println!(
        "             {permits} times, and one lock or two as one {locks} times; at most {most_readers}"
    );
    println!("             read together, and {most_permits} had a permit");
    println!(
        "             kill -9 of {killed}, and {stopped} stopped for longer than a lease; then all had"
    );
    println!("             them again within {took:.2?}");
}
