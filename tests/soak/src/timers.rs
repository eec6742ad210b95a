//! Creates timers and ends them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::{Builder, Clock, Driver, ExpiredTask, HashedWheelTimer, Timeout, executor};
use hashed_wheel_ledger::{Count, lock};
use hashed_wheel_util::executor::TaskExecutorExt;
use hashed_wheel_util::tokio::build_on;

use crate::Sabotage;
use crate::kinds::{Action, Entry, Loads, Plains, Shared, cancel_all, schedule};
use crate::machine::{WORKERS, runtime};
use crate::tally::{Tally, comes};

/// The configuration of a timer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) tick: Duration,
    pub(crate) ticks_per_wheel: usize,
    pub(crate) hierarchical: bool,
    pub(crate) limit: Option<usize>,
    pub(crate) executor: Executor,
    pub(crate) turned_by: TurnedBy,
    /// It has all kinds of use. Otherwise it has only plain timeouts, and its own counts must be
    /// the same as those of the tally.
    pub(crate) is_mixed: bool,
    pub(crate) stall: Duration,
    pub(crate) ending: Ending,
}

/// The thread or loop that turns a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnedBy {
    Thread,
    Loop, // A loop of this program, with a driver.
    Tokio,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Executor {
    None,      // The worker runs the tasks.
    Pool,      // Two threads run the tasks.
    Refuses,   // Refuses one task in ten, which the worker runs.
    Overflows, // Refuses one task in ten, which another executor runs.
    Drops,     // Drops one task in ten.
    Panics,    // Panics at one task in ten.
}

/// The way in which a timer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Stop,
    TwoStops,
    Shutdown,   // With some time for what is due.
    Awaited,    // A `stop` on another thread, which is awaited.
    NotAwaited, // The same, not awaited, so no caller receives the timeouts.
    Driver,
    LastHandle,
    LastHandleInATask,
}

/// How long a `shutdown` waits.
const GRACE: Duration = Duration::from_millis(20);

impl Plan {
    /// The settings that the permanent timers have in common.
    pub(crate) const PERMANENT: Self = Self {
        tick: Duration::from_millis(1),
        ticks_per_wheel: 512,
        hierarchical: false,
        limit: None,
        executor: Executor::None,
        turned_by: TurnedBy::Thread,
        is_mixed: false,
        stall: Duration::from_millis(50),
        ending: Ending::TwoStops,
    };

    pub(crate) fn temporary(random: &mut Rng, sabotage: Option<Sabotage>) -> Self {
        use Ending::{
            Awaited, Driver, LastHandle, LastHandleInATask, NotAwaited, Shutdown, Stop, TwoStops,
        };
        use Executor::{Drops, None, Overflows, Panics, Pool, Refuses};

        // Other kinds of use would wait for a task that the sabotage has lost.
        let loses = sabotage == Some(Sabotage::LostTask);
        let is_mixed = random.bool() && !loses;
        // An executor that drops tasks would drop those of other kinds as well.
        let executors =
            &[None, Pool, Refuses, Overflows, Drops, Panics][..if is_mixed { 4 } else { 6 }];
        let turned_by = [TurnedBy::Thread, TurnedBy::Loop, TurnedBy::Tokio][random.usize(0..3)];
        let mut endings = vec![Stop, TwoStops, Shutdown, Awaited, NotAwaited];
        if turned_by == TurnedBy::Loop || !is_mixed && turned_by == TurnedBy::Thread {
            endings.push(Driver);
        }
        if !is_mixed {
            // Other kinds of use have handles. The last handle may be lost with a task.
            let of_handles = [LastHandle, LastHandleInATask].into_iter();
            endings.extend(of_handles.take(if loses { 1 } else { 2 }));
        }
        Self {
            tick: Duration::from_micros(1 << random.u32(6..14)),
            ticks_per_wheel: 1 << random.u32(0..10),
            hierarchical: random.bool(),
            limit: (random.u8(0..3) == 0).then(|| random.usize(2..100)),
            executor: executors[random.usize(0..executors.len())],
            turned_by,
            is_mixed,
            stall: Duration::from_millis(5),
            ending: endings[random.usize(0..endings.len())],
        }
    }

    pub(crate) fn start(self, max_late: Duration, sabotage: Option<Sabotage>) -> Running {
        let tally = Tally::new(format!("{self:?}"), max_late, sabotage);
        let builder = HashedWheelTimer::builder()
            .tick(self.tick)
            .ticks_per_wheel(self.ticks_per_wheel)
            .max_pending_timeouts(self.limit)
            .hierarchical(self.hierarchical)
            .clock(TalliedClock {
                began: Instant::now(),
                _tally: Arc::clone(&tally),
            });
        let (builder, pool) = self.executor.add_to(builder, &tally);
        let (timer, driver) = self.turned_by.build(builder);
        let plains = Plains::new(&tally, self.limit, self.stall);
        let shared = Shared::new(&timer, &plains, self.is_mixed);
        let observer = observer(&shared);
        Running {
            plan: self,
            shared,
            observer,
            driver,
            pool,
        }
    }
}

/// Gives access to the timer's counts after the last handle was dropped. It never fires.
fn observer(Shared { timer, plains, .. }: &Shared) -> Entry {
    schedule(timer, plains, Duration::MAX, Action::Nothing).expect("the timeout is below the limit")
}

impl Executor {
    fn add_to(self, builder: Builder, tally: &Arc<Tally>) -> (Builder, Vec<JoinHandle<()>>) {
        let random = Mutex::new(Rng::with_seed(1));
        let one_in_ten = move || lock(&random).u8(0..10) == 0;
        let tally = Arc::clone(tally);
        let (pool, tasks) = mpsc::channel::<ExpiredTask>();
        let executor = executor::from_fn(move |task| {
            match self {
                Self::Pool if tally.does(Sabotage::LostTask) && one_in_ten() => {
                    std::mem::forget(task)
                }
                Self::Pool => pool
                    .send(task)
                    .expect("the pool lives as long as the executor"),
                Self::Refuses | Self::Overflows if one_in_ten() => return Err(task),
                Self::Drops | Self::Panics if one_in_ten() => {
                    tally.drops.fetch_add(1, SeqCst);
                    if self == Self::Panics {
                        // The panic drops the task.
                        tally.panic_intentionally();
                    }
                }
                _ => task.run(),
            }
            Ok(())
        });
        let overflow = executor::from_fn(|task| {
            task.run();
            Ok(())
        });
        let builder = match self {
            Self::None => return (builder, Vec::new()),
            Self::Refuses => builder.task_executor(executor.or_run_here()),
            Self::Overflows => builder.task_executor(executor.or_else(overflow)),
            Self::Pool | Self::Drops | Self::Panics => builder.task_executor(executor),
        };
        let tasks = Arc::new(Mutex::new(tasks));
        let worker = |_| {
            let tasks = Arc::clone(&tasks);
            let next = move || lock(&tasks).recv().ok();
            thread::spawn(move || std::iter::from_fn(&next).for_each(ExpiredTask::run))
        };
        let threads = if self == Self::Pool { 2 } else { 0 };
        (builder, (0..threads).map(worker).collect())
    }
}

/// A thread that turns a driver, and what ends it.
struct DriverThread {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl DriverThread {
    fn start(builder: Builder) -> (HashedWheelTimer, Self) {
        let is_over = Arc::new(AtomicBool::new(false));
        let unparks = Arc::new(Mutex::new(None::<thread::Thread>));
        let (over, its_unparks) = (Arc::clone(&is_over), Arc::clone(&unparks));
        let wake = move || lock(&unparks).iter().for_each(thread::Thread::unpark);
        let (timer, mut driver): (_, Driver) = builder
            .waker(wake)
            .build_driven()
            .expect("the options are valid");
        let turn = move || {
            *lock(&its_unparks) = Some(thread::current());
            while !over.load(SeqCst) && !driver.is_stopped() {
                driver.turn();
                let next = driver.next_turn();
                next.map_or_else(thread::park, thread::park_timeout);
            }
        };
        let thread = thread::Builder::new().name(format!("{WORKERS}-loop"));
        let thread = thread.spawn(turn).expect("the thread starts");
        (timer, Self { is_over, thread })
    }

    fn end(self) {
        self.is_over.store(true, SeqCst);
        self.thread.thread().unpark();
        self.thread.join().expect("a turn does not panic");
    }
}

impl TurnedBy {
    fn build(self, builder: Builder) -> (HashedWheelTimer, Option<DriverThread>) {
        let built = match self {
            Self::Thread => builder.build(),
            Self::Tokio => build_on(builder, &runtime()),
            Self::Loop => {
                let (timer, driver) = DriverThread::start(builder);
                return (timer, Some(driver));
            }
        };
        (built.expect("the options are valid"), None)
    }
}

/// A clock, which lives as long as any part of its timer, and with it the tally.
struct TalliedClock {
    began: Instant,
    _tally: Arc<Tally>,
}

impl Clock for TalliedClock {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

/// A running timer.
pub(crate) struct Running {
    plan: Plan,
    pub(crate) shared: Shared,
    observer: Entry,
    driver: Option<DriverThread>,
    pool: Vec<JoinHandle<()>>,
}

impl Ending {
    /// Begins the end. Returns the result of `stop`, if it was called.
    fn begin(self, shared: &Shared) -> Option<Vec<Timeout>> {
        let (timer, tally, plains) = (&shared.timer, &shared.tally, &shared.plains);
        tally.begin_end();
        match self {
            Self::Stop => Some(timer.stop()),
            Self::TwoStops => {
                let other = timer.clone();
                let stop = thread::spawn(move || other.stop());
                let mut all = timer.stop();
                let pending = timer.pending_timeouts();
                tally.expect(pending == 0, || "stop has left timeouts".into());
                all.extend(stop.join().expect("stop does not panic"));
                Some(all)
            }
            Self::Shutdown => Some(timer.shutdown(GRACE)),
            Self::Awaited => {
                let ended = timer.begin_stop().wait_timeout(Duration::ZERO);
                Some(ended.unwrap_or_else(|ending| ending.wait()))
            }
            Self::NotAwaited => {
                drop(timer.begin_stop().wait_timeout(Duration::ZERO));
                None
            }
            Self::LastHandleInATask => {
                let holds = Action::DropHandle(timer.clone());
                plains.share(schedule(timer, plains, Duration::ZERO, holds));
                None
            }
            Self::LastHandle | Self::Driver => None,
        }
    }
}

impl Running {
    /// Ends the timer, possibly while threads still use it. Then `finish` ends those. Returns the
    /// tally, after it was checked.
    #[allow(clippy::mutable_key_type, reason = "a timeout is hashed by identity")]
    pub(crate) fn end(self, may_be_left: bool, finish: impl FnOnce() -> Vec<Loads>) -> Arc<Tally> {
        let Self {
            plan,
            shared,
            observer: Entry { timeout, ticket },
            mut driver,
            pool,
        } = self;
        let (tally, plains) = (Arc::clone(&shared.tally), Arc::clone(&shared.plains));
        let returned = plan.ending.begin(&shared);
        if plan.ending == Ending::Driver {
            driver.take().into_iter().for_each(DriverThread::end);
        }
        // Other kinds of use have handles, so they go after the end of the timer.
        let shared = Some(shared).filter(|_| plan.is_mixed);
        let loads = finish();
        let has_ended = comes(|| timeout.is_cancelled() && ticket.get(Count::TaskDrop) > 0);
        tally.expect(has_ended, || "the timer has not ended".into());
        driver.into_iter().for_each(DriverThread::end);
        match shared {
            Some(shared) => shared.settle(loads),
            None => drop(loads),
        }
        pool.into_iter()
            .for_each(|thread| thread.join().expect("the timer catches panics of tasks"));
        drop((plains.take_shared(), ticket));
        let all = || returned.iter().flatten();
        let unique: HashSet<&Timeout> = all().collect();
        let is_right = all().all(Timeout::is_cancelled) && all().count() == unique.len();
        tally.expect(is_right, || {
            "stop has returned a timeout twice, or one that is not cancelled".into()
        });
        let returned = returned.as_ref().map(Vec::len);
        tally.close(&timeout.timer(), may_be_left, returned, !plan.is_mixed);
        tally
    }
}

/// Creates a timer, lets some threads use it, and ends it. They go on a little longer.
pub(crate) fn run_temporary(
    random: &mut Rng,
    max_late: Duration,
    sabotage: Option<Sabotage>,
) -> Arc<Tally> {
    // The end of a timer would wait for what these make late.
    let waits = matches!(sabotage, Some(Sabotage::Late | Sabotage::LostWake));
    let plan = Plan::temporary(random, sabotage);
    let (is_mixed, has_limit) = (plan.is_mixed, plan.limit.is_some());
    let mut running = plan.start(max_late, sabotage.filter(|_| !waits));
    let is_over = Arc::new(AtomicBool::new(false));
    let start = |mut random: Rng| {
        let (is_over, timer) = (Arc::clone(&is_over), running.shared.timer.clone());
        let mut loads = running.shared.loads();
        thread::spawn(move || {
            while !is_over.load(SeqCst) && !timer.is_stopped() {
                loads.work(10_usize.pow(random.u32(0..5)), &mut random);
                crate::pause(&mut random);
            }
            Some(loads).filter(|_| is_mixed)
        })
    };
    let threads: Vec<_> = (0..random.u8(1..=3))
        .map(|_| random.fork())
        .map(start)
        .collect();
    thread::sleep(Duration::from_micros(1 << random.u32(8..18)));
    // Under a limit there may be no place for the next observer.
    if !has_limit && random.u8(0..4) == 0 {
        cancel_all(&running.shared.timer, &running.shared.tally, is_mixed);
        running.observer = observer(&running.shared);
    }
    running.end(true, || {
        is_over.store(true, SeqCst);
        let end = |thread: JoinHandle<_>| thread.join().expect("a load does not panic");
        threads.into_iter().filter_map(end).collect()
    })
}
