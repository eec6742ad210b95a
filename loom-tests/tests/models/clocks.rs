//! The clocks. The machine's counter and its clock drift apart, and threads share an offset between
//! the two: the time is never behind the clock, and never goes back.

use hashed_wheel::inside::{COUNTER_VALIDITY, CounterClock, manual_clock};

use super::*;

/// Returns a clock with an offset that is valid for one more nanosecond.
fn with_offset() -> Arc<CounterClock> {
    let clock = Arc::new(CounterClock::new());
    clock.now_or_soon();
    clock.advance(COUNTER_VALIDITY - 1);
    clock
}

/// Reads the time twice on another thread.
fn read_twice(clock: &Arc<CounterClock>) -> thread::JoinHandle<()> {
    let clock = Arc::clone(clock);
    thread::spawn(move || {
        let [first, second] = [(); 2].map(|()| clock.now_or_soon());
        assert!(first <= second, "the time goes back from {first} to {second}");
    })
}

#[test]
fn time_does_not_go_back_while_another_thread_updates_the_offset() {
    let mutants = [
        no_release("clock.rs synchronise"),
        no_acquire("clock.rs now_by_counter"),
        mutant("OffsetWithoutRelease"),
        mutant("OffsetWithoutAcquire"),
        mutant("UpdateWithoutRelease"),
        mutant("ValidityWithoutRelease"),
        mutant("OffsetWithoutFloor"),
    ];
    explore(Some(2), mutants, || {
        let clock = with_offset();
        let reader = read_twice(&clock);
        clock.advance(1);
        clock.now_or_soon();
        reader.join().unwrap();
    });
}

#[test]
fn manual_time_carries_what_was_done_before() {
    explore(None, [no_release("clock.rs advance"), no_acquire("clock.rs nanos")], || {
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
    });
}
