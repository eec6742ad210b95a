//! The life of a node under one number, from its registration to the loss of its lease.
//!
//! ```text
//!                  beat: renew the lease, take over, read ahead           at the due time
//! PostgreSQL ───────────────► lead ──► queue on the wheel ──► start ──────────────────────► handlers
//!     ▲                        ▲                  ▲             │ running                      │
//!     │                 notification        retry │             ▼                              │
//!     └──────────────────────────────────────── finish ◄───────────────────────────────────────┘
//! ```
//!
//! The database stores what is due, and the wheel waits for the exact time. Each beat is a
//! transaction. It renews the lease of the node, takes over the runs of lost nodes, and claims the
//! runs of the next seconds. The wheel holds these runs until they are due. `start` and `finish`
//! each send one statement for all runs that are there.
//!
//! An error of the database or the loss of the lease ends the session. The scheduler opens another
//! one with another number. So all errors have the same recovery: that of a killed process. Only
//! the executions continue, while the lease of the first session lasts, and the second one gets
//! them.

mod held;
mod work;

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hashed_wheel_util::delay_queue::DelayQueue;
use tokio::sync::{Notify, watch};

use crate::caught::caught;
use crate::clock::Clock;
use crate::connect::within;
use crate::error::Error;
use crate::execution::{Executions, Results};
use crate::job::PRIORITIES;
use crate::looks::{Looks, MIN_PAUSE};
use crate::misfire::Window;
use crate::observe;
use crate::ready::{Queued, Ready};
use crate::settings::Shared;
use crate::store::{self, Limits, Look, Registered, Role, Store};

/// The maximum number of results that are removed at a time.
const CLEANING_BATCH: usize = 2_000;

/// Whether a node should end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stop {
    No,
    /// It should finish what is running until this time.
    At(Instant),
}

/// The last session of this process, which has ended by an error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Previous {
    number: i64,
    /// The end of its lease, until which its executions continue. `None`: they have ended.
    pub(crate) until: Option<Instant>,
}

impl Previous {
    pub(crate) fn without_executions(self) -> Self {
        Self {
            until: None,
            ..self
        }
    }
}

pub(crate) struct Session {
    id: i64,
    shared: Arc<Shared>,
    clock: Mutex<Clock>,
    /// The end of the lease.
    until: Mutex<Instant>,
    /// The beginning of the last beat.
    beat: Mutex<Instant>,
    queue: DelayQueue<Queued>,
    /// Those from the queue that are due and have no runner.
    ready: Mutex<Ready>,
    /// Wakes `start`: runs were taken from the queue.
    has_ready: Notify,
    /// The number of runs that it has: in the queue, executing, or not yet written.
    held: AtomicUsize,
    /// Of these, the ones that do not count for the capacity: they wait until a result is written,
    /// or for the locks of a transaction of an application. That delays no other job.
    parked: AtomicUsize,
    /// Whether the last read took fewer runs than there were, because it held too many.
    is_starved: AtomicBool,
    /// No more runs start.
    is_stopping: AtomicBool,
    /// Since when all runners are busy while `start` needs one.
    out_of_runners: Mutex<Option<Instant>>,
    /// A look waits for a free runner.
    is_postponed: AtomicBool,
    /// Needs a beat at once.
    wake: Arc<Notify>,
    /// Needs a look, which shows whether it needs a beat.
    heard: Arc<Notify>,
    /// A connection has ended.
    lost: Arc<Notify>,
}

/// The connections of a session.
pub(crate) struct Stores {
    lead: Store,
    start: Store,
    finish: Store,
}

impl Session {
    /// Connects and registers. The executions of the `previous` session continue in this one, if
    /// its lease has not ended. Its other runs can be claimed immediately.
    pub(crate) async fn open(
        shared: Arc<Shared>,
        executions: &Executions,
        previous: Option<Previous>,
    ) -> Result<(Self, Stores), Error> {
        let [wake, heard, lost] = [(); 3].map(|()| Arc::new(Notify::new()));
        let lease = shared.settings.lease;
        // Zero until it has one.
        let number = Arc::new(AtomicI64::new(0));
        let connect = async |role| -> Result<Store, Error> {
            let (names, heard) = (shared.handlers.names(), heard.clone());
            let (cancels, number, wake) =
                (shared.names.cancel_channel(), number.clone(), wake.clone());
            let hear = move |channel: &str, text: &str| {
                if channel == cancels {
                    // The number of a node. Its next beat finds the runs.
                    if text.parse() == Ok(number.load(Relaxed)) {
                        wake.notify_one();
                    }
                // Without the name of a handler, a notification is for all nodes.
                } else if text.is_empty() || names.iter().any(|name| name == text) {
                    heard.notify_one();
                }
            };
            let client = shared.connector.connect(lease, hear, lost.clone()).await?;
            Ok(Store::new(client, &shared.names, lease, shared.settings.listens, role).await?)
        };
        let open = async {
            let mut stores = Stores {
                lead: connect(Role::Lead).await?,
                start: connect(Role::Start).await?,
                finish: connect(Role::Finish).await?,
            };
            if shared.settings.listens {
                stores.lead.listen(&shared.names).await?;
            }
            let executing = previous
                .and_then(|previous| previous.until)
                .map(|_| executions.runs());
            let previous = store::Previous {
                number: previous.map(|previous| previous.number),
                executing,
                excused: executions.excused(),
                culprit: executions.culprit(),
            };
            let (settings, handlers) = (&shared.settings, shared.handlers.names());
            let registered = stores
                .lead
                .register(&settings.name, &handlers, settings.heartbeat(), previous)
                .await?;
            Ok((stores, registered))
        };
        // Several connections are opened.
        let (stores, Registered { id, reading, kept }) =
            within(&shared.timer, lease * 4, open).await?;
        number.store(id, Relaxed);
        executions.resume(&kept);
        let session = Self {
            id,
            clock: Mutex::new(Clock::new(reading)),
            until: Mutex::new(reading.sent() + lease),
            beat: Mutex::new(reading.sent()),
            queue: DelayQueue::new(&shared.timer),
            ready: Mutex::default(),
            has_ready: Notify::new(),
            held: AtomicUsize::new(kept.len()),
            parked: AtomicUsize::new(0),
            is_starved: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            out_of_runners: Mutex::new(None),
            is_postponed: AtomicBool::new(false),
            wake,
            heard,
            lost,
            shared,
        };
        Ok((session, stores))
    }

    /// Runs until `stop`, or until an error. Executions continue only after an error, and if the
    /// lease has not ended. If a handler blocks its thread for longer than a lease, its run is not
    /// given to the next session.
    pub(crate) async fn run(
        self,
        mut stores: Stores,
        executions: &Executions,
        results: &mut Results,
        stop: &mut watch::Receiver<Stop>,
    ) -> (Result<(), Error>, Option<Previous>) {
        let session = async {
            tokio::select! {
                result = self.lead(&mut stores.lead, executions, stop) => result,
                Err(error) = self.start(&stores.start, executions) => Err(error),
                Err(error) = self.finish(&stores.finish, executions, results) => Err(error),
                Err(error) = self.watch([&stores.start, &stores.finish]) => Err(error),
            }
        };
        let result = caught(session)
            .await
            .unwrap_or_else(|message| Err(Error::Panic(message)));
        let (lease, number) = (self.shared.settings.lease, self.id);
        if result.is_err() {
            executions.failed();
            results.failed(executions);
        }
        match result {
            Ok(()) => {
                let have_ended = executions.end().await;
                let leave = async { Ok(stores.lead.leave(number, have_ended).await?) };
                (within(&self.shared.timer, lease, leave).await, None)
            }
            Err(Error::LeaseLost) => {
                // The node has asked in time, and the database was slow.
                let is_excused = *lock(&self.beat) < *lock(&self.until);
                let have_ended = if is_excused {
                    executions.end_excused().await
                } else {
                    executions.end().await
                };
                (
                    result,
                    have_ended.then_some(Previous {
                        number,
                        until: None,
                    }),
                )
            }
            Err(_) => {
                let until = *lock(&self.until);
                (
                    result,
                    Some(Previous {
                        number,
                        until: Some(until),
                    }),
                )
            }
        }
    }

    /// Detects the end of a connection that may not be used for long. The next run would be late.
    async fn watch(&self, stores: [&Store; 2]) -> Result<Infallible, Error> {
        loop {
            self.lost.notified().await;
            // The connection that listens is checked by a beat.
            self.wake.notify_one();
            for store in stores {
                within(&self.shared.timer, self.shared.settings.lease, async {
                    Ok(store.check().await?)
                })
                .await?;
            }
        }
    }

    async fn lead(
        &self,
        store: &mut Store,
        executions: &Executions,
        stop: &mut watch::Receiver<Stop>,
    ) -> Result<(), Error> {
        let lease = self.shared.settings.lease;
        let mut cleaned = Instant::now();
        let mut stalled = None;
        let mut looks = Looks::new();
        let mut has_looked = false;
        loop {
            let began = Instant::now();
            let stopping = *stop.borrow_and_update();
            if self.is_stalled() {
                stalled = Some(began);
                within(&self.shared.timer, lease, self.share(store)).await?;
            }
            let limit = self.limit(stopping, stalled);
            let beat = self.beat(store, executions, limit);
            let (count, has_more) = within(&self.shared.timer, lease, beat).await?;
            if has_looked {
                looks.learn(count > 0);
            }
            if let Stop::At(end) = stopping {
                if !self.is_stopping.swap(true, Relaxed) {
                    let stop_serving = async { Ok(store.stop_serving(self.id).await?) };
                    within(&self.shared.timer, lease, stop_serving).await?;
                }
                within(&self.shared.timer, lease, self.give_back(store)).await?;
                if self.held.load(Relaxed) == 0 || Instant::now() >= end {
                    return Ok(());
                }
            }
            if cleaned.elapsed() >= self.shared.settings.cleaning_interval() {
                let retention = self.shared.settings.retention;
                let clean = async { Ok(store.clean(retention, CLEANING_BATCH).await?) };
                if !within(&self.shared.timer, lease, clean).await? {
                    cleaned = Instant::now();
                }
            }
            has_looked = !has_more && self.pause(store, &mut looks, began, stopping, stop).await?;
        }
    }

    /// Renews the lease and claims runs. Returns their number, and whether there may be more.
    async fn beat(
        &self,
        store: &mut Store,
        executions: &Executions,
        limit: usize,
    ) -> Result<(usize, bool), Error> {
        let settings = &self.shared.settings;
        *lock(&self.beat) = Instant::now();
        let beat = store.beat(self.id).await?.ok_or(Error::LeaseLost)?;
        let (reading, must_settle) = (beat.reading, beat.must_settle);
        executions.cancel(&beat.cancelled);
        let mut runs = Vec::new();
        // Also those that are skipped, or start so late that no node has claimed them.
        let mut taken = 0;
        let free = settings.capacity.saturating_sub(self.load());
        let room = free.min(limit);
        let urgent = if room == 0 {
            self.urgent_room(limit)
        } else {
            (0, *PRIORITIES.start())
        };
        if room + urgent.0 > 0 {
            let (room, min_priority) = (room + urgent.0, urgent.1);
            // Only what is due now is urgent.
            let ahead = if urgent.0 == 0 {
                settings.prefetch
            } else {
                Duration::ZERO
            };
            let window = Window {
                oldest: reading.clock - settings.misfire_after,
                horizon: reading.clock + ahead,
            };
            let handlers = self.shared.handlers.names();
            let now = reading.clock;
            let limits = |taken| Limits {
                window,
                room: room - taken,
                handlers: &handlers,
                now,
                min_priority,
            };
            if urgent.0 == 0 {
                runs = beat.take_over(limits(0)).await?;
                observe::taken_over(&runs);
            }
            runs.extend(beat.claim_waiting(limits(runs.len())).await?);
            let (read, count) = beat.read_ahead(limits(runs.len())).await?;
            taken = runs.len() + count;
            runs.extend(read);
        }
        beat.commit().await?;
        let until = reading.sent() + settings.lease;
        *lock(&self.until) = until;
        self.shared.vitals.beat(until);
        observe::beat();
        lock(&self.clock).learn(reading);
        self.is_starved
            .store(urgent.0 > 0 || taken == free, Relaxed);
        let has_more = taken == room && runs.len() < free && limit == settings.batch;
        let count = runs.len();
        self.enqueue(runs)?;
        if must_settle {
            store.settle(settings.prefetch).await?;
        }
        Ok((count, has_more))
    }

    /// Waits until the next beat. It is at a random time, so that all nodes get a share of the
    /// runs. Returns whether it is early, because a look has found work.
    async fn pause(
        &self,
        store: &Store,
        looks: &mut Looks,
        began: Instant,
        stopping: Stop,
        stop: &mut watch::Receiver<Stop>,
    ) -> Result<bool, Error> {
        let Shared {
            settings,
            handlers,
            timer,
            ..
        } = &*self.shared;
        let heartbeat = settings
            .heartbeat()
            .mul_f64(fastrand::f64().mul_add(0.5, 0.5));
        let next = match stopping {
            Stop::No => began + heartbeat,
            Stop::At(end) => end.min(began + heartbeat),
        };
        loop {
            // First, so that a runner that is released meanwhile repeats this.
            self.is_postponed.store(looks.is_needed, Relaxed);
            let has_runner = lock(&self.out_of_runners).is_none();
            self.is_postponed.fetch_and(!has_runner, Relaxed);
            tokio::select! {
                elapsed = timer.sleep_until(next) => elapsed?,
                () = self.wake.notified() => timer.sleep_until(began + MIN_PAUSE).await?,
                // It can only change once. If the sender is dropped, the session is dropped too.
                Ok(()) = stop.changed() => {}
                () = self.heard.notified() => {
                    looks.is_needed = true;
                    continue;
                }
                elapsed = timer.sleep_until(looks.next(has_runner)), if looks.is_needed => {
                    elapsed?;
                    looks.begin();
                    let look = async { Ok(store.look(&handlers.names(), settings.prefetch).await?) };
                    let Look { has_work, is_settled } = within(&self.shared.timer, settings.lease, look).await?;
                    looks.is_needed = !is_settled;
                    if has_work {
                        return Ok(true);
                    }
                    looks.learn(false);
                    continue;
                }
            }
            return Ok(false);
        }
    }
}

/// No code panics while it holds one of the locks of a session.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
