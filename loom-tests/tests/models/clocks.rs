//! The clocks. The machine's counter and its clock drift apart, and threads share an offset between
//! the two: the time is never behind the clock, and never goes back.

use hashed_wheel::inside::{COUNTER_VALIDITY, Drift, ModelledCounterClock, manual_clock};

use super::*;

/// Returns a clock with an offset that is valid for one more nanosecond.
fn with_offset(drift: Drift) -> Arc<ModelledCounterClock> {
    let clock = Arc::new(ModelledCounterClock::new(drift));
    clock.deadline_base();
    clock.advance(COUNTER_VALIDITY - 1);
    clock
}

/// Does this on another thread, with a function that reads the time.
fn read(
    clock: &Arc<ModelledCounterClock>,
    steps: impl FnOnce(&ModelledCounterClock, &mut dyn FnMut()) + Send + 'static,
) -> thread::JoinHandle<()> {
    let clock = Arc::clone(clock);
    thread::spawn(move || {
        let mut last = 0;
        steps(&clock, &mut || {
            let now = clock.deadline_base();
            assert!(last <= now, "the time goes back from {last} to {now}");
            last = now;
        });
    })
}

/// Another thread reads the time twice, while this one updates the offset.
fn update_while_read(drift: Drift) {
    let clock = with_offset(drift);
    let reader = read(&clock, |_, read| (0..2).for_each(|_| read()));
    clock.advance(1);
    clock.deadline_base();
    reader.join().unwrap();
}

#[test]
fn time_does_not_go_back_while_another_thread_updates_the_offset() {
    let mutants = [
        no_release("clock/counter.rs synchronise"),
        no_acquire("clock/counter.rs deadline_base"),
        mutant("OffsetWithoutRelease"),
        mutant("OffsetWithoutAcquire"),
        mutant("OffsetWithoutFloor"),
    ];
    explore(Some(2), mutants, || update_while_read(Drift::Slower));
}

/// A time at the end of the old offset is far ahead of the clock.
#[test]
fn time_does_not_go_back_while_the_clock_is_slewed() {
    let mutants = [mutant("OffsetWithoutFloor"), mutant("OffsetWithoutRelease")];
    explore(Some(2), mutants, || update_while_read(Drift::MuchSlower));
}

/// The thread reads the operating system's clock during the update. The new offset is as old as the
/// update.
#[test]
fn time_does_not_go_back_after_a_long_update() {
    let mutants = [
        mutant("TimeWithoutFloor"),
        mutant("OffsetWithoutDrift"),
        mutant("ValidityWithoutRelease"),
        mutant("ValidityWithoutAcquire"),
    ];
    explore(Some(2), mutants, || {
        let clock = with_offset(Drift::Faster);
        clock.advance(1);
        let reader = read(&clock, |clock, read| {
            clock.advance(COUNTER_VALIDITY - 10_000);
            (0..2).for_each(|_| read());
        });
        clock.deadline_base();
        reader.join().unwrap();
    });
}

/// A thread has read the counter before another thread updates the offset.
#[test]
fn offset_that_is_valid_is_not_replaced() {
    explore(Some(3), [mutant("ValidOffsetReplaced")], || {
        let clock = with_offset(Drift::Slower);
        clock.advance(1);
        let reader = read(&clock, |clock, read| {
            clock.advance(5);
            read();
            // So that the next time is above the floor, and the readings of the other thread are
            // still close together.
            clock.advance(244);
            (0..2).for_each(|_| read());
        });
        clock.deadline_base();
        reader.join().unwrap();
    });
}

#[test]
fn manual_time_carries_what_was_done_before() {
    explore(
        None,
        [
            no_release("clock/manual.rs advance"),
            no_acquire("clock/manual.rs now"),
        ],
        || {
            let clock = manual_clock();
            let flag = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
            let (other, set) = (clock.clone(), Arc::clone(&flag));
            let advancing = thread::spawn(move || {
                set.store(1, Relaxed);
                other.advance(TICK);
            });
            if clock.now() == TICK {
                assert_eq!(flag.load(Relaxed), 1, "the flag was set before");
            }
            advancing.join().unwrap();
        },
    );
}
