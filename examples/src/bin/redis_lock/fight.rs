//! Three processes and one lock, and what is done to them and to Redis meanwhile.

use std::collections::BTreeSet;
use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use fastrand::Rng;
use hashed_wheel_examples::process::Process;
use indicatif::HumanCount;
use redis::{Commands, RedisResult};

use crate::counter::Count;
use crate::lock;
use crate::redis_server::{RedisServer, connect};
use crate::trial::{Outcome, PATIENCE, Trial};
use crate::worker::Event;

const WORKERS: usize = 3;

/// What was still on its way from a process is with Redis by then.
const ON_ITS_WAY: Duration = Duration::from_millis(20);

pub(crate) fn run(trial: &mut Trial<'_>, server: Option<&mut RedisServer>) -> Outcome {
    let mut fight = Fight::start(trial)?;
    fight.holders()?;
    if let Some(server) = server {
        fight.freeze_redis(server)?;
        fight.kill_redis(server)?;
    }
    fight.end()
}

struct Fight<'a, 'b> {
    trial: &'a mut Trial<'b>,
    workers: Vec<Worker>,
    told: Receiver<Told>,
    tell: Sender<Told>,
    /// What was told so far.
    log: Vec<Told>,
}

/// By one of the processes, perhaps one that was killed meanwhile.
struct Told {
    process: u32,
    event: Event,
    why: String,
}

/// Killed when dropped.
struct Worker(Process);

/// Who has the lock.
#[derive(PartialEq, Eq)]
struct Holder {
    worker: usize,
    owner: String,
}

impl<'a, 'b> Fight<'a, 'b> {
    fn start(trial: &'a mut Trial<'b>) -> Result<Self, Box<dyn Error>> {
        let (tell, told) = mpsc::channel();
        let workers = (0..WORKERS).map(|_| Worker::start(trial, &tell)).collect::<io::Result<_>>()?;
        Ok(Self { trial, workers, told, tell, log: Vec::new() })
    }

    /// Listens until something is so.
    fn until(&mut self, what: &str, is_so: impl Fn(&mut Self) -> RedisResult<bool>) -> Outcome {
        let (begin, patience) = (Instant::now(), PATIENCE + self.trial.options.lease * 4);
        while !is_so(self)? {
            if begin.elapsed() > patience {
                return Err(format!("not within {patience:?}: {what}").into());
            }
            self.log.extend(self.told.recv_timeout(Duration::from_millis(2)));
        }
        Ok(())
    }

    /// For what is told from now on.
    fn now(&mut self) -> usize {
        self.log.extend(self.told.try_iter());
        self.log.len()
    }

    fn has_told(&self, process: u32, events: &[Event], since: usize) -> bool {
        let is_it = |told: &Told| told.process == process && events.contains(&told.event);
        self.log[since..].iter().any(is_it)
    }

    fn all_tell(&mut self, event: Event, since: usize) -> Outcome {
        self.until(&format!("{event:?}, all three"), |fight| {
            Ok(fight.workers.iter().all(|worker| fight.has_told(worker.id(), &[event], since)))
        })
    }

    /// From now on. How long that took.
    fn all_enter(&mut self) -> Result<Duration, Box<dyn Error>> {
        let (begin, now) = (Instant::now(), self.now());
        self.all_tell(Event::Entered, now)?;
        Ok(begin.elapsed())
    }

    /// From now on. What they say.
    fn all_in_trouble(&mut self) -> Result<String, Box<dyn Error>> {
        let now = self.now();
        self.all_tell(Event::Trouble, now)?;
        Ok(reasons(&self.log[now..], Event::Trouble))
    }

    fn count(&self, event: Event) -> u64 {
        self.log.iter().filter(|told| told.event == event).count() as u64
    }

    fn holder(&mut self) -> RedisResult<Option<Holder>> {
        let owners: Vec<String> = self.trial.redis.hkeys(lock::key(&self.trial.name))?;
        Ok(owners.into_iter().next().and_then(|owner| {
            let process: u32 = owner.split(':').next()?.parse().ok()?;
            let worker = self.workers.iter().position(|worker| worker.id() == process)?;
            Some(Holder { worker, owner })
        }))
    }

    /// Now that this one does nothing any more: what is left of its lease, and its token.
    fn is_still(&mut self, holder: &Holder) -> RedisResult<Option<(Duration, u64)>> {
        thread::sleep(ON_ITS_WAY);
        let key = lock::key(&self.trial.name);
        let left: i64 = self.trial.redis.pttl(&key)?;
        let token = self.token()?;
        let is_it = self.holder()?.is_some_and(|now| now == *holder);
        Ok(is_it.then(|| (Duration::from_millis(left.try_into().unwrap_or_default()), token)))
    }

    fn token(&mut self) -> RedisResult<u64> {
        self.trial.redis.get(format!("{}:token", lock::key(&self.trial.name)))
    }

    fn until_handed_over(&mut self, token: u64) -> Outcome {
        self.until("somebody else has the lock", |fight| Ok(fight.token()? != token))
    }

    /// They are killed, or stopped for longer than the lease.
    fn holders(&mut self) -> Outcome {
        let lease = self.trial.options.lease;
        let end = Instant::now() + Duration::from_secs(self.trial.options.seconds);
        let (mut killed, mut stopped, mut random) = (Vec::new(), 0, Rng::new());
        self.all_enter()?;
        while Instant::now() < end || killed.is_empty() || stopped == 0 {
            // Sometimes before who has it has renewed it, sometimes after.
            let strike = Instant::now() + lease.mul_f64(random.f64() * 1.5);
            self.until("it is time", |_| Ok(Instant::now() >= strike))?;
            self.until("somebody has the lock", |fight| Ok(fight.holder()?.is_some()))?;
            let Some(holder) = self.holder()? else { continue };
            if (killed.len() + stopped) % 3 == 1 {
                stopped += usize::from(self.stop(&holder)?);
            } else {
                killed.extend(self.kill(&holder)?);
            }
            if Instant::now() > end + PATIENCE * 2 {
                return Err("no holder could be killed, or none stopped: nobody keeps the lock".into());
            }
        }
        self.until("somebody keeps the lock for longer than a lease", |fight| {
            Ok(fight.count(Event::LeftLate) > 0)
        })?;
        self.all_enter()?;

        println!(
            "three fight  {} times somebody had the lock, {} times for longer than a lease",
            HumanCount(self.count(Event::Entered)),
            self.count(Event::LeftLate)
        );
        killed.sort();
        println!(
            "kill -9      of {} who had it; somebody else had it {:.2?} to {:.2?} later, when the lease was over",
            killed.len(),
            killed[0],
            killed[killed.len() - 1]
        );
        println!(
            "stopped      {stopped} who had it, for longer than the lease; {} were told that they have it no more:",
            self.count(Event::Lost)
        );
        println!("             {}", reasons(&self.log, Event::Lost));
        Ok(())
    }

    /// With `kill -9`. How long after that somebody else had the lock; nothing, if this one has just given it back.
    fn kill(&mut self, holder: &Holder) -> Result<Option<Duration>, Box<dyn Error>> {
        self.workers[holder.worker].0.kill()?;
        let begin = Instant::now();
        let mut took = None;
        if let Some((left, token)) = self.is_still(holder)? {
            self.until_handed_over(token)?;
            let time = begin.elapsed();
            // Redis counts in milliseconds.
            self.trial.verdict.expect(
                time + Duration::from_millis(2) >= left,
                format!("a lock was handed over after {time:?}, with {left:?} of its holder's lease left"),
            );
            took = Some(time);
        }
        self.workers[holder.worker] = Worker::start(self.trial, &self.tell)?;
        Ok(took)
    }

    /// It goes on when somebody else has the lock. False, if it has just given that back.
    fn stop(&mut self, holder: &Holder) -> Result<bool, Box<dyn Error>> {
        let worker = &mut self.workers[holder.worker];
        let (process, stopped) = (worker.id(), worker.0.stop()?);
        let token = self.is_still(holder)?.map(|(_, token)| token);
        if let Some(token) = token {
            self.until_handed_over(token)?;
            thread::sleep(self.trial.options.lease / 2);
        }
        let now = self.now();
        drop(stopped);
        if token.is_some() {
            self.until("who was stopped knows that the lock is lost", |fight| {
                Ok(fight.has_told(process, &[Event::Lost, Event::Robbed], now))
            })?;
        }
        Ok(token.is_some())
    }

    /// Redis takes connections, and answers nobody.
    fn freeze_redis(&mut self, server: &RedisServer) -> Outcome {
        let begin = Instant::now();
        server.freeze()?;
        let troubles = self.all_in_trouble();
        server.thaw()?;
        println!("frozen       Redis, for {:.2?}. All three said so:", begin.elapsed());
        println!("             {}", troubles?);
        println!("             All three had the lock again within {:.2?}", self.all_enter()?);
        Ok(())
    }

    /// Redis dies, and comes back with its data.
    fn kill_redis(&mut self, server: &mut RedisServer) -> Outcome {
        let before = self.holder()?;
        let begin = Instant::now();
        server.kill()?;
        let troubles = self.all_in_trouble()?;
        thread::sleep(self.trial.third());
        server.start_again()?;
        self.trial.redis = connect(&self.trial.url)?;
        println!(
            "killed       Redis, and started it {:.2?} later, with its data. All three said so:",
            begin.elapsed()
        );
        println!("             {troubles}");
        let is_kept = before.is_some() && before == self.holder()?;
        println!(
            "             Who had the lock {}; all three had it again within {:.2?}",
            if is_kept { "has it still" } else { "does not have it any more" },
            self.all_enter()?
        );
        Ok(())
    }

    fn end(self) -> Outcome {
        let Self { trial, workers, told, tell, mut log } = self;
        let ended = workers.into_iter().map(Worker::end).collect::<io::Result<Vec<_>>>()?;
        let ended = ended.into_iter().filter(|ended| *ended).count();
        // Until all have been read to the end.
        drop(tell);
        log.extend(told);
        let robbed = log.iter().filter(|told| told.event == Event::Robbed).count();
        let Count { value, writes, refused } = Count::take(&trial.name, &mut trial.redis)?;
        println!(
            "counter      {} after {} writes; {refused} accesses were refused, with tokens that were old",
            HumanCount(value),
            HumanCount(writes)
        );
        println!("             {robbed} holders were robbed");
        let verdict = &mut trial.verdict;
        verdict.expect(ended == WORKERS, format!("{ended} processes of {WORKERS} ended when they should"));
        verdict
            .expect(value > 0 && value == writes, format!("the counter is at {value} after {writes} writes"));
        verdict.expect(
            robbed == 0,
            format!("{robbed} holders were robbed of the lock: {}", reasons(&log, Event::Robbed)),
        );
        Ok(())
    }
}

/// Each that was given, once.
fn reasons(log: &[Told], event: Event) -> String {
    let reasons: BTreeSet<_> = log.iter().filter(|told| told.event == event).map(|told| &*told.why).collect();
    reasons.into_iter().collect::<Vec<_>>().join("; ")
}

impl Worker {
    fn start(trial: &Trial<'_>, tell: &Sender<Told>) -> io::Result<Self> {
        let lease = format!("{}ns", trial.options.lease.as_nanos());
        let mut command = Command::new(env::current_exe()?);
        command.args(["--worker", &trial.name, "--url", &trial.url, "--lease", &lease]);
        if let Some(sabotage) = trial.options.sabotage.and_then(|sabotage| sabotage.to_possible_value()) {
            command.args(["--sabotage", sabotage.get_name()]);
        }
        command.args(trial.options.top.option());
        let mut worker = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let (process, said, tell) = (worker.id(), worker.stdout.take(), tell.clone());
        thread::spawn(move || {
            let lines = said.into_iter().flat_map(|said| BufReader::new(said).lines()).map_while(Result::ok);
            for (event, why) in lines.filter_map(|line| Event::read(&line)) {
                // Nobody listens in the end.
                let _ = tell.send(Told { process, event, why });
            }
        });
        Ok(Self(worker))
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    /// Lets it go. Whether it went of its own accord.
    fn end(mut self) -> io::Result<bool> {
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
