//! What loom cannot hold: a whole timer, with its worker, four producers, and an end at a random moment, under thousands of
//! schedules. Each is drawn from a seed, and so is what the threads do in it.
//!
//! A failure names its seed, and the command that runs that schedule alone, again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel_over_shuttle::{
    Clock, Driver, ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout, TimerTask,
};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Condvar;
use shuttle::thread::{self, JoinHandle};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

mod meetings;
#[path = "../../process.rs"]
mod process;

use process::{Bounds, Ended};

const TICK: Duration = Duration::from_millis(1);

/// So far away that nobody waits for it: whoever sleeps until then sleeps until it is woken.
const FAR: Duration = Duration::from_secs(7_200);

/// Runs one test.
const COMMAND: &str =
    "cargo test --manifest-path loom-tests/shuttle/Cargo.toml --test schedules -- --nocapture --exact";

/// How many seeds for each story.
const SEEDS: u64 = 25_000;

/// Runs `story` with each seed, or with the one that the environment has. It takes its decisions from what it is given.
#[track_caller]
fn explore(story: fn(&mut Rng) -> Tally) {
    let asked = std::env::var("HASHED_WHEEL_SEED").ok().filter(|seed| !seed.is_empty());
    let asked = asked.map(|seed| seed.parse().expect("a seed is a number"));
    let seeds = asked.map_or(0..SEEDS, |seed| seed..seed + 1);
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let sum = Arc::new(Mutex::new(Tally::default()));
    let mut schedules = 0;
    for seed in seeds {
        let total = Arc::clone(&sum);
        let failing = Failing(seed);
        let mut config = Config::new();
        config.failure_persistence = FailurePersistence::None;
        // It says that it knows no order weaker than SeqCst. Loom does.
        config.silence_warnings = true;
        // Who is never woken is found out by those who wait for it.
        config.max_steps = MaxSteps::FailAfter(100_000);
        let story = move || total.lock().unwrap().add(&story(&mut Rng::with_seed(seed)));
        // Either each step is anybody's, or one thread runs until it has to wait but for a few changes: that holds one up
        // in the middle of something for long. (The second takes a run to know when; that one counts too.)
        schedules += match seed % 2 {
            0 => Runner::new(RandomScheduler::new_from_seed(seed, 1), config).run(story),
            _ => Runner::new(PctScheduler::new_from_seed(seed, 4, 2), config).run(story),
        };
        std::mem::forget(failing);
    }
    let sum = sum.lock().unwrap();
    println!("{name}: {schedules} schedules, {sum:?}");
    assert!(asked.is_some() || sum.0.values().all(|ends| *ends > 0), "an end that never came: {sum:?}");
}

/// How often each end came, by name.
#[derive(Debug, Default)]
struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    fn of<const N: usize>(ends: [(&'static str, usize); N]) -> Self {
        Self(ends.map(|(name, ends)| (name, ends as u64)).into())
    }

    fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, ends)| *self.0.entry(name).or_default() += ends);
    }
}

struct Failing(u64);

impl Drop for Failing {
    fn drop(&mut self) {
        eprintln!("HASHED_WHEEL_SEED={} fails", self.0);
        let test = std::thread::current();
        eprintln!("again: HASHED_WHEEL_SEED={} {COMMAND} {}", self.0, test.name().unwrap_or_default());
    }
}

/// The schedules of a test in a process of their own, over code with a mutant in it: one has to fail, and again if its seed
/// is given.
#[track_caller]
fn is_detected_by(test: &str, mutant: &str) {
    let bounds = Bounds { time: Duration::from_secs(600), mebibytes: 8 << 10 };
    let run = |seed: Option<&str>| {
        // Set to nothing it is as good as removed.
        let environment = [("HASHED_WHEEL_MUTANT", mutant), ("HASHED_WHEEL_SEED", seed.unwrap_or_default())];
        let Ended { status, errors } = process::run(test, &environment, bounds);
        let status = status.unwrap_or_else(|| {
            panic!(
                "test {test} does not detect mutant {mutant}: it was ended after {:?}: {errors}",
                bounds.time
            )
        });
        let seed =
            errors.lines().find_map(|line| line.strip_prefix("HASHED_WHEEL_SEED=")?.strip_suffix(" fails"));
        (status, seed.map(str::to_owned), errors)
    };
    let (status, seed, errors) = run(None);
    assert!(!status.success(), "test {test} does not detect mutant {mutant}: it passes");
    let seed =
        seed.unwrap_or_else(|| panic!("{test} did not get to the end with {mutant}, {status}: {errors}"));
    let (status, again, _) = run(Some(&seed));
    assert!(!status.success() && again == Some(seed), "{test} passes with {mutant} when its seed is given");
}

// --- what became of each --------------------------------------------------------------------------------------------

/// None of this is seen by shuttle: it switches threads in the library's own primitives alone.
#[derive(Default)]
struct Fate {
    runs: AtomicUsize,
    hooks: AtomicUsize,
    drops: AtomicUsize,
    cancels: AtomicUsize,
    resets: AtomicUsize,
}

fn get(count: &AtomicUsize) -> usize {
    count.load(Relaxed)
}

struct Task(Arc<Fate>);

impl TimerTask for Task {
    fn run(self, _: &Timeout) {
        self.0.runs.fetch_add(1, Relaxed);
    }

    fn cancelled(self, _: &Timeout) {
        self.0.hooks.fetch_add(1, Relaxed);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Relaxed);
    }
}

/// A timeout and what became of it. (To clone the handle itself is a step of its own, in which shuttle may switch threads,
/// and is not to with the list of all locked.)
#[derive(Clone)]
struct Entry {
    timeout: Arc<Timeout>,
    /// A second one, so that a reference that is given up twice is missed.
    second: Arc<Timeout>,
    fate: Arc<Fate>,
    /// It was due then, or before, if nobody has reset it.
    due: Duration,
}

impl Entry {
    fn cancel(&self) {
        if self.timeout.cancel() {
            self.fate.cancels.fetch_add(1, Relaxed);
        }
    }

    fn reset(&self, delay: Duration) {
        self.fate.resets.fetch_add(1, Relaxed);
        self.timeout.reset(delay);
    }
}

// --- a timer and all that is at work on it --------------------------------------------------------------------------

/// What all threads of a schedule know of.
#[derive(Clone)]
struct World {
    clock: ManualClock,
    limit: usize,
    known: Arc<Mutex<Vec<Entry>>>,
    /// Of timeouts that nobody has a handle of any more: their nodes are used again.
    forgotten: Arc<Mutex<Vec<Arc<Fate>>>>,
    /// How many tasks the executor has dropped.
    turned_away: Arc<AtomicUsize>,
    /// What runs elsewhere.
    elsewhere: Arc<Mutex<Vec<JoinHandle<()>>>>,
    /// Somebody shuts the timer down: it refuses, and may not be stopped yet.
    closes: Arc<AtomicBool>,
}

/// Where who turns a driver sleeps. (Shuttle's `park` wakes up by itself, and would hide a wake-up that is lost.)
#[derive(Default)]
struct Bell {
    has_rung: shuttle::sync::Mutex<bool>,
    rings: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.has_rung.lock().unwrap() = true;
        self.rings.notify_one();
    }

    fn wait(&self) {
        let mut has_rung = self.has_rung.lock().unwrap();
        while !*has_rung {
            has_rung = self.rings.wait(has_rung).unwrap();
        }
        *has_rung = false;
    }
}

/// Who turns the worker.
struct Turner {
    driver: Driver,
    bell: Arc<Bell>,
    /// It drops the driver then, whatever is pending.
    turns: usize,
}

impl World {
    /// A timer of any kind, with a thread or driven by one.
    fn new(random: &mut Rng) -> (Self, HashedWheelTimer, Option<Turner>) {
        let world = Self {
            clock: ManualClock::new(),
            limit: *random.choice(&[0, 0, 2, 5]).unwrap(),
            known: Arc::default(),
            forgotten: Arc::default(),
            turned_away: Arc::default(),
            elsewhere: Arc::default(),
            closes: Arc::default(),
        };
        let mut builder = HashedWheelTimer::builder()
            .tick(TICK)
            .ticks_per_wheel(2)
            .max_pending_timeouts(world.limit)
            .clock(world.clock.clone());
        if random.bool() {
            builder = builder.hierarchical();
        }
        if random.bool() {
            builder = builder.task_executor(world.executor());
        }
        if random.bool() {
            return (world, builder.build().unwrap(), None);
        }
        let bell = Arc::new(Bell::default());
        let rung = Arc::clone(&bell);
        let (timer, driver) = builder.waker(move || rung.ring()).build_driven().unwrap();
        (world, timer, Some(Turner { driver, bell, turns: usize::MAX }))
    }

    /// Drops the first one; runs the others here and elsewhere by turns.
    fn executor(&self) -> impl Fn(ExpiredTask) + Send + Sync + 'static {
        let (taken, turned_away) = (AtomicUsize::new(0), Arc::clone(&self.turned_away));
        let elsewhere = Arc::clone(&self.elsewhere);
        move |task| match taken.fetch_add(1, Relaxed) {
            0 => {
                turned_away.fetch_add(1, Relaxed);
                drop(task);
            }
            taken if taken % 2 == 0 => task.run(),
            _ => {
                let run = thread::spawn(|| task.run());
                elsewhere.lock().unwrap().push(run);
            }
        }
    }

    fn schedule(&self, timer: &HashedWheelTimer, delay: Duration) -> Option<Entry> {
        let (timeout, fate) = self.try_to_schedule(timer, delay)?;
        let second = Arc::new(timeout.clone());
        let due = self.clock.now() + delay;
        let entry = Entry { timeout: Arc::new(timeout), second, fate, due };
        self.known.lock().unwrap().push(entry.clone());
        Some(entry)
    }

    /// One whose handle goes at once, or when it is cancelled.
    fn schedule_and_forget(&self, timer: &HashedWheelTimer, delay: Duration, cancels: bool) {
        let Some((timeout, fate)) = self.try_to_schedule(timer, delay) else { return };
        if cancels {
            timeout.cancel();
        }
        self.forgotten.lock().unwrap().push(fate);
    }

    fn try_to_schedule(&self, timer: &HashedWheelTimer, delay: Duration) -> Option<(Timeout, Arc<Fate>)> {
        let fate = Arc::new(Fate::default());
        let outcome = timer.new_timeout_task(Task(Arc::clone(&fate)), delay);
        assert!(self.limit == 0 || timer.pending_timeouts() <= self.limit, "more than the limit");
        match outcome {
            Ok(timeout) => Some((timeout, fate)),
            Err(error) => {
                assert_eq!(fate.drops.load(Relaxed), 1, "a refused task is dropped");
                self.refuses(timer, &error);
                None
            }
        }
    }

    /// There is a reason for it.
    fn refuses(&self, timer: &HashedWheelTimer, error: &NewTimeoutError) {
        match error {
            NewTimeoutError::TooManyPending { limit } => assert_eq!(*limit, self.limit),
            error => assert!(timer.is_stopped() || self.closes.load(Relaxed), "{error}"),
        }
    }

    /// One that any thread has scheduled: through the handle that others may be using, or one of its own.
    fn any(&self, random: &mut Rng) -> Option<Entry> {
        let mut entry = random.choice(&*self.known.lock().unwrap()).cloned()?;
        if random.bool() {
            entry.timeout = Arc::new(Timeout::clone(&entry.timeout));
        }
        Some(entry)
    }

    /// The time goes on for a few ticks.
    fn tick_on(&self, random: &mut Rng) -> JoinHandle<()> {
        let (clock, ticks) = (self.clock.clone(), random.u8(0..5));
        thread::spawn(move || {
            for _ in 0..ticks {
                clock.advance(TICK);
                thread::yield_now();
            }
        })
    }

    /// Nothing else was on the timer.
    fn settle(self, returned: Option<&[Timeout]>) -> Tally {
        let ends @ Ends { expired, cancelled, runs, .. } = self.ends(returned);
        assert_eq!(expired - runs, get(&self.turned_away), "all run that the executor did not drop");
        if let Some(first) = self.known.lock().unwrap().first() {
            let stats = first.timeout.timer().stats();
            let [expired, cancelled, runs] = [expired, cancelled, runs].map(|ends| ends as u64);
            assert_eq!((stats.expired, stats.cancelled, stats.pending), (expired, cancelled, 0));
            assert_eq!((stats.dropped_tasks, stats.panics), (expired - runs, 0));
        }
        ends.tally(returned.is_some())
    }

    /// Each has ended in exactly one way. `returned` is what `stop` did, if anybody called it.
    fn ends(&self, returned: Option<&[Timeout]>) -> Ends {
        let runs_elsewhere = std::mem::take(&mut *self.elsewhere.lock().unwrap());
        let elsewhere = runs_elsewhere.len();
        runs_elsewhere.into_iter().for_each(|run| run.join().unwrap());
        let Ends { mut expired, mut cancelled, mut runs, mut stopped, .. } = Ends::default();
        for Entry { timeout, second, fate, .. } in &*self.known.lock().unwrap() {
            let is_expired = usize::from(timeout.is_expired());
            let cancels = get(&fate.cancels);
            let stops = match returned {
                Some(returned) => returned.iter().filter(|other| **other == **timeout).count(),
                None => usize::from(timeout.is_cancelled()) - cancels,
            };
            assert_eq!(
                is_expired + cancels + stops,
                1,
                "{is_expired} expired, {cancels} cancels, {stops} in stop"
            );
            assert_eq!(get(&fate.hooks), cancels + stops, "each cancelled one's hook, once");
            assert_eq!(get(&fate.drops), 1, "the task is gone");
            assert!(get(&fate.runs) <= is_expired, "it runs once, if it is expired");
            let handles = if returned.is_some() { 2 + stops } else { 2 };
            assert!(second.references() as usize >= handles, "a reference was given up twice");
            expired += is_expired;
            cancelled += cancels + stops;
            runs += get(&fate.runs);
            stopped += stops;
        }
        for fate in &*self.forgotten.lock().unwrap() {
            assert_eq!(get(&fate.drops), 1, "the task is gone");
            assert!(get(&fate.runs) + get(&fate.hooks) <= 1, "exactly one end");
            expired += 1 - get(&fate.hooks);
            cancelled += get(&fate.hooks);
            runs += get(&fate.runs);
        }
        Ends { expired, cancelled, runs, stopped, elsewhere }
    }
}

/// How many have ended in which way.
#[derive(Clone, Copy, Default)]
struct Ends {
    expired: usize,
    cancelled: usize,
    /// Of those that are expired.
    runs: usize,
    /// Of those that are cancelled, with the timer.
    stopped: usize,
    /// How many runs there were in another thread, also of what else was on the timer.
    elsewhere: usize,
}

impl Ends {
    fn tally(self, is_returned: bool) -> Tally {
        Tally::of([
            ("run", self.runs),
            ("run elsewhere", self.elsewhere),
            ("dropped by the executor", self.expired - self.runs),
            ("cancelled", self.cancelled - self.stopped),
            (if is_returned { "returned by stop" } else { "dropped with the timer" }, self.stopped),
        ])
    }
}

impl Turner {
    /// Drops the driver as soon as the timer is stopped: what is left goes to who has stopped it all the same.
    fn turn(mut self) {
        for _ in 0..self.turns {
            self.driver.turn();
            match self.driver.next_turn() {
                Some(time) if time < FAR / 2 => thread::yield_now(),
                None if self.driver.is_stopped() => return,
                _ => self.bell.wait(),
            }
        }
    }
}

// --- the stories ----------------------------------------------------------------------------------------------------

#[test]
fn exactly_one_end() {
    explore(|random| {
        let (world, timer, mut turner) = World::new(random);
        let ending = random.u8(0..4);
        if let (3, Some(turner)) = (ending, &mut turner) {
            turner.turns = random.usize(0..4);
        }
        let turner = turner.map(|turner| thread::spawn(|| turner.turn()));
        let producers: Vec<_> = (0..4)
            .map(|_| {
                let (world, timer, mut random) = (world.clone(), timer.clone(), random.fork());
                thread::spawn(move || {
                    for _ in 0..random.u8(1..6) {
                        let delay = TICK * random.u32(0..4);
                        match random.u8(0..10) {
                            0..4 => drop(world.schedule(&timer, delay)),
                            4..6 => world.schedule_and_forget(&timer, delay, random.bool()),
                            6 => drop(world.schedule(&timer, FAR)),
                            7..9 => drop(world.any(&mut random).map(|one| one.cancel())),
                            _ => drop(world.any(&mut random).map(|one| one.reset(delay))),
                        }
                    }
                })
            })
            .collect();
        let clock = world.tick_on(random);
        // While they are all at work, or when much has fired.
        let most = *random.choice(&[20, 200]).unwrap();
        (0..random.u8(0..most)).for_each(|_| thread::yield_now());

        let mut returned = None;
        match ending {
            0 => {
                returned = Some(timer.stop());
                assert_eq!(timer.pending_timeouts(), 0, "it returns when it is over");
            }
            1 => {
                let other = timer.clone();
                let stop = thread::spawn(move || other.stop());
                let mut all = timer.stop();
                assert_eq!(timer.pending_timeouts(), 0, "both return when it is over");
                let others = stop.join().unwrap();
                assert!(all.is_empty() || others.is_empty(), "one gets all");
                all.extend(others);
                returned = Some(all);
            }
            _ => drop(timer),
        }
        for thread in producers.into_iter().chain([clock]).chain(turner) {
            thread.join().unwrap();
        }
        world.settle(returned.as_deref())
    });
}

#[test]
fn nothing_is_forgotten() {
    explore(|random| {
        let (world, timer, turner) = World::new(random);
        let turner = turner.map(|turner| thread::spawn(|| turner.turn()));
        // So that the worker, when it sleeps, sleeps for good.
        let rest = world.schedule(&timer, FAR);
        let producers: Vec<_> = (0..random.u8(1..=4))
            .map(|_| {
                let (world, timer, mut random) = (world.clone(), timer.clone(), random.fork());
                thread::spawn(move || {
                    for _ in 0..random.u8(1..3) {
                        (0..random.u8(0..20)).for_each(|_| thread::yield_now());
                        let delay = TICK * random.u32(0..3);
                        let far = random.bool();
                        let Some(entry) = world.schedule(&timer, if far { FAR } else { delay }) else {
                            continue;
                        };
                        (0..random.u8(0..20)).for_each(|_| thread::yield_now());
                        // One that is far away has to come near, or to go: else it would never end.
                        if far && random.u8(0..4) > 0 {
                            entry.reset(delay);
                        } else if far {
                            entry.cancel();
                        }
                    }
                })
            })
            .collect();
        for producer in producers {
            producer.join().unwrap();
        }
        let mut patience = 3_000;
        while timer.pending_timeouts() > usize::from(rest.is_some()) {
            world.clock.advance(TICK / 4);
            thread::yield_now();
            patience -= 1;
            assert!(patience > 0, "something that is due is forgotten");
        }
        let returned = timer.stop();
        if let Some(turner) = turner {
            turner.join().unwrap();
        }
        world.settle(Some(&returned))
    });
}

// --- the mutants ----------------------------------------------------------------------------------------------------

macro_rules! mutants {
    ($($name:ident: $test:path, $mutant:literal;)*) => {$(
        #[test]
        fn $name() {
            is_detected_by(stringify!($test), $mutant);
        }
    )*};
}

mutants! {
    a_change_without_compare_is_found: exactly_one_end, "ChangeWithoutCompare";
    a_limit_without_compare_is_found: exactly_one_end, "AdmitWithoutCompare";
    a_stop_that_does_not_wait_is_found: exactly_one_end, "StopWithoutWaiting";
    a_stop_that_does_not_wake_is_found: exactly_one_end, "StopWithoutUnparking";
    a_second_worker_is_found: exactly_one_end, "StartWithoutSecondLook";
    a_drop_without_compare_is_found: exactly_one_end, "DropWithoutCompare";
    a_reset_that_nobody_hears_of_is_found: nothing_is_forgotten, "ResetWithoutPush";
    a_sleep_without_compare_is_found: nothing_is_forgotten, "SleepWithoutCompare";
    a_sleep_without_a_second_look_is_found: nothing_is_forgotten, "SleepWithoutSecondLook";
    a_promise_without_a_second_look_is_found: nothing_is_forgotten, "PromiseWithoutSecondLook";
    a_push_without_a_look_is_found: nothing_is_forgotten, "PushWithoutLook";
    a_second_stop_that_takes_is_found: exactly_one_end, "SecondStopTakes";
    an_earlier_deadline_without_a_look_is_found: nothing_is_forgotten, "EarlierWithoutLook";
    a_message_taken_back_without_compare_is_found: exactly_one_end, "TakeBackWithoutCompare";
    a_lent_handle_taken_for_one_alone_is_found: exactly_one_end, "TakeBackAsIfAlone";
    an_entry_that_is_gone_and_given_up_is_found: exactly_one_end, "GoneWithItsEntry";
    an_expiry_that_takes_the_entry_is_found: exactly_one_end, "ExpiryTakesTheEntry";
    a_stop_that_takes_the_entry_is_found: exactly_one_end, "StopTakesTheEntry";
    a_lane_that_goes_with_its_thread_is_found: nothing_is_forgotten, "RetiredLaneGoes";
    a_replacement_that_leaves_first_is_found: meetings::everything_meets, "ReplaceLeavesFirst";
    a_waker_that_stays_is_found: meetings::everything_meets, "RepollKeepsTheWaker";
    a_run_that_brings_back_is_found: meetings::everything_meets, "RearmBringsBack";
    a_shutdown_without_those_admitted_is_found: meetings::everything_meets, "ShutdownWithoutThoseAdmitted";
    a_replacement_in_two_steps_is_found: meetings::everything_meets, "ReplaceInTwoSteps";
    a_beginning_without_a_look_is_found: meetings::everything_meets, "BeginWithoutLook";
}
