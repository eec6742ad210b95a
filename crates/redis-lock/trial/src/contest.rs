//! Three processes contend for one lock while holders and Redis are killed or stopped.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel_trial::process::Process;
use hashed_wheel_trial::redis_server::{RedisServer, connect};
use indicatif::HumanCount;
use redis::{Commands, RedisResult};

use crate::counter::Count;
use crate::trial::{Outcome, PATIENCE, Trial, key};
use crate::worker::Event;

const WORKERS: usize = 3;

/// Events and calls that a process sent before have been received after this time.
const IN_FLIGHT: Duration = Duration::from_millis(20);

/// How much later than the end of the lease the next process may have the lock, on a busy machine.
const SLACK: Duration = Duration::from_secs(5);

pub(crate) fn run(trial: &mut Trial<'_>, server: Option<&mut RedisServer>) -> Outcome {
    let mut contest = Contest::start(trial)?;
    contest.holders()?;
    contest.holder_and_first_in_line()?;
    if let Some(server) = server {
        contest.freeze_redis(server)?;
        contest.kill_redis(server)?;
        contest.lose_data(server)?;
    }
    contest.end()
}

pub(crate) struct Contest<'a, 'b> {
    trial: &'a mut Trial<'b>,
    workers: Vec<Worker>,
    reports: Receiver<Report>,
    sender: Sender<Report>,
    /// All events so far.
    log: Vec<Report>,
    /// The parts of the log in which holders may lose the lock during their lease, because Redis
    /// may have lost data.
    data_losses: Vec<Range<usize>>,
}

/// An event of one of the processes, which may have been killed since.
pub(crate) struct Report {
    pub(crate) process: u32,
    pub(crate) event: Event,
    pub(crate) why: String,
}

/// A process. It is killed when this value is dropped.
pub(crate) struct Worker(pub(crate) Process);

/// The holder of the lock.
#[derive(PartialEq, Eq)]
struct Holder {
    worker: usize,
    owner: String,
}

impl<'a, 'b> Contest<'a, 'b> {
    pub(crate) fn start(trial: &'a mut Trial<'b>) -> Result<Self, Box<dyn Error>> {
        let (sender, reports) = mpsc::channel();
        let workers = (0..WORKERS)
            .map(|_| Worker::start(trial, "--worker", &sender))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            trial,
            workers,
            reports,
            sender,
            log: Vec::new(),
            data_losses: Vec::new(),
        })
    }

    /// Receives events until the condition is true.
    fn until(&mut self, what: &str, condition: impl Fn(&mut Self) -> RedisResult<bool>) -> Outcome {
        let (begin, timeout) = (Instant::now(), PATIENCE + self.trial.options.lease * 4);
        while !condition(self)? {
            if begin.elapsed() > timeout {
                return Err(format!("not within {timeout:?}: {what}").into());
            }
            self.log
                .extend(self.reports.recv_timeout(Duration::from_millis(2)));
        }
        Ok(())
    }

    /// Returns the length of the log, to select events from now on.
    fn now(&mut self) -> usize {
        self.log.extend(self.reports.try_iter());
        self.log.len()
    }

    fn has_reported(&self, process: u32, events: &[Event], since: usize) -> bool {
        let is_it = |report: &Report| report.process == process && events.contains(&report.event);
        self.log[since..].iter().any(is_it)
    }

    fn all_report(&mut self, event: Event, since: usize) -> Outcome {
        self.until(&format!("{event:?}, all three"), |contest| {
            Ok(contest
                .workers
                .iter()
                .all(|worker| contest.has_reported(worker.id(), &[event], since)))
        })
    }

    /// Waits until all have entered from now on. Returns how long that took.
    pub(crate) fn all_enter(&mut self) -> Result<Duration, Box<dyn Error>> {
        let (begin, now) = (Instant::now(), self.now());
        self.all_report(Event::Entered, now)?;
        Ok(begin.elapsed())
    }

    /// Waits until all have reported trouble from now on. Returns their messages.
    fn all_report_trouble(&mut self) -> Result<String, Box<dyn Error>> {
        let now = self.now();
        self.all_report(Event::Trouble, now)?;
        Ok(reasons(&self.log[now..], Event::Trouble))
    }

    pub(crate) fn expect(&mut self, holds: bool, failure: &str) {
        self.trial.verdict.expect(holds, failure);
    }

    fn count(&self, event: Event) -> u64 {
        self.log
            .iter()
            .filter(|report| report.event == event)
            .count() as u64
    }

    fn holder(&mut self) -> RedisResult<Option<Holder>> {
        let owners: Vec<String> = self.trial.redis.zrange(key(&self.trial.name), 0, 0)?;
        Ok(owners.into_iter().next().and_then(|owner| {
            Some(Holder {
                worker: self.worker_of(&owner)?,
                owner,
            })
        }))
    }

    /// Returns the process that waits first in the queue.
    fn first_in_line(&mut self) -> RedisResult<Option<usize>> {
        let queue = format!("{}:queue", key(&self.trial.name));
        let first: Vec<String> = self.trial.redis.zrange(queue, 0, 0)?;
        Ok(first.first().and_then(|owner| self.worker_of(owner)))
    }

    /// The name of an owner begins with `HOST/PID:`.
    fn worker_of(&self, owner: &str) -> Option<usize> {
        let process: u32 = owner.split(':').next()?.rsplit('/').next()?.parse().ok()?;
        self.workers
            .iter()
            .position(|worker| worker.id() == process)
    }

    /// Returns the remaining lease and the token, if the process, which no longer runs, is still
    /// the holder.
    fn is_still(&mut self, holder: &Holder) -> RedisResult<Option<(Duration, u64)>> {
        thread::sleep(IN_FLIGHT);
        let left: i64 = self.trial.redis.pttl(key(&self.trial.name))?;
        let token = self.token()?;
        let is_it = self.holder()?.is_some_and(|now| now == *holder);
        Ok(is_it.then(|| {
            (
                Duration::from_millis(left.try_into().unwrap_or_default()),
                token,
            )
        }))
    }

    /// The last token, or 0 if the lock was not held yet, or not since Redis has lost its data.
    fn token(&mut self) -> RedisResult<u64> {
        let tokens = format!("{}:tokens", key(&self.trial.name));
        let token: Option<u64> = self.trial.redis.hget(tokens, "")?;
        Ok(token.unwrap_or_default())
    }

    fn until_taken_over(&mut self, token: u64) -> Outcome {
        self.until("another process has the lock", |contest| {
            Ok(contest.token()? != token)
        })
    }

    /// Kills holders, or stops them for longer than the lease.
    fn holders(&mut self) -> Outcome {
        let lease = self.trial.options.lease;
        let end = Instant::now() + self.trial.options.duration;
        let (mut killed, mut stopped, mut random) = (Vec::new(), 0, Rng::new());
        self.all_enter()?;
        while Instant::now() < end || killed.is_empty() || stopped == 0 {
            // At a random time, sometimes before the holder has renewed the lease and sometimes
            // after.
            let deadline = Instant::now() + lease.mul_f64(random.f64() * 1.5);
            self.until("the time is reached", |_| Ok(Instant::now() >= deadline))?;
            self.until("a process has the lock", |contest| {
                Ok(contest.holder()?.is_some())
            })?;
            let Some(holder) = self.holder()? else {
                continue;
            };
            if (killed.len() + stopped) % 3 == 1 {
                stopped += usize::from(self.stop(&holder)?);
            } else {
                killed.extend(self.kill(&holder)?);
            }
            if Instant::now() > end + PATIENCE * 2 {
                return Err(
                    "no holder could be killed, or none could be stopped: no process keeps the lock".into()
                );
            }
        }
        self.until(
            "a process keeps the lock for longer than a lease",
            |contest| Ok(contest.count(Event::ReleasedLate) > 0),
        )?;
        self.all_enter()?;

        println!(
            "contention   a process had the lock {} times, {} times for longer than a lease",
            HumanCount(self.count(Event::Entered)),
            self.count(Event::ReleasedLate)
        );
        killed.sort();
        println!(
            "kill -9      of {} holders; another process had the lock {:.2?} to {:.2?} later, after the lease",
            killed.len(),
            killed[0],
            killed[killed.len() - 1]
        );
        println!(
            "stopped      {stopped} holders for longer than the lease; {} detected the loss:",
            self.count(Event::Lost)
        );
        println!("             {}", reasons(&self.log, Event::Lost));
        Ok(())
    }

    /// Kills the holder with `kill -9`. Returns how long it took until another process had the
    /// lock, or `None` if the holder had just released it.
    fn kill(&mut self, holder: &Holder) -> Result<Option<Duration>, Box<dyn Error>> {
        self.workers[holder.worker].0.kill()?;
        let begin = Instant::now();
        let mut took = None;
        if let Some((left, token)) = self.is_still(holder)? {
            self.until_taken_over(token)?;
            let time = begin.elapsed();
            // The resolution of Redis is a millisecond.
            self.trial.verdict.expect(
                time + Duration::from_millis(2) >= left,
                format!(
                    "a lock was taken over after {time:.2?} although the lease of its holder had {left:.2?} left"
                ),
            );
            took = Some(time);
        }
        self.workers[holder.worker] = Worker::start(self.trial, "--worker", &self.sender)?;
        Ok(took)
    }

    /// Kills the holder and the first waiting process together. The third one gets the lock after
    /// the rest of the lease.
    fn holder_and_first_in_line(&mut self) -> Outcome {
        let begin = Instant::now();
        let (took, left) = loop {
            if begin.elapsed() > PATIENCE * 2 {
                return Err(
                    "the holder and the first waiting process could not be killed together".into(),
                );
            }
            self.until("a process has the lock", |contest| {
                Ok(contest.holder()?.is_some())
            })?;
            let (Some(holder), Some(first)) = (self.holder()?, self.first_in_line()?) else {
                continue;
            };
            if first == holder.worker {
                continue;
            }
            let both = [holder.worker, first];
            for worker in both {
                self.workers[worker].0.kill()?;
            }
            let (crash, mut took) = (Instant::now(), None);
            // Otherwise the holder had just released the lock, and the other one had left the
            // queue.
            if let Some((left, token)) = self.is_still(&holder)? {
                if self.first_in_line()? == Some(first) {
                    self.until_taken_over(token)?;
                    took = Some((crash.elapsed(), left));
                }
            }
            for worker in both {
                self.workers[worker] = Worker::start(self.trial, "--worker", &self.sender)?;
            }
            self.all_enter()?;
            if let Some(took) = took {
                break took;
            }
        };
        println!(
            "killed both  the holder and the first waiting process, together; the third one had the lock \
             {took:.2?} later, when {left:.2?} of the lease were left"
        );
        self.trial.verdict.expect(
            took <= left + SLACK,
            format!("a crash of the holder and the first waiting process cost {took:.2?}, with {left:.2?} of the lease left"),
        );
        Ok(())
    }

    /// Stops the holder until another process has the lock. Returns false if the holder had just
    /// released it, or was about to: then it may learn only that its call was not answered.
    fn stop(&mut self, holder: &Holder) -> Result<bool, Box<dyn Error>> {
        let worker = &mut self.workers[holder.worker];
        let (process, stopped) = (worker.id(), worker.0.stop()?);
        let token = self.is_still(holder)?.map(|(_, token)| token);
        if let Some(token) = token {
            self.until_taken_over(token)?;
            thread::sleep(self.trial.options.lease / 2);
        }
        let now = self.now();
        drop(stopped);
        if token.is_some() {
            self.until(
                "the stopped process detects that the lock is lost",
                |contest| {
                    let events = [Event::Lost, Event::LostEarly, Event::Trouble];
                    Ok(contest.has_reported(process, &events, now))
                },
            )?;
        }
        Ok(token.is_some() && self.has_reported(process, &[Event::Lost, Event::LostEarly], now))
    }

    /// Stops Redis: it accepts connections but does not answer.
    fn freeze_redis(&mut self, server: &RedisServer) -> Outcome {
        let begin = Instant::now();
        server.freeze()?;
        let troubles = self.all_report_trouble();
        server.thaw()?;
        println!(
            "stopped      Redis for {:.2?}. All three processes reported it:",
            begin.elapsed()
        );
        println!("             {}", troubles?);
        println!(
            "             All three processes had the lock again within {:.2?}",
            self.all_enter()?
        );
        Ok(())
    }

    /// Kills Redis and restarts it with its data.
    fn kill_redis(&mut self, server: &mut RedisServer) -> Outcome {
        let before = self.holder()?;
        let begin = Instant::now();
        server.kill()?;
        let troubles = self.all_report_trouble()?;
        thread::sleep(self.trial.third());
        server.restart()?;
        self.trial.redis = connect(&self.trial.servers.url)?;
        println!(
            "killed       Redis, and restarted it {:.2?} later with its data. All three processes reported it:",
            begin.elapsed()
        );
        println!("             {troubles}");
        let is_kept = before.is_some() && before == self.holder()?;
        println!(
            "             The holder of the lock {}; all three processes had it again within {:.2?}",
            if is_kept { "kept it" } else { "lost it" },
            self.all_enter()?
        );
        Ok(())
    }

    /// Kills Redis and restarts it without its data, while a process has the lock.
    fn lose_data(&mut self, server: &mut RedisServer) -> Outcome {
        let took = self.during_data_loss(|contest| {
            contest.until("a process has the lock", |contest| {
                Ok(contest.holder()?.is_some())
            })?;
            server.kill()?;
            server.lose_data()?;
            server.restart()?;
            contest.trial.redis = connect(&contest.trial.servers.url)?;
            Ok(())
        })?;
        println!(
            "killed       Redis, and restarted it without its data. All three processes had the lock again"
        );
        println!("             within {took:.2?}");
        Ok(())
    }

    /// Does something in which Redis may lose data, and waits until all processes have had the lock
    /// again. Returns how long both took.
    pub(crate) fn during_data_loss(
        &mut self,
        what: impl FnOnce(&mut Self) -> Outcome,
    ) -> Result<Duration, Box<dyn Error>> {
        let (start, begin) = (Instant::now(), self.now());
        what(self)?;
        self.all_enter()?;
        let took = start.elapsed();
        // A holder that has lost the lock is told at the end of its lease at the latest.
        thread::sleep(self.trial.options.lease);
        let end = self.now();
        self.data_losses.push(begin..end);
        Ok(took)
    }

    pub(crate) fn end(self) -> Outcome {
        let Self {
            trial,
            workers,
            reports,
            sender,
            mut log,
            data_losses,
        } = self;
        let ended = workers
            .into_iter()
            .map(Worker::end)
            .collect::<io::Result<Vec<_>>>()?;
        let ended = ended.into_iter().filter(|ended| *ended).count();
        // Drops the last sender, so that the loop below ends after all events.
        drop(sender);
        log.extend(reports);
        let repeated = repeated_tokens(&log);
        let all = log
            .iter()
            .filter(|report| report.event == Event::LostEarly)
            .count();
        let mut position = 0;
        log.retain(|_| {
            position += 1;
            !data_losses
                .iter()
                .any(|part| part.contains(&(position - 1)))
        });
        let lost_early = log
            .iter()
            .filter(|report| report.event == Event::LostEarly)
            .count();
        let mut resource = connect(&trial.servers.resource)?;
        let Count {
            value,
            writes,
            refused,
        } = Count::take(&trial.name, &mut resource)?;
        println!(
            "counter      {} after {} writes; {refused} accesses with old tokens were rejected",
            HumanCount(value),
            HumanCount(writes)
        );
        println!("             {lost_early} holders lost the lock during their lease");
        if !data_losses.is_empty() {
            println!(
                "             {} more, when Redis lost its data",
                all - lost_early
            );
        }
        let verdict = &mut trial.verdict;
        verdict.expect(
            repeated.is_empty(),
            format!(
                "two holders had the same token, or a later holder a smaller one: {repeated:?}"
            ),
        );
        verdict.expect(
            ended == WORKERS,
            format!("{ended} of {WORKERS} processes ended in time"),
        );
        verdict.expect(
            value > 0 && value == writes,
            format!("the counter is at {value} after {writes} writes"),
        );
        verdict.expect(
            lost_early == 0,
            format!(
                "{lost_early} holders lost the lock during their lease: {}",
                reasons(&log, Event::LostEarly)
            ),
        );
        Ok(())
    }
}

/// Returns the tokens that another holder had before, or that are smaller than an earlier one of
/// the same process.
fn repeated_tokens(log: &[Report]) -> Vec<u64> {
    let (mut all, mut last) = (HashSet::new(), HashMap::new());
    let entered = log.iter().filter(|report| report.event == Event::Entered);
    let tokens = entered.filter_map(|report| Some((report.process, report.why.parse().ok()?)));
    tokens
        .filter(|&(process, token)| {
            let is_new = all.insert(token);
            let is_larger = last.insert(process, token).is_none_or(|last| last < token);
            !is_new || !is_larger
        })
        .map(|(_, token)| token)
        .collect()
}

/// Returns the distinct reasons.
pub(crate) fn reasons(log: &[Report], event: Event) -> String {
    let reasons: BTreeSet<_> = log
        .iter()
        .filter(|report| report.event == event)
        .map(|report| &*report.why)
        .collect();
    reasons.into_iter().collect::<Vec<_>>().join("; ")
}

impl Worker {
    /// Starts this program with an option that takes the name of the lock.
    pub(crate) fn start(
        trial: &Trial<'_>,
        option: &str,
        sender: &Sender<Report>,
    ) -> io::Result<Self> {
        let lease = format!("{}ns", trial.options.lease.as_nanos());
        let mut command = Command::new(env::current_exe()?);
        command
            .args([option, &trial.name, "--lease", &lease])
            .args(trial.servers.options());
        let mut worker = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let (process, output, sender) = (worker.id(), worker.stdout.take(), sender.clone());
        thread::spawn(move || {
            let lines = output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines())
                .map_while(Result::ok);
            for (event, why) in lines.filter_map(|line| Event::read(&line)) {
                // An error means that the receiver has been dropped at the end.
                let _ = sender.send(Report {
                    process,
                    event,
                    why,
                });
            }
        });
        Ok(Self(worker))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Lets the process end. Returns whether it ended without being killed.
    pub(crate) fn end(mut self) -> io::Result<bool> {
        drop(self.0.stdin.take());
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status.success());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(false)
    }
}
