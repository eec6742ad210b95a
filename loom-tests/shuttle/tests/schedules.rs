//! A whole timer, which is too large for loom: its worker, four producers and an end at a random
//! moment, under thousands of schedules. A seed determines each schedule, and what the threads do
//! in it.
//!
//! A failure names its seed, and the command that runs that schedule again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel_ledger::{Count, Deadline, Kind, Ledger, Ticket, reported};
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
    fn of<const N: usize>(counts: [(&'static str, u64); N]) -> Self {
        Self(counts.into())
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

fn get(count: &AtomicU64) -> u64 {
    count.load(Relaxed)
}

/// shuttle does not see the counts of a ledger: it switches threads only in the library's
/// primitives, and so when a ticket reads the clock.
struct Task(Arc<Ticket>);

impl TimerTask for Task {
    fn run(self, _: &Timeout) {
        self.0.expire();
    }

    fn cancelled(self, _: &Timeout) {
        self.0.call_hook();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.count(Count::TaskDrop);
    }
}

/// A timeout and its ticket. The handles are in `Arc`s because shuttle may switch threads in the
/// clone of a handle, and must not do so while the list of all timeouts is locked.
#[derive(Clone)]
struct Scheduled {
    timeout: Arc<Timeout>,
    /// A second handle, so that a reference that is released twice is missing at the end.
    second: Arc<Timeout>,
    ticket: Arc<Ticket>,
    /// A thread has begun to cancel it.
    is_being_cancelled: Arc<AtomicBool>,
}

impl Scheduled {
    fn cancel(&self) {
        self.is_being_cancelled.store(true, Relaxed);
        if self.timeout.cancel() {
            self.ticket.count(Count::Cancelled);
        }
    }

    fn reset(&self, delay: Duration) {
        self.ticket.reset(delay, || self.timeout.reset(delay));
    }
}

// --- a timer and its threads ---------------------------------------------------------------------

/// The state that the threads of a schedule share.
#[derive(Clone)]
struct World {
    clock: ManualClock,
    limit: usize,
    ledger: Arc<Ledger>,
    /// The timeouts with a handle. The nodes of the others are recycled.
    known: Arc<Mutex<Vec<Scheduled>>>,
    /// How many tasks the executor has refused.
    rejected: Arc<AtomicU64>,
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
        let clock = ManualClock::new();
        let its_clock = clock.clone();
        // A cancel may race with the end by any time, and the end of the timer with anything.
        let ledger = Ledger::new(String::new(), Duration::MAX, move || its_clock.now());
        ledger.begin_end();
        let world = Self {
            clock,
            limit: *random.choice(&[0, 0, 2, 5]).unwrap(),
            ledger,
            known: Arc::default(),
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
        let (taken, rejected) = (AtomicU64::new(0), Arc::clone(&self.rejected));
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
        let (timeout, ticket) = self.try_to_schedule(timer, delay)?;
        let second = Arc::new(timeout.clone());
        let scheduled = Scheduled {
            timeout: Arc::new(timeout),
            second,
            ticket,
            is_being_cancelled: Arc::default(),
        };
        self.known.lock().unwrap().push(scheduled.clone());
        Some(scheduled)
    }

    /// Schedules a timeout and drops its handle, perhaps after a cancel.
    fn schedule_and_drop_handle(&self, timer: &HashedWheelTimer, delay: Duration, cancels: bool) {
        match self.try_to_schedule(timer, delay) {
            Some((timeout, ticket)) if cancels && timeout.cancel() => {
                ticket.count(Count::Cancelled);
            }
            _ => {}
        }
    }

    fn try_to_schedule(
        &self,
        timer: &HashedWheelTimer,
        delay: Duration,
    ) -> Option<(Timeout, Arc<Ticket>)> {
        let deadline = self.ledger.after(delay);
        let ticket = Arc::new(Ticket::new(&self.ledger, Kind::Plain, deadline));
        let scheduled = timer.new_timeout_task(Task(Arc::clone(&ticket)), delay);
        assert!(
            self.limit == 0 || timer.pending_timeouts() <= self.limit,
            "more than the limit"
        );
        match scheduled {
            Ok(timeout) => Some((timeout, ticket)),
            Err(error) => {
                ticket.count(Count::Rejected);
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

    /// Advances the clock until `holds`.
    fn advance_until(&self, failure: &str, holds: impl Fn() -> bool) {
        let mut attempts_left = 3_000;
        while !holds() {
            self.clock.advance(TICK / 4);
            thread::yield_now();
            attempts_left -= 1;
            assert!(attempts_left > 0, "{failure}");
        }
    }

    /// Ends the timeouts with a handle. `returned` has those that `stop` has returned, if a thread
    /// called it. Returns how many threads have run a task.
    fn settle(&self, returned: Option<&[Timeout]>) -> u64 {
        let threads = std::mem::take(&mut *self.on_other_threads.lock().unwrap());
        let count = threads.len() as u64;
        join(threads);
        for Scheduled {
            timeout,
            second,
            ticket,
            ..
        } in std::mem::take(&mut *self.known.lock().unwrap())
        {
            assert_ne!(timeout.is_expired(), timeout.is_cancelled());
            let hooks = ticket.get(Count::HookAtEnd);
            assert_eq!(hooks, timeout.is_cancelled().into(), "one hook per cancel");
            let is_it = |other: &&Timeout| **other == *timeout;
            let stops = returned.map_or(0, |returned| returned.iter().filter(is_it).count());
            (0..stops).for_each(|_| ticket.count(Count::Left));
            assert!(
                second.references() as usize >= 2 + stops,
                "no reference is released twice"
            );
        }
        count
    }

    /// Checks the ledger of a timer that has ended, after all other threads.
    fn close(&self, timer: &HashedWheelTimer, returned: Option<&[Timeout]>, is_exact: bool) {
        let stats = timer.stats();
        let returned = returned.map(<[_]>::len);
        self.ledger.close(reported!(&stats), returned, is_exact);
        assert_eq!(stats.panics, 0);
        self.assert_no_fault();
    }

    fn assert_no_fault(&self) {
        let (faults, _) = self.ledger.errors();
        assert!(faults.is_empty(), "{faults:#?}");
    }

    /// Checks all timeouts, if the timer had only plain timeouts.
    fn check(&self, returned: Option<&[Timeout]>) -> Counts {
        let first = self.known.lock().unwrap().first().cloned();
        let timer = first.map(|first| first.timeout.timer());
        let on_other_threads = self.settle(returned);
        timer.inspect(|timer| self.close(timer, returned, true));
        self.assert_no_fault();
        let dropped = self.ledger.get(Kind::Plain, Count::Dropped);
        assert_eq!(dropped, get(&self.rejected), "each other task runs");
        self.counts(on_other_threads, returned.is_some())
    }

    fn counts(&self, on_other_threads: u64, is_returned: bool) -> Counts {
        let of = |count| self.ledger.get(Kind::Plain, count);
        let left = if is_returned {
            "returned by stop"
        } else {
            "dropped with the timer"
        };
        Counts::of([
            ("run", of(Count::Expired)),
            ("run on another thread", on_other_threads),
            ("dropped by the executor", of(Count::Dropped)),
            ("cancelled", of(Count::Cancelled)),
            (left, of(Count::Left)),
        ])
    }
}

/// An async task that polls.
#[derive(Default)]
struct Poller {
    wakes: AtomicU64,
    /// How often the task has reset a sleep and polled it again.
    resets: AtomicU64,
}

impl Poller {
    fn was_woken(&self) -> bool {
        get(&self.wakes) > 0
    }
}

impl Wake for Poller {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Relaxed);
    }
}

/// Starts threads that do the same, each with random numbers of its own.
fn spawn<S: Clone + Send + 'static>(
    threads: u8,
    shared: &S,
    random: &mut Rng,
    work: fn(&S, &mut Rng),
) -> Vec<JoinHandle<()>> {
    let start = |_| {
        let (shared, mut random) = (shared.clone(), random.fork());
        thread::spawn(move || work(&shared, &mut random))
    };
    (0..threads).map(start).collect()
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// Lets the other threads run for a random time.
fn pause(random: &mut Rng, max: u8) {
    (0..random.u8(0..max)).for_each(|_| thread::yield_now());
}

impl EventLoop {
    fn start(self) -> JoinHandle<()> {
        thread::spawn(|| self.turn())
    }

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
        let event_loop = event_loop.map(EventLoop::start);
        let shared = (world.clone(), timer.clone());
        let producers = spawn(4, &shared, random, |(world, timer), random| {
            for _ in 0..random.u8(1..6) {
                let delay = TICK * random.u32(0..4);
                match random.u8(0..10) {
                    0..4 => drop(world.schedule(timer, delay)),
                    4..6 => world.schedule_and_drop_handle(timer, delay, random.bool()),
                    6 => drop(world.schedule(timer, FAR)),
                    7..9 => drop(world.pick(random).map(|one| one.cancel())),
                    _ => drop(world.pick(random).map(|one| one.reset(delay))),
                }
            }
        });
        drop(shared);
        let clock = world.advance_clock(random);
        // The end comes while the threads work, or after many timeouts have fired.
        let max = *random.choice(&[20, 200]).unwrap();
        pause(random, max);

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
        join(producers.into_iter().chain([clock]).chain(event_loop));
        world.check(returned.as_deref())
    });
}

#[test]
fn no_timeout_is_forgotten() {
    explore(|random| {
        let (world, timer, event_loop) = World::new(random);
        let event_loop = event_loop.map(EventLoop::start);
        // With this timeout the worker's sleep does not end by itself.
        let rest = usize::from(world.schedule(&timer, FAR).is_some());
        let (threads, shared) = (random.u8(1..=4), (world.clone(), timer.clone()));
        join(spawn(threads, &shared, random, |(world, timer), random| {
            for _ in 0..random.u8(1..3) {
                pause(random, 20);
                let delay = TICK * random.u32(0..3);
                let far = random.bool();
                let Some(scheduled) = world.schedule(timer, if far { FAR } else { delay }) else {
                    continue;
                };
                pause(random, 20);
                // Otherwise the timeout would not end.
                if far && random.u8(0..4) > 0 {
                    scheduled.reset(delay);
                } else if far {
                    scheduled.cancel();
                }
            }
        }));
        world.advance_until("a due timeout is forgotten", || {
            timer.pending_timeouts() <= rest
        });
        let returned = timer.stop();
        join(event_loop);
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
    detects_replace_in_two_steps: mixed::all_operations_end_once, "ReplaceInTwoSteps";
}
