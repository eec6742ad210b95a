//! Operations on all timeouts of a timer at once: `cancel_all`, and the report on its wheel.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::{Kind, Model, NEVER, PeriodicModel, Phase, Record, Script, State};
use crate::common::quietly;

impl Record {
    /// Whether its handle says that it is cancelled, if it has one.
    fn is_cancelled(&self) -> Option<bool> {
        match &self.kind {
            Kind::Periodic(PeriodicModel { handle, .. }) => Some(handle.as_ref()?.is_cancelled()),
            _ => Some(self.handle()?.is_cancelled()),
        }
    }
}

impl Model {
    /// Whether `cancel_all` cancels this timeout. Futures and consumers of a queue wait for the
    /// others.
    fn is_for_cancel_all(&self, id: usize) -> bool {
        match self.records[id].kind {
            Kind::Task(_) | Kind::Periodic(_) | Kind::Value { .. } | Kind::Retry(_) => true,
            Kind::Alarm => false,
            Kind::Sleep => false,
        }
    }

    /// Whether to cancel this timeout calls no code of the user: the executor has the task, or its
    /// value has left the map.
    fn is_cancelled_silently(&self, id: usize) -> bool {
        self.records[id].state == State::HandedOver
            || matches!(self.records[id].kind, Kind::Retry(_))
    }

    /// The task of a timeout ends. If it is pending between turns, the `cancel_all` in progress has
    /// cancelled it, and perhaps others.
    pub(super) fn end_by_cancel_all(&mut self, id: usize) {
        let is_pending = self.pending.contains(&id) && self.records[id].state == State::Pending;
        if self.phase != Phase::Idle || !is_pending {
            return;
        }
        let has_ended = |other: &usize| {
            let record = &self.records[*other];
            let is_cancelled = record.is_cancelled() == Some(true);
            *other == id || record.state == State::Pending && is_cancelled
        };
        let group: Vec<_> = self.pending.iter().copied().filter(has_ended).collect();
        *self
            .cancelled_by_all
            .last_mut()
            .expect("a `cancel_all` is in progress") += group.len();
        for id in group {
            self.cancel_record(id);
            if !matches!(self.records[id].kind, Kind::Task(_)) {
                // There is no hook.
                self.records[id].state = State::Cancelled;
                self.free_key(id);
            }
        }
    }

    /// How many pending timeouts may be in no slot: those that a turn has left of its last tick.
    /// One that was reset to a later tick may still be among them.
    fn max_in_no_slot(&self) -> usize {
        let may_be_left = |&&id: &&usize| {
            let record = &self.records[id];
            record.due <= self.turned || record.may_fire_now || record.was_reset
        };
        self.pending.iter().filter(may_be_left).count()
    }

    /// The time left as the timer reports it.
    pub(super) fn remaining(&self, id: usize) -> Duration {
        self.time_until(self.records[id].deadline)
    }

    /// The same for a deadline.
    pub(super) fn time_until(&self, deadline: u64) -> Duration {
        match deadline {
            NEVER => Duration::MAX,
            deadline => Duration::from_nanos(deadline.saturating_sub(self.now())),
        }
    }
}

impl Script {
    pub(super) fn cancel_all(&self) {
        let mut model = self.model();
        let Some(timer) = model.timer() else { return };
        match model.phase {
            Phase::Turning => {
                drop(model);
                let outcome = quietly(|| catch_unwind(AssertUnwindSafe(|| timer.cancel_all())));
                return assert!(outcome.is_err(), "the call would wait for itself");
            }
            Phase::Draining => {
                drop(model);
                return assert_eq!(timer.cancel_all(), 0, "the timer is stopped");
            }
            Phase::Idle => {}
        }
        let all = model
            .pending
            .iter()
            .copied()
            .filter(|&id| model.is_for_cancel_all(id));
        let all: Vec<_> = all.collect();
        let silent: Vec<_> = all
            .iter()
            .copied()
            .filter(|&id| model.is_cancelled_silently(id))
            .collect();
        // The call cancels a group before it calls the hooks of that. Where the model cannot see
        // what is in the group, the hooks do nothing.
        let is_hidden = |id: &usize| model.records[*id].is_cancelled().is_none();
        let is_quiet = !silent.is_empty() || all.iter().any(is_hidden);
        let were_quiet = model.hooks_are_quiet;
        model.hooks_are_quiet |= is_quiet;
        model.cancelled_by_all.push(0);
        drop(model);
        let count = timer.cancel_all();
        self.drop_dead();
        let mut model = self.model();
        model.hooks_are_quiet = were_quiet;
        for &id in &silent {
            model.cancel_record(id);
            model.records[id].state = State::Cancelled;
            model.drop_retried(id);
        }
        let cancelled = model
            .cancelled_by_all
            .pop()
            .map(|cancelled| cancelled + silent.len());
        assert_eq!(Some(count), cancelled);
        let are_left = all.iter().any(|id| model.pending.contains(id));
        assert!(!are_left, "a timeout was left");
        // A hook may have dropped all other handles.
        let stops =
            model.handles.is_empty() && model.cancelled_by_all.is_empty() && !model.is_closed();
        if stops {
            model.start_stop();
        }
        drop(model);
        drop(timer);
        if stops {
            self.finish_stop(true);
        }
    }

    /// Checks how full the wheel is. That needs the worker's lock. `has_no_messages`: nothing is on
    /// its way to the wheel, as a periodic task is after its run.
    pub(super) fn check_occupancy(&self, has_no_messages: bool) {
        let model = self.model();
        let Some(timer) = model.timer() else { return };
        let Ok(occupancy) = timer.occupancy() else {
            return assert!(model.is_stopped || model.phase != Phase::Idle);
        };
        assert!(!model.is_stopped && model.phase == Phase::Idle);
        let in_wheel: usize = occupancy.levels.iter().flat_map(|level| &level.slots).sum();
        let stats = timer.stats();
        let (counted, expected) = (
            (in_wheel + occupancy.queued) as u64,
            stats.pending + stats.cancelled_not_reclaimed,
        );
        let max_left = model.max_in_no_slot() as u64 + stats.cancelled_not_reclaimed;
        let is_left = counted < expected
            && (!has_no_messages || model.is_cut && expected - counted <= max_left);
        assert!(
            counted == expected || is_left,
            "{counted}, not {expected}: at most {max_left} are left"
        );
    }
}
