//! The runs that a session has read and that have not started, and how many more it may read.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hashed_wheel::{NewTimeoutError, TimeoutError};
use hashed_wheel_util::delay_queue::DelayQueue;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::{Session, Stop};
use crate::caught::lock;
use crate::error::Error;
use crate::job::PRIORITIES;
use crate::observe;
use crate::ready::{Queued, Ready};
use crate::settings::Shared;
use crate::store::{Run, Store};

/// The runs that a session has.
pub(super) struct Load {
    pub(super) queue: DelayQueue<Queued>,
    /// Those from the queue that are due and have no runner.
    pub(super) ready: Mutex<Ready>,
    /// Wakes `start`: runs were taken from the queue.
    pub(super) has_ready: Notify,
    /// The number of runs that it has: in the queue, executing, or not yet written.
    pub(super) held: AtomicUsize,
    /// Of these, the ones that do not count for the capacity: they wait until a result is written,
    /// or for the locks of a transaction of an application. That delays no other job.
    pub(super) parked: AtomicUsize,
    /// Whether the last read took fewer runs than there were, because it held too many.
    pub(super) is_starved: AtomicBool,
    /// No more runs start.
    pub(super) is_stopping: AtomicBool,
    /// Since when all runners are busy while `start` needs one.
    pub(super) out_of_runners: Mutex<Option<Instant>>,
    /// A look waits for a free runner.
    pub(super) is_postponed: AtomicBool,
}

impl Load {
    /// `held`: the number of executions that continue.
    pub(super) fn new(shared: &Shared, held: usize) -> Self {
        Self {
            queue: DelayQueue::new(&shared.timer),
            ready: Mutex::default(),
            has_ready: Notify::new(),
            held: AtomicUsize::new(held),
            parked: AtomicUsize::new(0),
            is_starved: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            out_of_runners: Mutex::new(None),
            is_postponed: AtomicBool::new(false),
        }
    }
}

impl Session {
    /// Returns how many more runs a node may claim that has as many as it may, and from which
    /// priority on: one for each runner, if they start before others that it has.
    pub(super) fn urgent_room(&self, limit: usize) -> (usize, i16) {
        let Shared { settings, .. } = &*self.shared;
        let room = (settings.capacity + settings.runners)
            .saturating_sub(self.count())
            .min(limit);
        match self.ready().min_priority() {
            Some(priority) if priority < *PRIORITIES.end() => (room, priority + 1),
            _ => (0, *PRIORITIES.start()),
        }
    }

    /// Returns the runs that are due and have no runner. It takes them from the queue, where
    /// `start` may be waiting for them: so it wakes `start`.
    pub(super) fn ready(&self) -> MutexGuard<'_, Ready> {
        let mut ready = lock(&self.load.ready);
        while let Some(queued) = self.load.queue.try_recv() {
            ready.push(queued.into_inner());
            self.load.has_ready.notify_one();
        }
        ready
    }

    /// Puts runs on the wheel. Fails if the timer is stopped, which ends the session.
    pub(super) fn enqueue(&self, runs: Vec<Run>) -> Result<(), Error> {
        observe::held(self.load.held.fetch_add(runs.len(), Relaxed) + runs.len());
        for mut run in runs {
            run.place = Some(self.shared.held.take(&run.handler));
            let start = self.lease.instant(run.start_at);
            self.insert(run, start)?;
        }
        if self.load.is_stopping.load(Relaxed) {
            // Retries, and runs that were blocked. They are given back.
            self.signals.wake.notify_one();
        }
        Ok(())
    }

    pub(super) fn insert(&self, queued: impl Into<Queued>, start: Instant) -> Result<(), Error> {
        self.load
            .queue
            .insert_at(queued.into(), start)
            .map_err(NewTimeoutError::from)?;
        Ok(())
    }

    /// Returns the maximum number of runs that the next beat claims. After a stall it is small for
    /// some time, because the next one may be near.
    pub(super) fn limit(
        &self,
        stopping: Stop,
        stalled: Option<Instant>,
        has_shared: bool,
    ) -> usize {
        let settings = &self.shared.settings;
        let was_stalled =
            stalled.is_some_and(|stalled| stalled.elapsed() < settings.heartbeat() * 10);
        match stopping {
            Stop::At(_) => 0,
            Stop::No if has_shared && self.is_stalled() => 0,
            Stop::No if was_stalled => settings.runners.min(settings.batch),
            Stop::No => settings.batch,
        }
    }

    /// Whether all runners have been busy for a lease, so that runs that are due do not start. (Not
    /// less: a database that is slow for a moment must not get more to do by that.)
    pub(super) fn is_stalled(&self) -> bool {
        let since = *lock(&self.load.out_of_runners);
        since.is_some_and(|since| since.elapsed() >= self.shared.settings.lease)
    }

    /// Gives what has not started to other nodes. Returns false if there are none: then it reads on,
    /// so that no handler has to wait until the node has started all runs of another one.
    pub(super) async fn share(&self, store: &Store) -> Result<bool, Error> {
        let has_others = store.has_others(self.lease.node).await?;
        if has_others && !(self.load.queue.is_empty() && self.ready().is_empty()) {
            self.give_back(store).await?;
        }
        Ok(has_others)
    }

    /// Returns how many runs of each handler the node may claim.
    pub(super) fn rooms(&self, handlers: &[String], free: usize) -> Vec<i64> {
        let room = |handler: &String| match handlers.len() {
            1 => free as i64,
            _ => self.shared.held.room(handler, free) as i64,
        };
        handlers.iter().map(room).collect()
    }

    /// Waits for a runner.
    pub(super) async fn runner(&self, runners: &Arc<Semaphore>) -> OwnedSemaphorePermit {
        if let Ok(permit) = runners.clone().try_acquire_owned() {
            return permit;
        }
        let permit = self.without_starts(runners.clone().acquire_owned()).await;
        permit.expect("it is never closed")
    }

    /// Starts nothing until this has happened, as if all runners were busy.
    async fn without_starts<T>(&self, wait: impl Future<Output = T>) -> T {
        *lock(&self.load.out_of_runners) = Some(Instant::now());
        let result = wait.await;
        let was_stalled = self.is_stalled();
        *lock(&self.load.out_of_runners) = None;
        if was_stalled {
            self.signals.wake.notify_one();
        }
        if self.load.is_postponed.swap(false, Relaxed) {
            self.signals.heard.notify_one();
        }
        result
    }

    /// Watches a suspect: starts no other run until it has `ended`, or this time has passed.
    /// Returns when the next suspect may start: others start for as long before.
    pub(super) async fn watch_suspect(
        &self,
        limit: Duration,
        ended: impl Future<Output = ()>,
    ) -> Result<Instant, Error> {
        let began = Instant::now();
        let watch = self.shared.timer.timeout(limit, ended);
        if let Err(TimeoutError::Timer(error)) = self.without_starts(watch).await {
            return Err(error.into());
        }
        Ok(Instant::now() + began.elapsed())
    }

    /// Gives back what has not started, so that other nodes start it. What an application has locked
    /// stays, unless the node stops: then it is taken over.
    pub(super) async fn give_back(&self, store: &Store) -> Result<(), Error> {
        let entries: Vec<_> = self
            .ready()
            .drain()
            .chain(self.load.queue.drain())
            .collect();
        let mut runs: Vec<_> = entries.into_iter().map(|entry| self.taken(entry)).collect();
        let count = runs.len();
        let released: BTreeSet<_> = store.release(self.lease.node).await?.into_iter().collect();
        runs.retain(|run| !released.contains(&run.id) && !self.load.is_stopping.load(Relaxed));
        self.forget(count - runs.len());
        for run in runs {
            let start = self.lease.instant(run.start_at);
            self.insert(run, start)?;
        }
        Ok(())
    }

    /// Reduces the number of runs that this node has.
    pub(super) fn forget(&self, count: usize) {
        observe::held(self.load.held.fetch_sub(count, Relaxed) - count);
        self.read_if_starved();
    }

    /// These runs do not count for the capacity any more.
    pub(super) fn park(&self, count: usize) {
        self.load.parked.fetch_add(count, Relaxed);
        self.read_if_starved();
    }

    fn read_if_starved(&self) {
        let is_half_empty = self.count() <= self.shared.settings.capacity / 2;
        if self.load.held.load(Relaxed) == 0
            || is_half_empty && self.load.is_starved.swap(false, Relaxed)
        {
            self.signals.wake.notify_one();
        }
    }

    /// Returns the number of runs that count for the capacity.
    pub(super) fn count(&self) -> usize {
        let Load { held, parked, .. } = &self.load;
        held.load(Relaxed).saturating_sub(parked.load(Relaxed))
    }

    /// A run is taken from the queue.
    pub(super) fn taken(&self, Queued { mut run, is_locked }: Queued) -> Run {
        if is_locked {
            self.load.parked.fetch_sub(1, Relaxed);
            run.place = Some(self.shared.held.take(&run.handler));
        }
        run
    }
}
