//! The duties of the connection that reads: it looks what there is to do, and does that, one after
//! the other.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{Session, Stop};
use crate::caught::lock;
use crate::error::Error;
use crate::execution::Executions;
use crate::job::PRIORITIES;
use crate::looks::{Looks, MIN_PAUSE};
use crate::observe;
use crate::portions::Portions;
use crate::settings::Settings;
use crate::store::{Look, Run, Store, Wanted, was_ended};

impl Session {
    /// Reads until `stop`. Then it ends when all runs have ended.
    pub(super) async fn read(
        &self,
        store: &Store,
        executions: &Executions,
        portions: &mut Portions,
        stop: &mut watch::Receiver<Stop>,
    ) -> Result<(), Error> {
        let settings = &self.shared.settings;
        let (mut looks, mut has_heard) = (Looks::new(), false);
        // The last name of the part that was settled.
        let mut after = String::new();
        let (mut cleaned, mut settled, mut stalled) = (Instant::now(), Instant::now(), None);
        loop {
            let began = Instant::now();
            let stopping = *stop.borrow_and_update();
            looks.begin();
            let names = self.shared.handlers.names();
            let limit = settings.duty_limit();
            let look = store.look(self.lease.node, &names, settings.prefetch, limit);
            // After one that was ended, the others look for themselves, each within its limit.
            let look = self.attempt("look", look).await?.unwrap_or(Look {
                has_runs: true,
                has_due: true,
                has_unplanned: true,
                must_settle: true,
                is_settled: true,
                ..Look::default()
            });
            looks.is_needed = !look.is_settled;
            executions.cancel(&look.cancelled);
            let mut has_shared = false;
            if self.is_stalled() {
                stalled = Some(began);
                has_shared = self.within(self.share(store)).await?;
            }
            let limit = self.limit(stopping, stalled, has_shared);
            let (count, mut has_more) = self.take(store, &look, limit, portions).await?;
            if has_heard {
                looks.learn(count > 0);
            }
            if let Stop::At(end) = stopping {
                if !self.load.is_stopping.swap(true, Relaxed) {
                    let stop_serving = async { Ok(store.stop_serving(self.lease.node).await?) };
                    self.within(stop_serving).await?;
                }
                self.within(self.give_back(store)).await?;
                if self.load.held.load(Relaxed) == 0 || Instant::now() >= end {
                    return Ok(());
                }
            }
            if look.must_settle
                && (!after.is_empty() || settled.elapsed() >= settings.heartbeat() / 2)
            {
                settled = began;
                let (ahead, rows) = (settings.prefetch, portions.settle.rows);
                let settle = store.settle(ahead, &after, rows, settings.duty_limit());
                let last = self.attempt("settle", settle).await?;
                portions.settle.learn(last.is_none());
                // One that was ended is repeated with less: after the smallest one, the name is passed
                // over.
                after = last.unwrap_or(after);
                has_more |= !after.is_empty();
            }
            if cleaned.elapsed() >= settings.cleaning_interval() {
                let (age, rows) = (settings.retention, portions.clean.rows);
                let clean = store.clean(age, rows, settings.duty_limit());
                let clean = self.attempt("clean", clean).await?;
                portions.clean.learn(clean.is_none());
                if clean == Some(false) {
                    cleaned = Instant::now();
                }
            }
            has_heard = !has_more && self.pause(&mut looks, began, stopping, stop).await?;
        }
    }

    /// Claims runs. Returns their number, and whether there may be more.
    async fn take(
        &self,
        store: &Store,
        look: &Look,
        limit: usize,
        portions: &mut Portions,
    ) -> Result<(usize, bool), Error> {
        let settings @ Settings { capacity, .. } = &self.shared.settings;
        let free = capacity.saturating_sub(self.count());
        let room = free.min(limit);
        let (urgent, min_priority) = match room {
            0 => self.urgent_room(limit),
            _ => (0, *PRIORITIES.start()),
        };
        let names = self.shared.handlers.names();
        // What is urgent exceeds the capacity.
        let rooms = match urgent {
            0 => self.rooms(&names, free),
            urgent => vec![urgent as i64; names.len()],
        };
        let mut wanted = Wanted {
            room: room + urgent,
            handlers: &names,
            rooms: &rooms,
            // Only what is due now is urgent.
            ahead: if urgent == 0 {
                settings.prefetch
            } else {
                Duration::ZERO
            },
            min_priority,
            misfire_after: settings.misfire_after,
            limit: settings.duty_limit(),
        };
        // Also those that are skipped, or start so late that no node has claimed them.
        let (mut taken, mut count, mut has_more) = (0, 0, false);
        let mut left = rooms.clone();
        let subtract = |left: &mut [i64], runs: &[Run]| {
            for (handler, left) in names.iter().zip(left) {
                let taken = runs.iter().filter(|run| run.handler == *handler).count();
                *left = (*left - taken as i64).max(0);
            }
        };
        if look.has_runs && wanted.room > 0 {
            let portion = &mut portions.claim;
            let most = wanted.room.min(portion.rows);
            let part = Wanted {
                room: most,
                ..wanted
            };
            let claim = store.claim(self.lease.node, part);
            let claimed = self.attempt("claim", claim).await?;
            portion.learn(claimed.is_none());
            if let Some((taken_over, runs)) = claimed {
                observe::taken_over(taken_over);
                // After a takeover, it has not searched for other runs.
                has_more |= taken_over > 0 || runs.len() == most;
                taken += runs.len();
                count += runs.len();
                wanted.room -= runs.len();
                subtract(&mut left, &runs);
                self.enqueue(runs)?;
            }
        }
        if look.has_due && wanted.room > 0 {
            let portion = &mut portions.read;
            let most = wanted.room.min(portion.rows);
            let part = Wanted {
                room: most,
                rooms: &left,
                ..wanted
            };
            let read = store.read_ahead(self.lease.node, part);
            let read = self.attempt("read ahead", read).await?;
            portion.learn(read.is_none());
            if let Some(read) = read {
                let read = read.ok_or(Error::LeaseLost)?;
                has_more |= read.is_cut || read.count == most;
                taken += read.count;
                count += read.runs.len();
                subtract(&mut left, &read.runs);
                self.enqueue(read.runs)?;
            }
        }
        if look.has_unplanned && limit > 0 {
            let portion = &mut portions.plan;
            let plan = store.plan(Wanted {
                room: portion.rows,
                ..wanted
            });
            let planned = self.attempt("plan", plan).await?;
            portion.learn(planned.is_none());
            // Those that are planned may be due.
            has_more |= planned == Some(true);
        }
        // A handler has got as many as it may have now.
        let is_limited = left.contains(&0);
        self.load
            .is_starved
            .store(urgent > 0 || is_limited || taken == free, Relaxed);
        Ok((count, has_more && count < free && limit == settings.batch))
    }

    /// Waits until the next read. Returns whether it is because of a notification.
    async fn pause(
        &self,
        looks: &mut Looks,
        began: Instant,
        stopping: Stop,
        stop: &mut watch::Receiver<Stop>,
    ) -> Result<bool, Error> {
        let timer = &self.shared.timer;
        let next = began + self.shared.settings.pause();
        let next = match stopping {
            Stop::No => next,
            Stop::At(end) => end.min(next),
        };
        loop {
            // First, so that a runner that is released meanwhile repeats this.
            self.load.is_postponed.store(looks.is_needed, Relaxed);
            let has_runner = lock(&self.load.out_of_runners).is_none();
            self.load.is_postponed.fetch_and(!has_runner, Relaxed);
            tokio::select! {
                elapsed = timer.sleep_until(next) => elapsed?,
                () = self.signals.wake.notified() => timer.sleep_until(began + MIN_PAUSE).await?,
                // It can only change once. If the sender is dropped, the session is dropped too.
                Ok(()) = stop.changed() => {}
                () = self.signals.heard.notified() => {
                    looks.is_needed = true;
                    continue;
                }
                elapsed = timer.sleep_until(looks.next(has_runner)), if looks.is_needed => {
                    elapsed?;
                    return Ok(true);
                }
            }
            return Ok(false);
        }
    }

    /// Attempts a duty. `None`: the server has ended it, because it has taken too long.
    async fn attempt<T>(
        &self,
        duty: &'static str,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<Option<T>, Error> {
        let began = Instant::now();
        // In a box, because each future around it has it twice.
        let call = Box::pin(call);
        let attempt = async {
            match call.await {
                Err(error) if was_ended(&error) => Ok(None),
                result => Ok(Some(result?)),
            }
        };
        let result = self.within(attempt).await?;
        observe::duty(duty, began.elapsed(), result.is_none());
        Ok(result)
    }
}
