//! Periodic tasks: at a fixed rate and with a fixed delay. Some end by themselves.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, MissedTick, Periodic, Schedule};

use super::{Context, Load, TIMEOUT};
use crate::accounts::{Accounts, End, Kind, wait_until};

/// How many a thread has at a time.
const MAX_TASKS: usize = 20;

/// What the runs of a task count.
#[derive(Default)]
struct Runs {
    is_running: AtomicBool,
    overlaps: AtomicU64,
    drops: AtomicU64,
}

/// What a task captures.
struct Guard(Arc<Runs>);

impl Guard {
    fn run(&self) {
        self.0.overlaps.fetch_add(u64::from(self.0.is_running.swap(true, SeqCst)), SeqCst);
        self.0.is_running.store(false, SeqCst);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, SeqCst);
    }
}

struct Task {
    periodic: Periodic,
    runs: Arc<Runs>,
}

pub(super) struct PeriodicTasks {
    timer: HashedWheelTimer,
    accounts: Arc<Accounts>,
    tasks: Vec<Task>,
}

impl PeriodicTasks {
    pub(super) fn new(context: &Context) -> Self {
        Self { timer: context.timer.clone(), accounts: Arc::clone(&context.accounts), tasks: Vec::new() }
    }

    fn add(&mut self, random: &mut Rng) {
        let period = Duration::from_micros(random.u64(1_000..100_000));
        let rate = Schedule::at_fixed_rate(period);
        let schedule = match random.u8(0..3) {
            0 => rate.missed_tick(MissedTick::Skip),
            1 => rate.missed_tick(MissedTick::Delay),
            _ => Schedule::with_fixed_delay(period),
        };
        let (runs, max_runs) = (Arc::<Runs>::default(), random.u64(1..200));
        let guard = Guard(Arc::clone(&runs));
        let task = move |run: &hashed_wheel::PeriodicRun<'_>| {
            guard.run();
            if run.number() < max_runs { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.accounts.register(Kind::Periodic);
        match self.timer.schedule_periodic_with(task, schedule) {
            Ok(periodic) => self.tasks.push(Task { periodic, runs }),
            Err(error) => self.accounts.fail(Kind::Periodic, &error, false),
        }
    }

    /// Records how this task ended.
    fn settle_one(&self, task: &Task, end: End) {
        self.accounts.end(Kind::Periodic, end);
        let Task { periodic, runs } = task;
        let is_dropped = || runs.drops.load(SeqCst) == 1;
        self.accounts
            .expect(wait_until(TIMEOUT, is_dropped), || "a periodic task was not dropped once".into());
        let (overlaps, has_panicked) = (runs.overlaps.load(SeqCst), periodic.has_panicked());
        self.accounts.expect(overlaps == 0 && !has_panicked, || {
            format!("a periodic task has {overlaps} overlapping runs; it has panicked: {has_panicked}")
        });
    }

    fn cancel(&self, task: &Task) {
        let end = match (task.periodic.cancel(), task.periodic.is_cancelled()) {
            (true, _) => End::Cancelled,
            (false, true) => End::LeftAtStop,
            (false, false) => End::Expired,
        };
        self.settle_one(task, end);
    }

    fn remove_ended(&mut self) {
        let (ended, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.tasks).into_iter().partition(|task| task.periodic.is_finished());
        self.tasks = running;
        ended.iter().for_each(|task| self.cancel(task));
    }
}

impl Load for PeriodicTasks {
    fn work(&mut self, random: &mut Rng) {
        match random.u8(0..20) {
            0..3 if self.tasks.len() < MAX_TASKS => self.add(random),
            3 if !self.tasks.is_empty() => {
                let task = self.tasks.swap_remove(random.usize(0..self.tasks.len()));
                self.cancel(&task);
            }
            4..8 => self.remove_ended(),
            _ => {}
        }
    }

    fn rest(&mut self) {
        while let Some(task) = self.tasks.pop() {
            self.cancel(&task);
        }
    }

    fn settle(&mut self) {
        self.rest();
    }
}
