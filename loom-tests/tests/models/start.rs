//! Starting the worker thread, which `stop` has to find.

use super::*;

#[test]
fn two_starts_start_one_worker() {
    explore(Some(4), [mutant("StartWithoutSecondLook")], || {
        take_spawned();
        let timer = small().clock(ManualClock::new()).build().unwrap();
        let other = timer.clone();
        let start = thread::spawn(move || other.start().unwrap());
        timer.start().unwrap();
        start.join().unwrap();

        assert_eq!(take_spawned(), 1, "one worker");
        assert!(timer.stop().is_empty());
    });
}

/// Counts the looks at it.
#[derive(Clone, Default)]
pub(super) struct Looked(Arc<AtomicUsize>);

impl Clock for Looked {
    fn now(&self) -> Duration {
        self.0.fetch_add(1, Relaxed);
        Duration::ZERO
    }
}

impl Looked {
    /// A worker that was still there would look at the clock before it ends.
    #[track_caller]
    pub(super) fn assert_gone(&self, timer: HashedWheelTimer) {
        let looks = self.0.load(Relaxed);
        drop(timer);
        assert_eq!(self.0.load(Relaxed), looks, "the worker was gone");
    }
}

#[test]
fn a_stop_ends_a_worker_that_is_being_started() {
    explore(None, [mutant("StartWithoutSecondLook")], || {
        let clock = Looked::default();
        let timer = small().clock(clock.clone()).build().unwrap();
        let other = timer.clone();
        let start = thread::spawn(move || drop(other.start()));
        assert!(timer.stop().is_empty());
        start.join().unwrap();
        assert!(matches!(timer.start(), Err(NewTimeoutError::Stopped)));
        clock.assert_gone(timer);
    });
}

/// The first timeout starts the worker.
#[test]
fn a_new_timeout_that_starts_the_worker_ends_with_it() {
    explore(Some(3), [mutant("StartWithoutSecondLook"), mutant("StopWithoutWaiting")], || {
        let clock = Looked::default();
        let timer = small().clock(clock.clone()).build().unwrap();
        let (ends, other) = (Arc::new(Ends::default()), timer.clone());
        let task = Task(Arc::clone(&ends));
        let schedule = thread::spawn(move || other.new_timeout_task(task, Duration::MAX).ok());
        let rest = timer.stop();
        let accepted = schedule.join().unwrap();
        ends.assert(0, usize::from(accepted.is_some()));
        assert_eq!(rest, Vec::from_iter(accepted), "accepted, so stop returned it");
        assert_eq!(timer.pending_timeouts(), 0);
        clock.assert_gone(timer);
    });
}

#[test]
fn a_start_and_a_new_timeout_start_one_worker() {
    explore(Some(2), [mutant("StartWithoutSecondLook")], || {
        take_spawned();
        let timer = small().clock(ManualClock::new()).build().unwrap();
        let other = timer.clone();
        let start = thread::spawn(move || other.start().unwrap());
        let timeout = timer.new_timeout(|_| (), Duration::MAX).unwrap();
        start.join().unwrap();
        assert_eq!(take_spawned(), 1, "one worker");
        assert_eq!(timer.stop(), [timeout]);
    });
}
