//! Periodic tasks.

use hashed_wheel_over_shuttle::Periodic;

use super::*;

/// As many as the messages that a turn takes. With more, there could be a backlog for as long as
/// the tasks run on other threads, and a shutdown waits while there is a backlog.
const MAX_PERIODIC_TASKS: u64 = 2;

#[derive(Default)]
pub(super) struct PeriodicTasks {
    all: Mutex<Vec<Arc<PeriodicTask>>>,
    /// How often a thread wanted to schedule one.
    requested: AtomicU64,
}

pub(super) struct PeriodicTask {
    periodic: Periodic,
    ticket: Arc<Ticket>,
    /// The most runs that it may have in total, once a thread has cancelled it.
    max_runs: Mutex<Option<u64>>,
}

/// The value that a periodic task captures.
struct RunGuard {
    is_running: AtomicBool,
    ticket: Arc<Ticket>,
}

impl RunGuard {
    /// A panic here is counted by the timer.
    fn run(&self) {
        assert!(
            !self.is_running.swap(true, Relaxed),
            "two runs at the same time"
        );
        thread::yield_now();
        self.is_running.store(false, Relaxed);
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.ticket.count(Count::TaskDrop);
    }
}

impl PeriodicTask {
    pub(super) fn cancel(&self) {
        if self.periodic.cancel() {
            self.ticket.count(Count::Cancelled);
            // A run that has begun may not have been counted yet.
            let max_runs = self.periodic.runs() + 1;
            *self.max_runs.lock().unwrap() = Some(max_runs);
        }
    }
}

impl PeriodicTasks {
    pub(super) fn add(&self, scenario: &Scenario, delay: Duration) {
        if self.requested.fetch_add(1, Relaxed) >= MAX_PERIODIC_TASKS {
            return;
        }
        let Scenario { timer, world, .. } = scenario;
        let ledger = &world.ledger;
        let ticket = Arc::new(Ticket::new(ledger, Kind::Periodic, Deadline::default()));
        let guard = RunGuard {
            is_running: AtomicBool::new(false),
            ticket: Arc::clone(&ticket),
        };
        // A fixed delay, because the clock may advance faster than missed runs could be made up
        // for.
        match timer.schedule_with_fixed_delay(move || guard.run(), delay, TICK) {
            Ok(periodic) => {
                let one = Arc::new(PeriodicTask {
                    periodic,
                    ticket,
                    max_runs: Mutex::default(),
                });
                self.all.lock().unwrap().push(one);
            }
            Err(error) => {
                assert_eq!(ticket.get(Count::TaskDrop), 1, "a rejected task is dropped");
                ticket.count(Count::Rejected);
                world.assert_may_reject(timer, &error);
            }
        }
    }

    pub(super) fn pick(&self, random: &mut Rng) -> Option<Arc<PeriodicTask>> {
        random.choice(&*self.all.lock().unwrap()).cloned()
    }

    pub(super) fn check(&self, ledger: &Ledger) -> Counts {
        let mut runs = 0;
        for one in std::mem::take(&mut *self.all.lock().unwrap()) {
            assert!(
                one.periodic.is_cancelled(),
                "a periodic task ends only by a cancel or a stop"
            );
            let drops = one.ticket.get(Count::TaskDrop);
            assert_eq!(drops, 1, "each task is dropped once");
            match *one.max_runs.lock().unwrap() {
                Some(max) => assert!(one.periodic.runs() <= max, "a run began after the cancel"),
                None => one.ticket.count(Count::Left),
            }
            runs += one.periodic.runs();
        }
        let of = |count| ledger.get(Kind::Periodic, count);
        Counts::of([
            ("runs of periodic tasks", runs),
            ("periodic tasks cancelled", of(Count::Cancelled)),
            ("periodic tasks stopped", of(Count::Left)),
        ])
    }
}
