//! How timers are made, and how they end.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::{Builder, Clock, Driver, ExpiredTask, HashedWheelTimer, Timeout};

use crate::Sabotage;
use crate::ledger::{Deed, Entry, IS_TURNED_AWAY, Ledger, lock, schedule};
use crate::producer::{Place, Producer};

/// Longer than anything takes that has to happen at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a timer is to be.
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
    /// The worker itself.
    None,
    /// Two threads.
    Pool,
    /// Drops one in ten.
    Refuses,
    /// Panics at one in ten.
    Panics,
}

/// How a timer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Stop,
    TwoStops,
    LastHandle,
    LastHandleInATask,
    Driver,
}

impl Plan {
    pub(crate) fn staying(hierarchical: bool, max_late: Duration, sabotage: Option<Sabotage>) -> Self {
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

    pub(crate) fn passing(random: &mut Rng, max_late: Duration, sabotage: Option<Sabotage>) -> Self {
        Self {
            sabotage,
            max_late,
            tick: Duration::from_micros(1 << random.u32(6..14)),
            ticks_per_wheel: 1 << random.u32(0..10),
            hierarchical: random.bool(),
            limit: if random.u8(0..3) == 0 { random.usize(2..100) } else { 0 },
            executor: *random
                .choice(&[Executor::None, Executor::Pool, Executor::Refuses, Executor::Panics])
                .expect("there are some"),
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
        let (timer, turner) = if self.driven {
            let bell = Arc::new(Bell::default());
            let rung = bell.clone();
            let (timer, driver) = builder.waker(move || rung.ring()).build_driven().expect("it can be built");
            let turning = bell.clone();
            let thread = thread::spawn(move || turning.turn(driver));
            (timer, Some((bell, thread)))
        } else {
            (builder.build().expect("it can be built"), None)
        };
        // For its word on how it all ended, when there is no handle left; it never fires.
        let witness = schedule(&timer, &ledger, Duration::MAX, Deed::Nothing).expect("it is the first");
        Running { plan: self.clone(), timer, ledger, witness, turner, pool }
    }

    fn executor(&self, builder: Builder, ledger: &Arc<Ledger>) -> (Builder, Vec<JoinHandle<()>>) {
        let ledger = Arc::clone(ledger);
        let random = Mutex::new(Rng::with_seed(self.tick.as_nanos() as u64));
        let one_in_ten = move || lock(&random).u8(0..10) == 0;
        match self.executor {
            Executor::None => (builder, Vec::new()),
            Executor::Refuses => {
                let refuse = move |task| match one_in_ten() {
                    true => turn_away(&ledger, || drop(task)),
                    false => ExpiredTask::run(task),
                };
                (builder.task_executor(refuse), Vec::new())
            }
            Executor::Panics => {
                let panic = move |task| match one_in_ten() {
                    // The task goes with the panic.
                    true => turn_away(&ledger, || {
                        let _task: ExpiredTask = task;
                        ledger.provoke();
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
                let hand_over = move |task| match loses && one_in_ten() {
                    true => std::mem::forget(task),
                    false => pool.send(task).expect("the pool lives as long as its executor"),
                };
                (builder.task_executor(hand_over), pool_threads)
            }
        }
    }
}

/// For an executor that does not run what it was given.
fn turn_away(ledger: &Ledger, how: impl FnOnce()) {
    ledger.turned_away.fetch_add(1, SeqCst);
    IS_TURNED_AWAY.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(how));
    IS_TURNED_AWAY.set(false);
    outcome.unwrap_or_else(|panic| resume_unwind(panic));
}

/// How many timers there are: a clock lives as long as any part of its timer does.
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

/// Ends the sleep of the thread that turns a driver.
#[derive(Default)]
struct Bell {
    thread: Mutex<Option<thread::Thread>>,
    over: AtomicBool,
}

impl Bell {
    fn ring(&self) {
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

/// A timer at work.
pub(crate) struct Running {
    plan: Plan,
    pub(crate) timer: HashedWheelTimer,
    pub(crate) ledger: Arc<Ledger>,
    witness: Entry,
    turner: Option<(Arc<Bell>, JoinHandle<()>)>,
    pool: Vec<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn place(&self) -> Place {
        Place {
            timer: self.timer.clone(),
            ledger: Arc::clone(&self.ledger),
            limit: self.plan.limit,
            sabotage: self.plan.sabotage,
            stall: match self.plan.sabotage {
                Some(Sabotage::Stall) => self.plan.max_late * 2,
                _ => self.plan.stall,
            },
            longest: Duration::from_secs(2),
        }
    }

    /// Ends it while others are still at work, perhaps. They give what they know of to `settle`.
    fn begin_to_end(self, ending: Ending) -> Ended {
        let Self { timer, ledger, witness, mut turner, pool, .. } = self;
        let when = Instant::now();
        let mut returned = None;
        match ending {
            Ending::Stop => returned = Some(timer.stop()),
            Ending::TwoStops => {
                let other = timer.clone();
                let stop = thread::spawn(move || other.stop());
                let mut all = timer.stop();
                ledger.expect(timer.pending_timeouts() == 0, || {
                    "stop has returned, and some are pending".into()
                });
                all.extend(stop.join().expect("stop does not panic"));
                returned = Some(all);
            }
            Ending::LastHandle => drop(timer),
            Ending::LastHandleInATask => {
                let holds = Deed::Holds(timer.clone());
                let entry = schedule(&timer, &ledger, Duration::ZERO, holds);
                lock(&ledger.shared).extend(entry);
                drop(timer);
            }
            Ending::Driver => {
                if let Some((bell, thread)) = turner.take() {
                    bell.over.store(true, SeqCst);
                    bell.ring();
                    thread.join().expect("a turn does not panic");
                }
                // Nothing is pending for long on a stopped timer, but with a thread somebody has to stop it.
                drop(timer);
            }
        }
        Ended { ending, ledger, witness, turner, pool, returned, when }
    }

    /// Ends it, with nobody at work on it any more.
    pub(crate) fn end(self, ending: Ending, entries: Vec<Entry>) -> Arc<Ledger> {
        self.begin_to_end(ending).settle(entries)
    }
}

struct Ended {
    ending: Ending,
    ledger: Arc<Ledger>,
    witness: Entry,
    turner: Option<(Arc<Bell>, JoinHandle<()>)>,
    pool: Vec<JoinHandle<()>>,
    /// What `stop` returned, if it was called.
    returned: Option<Vec<Timeout>>,
    /// When the end began.
    when: Instant,
}

impl Ended {
    /// Accounts for all that had not ended before.
    #[allow(clippy::mutable_key_type, reason = "a timeout is hashed by identity")]
    fn settle(self, mut entries: Vec<Entry>) -> Arc<Ledger> {
        let Self { ending, ledger, witness, turner, pool, returned, when } = self;
        entries.push(witness.clone());
        // A task that drops the last handle does not wait for the end.
        let since = Instant::now();
        let is_over = || witness.timeout.is_cancelled() && witness.fate.task_is_gone();
        while !is_over() && since.elapsed() < PATIENCE {
            thread::sleep(Duration::from_micros(100));
        }
        ledger.expect(is_over(), || format!("it has not ended after {:.1?} ({ending:?})", since.elapsed()));
        if let Some((bell, thread)) = turner {
            bell.over.store(true, SeqCst);
            bell.ring();
            thread.join().expect("a turn does not panic");
        }
        for thread in pool {
            thread.join().expect("a task's panic does not get here");
        }
        entries.append(&mut lock(&ledger.shared));
        let is_ending = |entry: &Entry| entry.timeout.is_cancelled() && !entry.fate.task_is_gone();
        while entries.iter().any(is_ending) && since.elapsed() < PATIENCE {
            thread::sleep(Duration::from_micros(100));
        }

        // Each once; several threads may know of the same one.
        let entries: HashMap<_, _> =
            entries.into_iter().map(|entry| (entry.timeout.clone(), entry)).collect();
        if let Some(returned) = returned {
            for timeout in returned {
                match entries.get(&timeout) {
                    Some(entry) => entry.was_swept(when),
                    None => ledger.expect(false, || format!("stop returned one that had ended: {timeout:?}")),
                }
            }
        } else {
            entries.values().filter(|entry| !entry.is_settled()).for_each(|entry| entry.was_swept(when));
        }
        let stats = witness.timeout.timer().stats();
        drop((entries, witness));
        ledger.close(&stats);
        ledger
    }
}

/// The whole life of a timer, with some producers at work on it until it ends or a little longer.
pub(crate) fn come_and_go(plan: &Plan, random: &mut Rng) -> Arc<Ledger> {
    let running = plan.start();
    let over = Arc::new(AtomicBool::new(false));
    let producers: Vec<_> = (0..random.u8(1..=3))
        .map(|_| {
            let (over, place, seed) = (over.clone(), running.place(), random.u64(..));
            thread::spawn(move || {
                let mut producer = Producer::new(place, seed);
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
    let mut ending = *random.choice(&endings).expect("there are some");
    if plan.sabotage == Some(Sabotage::LostTask) && matches!(ending, Ending::LastHandleInATask) {
        // The task that is lost could be the one with the last handle, and then the timer would never end.
        ending = Ending::LastHandle;
    }
    let ended = running.begin_to_end(ending);
    over.store(true, SeqCst);
    let entries = producers.into_iter().flat_map(|producer| producer.join().expect("it does not panic"));
    let entries = entries.collect();
    ended.settle(entries)
}
