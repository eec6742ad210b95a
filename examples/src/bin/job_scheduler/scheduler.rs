//! A scheduler. Any number of schedulers on any number of machines share the jobs of one database.
//!
//! ```text
//!                    beat: renew the lease, take over, read ahead          at the due time
//! PostgreSQL ──────────────► the scheduler's thread ──► the wheel ──────────────────────────► pool of threads
//!     ▲                              ▲   └── next beat ──┘                                          │
//!     └──────────────────────────────┴───────────── began, done or failed ◄─────────────────────────┘
//! ```
//!
//! The database stores what is due, and the wheel waits for the exact time. Each beat is a
//! transaction. It renews the lease of the scheduler, takes over the runs of lost schedulers, and
//! claims the runs of the next seconds. The wheel holds these runs until they are due. No run
//! executes on the timer's worker, which only sends it to the pool.
//!
//! An error of the database or the loss of the lease ends the scheduler. Its caller starts another
//! one with another number, and the runs of the first one are taken over. So all errors have the
//! same recovery: that of a killed process.
//!
//! **Guarantees.** Each due time has its run. A run that was not started when its scheduler was
//! lost is started elsewhere, once. A run that was started and not finished is started again and
//! marked: by its `attempt`, the task detects that it may have been done before. The same holds if
//! the scheduler was not dead but stopped for longer than its lease (a suspended machine, a network
//! failure). It can no longer start runs that it had not started. But it may finish runs that it
//! had started, while another scheduler repeats them. No database can prevent that. A task that
//! must not be done twice at the same time has to check `attempt` where it takes effect. A task
//! that kills its scheduler would kill one after the other: such a task should give up according to
//! its `attempt`.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use postgres::Config;

use crate::clock::Clock;
use crate::schedule::Window;
use crate::store::{Run, Store};

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// How far in advance it reads. It is longer than the lease, because rows that a stopped
    /// scheduler has locked stay locked for the duration of the lease.
    pub(crate) lead: Duration,
    /// The runs of a scheduler are taken over when it has not renewed its lease for this time.
    pub(crate) lease: Duration,
    /// A due time without a scheduler is a misfire when it is older than this.
    pub(crate) misfire_after: Duration,
    /// The maximum number of runs that it has at a time, on the wheel and in the pool. Other
    /// schedulers get the rest.
    pub(crate) max_runs: usize,
    /// Also starts runs that it no longer owns. The trial uses this to show that the error would be
    /// detected.
    pub(crate) is_unchecked: bool,
}

/// Why a scheduler has ended.
#[derive(Debug)]
pub(crate) enum Error {
    /// It has not renewed its lease in time, and others take over its runs.
    LeaseLost,
    Database(postgres::Error),
    Timer(NewTimeoutError),
}

enum Event {
    Beat,
    /// The database's clock was set back while the run was on the wheel.
    Early(Run),
    Failed(Error),
}

/// Returns a suitable timer: all of its timeouts are due within seconds, so one round of the wheel
/// is enough.
pub(crate) fn timer() -> HashedWheelTimer {
    HashedWheelTimer::new(Duration::from_millis(1), 8_192)
}

/// Runs until `stop` is set, which it checks at each beat. It still executes the runs that it has
/// already read. Each of the `tasks` gets a thread with its own connection and executes runs: `Ok`
/// is the result, and `Err` or a panic is the reason for a failure.
///
/// A task that never ends blocks its thread, because the lease is renewed independently. If all
/// threads are blocked, the runs that were read are blocked too. Therefore tasks need their own
/// timeouts. The timer is stopped at the end.
pub(crate) fn run<T>(
    config: &Config,
    settings: &Settings,
    timer: &HashedWheelTimer,
    tasks: Vec<T>,
    stop: &AtomicBool,
) -> Result<(), Error>
where
    T: FnMut(&Run) -> Result<String, String> + Send,
{
    let mut store = Store::connect(config, settings.lease)?;
    let (id, reading) = store.register()?;
    let (events, receiver) = mpsc::channel();
    let (pool, due) = mpsc::channel();
    let scheduler = Scheduler {
        id,
        settings,
        clock: Mutex::new(Clock::new(reading)),
        run_count: AtomicUsize::new(0),
        events,
    };
    let due = Mutex::new(due);
    thread::scope(|scope| {
        for task in tasks {
            scope.spawn(|| {
                let ended = Store::connect(config, settings.lease).map_err(Error::from);
                if let Err(error) = ended.and_then(|store| scheduler.work(store, &due, task)) {
                    // An error means that the scheduler has already ended.
                    let _ = scheduler.events.send(Event::Failed(error));
                }
            });
        }
        let ended = scheduler.lead(&mut store, timer, &pool, receiver, stop);
        // The wheel's tasks own the senders of the pool. When all senders are dropped, the threads
        // end.
        timer.stop();
        drop(pool);
        ended
    })
}

/// The state that the threads of a scheduler share.
struct Scheduler<'a> {
    id: i64,
    settings: &'a Settings,
    clock: Mutex<Clock>,
    /// The number of runs that it has.
    run_count: AtomicUsize,
    events: Sender<Event>,
}

impl Scheduler<'_> {
    fn lead(
        &self,
        store: &mut Store,
        timer: &HashedWheelTimer,
        pool: &Sender<Run>,
        receiver: Receiver<Event>,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        let mut event = Event::Beat;
        loop {
            match event {
                Event::Beat => {
                    let began = Instant::now();
                    let is_stopping = stop.load(Relaxed);
                    if is_stopping && self.run_count.load(Relaxed) == 0 {
                        return Ok(store.leave(self.id)?);
                    }
                    for run in self.beat(store, is_stopping)? {
                        self.put_on_wheel(run, timer, pool)?;
                    }
                    let events = self.events.clone();
                    timer.new_timeout_at(move |_| drop(events.send(Event::Beat)), began + self.pause())?;
                }
                Event::Early(run) => self.put_on_wheel(run, timer, pool)?,
                Event::Failed(error) => return Err(error),
            }
            event = receiver.recv().expect("`self` owns a sender");
        }
    }

    /// Renews the lease. Returns the runs that it has claimed or taken over.
    fn beat(&self, store: &mut Store, is_stopping: bool) -> Result<Vec<Run>, Error> {
        let Settings { lead, misfire_after, max_runs, .. } = *self.settings;
        let mut beat = store.beat(self.id)?.ok_or(Error::LeaseLost)?;
        let reading = beat.reading;
        let mut runs = Vec::new();
        if !is_stopping {
            let room = max_runs.saturating_sub(self.run_count.load(Relaxed));
            runs = beat.take_over(room)?;
            let window = Window { oldest: reading.clock - misfire_after, horizon: reading.clock + lead };
            runs.extend(beat.read_ahead(window, room - runs.len())?);
        }
        beat.commit()?;
        self.run_count.fetch_add(runs.len(), Relaxed);
        self.clock.lock().unwrap().learn(reading);
        Ok(runs)
    }

    /// Returns the time until the next beat: there are at least three per lease. It is random, so
    /// that all schedulers get a share of the runs.
    fn pause(&self) -> Duration {
        self.settings.lease.mul_f64(fastrand::f64().mul_add(0.5, 0.5) / 3.0)
    }

    fn put_on_wheel(&self, run: Run, timer: &HashedWheelTimer, pool: &Sender<Run>) -> Result<(), Error> {
        let due = self.clock.lock().unwrap().instant(run.due);
        let pool = pool.clone();
        timer.new_timeout_at(move |_| drop(pool.send(run)), due)?;
        Ok(())
    }

    /// A thread of the pool.
    fn work<T>(&self, mut store: Store, due: &Mutex<Receiver<Run>>, mut task: T) -> Result<(), Error>
    where
        T: FnMut(&Run) -> Result<String, String>,
    {
        loop {
            let run = due.lock().unwrap().recv();
            // All senders are dropped: the scheduler has ended.
            let Ok(run) = run else { return Ok(()) };
            if self.clock.lock().unwrap().instant(run.due) > Instant::now() {
                let _ = self.events.send(Event::Early(run));
                continue;
            }
            if !store.start(self.id, &run)? && !self.settings.is_unchecked {
                return Err(Error::LeaseLost);
            }
            let result = catch_unwind(AssertUnwindSafe(|| task(&run)));
            let result = result.unwrap_or_else(|_| Err("the task panicked".into()));
            if !store.finish(self.id, &run, &result)? {
                return Err(Error::LeaseLost);
            }
            self.run_count.fetch_sub(1, Relaxed);
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseLost => write!(f, "its lease has ended"),
            Self::Database(error) => {
                write!(f, "database error: {error}")?;
                // The error contains only its kind.
                std::error::Error::source(error).map_or(Ok(()), |why| write!(f, ": {why}"))
            }
            Self::Timer(error) => write!(f, "timer error: {error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<postgres::Error> for Error {
    fn from(error: postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<NewTimeoutError> for Error {
    fn from(error: NewTimeoutError) -> Self {
        Self::Timer(error)
    }
}
