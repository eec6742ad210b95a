//! A whole timer, which is too large for loom: its worker, four producers and an end at a random
//! moment, under thousands of schedules. A seed determines each schedule, and what the threads do
//! in it.
//!
//! A failure names its seed, and the command that runs that schedule again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel_over_shuttle::{
    Builder, Clock, Driver, HashedWheelTimer, ManualClock, NewTimeoutError, TaskExecutor, Timeout,
    TimerTask, executor,
};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Condvar;
use shuttle::thread::{self, JoinHandle};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

mod mixed;
mod queue;
mod whole;

use mutants::{DEEP, Ended, is_deep};
use whole::Policy;

const TICK: Duration = Duration::from_millis(1);

/// So far away that no test waits for it: a thread that sleeps until then sleeps until it is woken.
const FAR: Duration = Duration::from_secs(7_200);

/// The command that runs one test.
const COMMAND: &str = "cargo test --manifest-path loom-tests/shuttle/Cargo.toml --test schedules -- --nocapture --exact";

/// The number of seeds per scenario. The smaller number is three times the seeds that any mutant of
/// [`is_detected_by`] needs.
fn seeds() -> u64 {
    if is_deep() { 25_000 } else { 6_000 }
}

/// Runs `scenario` with each of the [`seeds`], or with the seed in the environment. The scenario
/// takes all its random decisions from its argument.
#[track_caller]
fn explore(scenario: fn(&mut Rng) -> Counts) {
    let requested = std::env::var("HASHED_WHEEL_SEED")
        .ok()
        .filter(|seed| !seed.is_empty());
    let requested = requested.map(|seed| seed.parse().expect("a seed is a number"));
    let seeds = requested.map_or(0..seeds(), |seed| seed..seed + 1);
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let sum = Arc::new(Mutex::new(Counts::default()));
    let mut schedules = 0;
    for seed in seeds {
        let total = Arc::clone(&sum);
        let on_failure = OnFailure(seed);
        let mut config = Config::new();
        config.failure_persistence = FailurePersistence::None;
        // shuttle warns that it treats every order as SeqCst. loom explores the weaker orders.
        config.silence_warnings = true;
        // If a wake-up is lost, a thread that waits in a loop for its effect reaches this limit.
        config.max_steps = MaxSteps::FailAfter(100_000);
        let scenario = move || {
            total
                .lock()
                .unwrap()
                .add(&scenario(&mut Rng::with_seed(seed)))
        };
        // Even seeds choose a random thread at each step. Odd seeds run one thread until it blocks,
        // except for a few preemptions, so that a thread stops for long in the middle of an
        // operation. (That scheduler needs a first run to place the preemptions, which counts too.)
        schedules += match seed % 2 {
            0 => Runner::new(RandomScheduler::new_from_seed(seed, 1), config).run(scenario),
            _ => Runner::new(PctScheduler::new_from_seed(seed, 4, 2), config).run(scenario),
        };
        std::mem::forget(on_failure);
    }
    let sum = sum.lock().unwrap();
    println!("{name}: {schedules} schedules, {sum:?}");
    assert!(
        requested.is_some() || sum.0.values().all(|count| *count > 0),
        "an end never came: {sum:?}"
    );
}

/// How often each end came, by name.
#[derive(Debug, Default)]
struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    fn of<const N: usize>(counts: [(&'static str, usize); N]) -> Self {
        Self(counts.map(|(name, count)| (name, count as u64)).into())
    }

    fn add(&mut self, other: &Self) {
        other
            .0
            .iter()
            .for_each(|(name, count)| *self.0.entry(name).or_default() += count);
    }
}

/// Prints the seed when a schedule panics.
struct OnFailure(u64);

impl Drop for OnFailure {
    fn drop(&mut self) {
        eprintln!("HASHED_WHEEL_SEED={} fails", self.0);
        let test = std::thread::current();
        eprintln!(
            "again: HASHED_WHEEL_SEED={} {COMMAND} {}",
            self.0,
            test.name().unwrap_or_default()
        );
    }
}

/// Runs the schedules of a test with a mutant, in a process of their own. One schedule has to fail,
/// and has to fail again when its seed is given.
#[track_caller]
fn is_detected_by(test: &str, mutant: &str) {
    const TIME: Duration = Duration::from_secs(600);
    const MEBIBYTES: u64 = 8 << 10;
    let run = |seed: Option<&str>| {
        // An empty variable counts as unset.
        let mut test_run = mutants::test(test, mutant, MEBIBYTES);
        test_run.env("HASHED_WHEEL_SEED", seed.unwrap_or_default());
        let Ended {
            status,
            output: errors,
            ..
        } = mutants::run(&mut test_run, TIME, |_| false);
        let status = status.unwrap_or_else(|| {
            panic!(
                "test {test} does not detect mutant {mutant}: it was killed after {TIME:?}: {errors}"
            )
        });
        let seed = errors.lines().find_map(|line| {
            line.strip_prefix("HASHED_WHEEL_SEED=")?
                .strip_suffix(" fails")
        });
        (status, seed.map(str::to_owned), errors)
    };
    let (status, seed, errors) = run(None);
    assert!(
        !status.success(),
        "test {test} does not detect mutant {mutant}: it passes"
    );
    let seed = seed.unwrap_or_else(|| {
        panic!("{test} did not get to the end with {mutant}, {status}: {errors}")
    });
    let (status, again, _) = run(Some(&seed));
    assert!(
        !status.success() && again == Some(seed),
        "{test} passes with {mutant} when its seed is given"
    );
}

/// Does the same for a mutant that needs thousands of seeds, but only where [`DEEP`] is set.
/// Otherwise it prints that it skips the mutant, and checks that a model of loom has it.
#[track_caller]
fn is_detected_by_many_seeds(test: &str, mutant: &str) {
    let has_model = models().contains(&format!("mutant(\"{mutant}\")"));
    assert!(
        has_model,
        "no model has mutant {mutant}, so shuttle must always detect it"
    );
    if is_deep() {
        is_detected_by(test, mutant);
    } else {
        println!("{test} with mutant {mutant}: SKIPPED, {DEEP} is not set");
    }
}

/// Returns the text of all of loom's models.
fn models() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    files
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect()
}

// --- timeouts and how they end -------------------------------------------------------------------

/// How one timeout ended. shuttle does not see these counts: it switches threads only in the
/// library's primitives.
#[derive(Default)]
struct Outcome {
    runs: AtomicUsize,
    hooks: AtomicUsize,
    drops: AtomicUsize,
    /// How often a thread has begun to cancel it.
    cancel_calls: AtomicUsize,
    cancels: AtomicUsize,
    resets: AtomicUsize,
}

fn get(count: &AtomicUsize) -> usize {
    count.load(Relaxed)
}

struct Task(Arc<Outcome>);

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

/// A timeout and its outcome. The handles are in `Arc`s because shuttle may switch threads in the
/// clone of a handle, and must not do so while the list of all timeouts is locked.
#[derive(Clone)]
struct Scheduled {
    timeout: Arc<Timeout>,
    /// A second handle, so that a reference that is released twice is missing at the end.
    second: Arc<Timeout>,
    outcome: Arc<Outcome>,
    /// It is due by this time if no thread resets it.
    due: Duration,
}

impl Scheduled {
    fn cancel(&self) {
        self.outcome.cancel_calls.fetch_add(1, Relaxed);
        if self.timeout.cancel() {
            self.outcome.cancels.fetch_add(1, Relaxed);
        }
    }

    fn reset(&self, delay: Duration) {
        self.outcome.resets.fetch_add(1, Relaxed);
        _ = self.timeout.reset(delay);
    }
}

// --- a timer and its threads ---------------------------------------------------------------------

/// The state that the threads of a schedule share.
#[derive(Clone)]
struct World {
    clock: ManualClock,
    limit: usize,
    known: Arc<Mutex<Vec<Scheduled>>>,
    /// Timeouts without a handle: their nodes are recycled.
    without_handle: Arc<Mutex<Vec<Arc<Outcome>>>>,
    /// How many new timeouts the timer has rejected.
    refused_new: Arc<AtomicUsize>,
    /// How many tasks the executor has refused.
    rejected: Arc<AtomicUsize>,
    /// Threads that run a task.
    on_other_threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    /// A thread shuts the timer down: it rejects new timeouts, and may not be stopped yet.
    is_closing: Arc<AtomicBool>,
}

/// The event for which an event loop sleeps. (shuttle's `park` may wake up by itself, which would
/// hide a lost wake-up.)
#[derive(Default)]
struct Event {
    is_set: shuttle::sync::Mutex<bool>,
    condition: Condvar,
}

impl Event {
    fn set(&self) {
        *self.is_set.lock().unwrap() = true;
        self.condition.notify_one();
    }

    fn wait(&self) {
        let mut is_set = self.is_set.lock().unwrap();
        while !*is_set {
            is_set = self.condition.wait(is_set).unwrap();
        }
        *is_set = false;
    }
}

/// A loop that turns a driver.
struct EventLoop {
    driver: Driver,
    event: Arc<Event>,
    /// After this many turns it drops the driver, even if timeouts are pending.
    turns: usize,
    /// How many tasks a turn may run.
    most: usize,
}

impl World {
    /// Returns a random kind of timer: with a worker thread, or with an event loop.
    fn new(random: &mut Rng) -> (Self, HashedWheelTimer, Option<EventLoop>) {
        Self::with_policy(random, Policy::Drop)
    }

    /// The policy is for the task that the executor refuses, if there is an executor.
    fn with_policy(
        random: &mut Rng,
        policy: Policy,
    ) -> (Self, HashedWheelTimer, Option<EventLoop>) {
        let world = Self {
            clock: ManualClock::new(),
            limit: *random.choice(&[0, 0, 2, 5]).unwrap(),
            known: Arc::default(),
            without_handle: Arc::default(),
            refused_new: Arc::default(),
            rejected: Arc::default(),
            on_other_threads: Arc::default(),
            is_closing: Arc::default(),
        };
        let mut builder = HashedWheelTimer::builder()
            .tick(TICK)
            .ticks_per_wheel(2)
            .max_pending_timeouts((world.limit > 0).then_some(world.limit))
            .clock(world.clock.clone());
        if random.bool() {
            builder = builder.hierarchical(true);
        }
        if random.bool() {
            builder = policy.set_executor(builder, world.executor());
        }
        // No limit, or a few tasks per turn.
        let most = *random.choice(&[0, 0, 1, 2]).unwrap();
        if random.bool() {
            return (
                world,
                builder
                    .max_tasks_per_turn((most > 0).then_some(most))
                    .build()
                    .unwrap(),
                None,
            );
        }
        let event = Arc::new(Event::default());
        let event_to_set = Arc::clone(&event);
        let (timer, driver) = builder
            .waker(move || event_to_set.set())
            .build_driven()
            .unwrap();
        let most = if most == 0 { usize::MAX } else { most };
        (
            world,
            timer,
            Some(EventLoop {
                driver,
                event,
                turns: usize::MAX,
                most,
            }),
        )
    }

    /// Returns an executor that refuses the first task, and runs the others alternately on this
    /// thread and on another one.
    fn executor(&self) -> impl TaskExecutor + use<> {
        let (taken, rejected) = (AtomicUsize::new(0), Arc::clone(&self.rejected));
        let on_other_threads = Arc::clone(&self.on_other_threads);
        executor::from_fn(move |task| {
            match taken.fetch_add(1, Relaxed) {
                0 => {
                    rejected.fetch_add(1, Relaxed);
                    return Err(task);
                }
                taken if taken % 2 == 0 => task.run(),
                _ => {
                    let run = thread::spawn(|| task.run());
                    on_other_threads.lock().unwrap().push(run);
                }
            }
            Ok(())
        })
    }

    fn schedule(&self, timer: &HashedWheelTimer, delay: Duration) -> Option<Scheduled> {
        let (timeout, outcome) = self.try_to_schedule(timer, delay)?;
        let second = Arc::new(timeout.clone());
        let due = self.clock.now() + delay;
        let scheduled = Scheduled {
            timeout: Arc::new(timeout),
            second,
            outcome,
            due,
        };
        self.known.lock().unwrap().push(scheduled.clone());
        Some(scheduled)
    }

    /// Schedules a timeout and drops its handle, perhaps after a cancel.
    fn schedule_and_drop_handle(&self, timer: &HashedWheelTimer, delay: Duration, cancels: bool) {
        let Some((timeout, outcome)) = self.try_to_schedule(timer, delay) else {
            return;
        };
        if cancels {
            timeout.cancel();
        }
        self.without_handle.lock().unwrap().push(outcome);
    }

    fn try_to_schedule(
        &self,
        timer: &HashedWheelTimer,
        delay: Duration,
    ) -> Option<(Timeout, Arc<Outcome>)> {
        let outcome = Arc::new(Outcome::default());
        let scheduled = timer.new_timeout_task(Task(Arc::clone(&outcome)), delay);
        assert!(
            self.limit == 0 || timer.pending_timeouts() <= self.limit,
            "more than the limit"
        );
        match scheduled {
            Ok(timeout) => Some((timeout, outcome)),
            Err(error) => {
                self.refused_new.fetch_add(1, Relaxed);
                assert_eq!(outcome.drops.load(Relaxed), 1, "a rejected task is dropped");
                self.assert_may_reject(timer, &error);
                None
            }
        }
    }

    /// The timer has a reason to reject a timeout with this error.
    fn assert_may_reject(&self, timer: &HashedWheelTimer, error: &NewTimeoutError) {
        match error {
            NewTimeoutError::TooManyPending { limit } => assert_eq!(*limit, self.limit),
            error => assert!(
                timer.is_stopped() || self.is_closing.load(Relaxed),
                "{error}"
            ),
        }
    }

    /// Picks a timeout of any thread: with a handle that other threads may be using, or with a
    /// clone.
    fn pick(&self, random: &mut Rng) -> Option<Scheduled> {
        let mut scheduled = random.choice(&*self.known.lock().unwrap()).cloned()?;
        if random.bool() {
            scheduled.timeout = Arc::new(Timeout::clone(&scheduled.timeout));
        }
        Some(scheduled)
    }

    /// Advances the clock by a few ticks, on another thread.
    fn advance_clock(&self, random: &mut Rng) -> JoinHandle<()> {
        let (clock, ticks) = (self.clock.clone(), random.u8(0..5));
        thread::spawn(move || {
            for _ in 0..ticks {
                clock.advance(TICK);
                thread::yield_now();
            }
        })
    }

    /// Checks all timeouts and the statistics, if the timer had only plain timeouts.
    fn check(self, returned: Option<&[Timeout]>) -> Counts {
        let totals @ Totals {
            expired,
            cancelled,
            runs,
            ..
        } = self.totals(returned);
        assert_eq!(
            expired - runs,
            get(&self.rejected),
            "each task runs unless the executor drops it"
        );
        if let Some(first) = self.known.lock().unwrap().first() {
            let stats = first.timeout.timer().stats();
            let [expired, cancelled, runs] = [expired, cancelled, runs].map(|count| count as u64);
            assert_eq!(
                (stats.expired, stats.cancelled, stats.pending),
                (expired, cancelled, 0)
            );
            assert_eq!((stats.dropped_tasks, stats.panics), (expired - runs, 0));
        }
        totals.counts(returned.is_some())
    }

    /// Checks that each timeout has ended in exactly one way. `returned` has the timeouts that
    /// `stop` has returned, if a thread called it.
    fn totals(&self, returned: Option<&[Timeout]>) -> Totals {
        let threads = std::mem::take(&mut *self.on_other_threads.lock().unwrap());
        let on_other_threads = threads.len();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        let Totals {
            mut expired,
            mut cancelled,
            mut runs,
            mut stopped,
            ..
        } = Totals::default();
        for Scheduled {
            timeout,
            second,
            outcome,
            ..
        } in &*self.known.lock().unwrap()
        {
            let is_expired = usize::from(timeout.is_expired());
            let cancels = get(&outcome.cancels);
            let stops = match returned {
                Some(returned) => returned.iter().filter(|other| **other == **timeout).count(),
                None => usize::from(timeout.is_cancelled()) - cancels,
            };
            assert_eq!(
                is_expired + cancels + stops,
                1,
                "{is_expired} expired, {cancels} cancels, {stops} in stop"
            );
            assert_eq!(
                get(&outcome.hooks),
                cancels + stops,
                "the hook of each cancelled task is called once"
            );
            assert_eq!(get(&outcome.drops), 1, "each task is dropped once");
            assert!(
                get(&outcome.runs) <= is_expired,
                "a task runs at most once, and only if its timeout is expired"
            );
            let handles = if returned.is_some() { 2 + stops } else { 2 };
            assert!(
                second.references() as usize >= handles,
                "no reference is released twice"
            );
            expired += is_expired;
            cancelled += cancels + stops;
            runs += get(&outcome.runs);
            stopped += stops;
        }
        for outcome in &*self.without_handle.lock().unwrap() {
            assert_eq!(get(&outcome.drops), 1, "each task is dropped once");
            assert!(
                get(&outcome.runs) + get(&outcome.hooks) <= 1,
                "each timeout ends once"
            );
            expired += 1 - get(&outcome.hooks);
            cancelled += get(&outcome.hooks);
            runs += get(&outcome.runs);
        }
        Totals {
            expired,
            cancelled,
            runs,
            stopped,
            on_other_threads,
        }
    }
}

/// How many timeouts have ended in which way.
#[derive(Clone, Copy, Default)]
struct Totals {
    expired: usize,
    cancelled: usize,
    /// Those of the expired ones whose task ran.
    runs: usize,
    /// Those of the cancelled ones that ended with the timer.
    stopped: usize,
    /// Runs on other threads, including those of periodic tasks and of the entries of maps.
    on_other_threads: usize,
}

impl Totals {
    fn counts(self, is_returned: bool) -> Counts {
        Counts::of([
            ("run", self.runs),
            ("run on another thread", self.on_other_threads),
            ("dropped by the executor", self.expired - self.runs),
            ("cancelled", self.cancelled - self.stopped),
            (
                if is_returned {
                    "returned by stop"
                } else {
                    "dropped with the timer"
                },
                self.stopped,
            ),
        ])
    }
}

impl EventLoop {
    /// Turns the driver until the timer is stopped, and drops it. That drop must take no timeout
    /// from the thread that has stopped the timer.
    fn turn(mut self) {
        for _ in 0..self.turns {
            match self.most {
                usize::MAX => self.driver.turn(),
                most => self.driver.turn_at_most(most),
            };
            match self.driver.next_turn() {
                Some(time) if time < FAR / 2 => thread::yield_now(),
                None if self.driver.is_stopped() => return,
                _ => self.event.wait(),
            }
        }
    }
}

// --- the scenarios -------------------------------------------------------------------------------

#[test]
fn each_timeout_ends_once() {
    explore(|random| {
        let (world, timer, mut event_loop) = World::new(random);
        let ending = random.u8(0..4);
        if let (3, Some(event_loop)) = (ending, &mut event_loop) {
            event_loop.turns = random.usize(0..4);
        }
        let event_loop = event_loop.map(|event_loop| thread::spawn(|| event_loop.turn()));
        let producers: Vec<_> = (0..4)
            .map(|_| {
                let (world, timer, mut random) = (world.clone(), timer.clone(), random.fork());
                thread::spawn(move || {
                    for _ in 0..random.u8(1..6) {
                        let delay = TICK * random.u32(0..4);
                        match random.u8(0..10) {
                            0..4 => drop(world.schedule(&timer, delay)),
                            4..6 => world.schedule_and_drop_handle(&timer, delay, random.bool()),
                            6 => drop(world.schedule(&timer, FAR)),
                            7..9 => drop(world.pick(&mut random).map(|one| one.cancel())),
                            _ => drop(world.pick(&mut random).map(|one| one.reset(delay))),
                        }
                    }
                })
            })
            .collect();
        let clock = world.advance_clock(random);
        // The end comes while the threads work, or after many timeouts have fired.
        let max = *random.choice(&[20, 200]).unwrap();
        (0..random.u8(0..max)).for_each(|_| thread::yield_now());

        let mut returned = None;
        match ending {
            0 => {
                returned = Some(timer.stop());
                assert_eq!(timer.pending_timeouts(), 0, "stop returns after the end");
            }
            1 => {
                let other = timer.clone();
                let stop = thread::spawn(move || other.stop());
                let mut all = timer.stop();
                assert_eq!(
                    timer.pending_timeouts(),
                    0,
                    "both calls return after the end"
                );
                let others = stop.join().unwrap();
                assert!(
                    all.is_empty() || others.is_empty(),
                    "one of the two returns all"
                );
                all.extend(others);
                returned = Some(all);
            }
            _ => drop(timer),
        }
        for thread in producers.into_iter().chain([clock]).chain(event_loop) {
            thread.join().unwrap();
        }
        world.check(returned.as_deref())
    });
}

#[test]
fn no_timeout_is_forgotten() {
    explore(|random| {
        let (world, timer, event_loop) = World::new(random);
        let event_loop = event_loop.map(|event_loop| thread::spawn(|| event_loop.turn()));
        // With this timeout the worker's sleep does not end by itself.
        let rest = world.schedule(&timer, FAR);
        let producers: Vec<_> = (0..random.u8(1..=4))
            .map(|_| {
                let (world, timer, mut random) = (world.clone(), timer.clone(), random.fork());
                thread::spawn(move || {
                    for _ in 0..random.u8(1..3) {
                        (0..random.u8(0..20)).for_each(|_| thread::yield_now());
                        let delay = TICK * random.u32(0..3);
                        let far = random.bool();
                        let Some(scheduled) = world.schedule(&timer, if far { FAR } else { delay })
                        else {
                            continue;
                        };
                        (0..random.u8(0..20)).for_each(|_| thread::yield_now());
                        // Otherwise the timeout would not end.
                        if far && random.u8(0..4) > 0 {
                            scheduled.reset(delay);
                        } else if far {
                            scheduled.cancel();
                        }
                    }
                })
            })
            .collect();
        for producer in producers {
            producer.join().unwrap();
        }
        let mut attempts_left = 3_000;
        while timer.pending_timeouts() > usize::from(rest.is_some()) {
            world.clock.advance(TICK / 4);
            thread::yield_now();
            attempts_left -= 1;
            assert!(attempts_left > 0, "a due timeout is forgotten");
        }
        let returned = timer.stop();
        if let Some(event_loop) = event_loop {
            event_loop.join().unwrap();
        }
        world.check(Some(&returned))
    });
}

// --- the mutants ---------------------------------------------------------------------------------

macro_rules! mutants {
    ($is_detected_by:ident; $($name:ident: $test:path, $mutant:literal;)*) => {$(
        #[test]
        fn $name() {
            $is_detected_by(stringify!($test), $mutant);
        }
    )*};
}

mutants! { is_detected_by;
    detects_change_without_compare: each_timeout_ends_once, "ChangeWithoutCompare";
    detects_new_timeout_not_withdrawn: each_timeout_ends_once, "NewTimeoutNotWithdrawn";
    detects_stop_without_waiting: mixed::all_operations_end_once, "StopWithoutWaiting";
    detects_stop_without_notify: each_timeout_ends_once, "StopWithoutNotify";
    detects_start_without_second_look: each_timeout_ends_once, "StartWithoutSecondLook";
    detects_drop_handle_without_compare: each_timeout_ends_once, "DropHandleWithoutCompare";
    detects_reset_without_push: no_timeout_is_forgotten, "ResetWithoutPush";
    detects_sleep_without_second_look: no_timeout_is_forgotten, "SleepWithoutSecondLook";
    detects_push_without_look: no_timeout_is_forgotten, "PushWithoutLook";
    detects_second_stop_drains: each_timeout_ends_once, "SecondStopDrains";
    detects_earlier_reset_without_look: no_timeout_is_forgotten, "EarlierResetWithoutLook";
    detects_take_back_without_compare: each_timeout_ends_once, "TakeBackWithoutCompare";
    detects_take_back_without_merge: each_timeout_ends_once, "TakeBackWithoutMerge";
    detects_release_left_reference: each_timeout_ends_once, "ReleaseLeftReference";
    detects_expiry_takes_left_reference: each_timeout_ends_once, "ExpiryTakesLeftReference";
    detects_stop_takes_left_reference: each_timeout_ends_once, "StopTakesLeftReference";
    detects_retired_lane_dropped_early: no_timeout_is_forgotten, "RetiredLaneDroppedEarly";
    detects_repoll_keeps_old_waker: mixed::all_operations_end_once, "RepollKeepsOldWaker";
    detects_run_revives_cancelled: mixed::all_operations_end_once, "RunRevivesCancelled";
    detects_awaited_not_stored: queue::no_value_is_forgotten, "AwaitedNotStored";
    detects_leave_without_notify: queue::no_value_is_forgotten, "LeaveWithoutNotify";
    detects_queue_reset_without_notify: queue::no_value_is_forgotten, "QueueResetWithoutNotify";
    detects_expired_entry_does_not_wake: mixed::all_operations_end_once, "ExpiredEntryDoesNotWake";
    detects_cancel_all_ignores_lanes: whole::each_cancel_all_counts_what_it_cancels, "CancelAllIgnoresLanes";
    detects_refused_task_is_not_offered_again:
        whole::each_cancel_all_counts_what_it_cancels, "RefusedTaskIsNotOfferedAgain";
    detects_wait_for_no_run: whole::each_cancel_all_counts_what_it_cancels, "WaitForNoRun";
}

mutants! { is_detected_by_many_seeds;
    detects_shutdown_ignores_registered: mixed::all_operations_end_once, "ShutdownIgnoresRegistered";
    detects_replace_in_two_steps: mixed::all_operations_end_once, "ReplaceInTwoSteps";
    detects_wait_for_no_turn: whole::each_cancel_all_counts_what_it_cancels, "WaitForNoTurn";
}
