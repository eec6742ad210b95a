//! The start of the worker thread, and a `stop` that has to find it.

use super::*;

#[test]
fn two_starts_start_one_worker() {
    explore(
        bound(3, Some(4)),
        [mutant("StartWithoutSecondLook")],
        || {
            take_spawned();
            let timer = small_wheel().clock(ManualClock::new()).build().unwrap();
            let other = timer.clone();
            let start = thread::spawn(move || other.start().unwrap());
            timer.start().unwrap();
            start.join().unwrap();

            assert_eq!(take_spawned(), 1, "one thread is started");
            assert!(timer.stop().is_empty());
        },
    );
}

/// A clock that counts how often it is read.
#[derive(Clone, Default)]
pub(super) struct CountingClock(Arc<AtomicUsize>);

impl Clock for CountingClock {
    fn now(&self) -> Duration {
        self.0.fetch_add(1, Relaxed);
        Duration::ZERO
    }
}

impl CountingClock {
    /// Checks that the worker has ended. A worker that had not would read the clock once more.
    #[track_caller]
    pub(super) fn assert_worker_ended(&self, timer: HashedWheelTimer) {
        let reads = self.0.load(Relaxed);
        drop(timer);
        assert_eq!(self.0.load(Relaxed), reads, "the worker has ended");
    }
}

#[test]
fn stop_ends_a_worker_that_is_being_started() {
    explore(bound(4, None), [mutant("StartWithoutSecondLook")], || {
        let clock = CountingClock::default();
        let timer = small_wheel().clock(clock.clone()).build().unwrap();
        let other = timer.clone();
        let start = thread::spawn(move || drop(other.start()));
        assert!(timer.stop().is_empty());
        start.join().unwrap();
        assert!(matches!(timer.start(), Err(NewTimeoutError::Stopped)));
        clock.assert_worker_ended(timer);
    });
}

/// The first timeout starts the worker.
#[test]
fn timeout_that_starts_the_worker_ends_with_it() {
    explore(
        bound(2, Some(3)),
        [
            mutant("StartWithoutSecondLook"),
            mutant("NewTimeoutNotWithdrawn"),
        ],
        || {
            let clock = CountingClock::default();
            let timer = small_wheel().clock(clock.clone()).build().unwrap();
            let (outcome, other) = (Arc::new(Outcome::default()), timer.clone());
            let task = Task(Arc::clone(&outcome));
            let schedule = thread::spawn(move || other.new_timeout_task(task, Duration::MAX).ok());
            let rest = timer.stop();
            let accepted = schedule.join().unwrap();
            outcome.assert(0, usize::from(accepted.is_some()));
            assert_eq!(
                rest,
                Vec::from_iter(accepted),
                "stop returns an accepted timeout"
            );
            assert_eq!(timer.pending_timeouts(), 0);
            clock.assert_worker_ended(timer);
        },
    );
}

#[test]
fn start_and_new_timeout_start_one_worker() {
    explore(Some(2), [mutant("StartWithoutSecondLook")], || {
        take_spawned();
        let timer = small_wheel().clock(ManualClock::new()).build().unwrap();
        let other = timer.clone();
        let start = thread::spawn(move || other.start().unwrap());
        let timeout = timer.new_timeout(|_| (), Duration::MAX).unwrap();
        start.join().unwrap();
        assert_eq!(take_spawned(), 1, "one thread is started");
        assert_eq!(timer.stop(), [timeout]);
    });
}
