//! Tasks that run again and again, beside a model of each.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use hashed_wheel::{NewTimeoutError, Periodic};

use super::{Kind, NEVER, Record, Script, State, Task, World, later};

/// How many there may be at a time.
const MOST: usize = 4;

/// A clock that has stood still is made up for by so many runs of each at most.
const MOST_MISSED: u32 = 32;

/// What the model knows of such a task, beside what it knows of its timeout.
pub(super) struct Rhythm {
    pub(super) handle: Option<Periodic>,
    period: Duration,
    /// Else the period is a pause after a run.
    is_rate: bool,
    runs: u64,
    has_panicked: bool,
    /// In an executor's hands: what is due by then it makes up for at once. `None` until its first run there is over.
    makes_up_until: Option<u64>,
}

impl World {
    /// Moves the clock on, but not so far that a task at a fixed rate would be at it for years.
    pub(super) fn advance(&mut self, nanos: u64) {
        let now = self.now();
        let most = self.pending.iter().filter_map(|&id| match &self.records[id] {
            Record { kind: Kind::Periodic(Rhythm { is_rate: true, period, .. }), deadline, .. } => {
                Some(later(*deadline, *period * MOST_MISSED).saturating_sub(now))
            }
            _ => None,
        });
        let nanos = most.min().map_or(nanos, |most| most.min(nanos));
        self.clock.advance(Duration::from_nanos(nanos));
    }

    fn period(&mut self) -> Duration {
        let (tick, turn, bytes) = (self.tick, self.turn_of_wheel, &mut self.bytes);
        Duration::from_nanos(match bytes.up_to(7) {
            0..4 => bytes.up_to(31) * tick / 8,
            4 | 5 => (bytes.up_to(3) + 1) * turn + bytes.up_to(2) * tick,
            6 => bytes.any().max(tick / 8),
            _ => NEVER,
        })
    }

    /// A run is over, or left out: when the next one is due.
    fn run_is_over(&mut self, id: usize, has_panicked: bool) {
        let (now, tick) = (self.now(), self.tick);
        let record = &mut self.records[id];
        let (state, before) = (record.state, record.deadline);
        let rhythm = record.rhythm().expect("it repeats");
        rhythm.has_panicked |= has_panicked;
        let from = if rhythm.is_rate { before } else { before.max(now) };
        let deadline = later(from, rhythm.period);
        if state != State::Handed {
            return; // Cancelled meanwhile.
        }
        if has_panicked {
            record.state = State::Ran;
            self.pending.remove(&id);
            self.expected.expired += 1;
            self.has_taken_out = true;
            return;
        }
        if self.has_executor {
            // It may make up for the next one, and says when it is through.
            rhythm.makes_up_until.get_or_insert(now / tick * tick);
            (record.deadline, record.was_reset) = (deadline, true);
            return;
        }
        (record.state, record.deadline, record.was_reset) = (State::Pending, deadline, true);
        // Of several in one tick each comes after the one before.
        record.due = deadline.div_ceil(tick).max(record.due);
        let due = record.due;
        self.comes_to(due);
    }

    /// An executor is through with a task: if it repeats, it waits for the next run now.
    pub(super) fn run_again_later(&mut self, id: usize) {
        let record = &mut self.records[id];
        let (state, deadline) = (record.state, record.deadline);
        let Some(until) = record.rhythm().and_then(|rhythm| rhythm.makes_up_until.take()) else { return };
        if state == State::Handed {
            assert!(deadline > until, "{id} has not made up for all");
            let due = self.due(deadline);
            let record = &mut self.records[id];
            (record.state, record.due) = (State::Pending, due);
            self.has_taken_out = true;
            self.needs_turn(id);
        }
    }

    /// An executor is about to drop a task.
    pub(super) fn leave_out(&mut self, id: usize) {
        let (state, repeats) = (self.records[id].state, self.records[id].repeats());
        if state == State::Handed && !repeats {
            self.records[id].state = State::Dropped;
            self.free_key(id);
        } else if state == State::Handed {
            self.run_is_over(id, false);
            // Nothing is made up for.
            self.records[id].rhythm().expect("it repeats").makes_up_until = Some(0);
        } else if repeats {
            return; // It was not to run any more.
        }
        self.expected.dropped += 1;
    }
}

impl Script {
    pub(super) fn schedule_periodic(&self) {
        let mut world = self.world();
        let has_room = world.has_room_for_unseen(MOST, None);
        let Some(timer) = world.timer().filter(|_| has_room) else { return };
        let (delay, period) = (world.delay(), world.period());
        let (is_rate, temper) = (world.bytes.up_to(1) == 0, world.bytes.up_to(255));
        let deadline = world.deadline(delay);
        let is_zero = period.is_zero();
        let rhythm =
            Rhythm { handle: None, period, is_rate, runs: 0, has_panicked: false, makes_up_until: None };
        let id = if is_zero { usize::MAX } else { world.schedule(Kind::Periodic(rhythm), deadline) };
        drop(world);

        let mut task = Task { id, temper, script: self.clone() };
        let outcome = match is_rate {
            true => timer.schedule_at_fixed_rate(move || task.beat(), delay, period),
            false => timer.schedule_with_fixed_delay(move || task.beat(), delay, period),
        };
        let mut world = self.world();
        match outcome {
            Err(NewTimeoutError::ZeroPeriod) => return assert!(is_zero),
            Err(error) => world.expect_refusal(&error),
            Ok(periodic) => world.records[id].rhythm().expect("it repeats").handle = Some(periodic),
        }
        let record = &world.records[id];
        assert_eq!(record.task_is_gone, record.state == State::Refused);
    }

    /// Looks at one, and then ends it perhaps.
    pub(super) fn disturb(&self, id: usize, periodic: &Periodic) {
        let mut world = self.world();
        let record = &mut world.records[id];
        let (state, rhythm) = (record.state, record.rhythm().expect("it repeats"));
        assert_eq!(periodic.is_cancelled(), state == State::Cancelled);
        assert_eq!((periodic.runs(), periodic.has_panicked()), (rhythm.runs, rhythm.has_panicked));
        if world.bytes.up_to(3) == 3 {
            drop(world);
            self.cancel_one_periodic(id, periodic);
        }
    }

    fn cancel_one_periodic(&self, id: usize, periodic: &Periodic) {
        let mut world = self.world();
        let is_elsewhere = world.records[id].state == State::Handed;
        let wins = world.withdraw(id);
        if wins {
            world.records[id].state = State::Cancelled;
        }
        drop(world);
        assert_eq!(periodic.cancel(), wins);
        assert!(!wins || self.world().records[id].task_is_gone != is_elsewhere);
    }

    pub(super) fn cancel_periodic(&self) {
        let all: Vec<_> = {
            let mut world = self.world();
            let handles = world.records.iter_mut().enumerate();
            handles.filter_map(|(id, record)| Some((id, record.rhythm()?.handle.clone()?))).collect()
        };
        all.iter().for_each(|(id, periodic)| self.cancel_one_periodic(*id, periodic));
    }
}

impl Task {
    /// A run of one that repeats.
    fn beat(&mut self) {
        {
            let mut world = self.script.world();
            if !world.has_executor {
                world.fire(self.id);
            }
            let record = &mut world.records[self.id];
            assert_eq!(record.state, State::Handed);
            let deadline = record.deadline;
            let rhythm = record.rhythm().expect("it repeats");
            assert!(rhythm.makes_up_until.is_none_or(|until| deadline <= until), "{} is early", self.id);
            rhythm.runs += 1;
            world.expected.periodic_runs += 1;
        }
        let acts = || {
            if self.temper >= 128 {
                self.script.nested(7);
            }
        };
        let outcome = catch_unwind(AssertUnwindSafe(acts));
        self.script.world().run_is_over(self.id, outcome.is_err());
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
    }
}
