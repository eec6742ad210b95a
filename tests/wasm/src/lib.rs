//! A timer on `wasm32-unknown-unknown`, where the clock of std panics and there are no threads.

use std::cell::Cell;
use std::time::Duration;

use hashed_wheel::{BuildError, Builder, HashedWheelTimer, ManualClock, NewTimeoutError};

const TICK: Duration = Duration::from_millis(10);

thread_local!(static RUNS: Cell<usize> = const { Cell::new(0) });

fn runs() -> usize {
    RUNS.get()
}

fn count() {
    RUNS.set(runs() + 1);
}

/// Returns the number of timeouts that have run. Traps if a check fails.
#[unsafe(no_mangle)]
pub extern "C" fn run() -> usize {
    build_without_a_clock_fails();
    a_timer_without_threads_rejects_timeouts();
    driven(|builder| builder);
    driven(|builder| builder.hierarchical(true));
    runs()
}

fn build_without_a_clock_fails() {
    assert!(matches!(
        HashedWheelTimer::builder().build(),
        Err(BuildError::NoClock)
    ));
    assert!(matches!(
        HashedWheelTimer::builder().build_driven(),
        Err(BuildError::NoClock)
    ));
}

fn a_timer_without_threads_rejects_timeouts() {
    let timer = HashedWheelTimer::builder()
        .clock(ManualClock::new())
        .build()
        .unwrap();
    for _ in 0..2 {
        assert!(matches!(timer.start(), Err(NewTimeoutError::Spawn { .. })));
        assert!(matches!(
            timer.new_timeout(|_| count(), TICK),
            Err(NewTimeoutError::Spawn { .. })
        ));
    }
    assert!(timer.shutdown(TICK).is_empty());
}

fn driven(settings: impl FnOnce(Builder) -> Builder) {
    let (clock, before) = (ManualClock::new(), runs());
    let builder = HashedWheelTimer::builder()
        .tick(TICK)
        .ticks_per_wheel(8)
        .waker(|| ())
        .clock(clock.clone());
    let (timer, mut driver) = settings(builder).build_driven().unwrap();
    // So many that their memory is allocated in large chunks.
    for number in 0..100_000 {
        timer
            .new_timeout(|_| count(), TICK * (number % 20))
            .unwrap();
    }
    let reset = timer.new_timeout(|_| count(), TICK).unwrap();
    assert!(timer.new_timeout(|_| count(), TICK).unwrap().cancel());
    assert!(reset.reset(TICK * 30));
    assert_eq!(reset.remaining(), TICK * 30);

    let mut expired = 0;
    while timer.pending_timeouts() > 1 {
        clock.advance(driver.next_turn().unwrap());
        expired += driver.turn();
    }
    assert_eq!((expired, runs() - before), (100_000, 100_000));

    let left = timer.new_timeout(|_| count(), TICK * 2_000).unwrap();
    clock.advance(TICK * 30);
    assert_eq!(timer.shutdown(TICK), [left]);
    assert_eq!(runs() - before, 100_001);
    assert!(driver.is_stopped() && timer.stop().is_empty());
}
