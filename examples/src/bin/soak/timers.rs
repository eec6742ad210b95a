//! Creates timers and ends them.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::{Builder, Clock, Driver, ExpiredTask, HashedWheelTimer, Timeout};

use crate::Sabotage;
use crate::ledger::{Action, Entry, IS_DROPPING, Ledger, lock, schedule};
use crate::producer::{Producer, Target};

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
    driven: bool,
    stall: Duration,
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
}

/// The way in which a timer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Stop,
    TwoStops,
    LastHandle,
    LastHandleInATask,
    Driver,
}

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
            driven: false,
            stall: Duration::from_millis(50),
        }
    }

    pub(crate) fn temporary(random: &mut Rng, max_late: Duration, sabotage: Option<Sabotage>) -> Self {
        Self {
            sabotage,
            max_late,
            tick: Duration::from_micros(1 << random.u32(6..14)),
            ticks_per_wheel: 1 << random.u32(0..10),
            hierarchical: random.bool(),
            limit: if random.u8(0..3) == 0 { random.usize(2..100) } else { 0 },
            executor: *random
                .choice(&[Executor::None, Executor::Pool, Executor::Drops, Executor::Panics])
                .expect("the list is not empty"),
            driven: random.bool(),
            stall: Duration::from_millis(5),
        }
    }

    pub(crate) fn start(&self) -> Running {
        let ledger = Ledger::new(format!("{self:?}"), self.max_late);
        let mut builder = HashedWheelTimer::builder()
            .tick(self.tick)
            .ticks_per_wheel(self.ticks_per_wheel)
            .max_pending_timeouts(self.limit)
            .clock(CountedClock::new());
        if self.hierarchical {
            builder = builder.hierarchical();
        }
        let (builder, pool) = self.executor(builder, &ledger);
        let (timer, driver_thread) = if self.driven {
            let notifier = Arc::new(Notifier::default());
            let wake = notifier.clone();
            let (timer, driver) =
                builder.waker(move || wake.notify()).build_driven().expect("the options are valid");
            let driving = notifier.clone();
            let thread = thread::spawn(move || driving.turn(driver));
            (timer, Some((notifier, thread)))
        } else {
            (builder.build().expect("the options are valid"), None)
        };
        // Gives access to the timer's counters after the last handle was dropped. It never fires.
        let observer = schedule(&timer, &ledger, Duration::MAX, Action::Nothing)
            .expect("the first timeout is below the limit");
        Running { plan: self.clone(), timer, ledger, observer, driver_thread, pool }
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

/// Runs an executor that does not run its task.
fn without_running(ledger: &Ledger, how: impl FnOnce()) {
    ledger.dropped_by_executor.fetch_add(1, SeqCst);
    IS_DROPPING.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(how));
    IS_DROPPING.set(false);
    outcome.unwrap_or_else(|panic| resume_unwind(panic));
}

/// The number of timers: a clock lives as long as any part of its timer.
pub(crate) static CLOCKS: AtomicU64 = AtomicU64::new(0);

struct CountedClock(Instant);

impl CountedClock {
    fn new() -> Self {
        CLOCKS.fetch_add(1, SeqCst);
        Self(Instant::now())
    }
}

impl Clock for CountedClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

impl Drop for CountedClock {
    fn drop(&mut self) {
        CLOCKS.fetch_sub(1, SeqCst);
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
    observer: Entry,
    driver_thread: Option<(Arc<Notifier>, JoinHandle<()>)>,
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

    /// Ends the timer, possibly while producers still use it. They pass their timeouts to `settle`.
    fn start_end(self, ending: Ending) -> Ended {
        let Self { timer, ledger, observer, mut driver_thread, pool, .. } = self;
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
        Ended { ending, ledger, observer, driver_thread, pool, returned, when }
    }

    /// Ends the timer when no producer uses it.
    pub(crate) fn end(self, ending: Ending, entries: Vec<Entry>) -> Arc<Ledger> {
        self.start_end(ending).settle(entries)
    }
}

struct Ended {
    ending: Ending,
    ledger: Arc<Ledger>,
    observer: Entry,
    driver_thread: Option<(Arc<Notifier>, JoinHandle<()>)>,
    pool: Vec<JoinHandle<()>>,
    /// The result of `stop`, if it was called.
    returned: Option<Vec<Timeout>>,
    /// When the end started.
    when: Instant,
}

impl Ended {
    /// Records the end of all timeouts that had not ended before.
    #[allow(clippy::mutable_key_type, reason = "a timeout is hashed by identity")]
    fn settle(self, mut entries: Vec<Entry>) -> Arc<Ledger> {
        let Self { ending, ledger, observer, driver_thread, pool, returned, when } = self;
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
                    None => ledger
                        .expect(false, || format!("stop returned a timeout that had ended: {timeout:?}")),
                }
            }
        } else {
            entries.values().filter(|entry| !entry.is_settled()).for_each(|entry| entry.record_stop(when));
        }
        let stats = observer.timeout.timer().stats();
        drop((entries, observer));
        ledger.close(&stats);
        ledger
    }
}

/// Creates a timer, runs some producers on it, and ends it. Some producers continue a little
/// longer.
pub(crate) fn run_temporary(plan: &Plan, random: &mut Rng) -> Arc<Ledger> {
    let running = plan.start();
    let over = Arc::new(AtomicBool::new(false));
    let producers: Vec<_> = (0..random.u8(1..=3))
        .map(|_| {
            let (over, target, seed) = (over.clone(), running.target(), random.u64(..));
            thread::spawn(move || {
                let mut producer = Producer::new(target, seed);
                while !over.load(SeqCst) && !producer.is_over() {
                    producer.work();
                }
                producer.entries()
            })
        })
        .collect();
    thread::sleep(Duration::from_micros(1 << random.u32(8..18)));
    let endings =
        [Ending::Stop, Ending::TwoStops, Ending::LastHandle, Ending::LastHandleInATask, Ending::Driver];
    let mut ending = *random.choice(&endings).expect("the list is not empty");
    if plan.sabotage == Some(Sabotage::LostTask) && matches!(ending, Ending::LastHandleInATask) {
        // The lost task could contain the last handle. Then the timer would never end.
        ending = Ending::LastHandle;
    }
    let ended = running.start_end(ending);
    over.store(true, SeqCst);
    let entries =
        producers.into_iter().flat_map(|producer| producer.join().expect("a producer does not panic"));
    let entries = entries.collect();
    ended.settle(entries)
}
