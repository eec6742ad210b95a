//! Creates timers and ends them.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::{Builder, Clock, Driver, ExpiredTask, HashedWheelTimer, RejectionPolicy, Timeout};

use crate::accounts::Sum;
use crate::ledger::{Action, Entry, IS_DROPPING, Ledger, lock, schedule};
use crate::loads::{Context, Loads};
use crate::machine::WORKERS;
use crate::producer::{Producer, Target};
use crate::{Sabotage, machine};

/// Longer than any operation that should be immediate.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The configuration of a timer.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    sabotage: Option<Sabotage>,
    max_late: Duration,
    tick: Duration,
    ticks_per_wheel: usize,
    hierarchical: bool,
    limit: usize,
    executor: Executor,
    turned_by: TurnedBy,
    /// It has all kinds of load. Otherwise only plain timeouts, and the timer's counters are
    /// checked.
    is_mixed: bool,
    stall: Duration,
}

/// What turns a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnedBy {
    /// A thread of its own.
    Thread,
    /// A loop of this program, with a driver.
    Loop,
    /// A task on tokio.
    Tokio,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Executor {
    /// The worker runs the tasks.
    None,
    /// Two threads run the tasks.
    Pool,
    /// Drops one task in ten.
    Drops,
    /// Panics at one task in ten.
    Panics,
    /// Refuses one task in ten, which the worker runs.
    Refuses,
    /// Refuses one task in ten, which a handler runs.
    Overflows,
}

/// The way in which a timer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Stop,
    TwoStops,
    LastHandle,
    LastHandleInATask,
    Driver,
    /// `shutdown`, with some time for what is due.
    Shutdown,
    /// A `stop` on another thread, which is awaited.
    Awaited,
    /// A `stop` on another thread. This one does not wait, so no caller receives the timeouts.
    NotAwaited,
}

/// How long a `shutdown` waits.
const GRACE: Duration = Duration::from_millis(20);

impl Plan {
    pub(crate) fn permanent(hierarchical: bool, max_late: Duration, sabotage: Option<Sabotage>) -> Self {
        Self {
            sabotage,
            max_late,
            tick: Duration::from_millis(1),
            ticks_per_wheel: 512,
            hierarchical,
            limit: 0,
            executor: if hierarchical { Executor::Pool } else { Executor::None },
            turned_by: TurnedBy::Thread,
            is_mixed: false,
            stall: Duration::from_millis(50),
        }
    }

    /// A permanent timer with all kinds of load.
    pub(crate) fn mixed(turned_by: TurnedBy, max_late: Duration, sabotage: Option<Sabotage>) -> Self {
        let plan = Self::permanent(turned_by == TurnedBy::Loop, max_late, sabotage);
        let executor = match turned_by {
            TurnedBy::Thread => Executor::Refuses,
            TurnedBy::Loop if sabotage == Some(Sabotage::LostTask) => Executor::None,
            TurnedBy::Loop => Executor::Pool,
            TurnedBy::Tokio => Executor::None,
        };
        Self { turned_by, is_mixed: true, executor, ..plan }
    }

    pub(crate) fn temporary(random: &mut Rng, max_late: Duration, sabotage: Option<Sabotage>) -> Self {
        // The loads of other kinds would wait for a task that the sabotage has lost.
        let is_mixed = random.bool() && sabotage != Some(Sabotage::LostTask);
        // An executor that drops tasks would drop those of other kinds as well.
        let losing = [Executor::Drops, Executor::Panics];
        let mut executors = vec![Executor::None, Executor::Pool, Executor::Refuses, Executor::Overflows];
        executors.extend(losing.into_iter().filter(|_| !is_mixed));
        Self {
            sabotage: sabotage.filter(|sabotage| !sabotage.is_of_permanent_timers()),
            max_late,
            tick: Duration::from_micros(1 << random.u32(6..14)),
            ticks_per_wheel: 1 << random.u32(0..10),
            hierarchical: random.bool(),
            limit: if random.u8(0..3) == 0 { random.usize(2..100) } else { 0 },
            executor: *random.choice(&executors).expect("the list is not empty"),
            turned_by: *random
                .choice(&[TurnedBy::Thread, TurnedBy::Loop, TurnedBy::Tokio])
                .expect("the list is not empty"),
            is_mixed,
            stall: Duration::from_millis(5),
        }
    }

    /// The ways in which the timer may end.
    fn endings(&self) -> &'static [Ending] {
        use Ending::{Awaited, Driver, LastHandle, LastHandleInATask, NotAwaited, Shutdown, Stop, TwoStops};
        match (self.is_mixed, self.turned_by) {
            (false, TurnedBy::Loop | TurnedBy::Thread) => {
                &[Stop, TwoStops, Shutdown, Awaited, NotAwaited, LastHandle, LastHandleInATask, Driver]
            }
            (false, TurnedBy::Tokio) => {
                &[Stop, TwoStops, Shutdown, Awaited, NotAwaited, LastHandle, LastHandleInATask]
            }
            // The loads have handles. The drop of a driver ends the timer nevertheless.
            (true, TurnedBy::Loop) => &[Stop, TwoStops, Shutdown, Awaited, NotAwaited, Driver],
            (true, _) => &[Stop, TwoStops, Shutdown, Awaited, NotAwaited],
        }
    }

    pub(crate) fn start(&self) -> Running {
        let may_wait = self.sabotage != Some(Sabotage::LostTask);
        let ledger = Ledger::new(format!("{self:?}"), self.max_late, may_wait);
        let mut builder = HashedWheelTimer::builder()
            .tick(self.tick)
            .ticks_per_wheel(self.ticks_per_wheel)
            .max_pending_timeouts((self.limit > 0).then_some(self.limit))
            .clock(CountedClock::new(self));
        if self.hierarchical {
            builder = builder.hierarchical(true);
        }
        let (builder, pool) = self.executor(builder, &ledger);
        let (timer, driver_thread) = self.turned_by.build(builder);
        let observer = schedule_observer(&timer, &ledger);
        let context = self.is_mixed.then(|| Context::new(&timer, &ledger, self.sabotage));
        Running { plan: self.clone(), timer, ledger, context, observer, driver_thread, pool }
    }

    fn executor(&self, builder: Builder, ledger: &Arc<Ledger>) -> (Builder, Vec<JoinHandle<()>>) {
        let ledger = Arc::clone(ledger);
        let random = Mutex::new(Rng::with_seed(self.tick.as_nanos() as u64));
        let one_in_ten = move || lock(&random).u8(0..10) == 0;
        match self.executor {
            Executor::None => (builder, Vec::new()),
            Executor::Drops => {
                let drop_some = move |task| match one_in_ten() {
                    true => without_running(&ledger, || drop(task)),
                    false => ExpiredTask::run(task),
                };
                (builder.task_executor(drop_some), Vec::new())
            }
            Executor::Panics => {
                let panic = move |task| match one_in_ten() {
                    // The panic drops the task.
                    true => without_running(&ledger, || {
                        let _task: ExpiredTask = task;
                        ledger.panic_intentionally();
                    }),
                    false => ExpiredTask::run(task),
                };
                (builder.task_executor(panic), Vec::new())
            }
            Executor::Refuses | Executor::Overflows => {
                let refuse_some = move |task| match one_in_ten() {
                    true => drop(task),
                    false => ExpiredTask::run(task),
                };
                let policy = match self.executor {
                    Executor::Refuses => RejectionPolicy::RunOnWorker,
                    _ => RejectionPolicy::handler(ExpiredTask::run),
                };
                (builder.task_executor(refuse_some).rejection_policy(policy), Vec::new())
            }
            Executor::Pool => {
                let (pool, tasks) = mpsc::channel::<ExpiredTask>();
                let tasks = Arc::new(Mutex::new(tasks));
                let worker = |_| {
                    let tasks = Arc::clone(&tasks);
                    thread::spawn(move || {
                        loop {
                            let task = lock(&tasks).recv();
                            let Ok(task) = task else { return };
                            task.run();
                        }
                    })
                };
                let pool_threads = (0..2).map(worker).collect();
                let loses = self.sabotage == Some(Sabotage::LostTask);
                let send = move |task| match loses && one_in_ten() {
                    true => std::mem::forget(task),
                    false => pool.send(task).expect("the pool lives as long as the executor"),
                };
                (builder.task_executor(send), pool_threads)
            }
        }
    }
}

/// A thread that turns a driver.
type DriverThread = (Arc<Notifier>, JoinHandle<()>);

impl TurnedBy {
    fn build(self, builder: Builder) -> (HashedWheelTimer, Option<DriverThread>) {
        let built = match self {
            Self::Thread => builder.build(),
            Self::Tokio => builder.build_on_tokio(&machine::runtime()),
            Self::Loop => {
                let notifier = Arc::new(Notifier::default());
                let wake = notifier.clone();
                let (timer, driver) =
                    builder.waker(move || wake.notify()).build_driven().expect("the options are valid");
                let driving = notifier.clone();
                let thread = thread::Builder::new().name(format!("{WORKERS}-loop"));
                let thread = thread.spawn(move || driving.turn(driver)).expect("the thread starts");
                return (timer, Some((notifier, thread)));
            }
        };
        (built.expect("the options are valid"), None)
    }
}

/// Gives access to the timer's counters after the last handle was dropped. It never fires.
fn schedule_observer(timer: &HashedWheelTimer, ledger: &Arc<Ledger>) -> Entry {
    schedule(timer, ledger, Duration::MAX, Action::Nothing).expect("the timeout is below the limit")
}

/// Runs an executor that does not run its task.
fn without_running(ledger: &Ledger, how: impl FnOnce()) {
    ledger.dropped_by_executor.fetch_add(1, SeqCst);
    IS_DROPPING.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(how));
    IS_DROPPING.set(false);
    outcome.unwrap_or_else(|panic| resume_unwind(panic));
}

/// The plans of the timers that exist: a clock lives as long as any part of its timer.
static LIVE: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());

/// Returns the plans of the timers of which a part exists.
pub(crate) fn live() -> Vec<String> {
    lock(&LIVE).values().cloned().collect()
}

struct CountedClock {
    began: Instant,
    number: u64,
}

impl CountedClock {
    fn new(plan: &Plan) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, SeqCst);
        lock(&LIVE).insert(number, format!("{plan:?}"));
        Self { began: Instant::now(), number }
    }
}

impl Clock for CountedClock {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

impl Drop for CountedClock {
    fn drop(&mut self) {
        lock(&LIVE).remove(&self.number);
    }
}

/// Wakes the thread that drives a timer.
#[derive(Default)]
struct Notifier {
    thread: Mutex<Option<thread::Thread>>,
    over: AtomicBool,
}

impl Notifier {
    fn notify(&self) {
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }

    fn turn(&self, mut driver: Driver) {
        *lock(&self.thread) = Some(thread::current());
        while !self.over.load(SeqCst) && !driver.is_stopped() {
            driver.turn();
            match driver.next_turn() {
                Some(time) => thread::park_timeout(time),
                None => thread::park(),
            }
        }
    }
}

/// A running timer.
pub(crate) struct Running {
    plan: Plan,
    pub(crate) timer: HashedWheelTimer,
    pub(crate) ledger: Arc<Ledger>,
    /// For the loads, if the timer has all kinds of load.
    pub(crate) context: Option<Context>,
    observer: Entry,
    driver_thread: Option<DriverThread>,
    pool: Vec<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn target(&self) -> Target {
        Target {
            timer: self.timer.clone(),
            ledger: Arc::clone(&self.ledger),
            limit: self.plan.limit,
            sabotage: self.plan.sabotage,
            stall: match self.plan.sabotage {
                Some(Sabotage::Stall) => self.plan.max_late * 2,
                _ => self.plan.stall,
            },
            max_delay: Duration::from_secs(2),
        }
    }

    /// Cancels all that is pending, while producers use the timer.
    fn cancel_all(&mut self) {
        self.ledger.cancel_all(&self.timer, self.plan.is_mixed);
        self.observer = schedule_observer(&self.timer, &self.ledger);
    }

    /// Ends the timer, possibly while producers still use it. They pass their timeouts to `settle`.
    fn start_end(self, ending: Ending) -> Ended {
        let Self { timer, ledger, context, observer, mut driver_thread, pool, .. } = self;
        let when = Instant::now();
        let mut returned = None;
        match ending {
            Ending::Stop => returned = Some(timer.stop()),
            Ending::TwoStops => {
                let other = timer.clone();
                let stop = thread::spawn(move || other.stop());
                let mut all = timer.stop();
                ledger.expect(timer.pending_timeouts() == 0, || {
                    "timeouts are pending after stop has returned".into()
                });
                all.extend(stop.join().expect("stop does not panic"));
                returned = Some(all);
            }
            Ending::Shutdown => returned = Some(timer.shutdown(GRACE)),
            Ending::Awaited => {
                let ended = timer.begin_stop().wait_timeout(Duration::ZERO);
                returned = Some(ended.unwrap_or_else(|ending| ending.wait()));
            }
            Ending::NotAwaited => drop(timer.begin_stop().wait_timeout(Duration::ZERO)),
            Ending::LastHandle => drop(timer),
            Ending::LastHandleInATask => {
                let holds = Action::DropHandle(timer.clone());
                let entry = schedule(&timer, &ledger, Duration::ZERO, holds);
                lock(&ledger.shared).extend(entry);
                drop(timer);
            }
            Ending::Driver => {
                if let Some((notifier, thread)) = driver_thread.take() {
                    notifier.over.store(true, SeqCst);
                    notifier.notify();
                    thread.join().expect("a turn does not panic");
                }
                // The driver ends a timer with its handles. A timer with a thread must be stopped,
                // or its last handle dropped.
                drop(timer);
            }
        }
        Ended { ending, ledger, context, observer, driver_thread, pool, returned, when }
    }

    /// Ends the timer when no producer uses it.
    pub(crate) fn end(self, ending: Ending, left: Left) -> Closed {
        self.start_end(ending).settle(left, false)
    }
}

/// What a thread that has used a timer leaves: its plain timeouts, and its other loads.
#[derive(Default)]
pub(crate) struct Left {
    pub(crate) entries: Vec<Entry>,
    pub(crate) loads: Vec<Loads>,
}

impl Left {
    pub(crate) fn add(&mut self, other: Self) {
        self.entries.extend(other.entries);
        self.loads.extend(other.loads);
    }
}

/// The checked accounts of a timer that has ended.
pub(crate) struct Closed {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) kinds: Sum,
}

struct Ended {
    ending: Ending,
    ledger: Arc<Ledger>,
    context: Option<Context>,
    observer: Entry,
    driver_thread: Option<DriverThread>,
    pool: Vec<JoinHandle<()>>,
    /// The result of `stop`, if it was called.
    returned: Option<Vec<Timeout>>,
    /// When the end started.
    when: Instant,
}

impl Ended {
    /// Records the end of all timeouts that had not ended before. `may_be_left`: the threads used
    /// the timer when it ended.
    #[allow(clippy::mutable_key_type, reason = "a timeout is hashed by identity")]
    fn settle(self, left: Left, may_be_left: bool) -> Closed {
        let Self { ending, ledger, context, observer, driver_thread, pool, returned, when } = self;
        let Left { mut entries, loads } = left;
        entries.push(observer.clone());
        // A task that drops the last handle does not wait for the end of the timer.
        let since = Instant::now();
        let is_over = || observer.timeout.is_cancelled() && observer.record.is_task_dropped();
        while !is_over() && since.elapsed() < TIMEOUT {
            thread::sleep(Duration::from_micros(100));
        }
        ledger.expect(is_over(), || {
            format!("the timer has not ended after {:.1?} ({ending:?})", since.elapsed())
        });
        if let Some((notifier, thread)) = driver_thread {
            notifier.over.store(true, SeqCst);
            notifier.notify();
            thread.join().expect("a turn does not panic");
        }
        let is_mixed = context.is_some();
        let kinds = context.map_or_else(Sum::default, |context| context.settle(loads, may_be_left));
        for thread in pool {
            thread.join().expect("the timer catches panics of tasks");
        }
        entries.append(&mut lock(&ledger.shared));
        let is_ending = |entry: &Entry| entry.timeout.is_cancelled() && !entry.record.is_task_dropped();
        while entries.iter().any(is_ending) && since.elapsed() < TIMEOUT {
            thread::sleep(Duration::from_micros(100));
        }

        // Removes duplicates, because several threads may have the same timeout.
        let entries: HashMap<_, _> =
            entries.into_iter().map(|entry| (entry.timeout.clone(), entry)).collect();
        if let Some(returned) = returned {
            for timeout in returned {
                match entries.get(&timeout) {
                    Some(entry) => entry.record_stop(when),
                    // Of another kind.
                    None if is_mixed => {}
                    None => ledger
                        .expect(false, || format!("stop returned a timeout that had ended: {timeout:?}")),
                }
            }
        } else {
            entries.values().filter(|entry| !entry.is_settled()).for_each(|entry| entry.record_stop(when));
        }
        let stats = observer.timeout.timer().stats();
        drop((entries, observer));
        ledger.close(&stats, is_mixed);
        Closed { ledger, kinds }
    }
}

/// Creates a timer, runs some producers on it, and ends it. Some producers continue a little
/// longer.
pub(crate) fn run_temporary(plan: &Plan, random: &mut Rng) -> Closed {
    let mut running = plan.start();
    let over = Arc::new(AtomicBool::new(false));
    let producers: Vec<_> = (0..random.u8(1..=3))
        .map(|_| {
            let (over, target, mut random) = (over.clone(), running.target(), random.fork());
            let mut loads: Vec<_> = running.context.iter().map(Loads::new).collect();
            thread::spawn(move || {
                let mut producer = Producer::new(target, random.u64(..));
                while !over.load(SeqCst) && !producer.is_over() {
                    producer.work();
                    loads.iter_mut().for_each(|loads| loads.work(&mut random));
                }
                Left { entries: producer.entries(), loads }
            })
        })
        .collect();
    thread::sleep(Duration::from_micros(1 << random.u32(8..18)));
    // Under a limit there may be no place for the next observer.
    if plan.limit == 0 && random.u8(0..4) == 0 {
        running.cancel_all();
    }
    let mut ending = *random.choice(plan.endings()).expect("the list is not empty");
    if plan.sabotage == Some(Sabotage::LostTask) && matches!(ending, Ending::LastHandleInATask) {
        // The lost task could contain the last handle. Then the timer would never end.
        ending = Ending::LastHandle;
    }
    let ended = running.start_end(ending);
    over.store(true, SeqCst);
    let mut left = Left::default();
    for producer in producers {
        left.add(producer.join().expect("a producer does not panic"));
    }
    ended.settle(left, true)
}
