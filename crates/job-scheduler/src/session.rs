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
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hashed_wheel::TimeoutError;
use hashed_wheel::delay_queue::DelayQueue;
use serde_json::value::RawValue;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::caught::caught;
use crate::clock::Clock;
use crate::error::Error;
use crate::handler::{RunError, error_text};
use crate::observe::{self, End};
use crate::schedule::Window;
use crate::settings::Shared;
use crate::store::{Finished, Limits, Run, Started, Store, Verdict};

/// The maximum number of runs in one statement that starts or finishes runs.
const MAX_BATCH: usize = 256;

/// The minimum time between two reads, if notifications arrive all the time.
const MIN_PAUSE: Duration = Duration::from_millis(5);

/// The maximum number of results that are removed at a time.
const CLEANING_BATCH: usize = 2_000;

/// The shortest and the longest pause before another attempt to start or finish a run that a
/// transaction of an application has locked.
const LOCKED_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));

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
    /// No more runs start.
    is_stopping: AtomicBool,
    /// Since when all runners are busy while `start` needs one.
    out_of_runners: Mutex<Option<Instant>>,
    wake: Arc<Notify>,
    /// A connection has ended.
    lost: Arc<Notify>,
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
    result: Result<Box<RawValue>, Failure>,
    /// It was not executed.
    verdict: Option<Verdict>,
    retries: u32,
    backoff: (Duration, Duration),
    took: Duration,
    /// Another run may start when the result is written.
    _permit: OwnedSemaphorePermit,
}

/// A [`RunError`] as text, because the code that makes the text is the user's.
struct Failure {
    text: String,
    is_permanent: bool,
}

impl Failure {
    fn permanent(text: String) -> Self {
        Self { text, is_permanent: true }
    }

    fn panicked(message: &str) -> Self {
        Self { text: error_text(&format!("the handler {message}")), is_permanent: false }
    }
}

impl From<RunError> for Failure {
    fn from(RunError { error, is_permanent }: RunError) -> Self {
        Self { text: error_text(&error.to_string()), is_permanent }
    }
}

impl Session {
    /// Connects and registers. The runs of the `previous` session of this process can then be taken
    /// over immediately.
    pub(crate) async fn open(shared: Arc<Shared>, previous: Option<i64>) -> Result<(Self, Stores), Error> {
        let [wake, lost] = [(); 2].map(|()| Arc::new(Notify::new()));
        let lease = shared.settings.lease;
        let connect = async || -> Result<Store, Error> {
            let client = shared.connector.connect(lease, wake.clone(), lost.clone()).await?;
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
            is_stopping: AtomicBool::new(false),
            out_of_runners: Mutex::new(None),
            wake,
            lost,
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
        let session = async {
            tokio::select! {
                result = self.lead(&mut stores.lead, stop) => result,
                Err(error) = self.start(&stores.start, &mut handlers, results) => Err(error),
                Err(error) = self.finish(&stores.finish, finished) => Err(error),
                Err(error) = self.watch([&stores.start, &stores.finish]) => Err(error),
            }
        };
        let result = caught(session).await.unwrap_or_else(|message| Err(Error::Panic(message)));
        let lease = self.shared.settings.lease;
        let have_ended = self.shared.timer.timeout(lease, handlers.shutdown()).await.is_ok();
        if have_ended && result.is_ok() {
            // Otherwise the runs are taken over after the lease, or by the next session.
            let left = within(&self.shared, lease, async { Ok(stores.lead.leave(self.id).await?) }).await;
            return (left, None);
        }
        (result, have_ended.then_some(self.id))
    }

    /// Detects the end of a connection that may not be used for long. The next run would be late.
    async fn watch(&self, stores: [&Store; 2]) -> Result<Infallible, Error> {
        loop {
            self.lost.notified().await;
            // The connection that listens is checked by a beat.
            self.wake.notify_one();
            for store in stores {
                within(&self.shared, self.shared.settings.lease, async { Ok(store.check().await?) }).await?;
            }
        }
    }

    async fn lead(&self, store: &mut Store, stop: &mut watch::Receiver<Stop>) -> Result<(), Error> {
        let lease = self.shared.settings.lease;
        let mut cleaned = Instant::now();
        let mut stalled = None;
        loop {
            let began = Instant::now();
            let stopping = *stop.borrow_and_update();
            if self.is_stalled() {
                stalled = Some(began);
                within(&self.shared, lease, self.share(store)).await?;
            }
            let limit = self.limit(stopping, stalled);
            let has_more = within(&self.shared, lease, self.beat(store, limit)).await?;
            if let Stop::At(end) = stopping {
                self.is_stopping.store(true, Relaxed);
                within(&self.shared, lease, self.give_back(store)).await?;
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
    async fn beat(&self, store: &mut Store, limit: usize) -> Result<bool, Error> {
        let settings = &self.shared.settings;
        let beat = store.beat(self.id).await?.ok_or(Error::LeaseLost)?;
        let reading = beat.reading;
        let mut runs = Vec::new();
        // Also those that are skipped, or start so late that no node has claimed them.
        let mut taken = 0;
        let free = settings.capacity.saturating_sub(self.held.load(Relaxed));
        let room = free.min(limit);
        if room > 0 {
            let window = Window {
                oldest: reading.clock - settings.misfire_after,
                horizon: reading.clock + settings.prefetch,
            };
            let handlers = self.shared.handlers.names();
            let limits = |taken| Limits { window, room: room - taken, handlers: &handlers };
            runs = beat.take_over(limits(0)).await?;
            observe::taken_over(&runs);
            runs.extend(beat.claim_waiting(limits(runs.len())).await?);
            let (read, count) = beat.read_ahead(limits(runs.len())).await?;
            taken = runs.len() + count;
            runs.extend(read);
        }
        beat.commit().await?;
        self.lock_clock().learn(reading);
        self.is_starved.store(taken == free, Relaxed);
        let has_more = taken == room && runs.len() < free && limit == settings.batch;
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
        if self.is_stopping.load(Relaxed) {
            // Retries, and runs that were blocked. They are given back.
            self.wake.notify_one();
        }
    }

    /// Returns the maximum number of runs that the next beat claims. After a stall it is small for
    /// some time, because the next one may be near.
    fn limit(&self, stopping: Stop, stalled: Option<Instant>) -> usize {
        let settings = &self.shared.settings;
        let was_stalled = stalled.is_some_and(|stalled| stalled.elapsed() < settings.heartbeat() * 10);
        match stopping {
            Stop::At(_) => 0,
            Stop::No if self.is_stalled() => 0,
            Stop::No if was_stalled => settings.runners.min(settings.batch),
            Stop::No => settings.batch,
        }
    }

    /// Whether all runners have been busy for a lease, so that runs that are due do not start. (Not
    /// less: a database that is slow for a moment must not get more to do by that.)
    fn is_stalled(&self) -> bool {
        let since = *self.lock_out_of_runners();
        since.is_some_and(|since| since.elapsed() >= self.shared.settings.lease)
    }

    /// Gives what has not started to other nodes, if there are any.
    async fn share(&self, store: &Store) -> Result<(), Error> {
        if !self.queue.is_empty() && store.has_others(self.id).await? {
            self.give_back(store).await?;
        }
        Ok(())
    }

    /// Waits for a runner.
    async fn runner(&self, runners: &Arc<Semaphore>) -> OwnedSemaphorePermit {
        if let Ok(permit) = runners.clone().try_acquire_owned() {
            return permit;
        }
        *self.lock_out_of_runners() = Some(Instant::now());
        let permit = runners.clone().acquire_owned().await.expect("it is never closed");
        let was_stalled = self.is_stalled();
        *self.lock_out_of_runners() = None;
        if was_stalled {
            self.wake.notify_one();
        }
        permit
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
            let permit = self.runner(&runners).await;
            let run = self.queue.expired().await?.into_inner();
            if self.is_stopping.load(Relaxed) {
                self.queue.insert_at(run, Instant::now());
                self.wake.notify_one();
                return std::future::pending().await;
            }
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
            let kept = starts.running.len() + starts.locked.len() + starts.postponed.len();
            for started in starts.running {
                let (run, permit) = due.remove(&started.id).expect("only these are started");
                handlers.spawn(execute(self.shared.clone(), run, started, permit, results.clone()));
            }
            for id in starts.locked {
                let (run, _) = due.remove(&id).expect("only these are locked");
                self.start_later(run);
            }
            for id in starts.postponed {
                let (run, _) = due.remove(&id).expect("only these are postponed");
                self.queue.insert_at(run, Instant::now());
            }
            self.forget(ids.len() - kept);
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
            // A run that the node has lost and claimed again is there twice.
            if due.insert(run.id, (run, permit)).is_some() {
                self.forget(1);
            }
        }
    }

    /// Tries again after a pause, which grows with the time that the run is late.
    fn start_later(&self, run: Run) {
        let now = Instant::now();
        let late = now.saturating_duration_since(self.lock_clock().instant(run.start_at));
        self.queue.insert_at(run, now + (late / 4).clamp(LOCKED_PAUSE.0, LOCKED_PAUSE.1));
    }

    /// Writes results.
    async fn finish(
        &self,
        store: &Store,
        mut executions: mpsc::UnboundedReceiver<Execution>,
    ) -> Result<Infallible, Error> {
        let prefetch = self.shared.settings.prefetch;
        // Executions whose results could not be written yet, and the pause before the next attempt.
        let mut locked = Vec::new();
        let mut pause = LOCKED_PAUSE.0;
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                count = executions.recv_many(&mut batch, MAX_BATCH) => if count == 0 {
                    // The other end is in `start`, which has returned an error or is about to.
                    return std::future::pending().await;
                },
                elapsed = self.shared.timer.sleep(pause), if !locked.is_empty() => elapsed?,
            }
            batch.append(&mut locked);
            let results: Vec<_> = batch.iter().map(finished).collect();
            let finish = async { Ok(store.finish(self.id, prefetch, &results).await?) };
            let finishes = within(&self.shared, self.shared.settings.lease, finish).await?;
            let finishes = finishes.ok_or(Error::LeaseLost)?;
            let mut written = 0;
            for (execution, result) in batch.into_iter().zip(&results) {
                if finishes.locked.contains(&execution.run.id) {
                    locked.push(execution);
                } else {
                    report(&execution, result);
                    written += 1;
                }
            }
            pause = if locked.is_empty() { LOCKED_PAUSE.0 } else { LOCKED_PAUSE.1.min(pause * 2) };
            self.enqueue(finishes.claimed);
            self.forget(written);
        }
    }

    fn lock_out_of_runners(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        // No code panics while it holds this lock.
        self.out_of_runners.lock().unwrap_or_else(PoisonError::into_inner)
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
    let began = Instant::now();
    let Started { payload, timeout, retries, backoff, at, verdict, .. } = started;
    let late = at.duration_since(run.start_at).try_into().unwrap_or_default();
    let result = match verdict {
        None => perform(&shared, &run, payload, timeout, late).await,
        Some(Verdict::Cancelled) => Err(Failure::permanent("the job is paused".into())),
        Some(Verdict::Abandoned) => Err(Failure::permanent(format!("interrupted {} times", run.interrupted))),
    };
    let took = began.elapsed();
    let execution = Execution { run, result, verdict, retries, backoff, took, _permit: permit };
    // If it fails, the session has ended.
    let _ = results.send(execution);
}

/// Calls the handler. Every panic of the user's code is caught, also that of a recorder of metrics:
/// otherwise the run would have no result while its node is alive, and no node would repeat it.
async fn perform(
    shared: &Shared,
    run: &Run,
    payload: Box<RawValue>,
    timeout: Option<Duration>,
    late: Duration,
) -> Result<Box<RawValue>, Failure> {
    let mut handler = shared.handlers.execute(run, payload);
    let execution = caught(async {
        observe::started(run, late);
        // The text of an error is made here, because that may panic too.
        handler.as_mut().await.map_err(Failure::from)
    });
    let result = match timeout {
        None => Ok(execution.await),
        Some(limit) => shared.timer.timeout(limit, execution).await,
    };
    let result = match result {
        Ok(result) => result.unwrap_or_else(|message| Err(Failure::panicked(&message))),
        Err(TimeoutError::Timer(error)) => Err(RunError::from(error).into()),
        Err(_) => Err(RunError::from(format!("timed out after {:?}", timeout.unwrap_or_default())).into()),
    };
    // Before the result is written: then another run of this job may start.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(handler))) {
        mem::forget(panic);
    }
    result
}

fn finished(execution: &Execution) -> Finished {
    let run = execution.run.id;
    match &execution.result {
        Ok(output) => Finished { run, state: "done", result: Ok(output.clone()), retry: None },
        Err(error) => {
            let failures = (execution.run.attempt - execution.run.interrupted).unsigned_abs();
            let may_retry = !error.is_permanent && failures <= execution.retries;
            let retry = may_retry.then(|| backoff(execution.backoff, failures));
            let state = execution.verdict.map_or("failed", Verdict::as_str);
            Finished { run, state, result: Err(error.text.clone()), retry }
        }
    }
}

/// Returns the pause after a number of failures, from 1 on.
fn backoff((first, max): (Duration, Duration), failures: u32) -> Duration {
    let factor = 1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(max)
}

fn report(execution: &Execution, finished: &Finished) {
    let end = match (&finished.result, finished.retry, execution.verdict) {
        (Ok(_), ..) => End::Done,
        (.., Some(Verdict::Cancelled)) => End::Cancelled,
        (.., Some(Verdict::Abandoned)) => End::Abandoned,
        (_, Some(_), None) => End::Retried,
        (_, None, None) => End::Failed,
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
