//! Starts runs that are due, and writes their results.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::Session;
use crate::caught::lock;
use crate::error::Error;
use crate::execution::{Executions, Results};
use crate::observe;
use crate::perform::Runner;
use crate::ready::Queued;
use crate::store::{Run, Store};

/// The shortest and the longest pause before another attempt to start or finish a run that a
/// transaction of an application has locked.
const LOCKED_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));

/// How long a session starts no suspect.
const FIRST_SUSPECT: Duration = Duration::from_secs(4);

impl Session {
    /// Starts runs that are due, as many as there are runners.
    pub(super) async fn start(
        &self,
        store: &Store,
        executions: &Executions,
    ) -> Result<Infallible, Error> {
        let runners = &executions.runners;
        // Others start before, also if each process ends soon because of a suspect.
        let mut next_suspect = Instant::now() + FIRST_SUSPECT;
        // As in the row of the node.
        executions.watch(None);
        loop {
            let mut due = HashMap::new();
            let permit = self.runner(runners).await;
            let queued = self.next_ready().await?;
            if self.load.is_stopping.load(Relaxed) {
                self.insert(queued, Instant::now())?;
                self.signals.wake.notify_one();
                return std::future::pending().await;
            }
            // A suspect starts alone.
            let watch = queued.run.watch();
            if watch.is_some() && next_suspect > Instant::now() {
                self.insert(queued, next_suspect)?;
                continue;
            }
            self.unless_early(self.taken(queued), permit, &mut due)?;
            while watch.is_none() && due.len() < executions.start_limit() {
                let Ok(permit) = runners.clone().try_acquire_owned() else {
                    break;
                };
                let Some(queued) = self.ready().pop_with_others(&self.shared.executing) else {
                    break;
                };
                self.unless_early(self.taken(queued), permit, &mut due)?;
            }
            let ids: Vec<_> = due.keys().copied().collect();
            executions.starting(&ids);
            let node = self.lease.node;
            let watched = watch.and(ids.first().copied());
            let has_changed = executions.watched() != watched;
            executions.watch(watched);
            let start = async {
                // Both are sent at once, and in this order.
                let watch = async {
                    match has_changed {
                        true => store.watch(node, watched).await,
                        false => Ok(()),
                    }
                };
                let ((), starts) = tokio::try_join!(watch, store.start(node, &ids))?;
                // It does not start, or starts only to end.
                let starts_one = starts.running.iter().any(|run| run.verdict.is_none());
                if watched.is_some() && !starts_one {
                    store.watch(node, None).await?;
                    executions.watch(None);
                }
                Ok(starts)
            };
            let began = Instant::now();
            let starts = self.within(start).await?;
            let took = began.elapsed();
            executions.started();
            if starts.is_lease_lost {
                return Err(Error::LeaseLost);
            }
            for started in starts.running {
                let (run, permit) = due.remove(&started.id).expect("only these are started");
                if !executions.spawn(run, started, permit) {
                    self.forget(1);
                }
            }
            for id in starts.locked {
                let (run, _) = due.remove(&id).expect("only these are locked");
                self.start_later(run)?;
            }
            for id in starts.postponed {
                let (run, _) = due.remove(&id).expect("only these are postponed");
                self.insert(run, Instant::now())?;
            }
            for (id, time) in starts.later {
                let (mut run, _) = due.remove(&id).expect("only these are later");
                run.start_at = time;
                let start = self.lease.instant(time);
                self.insert(run, start)?;
            }
            self.forget(due.len());
            // Last, because a recorder of metrics may panic.
            observe::duty("start", took, false);
            if let (Some(limit), Some(suspect)) = (watch, executions.watched()) {
                next_suspect = self.watch_suspect(limit, executions.ended(suspect)).await?;
            }
        }
    }

    /// Waits for a run that is due, and takes the first one.
    async fn next_ready(&self) -> Result<Queued, Error> {
        loop {
            if let Some(queued) = self.ready().pop(&self.shared.executing) {
                return Ok(queued);
            }
            tokio::select! {
                expired = self.load.queue.expired() => lock(&self.load.ready).push(expired?.into_inner()),
                () = self.load.has_ready.notified() => {}
            }
        }
    }

    /// The clock of the database may have been set back while the run was on the wheel.
    fn unless_early(
        &self,
        run: Run,
        permit: OwnedSemaphorePermit,
        due: &mut HashMap<i64, (Run, Runner)>,
    ) -> Result<(), Error> {
        let start = self.lease.instant(run.start_at);
        if start > Instant::now() {
            self.insert(run, start)?;
        } else {
            let runner = Runner {
                _permit: permit,
                _place: self.shared.executing.take(&run.handler),
            };
            // A run that the node has lost and claimed again is there twice.
            if due.insert(run.id, (run, runner)).is_some() {
                self.forget(1);
            }
        }
        Ok(())
    }

    /// Tries again after a pause, which grows with the time that the run is late.
    fn start_later(&self, mut run: Run) -> Result<(), Error> {
        run.place = None;
        let now = Instant::now();
        let late = now.saturating_duration_since(self.lease.instant(run.start_at));
        let next = now + (late / 4).clamp(LOCKED_PAUSE.0, LOCKED_PAUSE.1);
        self.insert(
            Queued {
                run,
                is_locked: true,
            },
            next,
        )?;
        self.park(1);
        Ok(())
    }

    /// Writes results.
    pub(super) async fn finish(
        &self,
        store: &Store,
        executions: &Executions,
        results: &mut Results,
    ) -> Result<Infallible, Error> {
        let prefetch = self.shared.settings.prefetch;
        self.park(results.resume(executions));
        // Before another attempt to write those that are locked.
        let mut pause = LOCKED_PAUSE.0;
        let mut retry = Instant::now();
        loop {
            while results.has_ready() {
                let batch = results.next_batch();
                let finish = async { Ok(store.finish(self.lease.node, prefetch, &batch).await?) };
                let began = Instant::now();
                let finishes = self.within(finish).await?.ok_or(Error::LeaseLost)?;
                let took = began.elapsed();
                let written = results.written(executions, &batch, &finishes);
                self.load.parked.fetch_sub(written, Relaxed);
                self.enqueue(finishes.claimed)?;
                self.forget(written);
                observe::duty("finish", took, false);
            }
            if !results.has_locked() {
                pause = LOCKED_PAUSE.0;
                retry = Instant::now() + pause;
            }
            tokio::select! {
                count = results.receive(executions) => self.park(count),
                elapsed = self.shared.timer.sleep_until(retry), if results.has_locked() => {
                    elapsed?;
                    results.retry_locked();
                    pause = LOCKED_PAUSE.1.min(pause * 2);
                    retry = Instant::now() + pause;
                }
            }
        }
    }
}
