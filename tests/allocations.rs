//! What does not allocate. A test binary of its own, for it counts.

#![allow(unsafe_code, reason = "an allocator is")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use hashed_wheel::{Clock, HashedWheelTimer, ManualClock};

thread_local!(static ALLOCATIONS: Cell<usize> = const { Cell::new(0) });

struct Counting;

// SAFETY: all of it is the system's; counting touches nothing of the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations_of(code: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    code();
    ALLOCATIONS.get() - before
}

#[test]
fn a_re_arm_allocates_nothing_and_touches_no_queue() {
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven().unwrap();
    let idle = timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap();
    driver.turn();
    let allocations = allocations_of(|| {
        for _ in 0..200_000 {
            clock.advance(Duration::from_micros(1));
            assert!(idle.reset(Duration::from_secs(60)));
        }
    });
    assert_eq!(allocations, 0);
    // More than a turn takes from the queue: had they been in it, another turn would be due at once.
    driver.turn();
    assert_ne!(driver.next_turn(), Some(Duration::ZERO));
}

#[test]
fn a_timeout_is_one_allocation() {
    let (timer, _driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let captured = [0_u64; 4];
    let schedule = || drop(timer.new_timeout(move |_| assert_eq!(captured[0], 0), Duration::ZERO).unwrap());
    let allocations = allocations_of(|| (0..31 * 100).for_each(|_| schedule()));
    // And a block of the queue for every 31.
    assert!(allocations <= 31 * 100 + 101, "{allocations}");
}

#[test]
fn a_cancel_allocates_nothing_but_room_in_the_queue() {
    let (timer, mut driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let timeouts: Vec<_> =
        (0..31 * 100).map(|_| timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap()).collect();
    let (queued, placed) = timeouts.split_at(31 * 50);
    assert_eq!(allocations_of(|| queued.iter().for_each(|timeout| assert!(timeout.cancel()))), 0);
    driver.turn();
    let allocations = allocations_of(|| placed.iter().for_each(|timeout| assert!(timeout.cancel())));
    assert!(allocations <= 51, "{allocations}");
}

/// To take in what has come takes time, and a loop that sleeps as if it had not would be late.
#[test]
fn next_turn_looks_at_the_clock_when_it_has_taken_in_what_has_come() {
    thread_local!(static WHEN_ASKED: Cell<usize> = const { Cell::new(0) });

    /// Notes how much had been allocated when it was asked.
    struct Witness;

    impl Clock for Witness {
        fn now(&self) -> Duration {
            WHEN_ASKED.set(ALLOCATIONS.get());
            Duration::ZERO
        }
    }

    let (timer, driver) = HashedWheelTimer::builder().clock(Witness).build_driven().unwrap();
    (0..1_000).for_each(|_| drop(timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap()));
    let before = ALLOCATIONS.get();
    assert_eq!(driver.next_turn(), Some(Duration::from_secs(60)));
    assert!(WHEN_ASKED.get() > before, "before the wheel had grown");
}
