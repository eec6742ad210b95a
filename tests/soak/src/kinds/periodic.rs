//! Periodic tasks: at a fixed rate and with a fixed delay. Some end by themselves.

use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, MissedTick, Periodic, PeriodicRun};
use hashed_wheel_ledger::{Count, Deadline, Kind, Ticket};

use super::{Load, Recurring, Shared, take};
use crate::Sabotage;
use crate::tally::{Tally, await_if_due, comes, fail, now, since_start};

/// How many a thread has at a time.
const MAX_TASKS: usize = 20;

/// The runs of a task, as the task and its owner know them.
struct Runs {
    /// Its deadline is that of the run in progress; if there is none, of the next one.
    ticket: Ticket,
    recurring: Recurring,
    count: AtomicU64,
    is_running: AtomicBool,
    overlaps: AtomicU64,
}

impl Runs {
    fn run(&self, run: &PeriodicRun<'_>, overlaps: bool) {
        // When the timer says that it is due, and when it must be.
        let reported = Deadline::at(since_start(run.deadline()));
        for deadline in [reported, self.ticket.deadline()] {
            self.ticket.expect_on_time(deadline, now());
        }
        self.count.fetch_add(1, SeqCst);
        self.while_running(|| match overlaps {
            true => self.while_running(|| ()),
            // Gives another run the time to begin.
            false => thread::yield_now(),
        });
        let next = self.recurring.next(self.ticket.deadline());
        self.ticket.set_deadline(next);
    }

    fn while_running(&self, work: impl FnOnce()) {
        let overlaps = self.is_running.swap(true, SeqCst);
        self.overlaps.fetch_add(overlaps.into(), SeqCst);
        work();
        self.is_running.store(false, SeqCst);
    }
}

struct Task {
    periodic: Periodic,
    /// The task has the other reference.
    runs: Arc<Runs>,
    /// It ends itself in this run.
    max_runs: u64,
}

pub(super) struct PeriodicTasks {
    timer: HashedWheelTimer,
    tally: Arc<Tally>,
    tasks: Vec<Task>,
}

impl PeriodicTasks {
    pub(super) fn new(shared: &Shared) -> Self {
        Self {
            timer: shared.timer.clone(),
            tally: Arc::clone(&shared.tally),
            tasks: Vec::new(),
        }
    }

    fn add(&mut self, random: &mut Rng) {
        let policies = [MissedTick::Skip, MissedTick::Delay];
        let (recurring, schedule) = Recurring::new(&policies, random, &self.tally);
        let runs = Arc::new(Runs {
            ticket: Ticket::new(&self.tally, Kind::Periodic, recurring.first()),
            recurring,
            count: AtomicU64::new(0),
            is_running: AtomicBool::new(false),
            overlaps: AtomicU64::new(0),
        });
        // Half of the tasks end themselves soon.
        let limit = if random.bool() { 10 } else { 200 };
        let max_runs = random.u64(1..limit);
        let last = max_runs + u64::from(self.tally.does(Sabotage::ExtraRun));
        let (its_runs, overlaps) = (Arc::clone(&runs), self.tally.does(Sabotage::Overlap));
        let task = move |run: &PeriodicRun<'_>| {
            its_runs.run(run, overlaps);
            match run.number() < last {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        match self.timer.schedule_periodic(schedule, task) {
            Ok(periodic) => self.tasks.push(Task {
                periodic,
                runs,
                max_runs,
            }),
            Err(error) => fail(&runs.ticket, &error, false),
        }
    }

    /// Ends a task. `waits`: for the end of a run that is in progress.
    fn cancel(&self, task: Task, waits: bool) {
        let (periodic, runs, max_runs) = (task.periodic, task.runs, task.max_runs);
        let is_cancelled = match waits {
            true => periodic.cancel_and_wait(),
            false => periodic.cancel(),
        };
        let is_running = waits && runs.is_running.load(SeqCst);
        self.tally.expect(!is_running, || {
            "a periodic task runs after cancel_and_wait".into()
        });
        let end = match (is_cancelled, periodic.is_cancelled()) {
            (true, _) => Count::Cancelled,
            (false, true) => Count::Left,
            (false, false) => Count::Expired,
        };
        runs.ticket.count(end);
        let is_dropped = comes(|| Arc::strong_count(&runs) == 1);
        self.tally
            .expect(is_dropped, || "a periodic task was not dropped".into());
        let (overlaps, has_panicked) = (runs.overlaps.load(SeqCst), periodic.has_panicked());
        self.tally.expect(overlaps == 0 && !has_panicked, || {
            format!(
                "a periodic task has {overlaps} overlapping runs; it has panicked: {has_panicked}"
            )
        });
        let (count, reported) = (runs.count.load(SeqCst), periodic.runs());
        let is_complete = end != Count::Expired || count == max_runs;
        self.tally.expect(count == reported && count <= max_runs && is_complete, || {
            format!("a periodic task has run {count} times, reported {reported}, of {max_runs}; end: {end:?}")
        });
    }
}

impl Load for PeriodicTasks {
    fn work(&mut self, random: &mut Rng) {
        match random.u8(0..20) {
            0..3 if self.tasks.len() < MAX_TASKS => self.add(random),
            3 => match take(&mut self.tasks, random) {
                // The run before has recorded the deadline of the next one.
                Some(task)
                    if task.periodic.next_run().is_some() && task.runs.ticket.is_overdue() =>
                {
                    self.tasks.push(task);
                }
                task => task
                    .into_iter()
                    .for_each(|task| self.cancel(task, random.bool())),
            },
            4..8 => {
                let tasks = mem::take(&mut self.tasks).into_iter();
                let (ended, running): (Vec<_>, Vec<_>) =
                    tasks.partition(|task| task.periodic.is_finished());
                self.tasks = running;
                ended.into_iter().for_each(|task| self.cancel(task, false));
            }
            _ => {}
        }
    }

    fn leave(&mut self) {
        for task in mem::take(&mut self.tasks) {
            let runs = task.periodic.runs();
            if task.periodic.next_run().is_some() {
                await_if_due(&task.runs.ticket, || {
                    task.periodic.runs() > runs || task.periodic.is_finished()
                });
            }
            self.cancel(task, false);
        }
    }

    fn settle(&mut self) {
        self.leave();
    }
}
