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
//! one with another number, and the runs of the first one are taken over. So all errors have the
//! same recovery: that of a killed process.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use hashed_wheel::TimeoutError;
use hashed_wheel::delay_queue::DelayQueue;
use serde_json::Value;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::error::Error;
use crate::handler::{RunError, panic_message, text_without_nul};
use crate::observe::{self, End};
use crate::schedule::Window;
use crate::settings::Shared;
use crate::store::{Finished, Limits, Run, Started, Store};

/// The maximum number of runs in one statement that starts or finishes runs.
const MAX_BATCH: usize = 256;

/// The minimum time between two reads, if notifications arrive all the time.
const MIN_PAUSE: Duration = Duration::from_millis(5);

/// The maximum number of results that are removed at a time.
const CLEANING_BATCH: usize = 1_000;

/// Whether a node should end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stop {
    No,
    /// It should finish what is running until this time.
    At(Instant),
}

pub(crate) struct Session {
    id: i64,
    shared: Arc<Shared>,
    clock: Mutex<Clock>,
    queue: DelayQueue<Run>,
    /// The number of runs that it has: in the queue, running, or not yet written.
    held: AtomicUsize,
    /// Whether the last read took fewer runs than there were, because it held too many.
    is_starved: AtomicBool,
    wake: Arc<Notify>,
}

/// The connections of a session.
pub(crate) struct Stores {
    lead: Store,
    start: Store,
    finish: Store,
}

/// The end of an execution.
struct Execution {
    run: Run,
    result: Result<Value, RunError>,
    retries: u32,
    backoff: (Duration, Duration),
    took: Duration,
    /// Another run may start when the result is written.
    _permit: OwnedSemaphorePermit,
}

impl Session {
    /// Connects and registers. The runs of the `previous` session of this process can then be taken
    /// over immediately.
    pub(crate) async fn open(shared: Arc<Shared>, previous: Option<i64>) -> Result<(Self, Stores), Error> {
        let wake = Arc::new(Notify::new());
        let lease = shared.settings.lease;
        let connect = async || -> Result<Store, Error> {
            let client = shared.connector.connect(lease, wake.clone()).await?;
            Ok(Store::new(client, &shared.names, lease).await?)
        };
        let open = async {
            let stores = Stores { lead: connect().await?, start: connect().await?, finish: connect().await? };
            stores.lead.listen().await?;
            if let Some(previous) = previous {
                stores.lead.leave(previous).await?;
            }
            let registered = stores.lead.register(&shared.settings.name).await?;
            Ok((stores, registered))
        };
        // Several connections are opened.
        let (stores, (id, reading)) = within(&shared, lease * 4, open).await?;
        let session = Self {
            id,
            clock: Mutex::new(Clock::new(reading)),
            queue: DelayQueue::new(&shared.timer),
            held: AtomicUsize::new(0),
            is_starved: AtomicBool::new(false),
            wake,
            shared,
        };
        Ok((session, stores))
    }

    /// Runs until `stop`, or until an error. Then no handler is executing any more. Only if a
    /// handler blocks its thread for longer than a lease, it returns earlier, and without its
    /// number; otherwise the number can be given to the next session.
    pub(crate) async fn run(
        self,
        mut stores: Stores,
        stop: &mut watch::Receiver<Stop>,
    ) -> (Result<(), Error>, Option<i64>) {
        let mut handlers = JoinSet::new();
        let (results, finished) = mpsc::unbounded_channel();
        let result = tokio::select! {
            result = self.lead(&mut stores.lead, stop) => result,
            Err(error) = self.start(&stores.start, &mut handlers, results) => Err(error),
            Err(error) = self.finish(&stores.finish, finished) => Err(error),
        };
        let lease = self.shared.settings.lease;
        let have_ended = self.shared.timer.timeout(lease, handlers.shutdown()).await.is_ok();
        if have_ended && result.is_ok() {
            // Otherwise the runs are taken over after the lease, or by the next session.
            let left = within(&self.shared, lease, async { Ok(stores.lead.leave(self.id).await?) }).await;
            return (left, None);
        }
        (result, have_ended.then_some(self.id))
    }

    async fn lead(&self, store: &mut Store, stop: &mut watch::Receiver<Stop>) -> Result<(), Error> {
        let lease = self.shared.settings.lease;
        let mut cleaned = Instant::now();
        loop {
            let began = Instant::now();
            let stopping = *stop.borrow_and_update();
            let has_more = within(&self.shared, lease, self.beat(store, stopping != Stop::No)).await?;
            if let Stop::At(end) = stopping {
                self.give_back(store).await?;
                if self.held.load(Relaxed) == 0 || Instant::now() >= end {
                    return Ok(());
                }
            }
            if cleaned.elapsed() >= self.shared.settings.cleaning_interval() {
                let retention = self.shared.settings.retention;
                let clean = async { Ok(store.clean(retention, CLEANING_BATCH).await?) };
                if !within(&self.shared, lease, clean).await? {
                    cleaned = Instant::now();
                }
            }
            if !has_more {
                self.pause(began, stopping, stop).await?;
            }
        }
    }

    /// Renews the lease and claims runs. Returns whether there may be more.
    async fn beat(&self, store: &mut Store, is_stopping: bool) -> Result<bool, Error> {
        let settings = &self.shared.settings;
        let beat = store.beat(self.id).await?.ok_or(Error::LeaseLost)?;
        let reading = beat.reading;
        let mut runs = Vec::new();
        let free = settings.capacity.saturating_sub(self.held.load(Relaxed));
        let room = free.min(settings.batch);
        if !is_stopping && room > 0 {
            let window = Window {
                oldest: reading.clock - settings.misfire_after,
                horizon: reading.clock + settings.prefetch,
            };
            let handlers = self.shared.handlers.names();
            let limits = |taken| Limits { window, room: room - taken, handlers: &handlers };
            runs = beat.take_over(limits(0)).await?;
            observe::taken_over(&runs);
            runs.extend(beat.claim_waiting(limits(runs.len())).await?);
            runs.extend(beat.read_ahead(limits(runs.len())).await?);
        }
        beat.commit().await?;
        self.lock_clock().learn(reading);
        self.is_starved.store(runs.len() == free, Relaxed);
        let has_more = runs.len() == room && room < free;
        self.enqueue(runs);
        Ok(has_more)
    }

    /// Puts runs on the wheel.
    fn enqueue(&self, runs: Vec<Run>) {
        observe::held(self.held.fetch_add(runs.len(), Relaxed) + runs.len());
        for run in runs {
            let start = self.lock_clock().instant(run.start_at);
            self.queue.insert_at(run, start);
        }
    }

    /// Gives back what has not started, so that other nodes start it.
    async fn give_back(&self, store: &Store) -> Result<(), Error> {
        self.forget(self.queue.drain().len());
        Ok(store.release(self.id).await?)
    }

    /// Reduces the number of runs that this node has.
    fn forget(&self, count: usize) {
        let before = self.held.fetch_sub(count, Relaxed);
        observe::held(before - count);
        let is_half_empty = before - count <= self.shared.settings.capacity / 2;
        if before == count || is_half_empty && self.is_starved.swap(false, Relaxed) {
            self.wake.notify_one();
        }
    }

    /// Waits until the next beat. It is at a random time, so that all nodes get a share of the
    /// runs.
    async fn pause(
        &self,
        began: Instant,
        stopping: Stop,
        stop: &mut watch::Receiver<Stop>,
    ) -> Result<(), Error> {
        let timer = &self.shared.timer;
        let heartbeat = self.shared.settings.heartbeat().mul_f64(fastrand::f64().mul_add(0.5, 0.5));
        let next = match stopping {
            Stop::No => began + heartbeat,
            Stop::At(end) => end.min(began + heartbeat),
        };
        tokio::select! {
            elapsed = timer.sleep_until(next) => elapsed?,
            () = self.wake.notified() => timer.sleep_until(began + MIN_PAUSE).await?,
            // It can only change once. If the sender is dropped, the session is dropped too.
            Ok(()) = stop.changed() => {}
        }
        Ok(())
    }

    /// Starts runs that are due, as many as there are runners.
    async fn start(
        &self,
        store: &Store,
        handlers: &mut JoinSet<()>,
        results: mpsc::UnboundedSender<Execution>,
    ) -> Result<Infallible, Error> {
        let runners = Arc::new(Semaphore::new(self.shared.settings.runners));
        loop {
            let mut due = HashMap::new();
            let permit = runners.clone().acquire_owned().await.expect("it is never closed");
            let run = self.queue.expired().await?.into_inner();
            self.unless_early(run, permit, &mut due);
            while due.len() < MAX_BATCH {
                let Ok(permit) = runners.clone().try_acquire_owned() else { break };
                let Some(run) = self.queue.try_recv() else { break };
                self.unless_early(run.into_inner(), permit, &mut due);
            }
            let ids: Vec<_> = due.keys().copied().collect();
            let start = async { Ok(store.start(self.id, &ids).await?) };
            let starts = within(&self.shared, self.shared.settings.lease, start).await?;
            if starts.is_lease_lost {
                return Err(Error::LeaseLost);
            }
            let count = starts.running.len();
            for started in starts.running {
                let (run, permit) = due.remove(&started.id).expect("only these are started");
                handlers.spawn(execute(self.shared.clone(), run, started, permit, results.clone()));
            }
            self.forget(ids.len() - count);
            while handlers.try_join_next().is_some() {}
        }
    }

    /// The clock of the database may have been set back while the run was on the wheel.
    fn unless_early(
        &self,
        run: Run,
        permit: OwnedSemaphorePermit,
        due: &mut HashMap<i64, (Run, OwnedSemaphorePermit)>,
    ) {
        let start = self.lock_clock().instant(run.start_at);
        if start > Instant::now() {
            self.queue.insert_at(run, start);
        } else {
            due.insert(run.id, (run, permit));
        }
    }

    /// Writes results.
    async fn finish(
        &self,
        store: &Store,
        mut executions: mpsc::UnboundedReceiver<Execution>,
    ) -> Result<Infallible, Error> {
        let prefetch = self.shared.settings.prefetch;
        loop {
            let mut batch = Vec::new();
            if executions.recv_many(&mut batch, MAX_BATCH).await == 0 {
                // The other end is in `start`, which has returned an error or is about to.
                return std::future::pending().await;
            }
            let results: Vec<_> = batch.iter().map(finished).collect();
            let finish = async { Ok(store.finish(self.id, prefetch, &results).await?) };
            let claimed = within(&self.shared, self.shared.settings.lease, finish).await?;
            for (execution, result) in batch.iter().zip(&results) {
                report(execution, result);
            }
            self.enqueue(claimed.ok_or(Error::LeaseLost)?);
            self.forget(batch.len());
        }
    }

    fn lock_clock(&self) -> std::sync::MutexGuard<'_, Clock> {
        // No code panics while it holds this lock.
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a call of the database that takes too long: a stopped server may still have a working
/// kernel, which keeps the connection alive.
async fn within<T>(
    shared: &Shared,
    limit: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match shared.timer.timeout(limit, call).await {
        Ok(result) => result,
        Err(TimeoutError::Timer(error)) => Err(error.into()),
        Err(_) => Err(Error::NoAnswer),
    }
}

/// Executes a run that has started.
async fn execute(
    shared: Arc<Shared>,
    run: Run,
    started: Started,
    permit: OwnedSemaphorePermit,
    results: mpsc::UnboundedSender<Execution>,
) {
    let late = started.at.duration_since(run.start_at);
    observe::started(&run, late.try_into().unwrap_or_default());
    let began = Instant::now();
    let mut handler = shared.handlers.execute(&run, started.payload);
    let execution = poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(context)))
            .unwrap_or_else(|panic| Poll::Ready(Err(panic_message(&*panic).into())))
    });
    let result = match started.timeout {
        None => execution.await,
        Some(limit) => match shared.timer.timeout(limit, execution).await {
            Ok(result) => result,
            Err(TimeoutError::Timer(error)) => Err(error.into()),
            Err(_) => Err(format!("timed out after {limit:?}").into()),
        },
    };
    // Before the result is written: then another run of this job may start.
    drop(handler);
    let Started { retries, backoff, .. } = started;
    // If it fails, the session has ended.
    let _ = results.send(Execution { run, result, retries, backoff, took: began.elapsed(), _permit: permit });
}

fn finished(execution: &Execution) -> Finished {
    let run = execution.run.id;
    match &execution.result {
        Ok(output) => Finished { run, result: Ok(output.clone()), retry: None },
        Err(error) => {
            let failures = (execution.run.attempt - execution.run.interrupted).unsigned_abs();
            let may_retry = !error.is_permanent && failures <= execution.retries;
            let retry = may_retry.then(|| backoff(execution.backoff, failures));
            Finished { run, result: Err(text_without_nul(&error.to_string())), retry }
        }
    }
}

/// Returns the pause after a number of failures, from 1 on.
fn backoff((first, max): (Duration, Duration), failures: u32) -> Duration {
    let factor = 1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(max)
}

fn report(execution: &Execution, finished: &Finished) {
    let end = match (&finished.result, finished.retry) {
        (Ok(_), _) => End::Done,
        (Err(_), Some(_)) => End::Retried,
        (Err(_), None) => End::Failed,
    };
    let error = finished.result.as_ref().err().map(String::as_str);
    observe::ended(&execution.run, end, execution.took, error);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let [first, max] = [1, 10].map(Duration::from_secs);
        let pauses: Vec<_> = (1..=6).map(|failures| backoff((first, max), failures).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        assert_eq!(backoff((first, Duration::MAX), 100), Duration::from_secs(u32::MAX.into()));
    }
}
