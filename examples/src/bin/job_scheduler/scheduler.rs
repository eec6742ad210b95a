//! A scheduler: any number of them, on any number of machines, share the jobs of one database.
//!
//! ```text
//!                    beat: renew the lease, take over, read ahead          at the due time
//! PostgreSQL ──────────────► the scheduler's thread ──► the wheel ──────────────────────────► pool of threads
//!     ▲                              ▲   └── next beat ──┘                                          │
//!     └──────────────────────────────┴───────────── began, done or failed ◄─────────────────────────┘
//! ```
//!
//! The database knows what falls due, the wheel when exactly that is. Each beat is a transaction that says that the
//! scheduler is alive, takes over what the dead have left, and claims what falls due within the next seconds; the wheel
//! has it until then. Nothing runs on the timer's worker: to hand a run to the pool is all it does.
//!
//! What goes wrong with the database, or with the lease, ends the scheduler: its caller starts another, under another
//! number, and what the first one had is taken over in time. So there is one way back from all troubles, and it is
//! the one that a killed process takes.
//!
//! **What holds.** Each due time has its run. A run that was not begun when its scheduler was lost begins elsewhere, once. One
//! that was begun and not ended begins again, and is marked: the task sees by its `attempt` that it may have been done before.
//! That is so too where the scheduler was not dead but stopped for longer than its lease (a machine that sleeps, a network
//! that is cut): what it has not begun it cannot begin any more, and what it had begun it may end, unseen, while
//! another does the same. No database can prevent that; a task that must not be done twice at a time has to check `attempt`
//! where it takes effect. And one that is its scheduler's death would go from one to the next: let it give up by its `attempt`.

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
    /// How far it reads ahead. Longer than the lease: what a scheduler had locked when it was stopped is locked for so long.
    pub(crate) lead: Duration,
    /// What a scheduler has is taken over when nothing was heard of it for so long.
    pub(crate) lease: Duration,
    /// What fell due longer ago, and was nobody's, is a misfire.
    pub(crate) misfire_after: Duration,
    /// How many runs it has at a time, on the wheel and in the pool. What is more is left to others.
    pub(crate) most: usize,
    /// Begins also what is no longer its own: for the trial, to show that this would be seen.
    pub(crate) is_unchecked: bool,
}

/// Why a scheduler is over.
#[derive(Debug)]
pub(crate) enum Error {
    /// It was not heard of for too long, and others take over what it had.
    LeaseLost,
    Database(postgres::Error),
    Timer(NewTimeoutError),
}

enum Event {
    Beat,
    /// The database's clock was set back while it was on the wheel.
    Early(Run),
    Failed(Error),
}

/// One that fits: all that is on it is due within seconds, a turn of the wheel and no more.
pub(crate) fn timer() -> HashedWheelTimer {
    HashedWheelTimer::new(Duration::from_millis(1), 8_192)
}

/// Works until `stop` is set, which it sees at its next beat; what it has read ahead it still runs. There is a thread, with a
/// connection of its own, for each of the `tasks`, which do what a run asks for: `Ok` is its result, and `Err`, or a panic,
/// why it has failed. A task that never ends keeps its thread, for the lease is renewed beside it; when all threads are kept,
/// so is what was read ahead: tasks need a timeout of their own. The timer is stopped at the end.
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
    let (events, inbox) = mpsc::channel();
    let (pool, due) = mpsc::channel();
    let scheduler =
        Scheduler { id, settings, clock: Mutex::new(Clock::new(reading)), has: AtomicUsize::new(0), events };
    let due = Mutex::new(due);
    thread::scope(|scope| {
        for task in tasks {
            scope.spawn(|| {
                let ended = Store::connect(config, settings.lease).map_err(Error::from);
                if let Err(error) = ended.and_then(|store| scheduler.work(store, &due, task)) {
                    // If nobody wants to know, it is over already.
                    let _ = scheduler.events.send(Event::Failed(error));
                }
            });
        }
        let ended = scheduler.lead(&mut store, timer, &pool, inbox, stop);
        // The wheel's tasks hold the pool's other ends: once all are gone the threads end.
        timer.stop();
        drop(pool);
        ended
    })
}

/// What its threads share.
struct Scheduler<'a> {
    id: i64,
    settings: &'a Settings,
    clock: Mutex<Clock>,
    /// How many runs it has.
    has: AtomicUsize,
    events: Sender<Event>,
}

impl Scheduler<'_> {
    fn lead(
        &self,
        store: &mut Store,
        timer: &HashedWheelTimer,
        pool: &Sender<Run>,
        inbox: Receiver<Event>,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        let mut event = Event::Beat;
        loop {
            match event {
                Event::Beat => {
                    let began = Instant::now();
                    let is_leaving = stop.load(Relaxed);
                    if is_leaving && self.has.load(Relaxed) == 0 {
                        return Ok(store.leave(self.id)?);
                    }
                    for run in self.beat(store, is_leaving)? {
                        self.put_on_wheel(run, timer, pool)?;
                    }
                    let events = self.events.clone();
                    timer.new_timeout_at(move |_| drop(events.send(Event::Beat)), began + self.pause())?;
                }
                Event::Early(run) => self.put_on_wheel(run, timer, pool)?,
                Event::Failed(error) => return Err(error),
            }
            event = inbox.recv().expect("one sender is ours");
        }
    }

    /// Renews the lease. What it takes upon itself is what this returns.
    fn beat(&self, store: &mut Store, is_leaving: bool) -> Result<Vec<Run>, Error> {
        let Settings { lead, misfire_after, most, .. } = *self.settings;
        let mut beat = store.beat(self.id)?.ok_or(Error::LeaseLost)?;
        let reading = beat.reading;
        let mut runs = Vec::new();
        if !is_leaving {
            let room = most.saturating_sub(self.has.load(Relaxed));
            runs = beat.take_over(room)?;
            let window = Window { oldest: reading.clock - misfire_after, horizon: reading.clock + lead };
            runs.extend(beat.read_ahead(window, room - runs.len())?);
        }
        beat.commit()?;
        self.has.fetch_add(runs.len(), Relaxed);
        self.clock.lock().unwrap().learn(reading);
        Ok(runs)
    }

    /// Until the next beat: there are three or more to a lease. Not the same for all, so that all get something to do.
    fn pause(&self) -> Duration {
        self.settings.lease.mul_f64(fastrand::f64().mul_add(0.5, 0.5) / 3.0)
    }

    fn put_on_wheel(&self, run: Run, timer: &HashedWheelTimer, pool: &Sender<Run>) -> Result<(), Error> {
        let due = self.clock.lock().unwrap().instant(run.due);
        let pool = pool.clone();
        timer.new_timeout_at(move |_| drop(pool.send(run)), due)?;
        Ok(())
    }

    /// One thread of the pool.
    fn work<T>(&self, mut store: Store, due: &Mutex<Receiver<Run>>, mut task: T) -> Result<(), Error>
    where
        T: FnMut(&Run) -> Result<String, String>,
    {
        loop {
            let run = due.lock().unwrap().recv();
            // The other ends are gone: it is over.
            let Ok(run) = run else { return Ok(()) };
            if self.clock.lock().unwrap().instant(run.due) > Instant::now() {
                let _ = self.events.send(Event::Early(run));
                continue;
            }
            if !store.start(self.id, &run)? && !self.settings.is_unchecked {
                return Err(Error::LeaseLost);
            }
            let result = catch_unwind(AssertUnwindSafe(|| task(&run)));
            let result = result.unwrap_or_else(|_| Err("it panicked".into()));
            if !store.finish(self.id, &run, &result)? {
                return Err(Error::LeaseLost);
            }
            self.has.fetch_sub(1, Relaxed);
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseLost => write!(f, "its lease has run out"),
            Self::Database(error) => {
                write!(f, "the database: {error}")?;
                // That says only what kind of error it is.
                std::error::Error::source(error).map_or(Ok(()), |why| write!(f, ": {why}"))
            }
            Self::Timer(error) => write!(f, "the timer: {error}"),
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
