//! Compares periodic tasks with a model of each.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use hashed_wheel::{NewTimeoutError, Periodic};

use super::{Count, Kind, Model, NEVER, Record, Script, State, Task, later};

/// The maximum number of periodic tasks at the same time.
const MAX_PERIODIC: usize = 4;

/// The maximum number of missed runs that each task makes up for.
const MAX_MISSED: u32 = 32;

/// The model's state of a periodic task, in addition to that of its timeout.
pub(super) struct PeriodicModel {
    pub(super) handle: Option<Periodic>,
    period: Duration,
    /// Otherwise the period is a pause after a run.
    is_rate: bool,
    runs: u64,
    has_panicked: bool,
    /// Used with an executor: the task makes up for the runs due by this time. `None` until its
    /// first run there is over.
    catch_up_until: Option<u64>,
}

impl Model {
    /// Advances the clock, but not so far that a task at a fixed rate would have to make up for
    /// years of runs.
    pub(super) fn advance(&mut self, nanos: u64) {
        let now = self.now();
        let max = self.pending.iter().filter_map(|&id| {
            let Record { kind, deadline, .. } = &self.records[id];
            let Kind::Periodic(periodic) = kind else {
                return None;
            };
            let max = || later(*deadline, periodic.period * MAX_MISSED).saturating_sub(now);
            periodic.is_rate.then(max)
        });
        let nanos = max.min().map_or(nanos, |max| max.min(nanos));
        self.clock.advance(Duration::from_nanos(nanos));
    }

    fn period(&mut self) -> Duration {
        let (tick, round, bytes) = (self.tick, self.round, &self.bytes);
        Duration::from_nanos(match bytes.up_to(7) {
            0..4 => bytes.up_to(31) * tick / 8,
            4 | 5 => (bytes.up_to(3) + 1) * round + bytes.up_to(2) * tick,
            6 => bytes.any().max(tick / 8),
            _ => NEVER,
        })
    }

    /// A run is over or was skipped. Computes when the next one is due.
    fn finish_run(&mut self, id: usize, has_panicked: bool) {
        let (now, tick) = (self.now(), self.tick);
        let record = &mut self.records[id];
        let (state, before) = (record.state, record.deadline);
        let periodic_model = record.periodic();
        periodic_model.has_panicked |= has_panicked;
        let after = if periodic_model.is_rate { 0 } else { now };
        let from = before.max(after);
        let deadline = later(from, periodic_model.period);
        if state != State::HandedOver {
            return; // It was cancelled meanwhile.
        }
        if has_panicked {
            record.state = State::Ran;
            record.ticket.count(Count::Expired);
            self.pending.remove(&id);
            self.has_removed = true;
            return;
        }
        if self.has_executor {
            // The task may make up for the next run, and reports when it has finished.
            periodic_model
                .catch_up_until
                .get_or_insert(now / tick * tick);
            (record.deadline, record.was_reset) = (deadline, true);
            return;
        }
        (record.state, record.deadline, record.was_reset) = (State::Pending, deadline, true);
        // Runs of one task in the same tick follow one another.
        record.due = deadline.div_ceil(tick).max(record.due);
        let due = record.due;
        self.note_far_entry(due);
    }

    /// An executor has finished with a task. If it is periodic, it now waits for its next run.
    pub(super) fn schedule_next_run(&mut self, id: usize) {
        let record = &mut self.records[id];
        let (state, deadline) = (record.state, record.deadline);
        let periodic = record.periodic_model();
        let Some(until) = periodic.and_then(|periodic| periodic.catch_up_until.take()) else {
            return;
        };
        if state == State::HandedOver {
            // On a stopped timer it does not make up for them.
            let has_caught_up = deadline > until || self.is_stopped;
            assert!(has_caught_up, "task {id} has left missed runs");
            let due = self.due(deadline);
            let record = &mut self.records[id];
            (record.state, record.due) = (State::Pending, due);
            self.has_removed = true;
            self.note_addition(id);
            self.needs_turn(id);
        }
    }

    /// An executor is about to drop a task.
    pub(super) fn skip_run(&mut self, id: usize) {
        let (state, is_periodic) = (self.records[id].state, self.records[id].is_periodic());
        if state == State::HandedOver && !is_periodic {
            self.records[id].state = State::Dropped;
            self.free_key(id);
        } else if state == State::HandedOver {
            self.finish_run(id, false);
            // A dropped run is not made up for.
            self.records[id].periodic().catch_up_until = Some(0);
        } else if is_periodic {
            return; // It was cancelled before.
        }
        self.expected.dropped += 1;
    }
}

impl Script {
    pub(super) fn schedule_periodic(&self) {
        let mut model = self.model();
        let has_room = model.has_room_for_hidden(MAX_PERIODIC, None);
        let Some(timer) = model.timer().filter(|_| has_room) else {
            return;
        };
        let (delay, period) = (model.delay(), model.period());
        let (is_rate, behaviour) = (model.bytes.up_to(1) == 0, model.bytes.up_to(255));
        let deadline = model.deadline(delay);
        let is_zero = period.is_zero();
        let periodic_model = PeriodicModel {
            handle: None,
            period,
            is_rate,
            runs: 0,
            has_panicked: false,
            catch_up_until: None,
        };
        let id = if is_zero {
            usize::MAX
        } else {
            model.schedule(Kind::Periodic(periodic_model), deadline)
        };
        drop(model);

        let mut task = Task {
            id,
            behaviour,
            script: self.clone(),
        };
        let outcome = match is_rate {
            true => timer.schedule_at_fixed_rate(move || task.run_periodic(), delay, period),
            false => timer.schedule_with_fixed_delay(move || task.run_periodic(), delay, period),
        };
        let mut model = self.model();
        match outcome {
            Err(NewTimeoutError::ZeroPeriod) => return assert!(is_zero),
            Err(error) => model.expect_rejection(&error),
            Ok(periodic) => model.records[id].periodic().handle = Some(periodic),
        }
        let record = &model.records[id];
        assert_eq!(record.is_dropped(), record.state == State::Rejected);
    }

    /// Checks a periodic task, and perhaps cancels it.
    pub(super) fn check_periodic(&self, id: usize, periodic: &Periodic) {
        let mut model = self.model();
        let record = &mut model.records[id];
        let is_never = record.deadline == NEVER;
        let (state, periodic_model) = (record.state, record.periodic());
        let is_over = matches!(state, State::Cancelled | State::Ran | State::Rejected);
        let state_seen = (periodic.is_cancelled(), periodic.is_finished());
        assert_eq!(state_seen, (state == State::Cancelled, is_over));
        // A run that waits or is in progress decides about the next one.
        let has_next = periodic.next_run().is_some();
        assert_eq!(has_next, state == State::Pending && !is_never);
        let seen = (periodic.runs(), periodic.has_panicked());
        assert_eq!(seen, (periodic_model.runs, periodic_model.has_panicked));
        if model.bytes.up_to(3) == 3 {
            drop(model);
            self.cancel_one_periodic(id, periodic);
        }
    }

    fn cancel_one_periodic(&self, id: usize, periodic: &Periodic) {
        let mut model = self.model();
        let is_in_executor = model.records[id].state == State::HandedOver;
        let would_wait = model.would_wait(id);
        let succeeds = model.cancel_record(id);
        if succeeds {
            model.records[id].state = State::Cancelled;
        }
        drop(model);
        match id % 4 {
            3 => drop(periodic.clone().cancel_on_drop()),
            1 if !would_wait => assert_eq!(periodic.cancel_and_wait(), succeeds),
            _ => assert_eq!(periodic.cancel(), succeeds),
        }
        assert!(!succeeds || self.model().records[id].is_dropped() != is_in_executor);
    }

    pub(super) fn cancel_periodic(&self) {
        let all: Vec<_> = {
            let mut model = self.model();
            let handles = model.records.iter_mut().enumerate();
            handles
                .filter_map(|(id, record)| Some((id, record.periodic_model()?.handle.clone()?)))
                .collect()
        };
        all.iter()
            .for_each(|(id, periodic)| self.cancel_one_periodic(*id, periodic));
    }
}

impl Task {
    /// A run of a periodic task.
    fn run_periodic(&mut self) {
        {
            let mut model = self.script.model();
            if !model.has_executor {
                model.fire(self.id);
            }
            let record = &mut model.records[self.id];
            assert_eq!(record.state, State::HandedOver);
            let deadline = record.deadline;
            let periodic_model = record.periodic();
            let until = periodic_model.catch_up_until;
            let is_due = until.is_none_or(|until| deadline <= until);
            assert!(is_due, "task {} is early", self.id);
            periodic_model.runs += 1;
            model.expected.periodic_runs += 1;
        }
        let acts = || {
            if self.behaviour >= 128 {
                self.script.act_nested(7);
            }
        };
        let outcome = catch_unwind(AssertUnwindSafe(acts));
        self.script.model().finish_run(self.id, outcome.is_err());
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
    }
}
