//! Periodic tasks.

use hashed_wheel_over_shuttle::Periodic;

use super::*;

/// As many as the messages that a turn takes. With more, there could be a backlog for as long as
/// the tasks run on other threads, and a shutdown waits while there is a backlog.
const MAX_PERIODIC_TASKS: usize = 2;

#[derive(Default)]
pub(super) struct PeriodicTasks {
    all: Mutex<Vec<Arc<PeriodicTask>>>,
    /// How often a thread wanted to schedule one.
    requested: AtomicUsize,
}

pub(super) struct PeriodicTask {
    periodic: Periodic,
    state: Arc<RunState>,
    /// The most runs that it may have in total, once a thread has cancelled it.
    max_runs: Mutex<Option<u64>>,
}

#[derive(Default)]
struct RunState {
    is_running: AtomicBool,
    drops: AtomicUsize,
}

/// The value that a periodic task captures.
struct RunGuard(Arc<RunState>);

impl RunGuard {
    /// A panic here is counted by the timer.
    fn run(&self) {
        assert!(
            !self.0.is_running.swap(true, Relaxed),
            "two runs at the same time"
        );
        thread::yield_now();
        self.0.is_running.store(false, Relaxed);
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Relaxed);
    }
}

impl PeriodicTask {
    pub(super) fn cancel(&self) {
        if self.periodic.cancel() {
            // A run that has begun may not have been counted yet.
            let before = self
                .max_runs
                .lock()
                .unwrap()
                .replace(self.periodic.runs() + 1);
            assert_eq!(before, None, "two cancels succeeded");
        }
    }
}

impl PeriodicTasks {
    pub(super) fn add(&self, scenario: &Scenario, delay: Duration) {
        if self.requested.fetch_add(1, Relaxed) >= MAX_PERIODIC_TASKS {
            return;
        }
        let state = Arc::<RunState>::default();
        let guard = RunGuard(Arc::clone(&state));
        // A fixed delay, because the clock may advance faster than missed runs could be made up
        // for.
        match scenario
            .timer
            .schedule_with_fixed_delay(move || guard.run(), delay, TICK)
        {
            Ok(periodic) => {
                let one = Arc::new(PeriodicTask {
                    periodic,
                    state,
                    max_runs: Mutex::default(),
                });
                self.all.lock().unwrap().push(one);
            }
            Err(error) => {
                assert_eq!(get(&state.drops), 1, "a rejected task is dropped");
                scenario.world.assert_may_reject(&scenario.timer, &error);
            }
        }
    }

    pub(super) fn pick(&self, random: &mut Rng) -> Option<Arc<PeriodicTask>> {
        random.choice(&*self.all.lock().unwrap()).cloned()
    }

    pub(super) fn check(&self) -> Counts {
        let (mut cancelled, mut stopped, mut runs) = (0, 0, 0);
        for one in &*self.all.lock().unwrap() {
            assert!(
                one.periodic.is_cancelled(),
                "a periodic task ends only by a cancel or a stop"
            );
            assert_eq!(get(&one.state.drops), 1, "each task is dropped once");
            match *one.max_runs.lock().unwrap() {
                Some(max) => {
                    assert!(one.periodic.runs() <= max, "a run began after the cancel");
                    cancelled += 1;
                }
                None => stopped += 1,
            }
            runs += one.periodic.runs() as usize;
        }
        Counts::of([
            ("runs of periodic tasks", runs),
            ("periodic tasks cancelled", cancelled),
            ("periodic tasks stopped", stopped),
        ])
    }
}
