//! Periodic tasks: at a fixed rate and with a fixed delay. Some end by themselves.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, MissedTick, Periodic, PeriodicRun};

use super::recurring::Recurring;
use super::{Context, Load, TIMEOUT};
use crate::Sabotage;
use crate::accounts::{Accounts, Deadline, End, Kind, wait_until};
use crate::ledger::lock;

/// How many a thread has at a time.
const MAX_TASKS: usize = 20;

/// What the runs of a task record.
struct Runs {
    recurring: Recurring,
    /// The deadline of the run that is in progress; if there is none, of the next one.
    deadline: Mutex<Deadline>,
    count: AtomicU64,
    is_running: AtomicBool,
    overlaps: AtomicU64,
    drops: AtomicU64,
}

/// What a task captures.
struct Guard {
    runs: Arc<Runs>,
    accounts: Arc<Accounts>,
    /// For sabotage: a run of another thread at the same time.
    overlaps: bool,
}

impl Guard {
    fn run(&self, run: &PeriodicRun<'_>) {
        // When the timer says that it is due, and when it must be.
        for deadline in [Deadline::at(run.deadline()), self.runs.deadline()] {
            self.accounts.expect_on_time(Kind::Periodic, deadline, Instant::now());
        }
        self.runs.count.fetch_add(1, SeqCst);
        self.runs.while_running(|| match self.overlaps {
            true => self.runs.while_running(|| ()),
            // Gives another run the time to begin.
            false => thread::yield_now(),
        });
        self.runs.end_run();
    }
}

impl Runs {
    /// The task is scheduled now.
    fn new(recurring: Recurring) -> Self {
        Self {
            recurring,
            deadline: Mutex::new(recurring.first()),
            count: AtomicU64::default(),
            is_running: AtomicBool::default(),
            overlaps: AtomicU64::default(),
            drops: AtomicU64::default(),
        }
    }

    fn deadline(&self) -> Deadline {
        *lock(&self.deadline)
    }

    fn end_run(&self) {
        let mut deadline = lock(&self.deadline);
        *deadline = self.recurring.next(*deadline);
    }

    fn while_running(&self, work: impl FnOnce()) {
        self.overlaps.fetch_add(u64::from(self.is_running.swap(true, SeqCst)), SeqCst);
        work();
        self.is_running.store(false, SeqCst);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.runs.drops.fetch_add(1, SeqCst);
    }
}

struct Task {
    periodic: Periodic,
    runs: Arc<Runs>,
    /// It ends itself in this run.
    max_runs: u64,
}

impl Task {
    /// Whether the next run should have begun some time ago.
    fn is_overdue(&self) -> bool {
        self.next_deadline().is_some_and(Deadline::is_overdue)
    }

    /// Returns when the next run must begin, unless one is in progress.
    fn next_deadline(&self) -> Option<Deadline> {
        // The run before has recorded the deadline of the next one.
        self.periodic.next_run().map(|_| self.runs.deadline())
    }
}

pub(super) struct PeriodicTasks {
    timer: HashedWheelTimer,
    accounts: Arc<Accounts>,
    tasks: Vec<Task>,
    sabotage: Option<Sabotage>,
}

impl PeriodicTasks {
    pub(super) fn new(context: &Context) -> Self {
        let (timer, accounts) = (context.timer.clone(), Arc::clone(&context.accounts));
        Self { timer, accounts, tasks: Vec::new(), sabotage: context.sabotage }
    }

    fn add(&mut self, random: &mut Rng) {
        let policies = [MissedTick::Skip, MissedTick::Delay];
        let (recurring, schedule) = Recurring::new(&policies, random, self.sabotage);
        let (runs, max_runs) = (Arc::new(Runs::new(recurring)), max_runs(random));
        let (accounts, overlaps) = (Arc::clone(&self.accounts), self.sabotage == Some(Sabotage::Overlap));
        let guard = Guard { runs: Arc::clone(&runs), accounts, overlaps };
        let last = max_runs + u64::from(self.sabotage == Some(Sabotage::ExtraRun));
        let task = move |run: &PeriodicRun<'_>| {
            guard.run(run);
            if run.number() < last { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.accounts.register(Kind::Periodic);
        match self.timer.schedule_periodic(schedule, task) {
            Ok(periodic) => self.tasks.push(Task { periodic, runs, max_runs }),
            Err(error) => self.accounts.fail(Kind::Periodic, &error, false),
        }
    }

    /// Records how this task ended.
    fn settle_one(&self, task: &Task, end: End) {
        self.accounts.end(Kind::Periodic, end);
        let Task { periodic, runs, max_runs } = task;
        let is_dropped = || runs.drops.load(SeqCst) == 1;
        self.accounts
            .expect(wait_until(TIMEOUT, is_dropped), || "a periodic task was not dropped once".into());
        let (overlaps, has_panicked) = (runs.overlaps.load(SeqCst), periodic.has_panicked());
        self.accounts.expect(overlaps == 0 && !has_panicked, || {
            format!("a periodic task has {overlaps} overlapping runs; it has panicked: {has_panicked}")
        });
        let (count, reported) = (runs.count.load(SeqCst), periodic.runs());
        let is_complete = !matches!(end, End::Expired) || count == *max_runs;
        self.accounts.expect(count == reported && count <= *max_runs && is_complete, || {
            format!("a periodic task has run {count} times, reported {reported}, of {max_runs}; end: {end:?}")
        });
    }

    /// `waits`: for the end of a run that is in progress.
    fn cancel(&self, task: &Task, waits: bool) {
        let Task { periodic, runs, .. } = task;
        let is_cancelled = if waits { periodic.cancel_and_wait() } else { periodic.cancel() };
        let is_running = waits && runs.is_running.load(SeqCst);
        self.accounts.expect(!is_running, || "a periodic task runs after cancel_and_wait".into());
        let end = match (is_cancelled, periodic.is_cancelled()) {
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
        ended.iter().for_each(|task| self.cancel(task, false));
    }
}

/// Half of the tasks end themselves soon.
fn max_runs(random: &mut Rng) -> u64 {
    let limit = if random.bool() { 10 } else { 200 };
    random.u64(1..limit)
}

impl Load for PeriodicTasks {
    fn work(&mut self, random: &mut Rng) {
        match random.u8(0..20) {
            0..3 if self.tasks.len() < MAX_TASKS => self.add(random),
            3 if !self.tasks.is_empty() => {
                let at = random.usize(0..self.tasks.len());
                if !self.tasks[at].is_overdue() {
                    let task = self.tasks.swap_remove(at);
                    self.cancel(&task, random.bool());
                }
            }
            4..8 => self.remove_ended(),
            _ => {}
        }
    }

    fn leave(&mut self) {
        while let Some(task) = self.tasks.pop() {
            let runs = task.periodic.runs();
            if let Some(deadline) = task.next_deadline() {
                let has_run = || task.periodic.runs() > runs || task.periodic.is_finished();
                self.accounts.await_if_due(Kind::Periodic, deadline, has_run);
            }
            self.cancel(&task, false);
        }
    }

    fn settle(&mut self) {
        self.leave();
    }
}
