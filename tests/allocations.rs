//! What does not allocate. A test binary of its own, for it counts.

#![allow(unsafe_code, reason = "an allocator is")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use hashed_wheel::{Clock, HashedWheelTimer, ManualClock};

/// Bytes, of all threads.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Who counts all threads' is alone.
static ALONE: RwLock<()> = RwLock::new(());

thread_local!(static ALLOCATIONS: Cell<usize> = const { Cell::new(0) });

struct Counting;

// SAFETY: all of it is the system's; counting touches nothing of the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
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
fn a_run_of_a_periodic_task_allocates_nothing() {
    let _with_others = ALONE.read();
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven().unwrap();
    let period = Duration::from_millis(300);
    let large = [0_u64; 32];
    let periodic = timer.schedule_at_fixed_rate(move || assert_eq!(large[31], 0), period, period).unwrap();
    let mut pass = |times| {
        for _ in 0..times {
            clock.advance(period);
            assert_eq!(driver.turn(), 1);
        }
    };
    // Each slot once.
    pass(2_000);
    assert_eq!(allocations_of(|| pass(10_000)), 0);
    assert_eq!(periodic.runs(), 12_000);
}

#[test]
fn a_re_arm_allocates_nothing_and_touches_no_queue() {
    let _with_others = ALONE.read();
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

/// A block of the lane holds so many messages, and is the only thing that is allocated.
const BLOCK: usize = 512;

#[test]
fn timeouts_that_expire_are_used_again() {
    let _with_others = ALONE.read();
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven().unwrap();
    let captured = [0_usize; 3];
    let mut round = || {
        for _ in 0..10 * BLOCK {
            drop(timer.new_timeout(move |_| assert_eq!(captured[0], 0), Duration::ZERO).unwrap());
        }
        driver.turn();
        clock.advance(Duration::from_millis(100));
        assert_eq!(driver.turn(), 10 * BLOCK);
    };
    (0..3).for_each(|_| round());
    let allocations = allocations_of(|| (0..10).for_each(|_| round()));
    assert!(allocations < 10 * (10 + 30), "{allocations}: blocks, and rows that grow");
}

#[test]
fn a_task_of_more_than_three_words_is_an_allocation() {
    let _with_others = ALONE.read();
    let (timer, _driver) = HashedWheelTimer::builder().build_driven().unwrap();
    timer.new_timeout(|_| (), Duration::ZERO).unwrap().cancel();
    let (three, four) = ([0_usize; 3], [0_usize; 4]);
    let small = || drop(timer.new_timeout(move |_| assert_eq!(three[0], 0), Duration::ZERO).unwrap());
    let large = || drop(timer.new_timeout(move |_| assert_eq!(four[0], 0), Duration::ZERO).unwrap());
    assert_eq!(allocations_of(|| (0..50).for_each(|_| small())), 0);
    assert_eq!(allocations_of(|| (0..7).for_each(|_| large())), 7);
}

#[test]
fn who_cancels_at_once_allocates_nothing_but_room_in_the_lane() {
    let _with_others = ALONE.read();
    let (timer, mut driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let mut pairs = || {
        for _ in 0..10 * BLOCK {
            assert!(timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap().cancel());
        }
        driver.turn();
    };
    pairs();
    let allocations = allocations_of(pairs);
    assert!(allocations <= 11, "{allocations}");
}

#[test]
fn a_cancel_in_the_wheel_allocates_nothing_but_room_in_the_lane() {
    let _with_others = ALONE.read();
    let (timer, mut driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let timeouts: Vec<_> =
        (0..10 * BLOCK).map(|_| timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap()).collect();
    driver.turn();
    let allocations = allocations_of(|| timeouts.iter().for_each(|timeout| assert!(timeout.cancel())));
    assert!(allocations <= 11, "{allocations}");
}

/// Once a thread has what it needs of the timer: the waker lies in the timeout.
#[cfg(feature = "async")]
#[test]
fn a_sleep_allocates_nothing_but_room_in_the_lane() {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};

    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> bool {
        Pin::new(future).poll(&mut Context::from_waker(waker)).is_pending()
    }

    let _with_others = ALONE.read();
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven().unwrap();
    let wakers = [(); 2].map(|()| Waker::from(Arc::new(Task)));
    let second = Duration::from_secs(1);
    let mut sleeps = || {
        for _ in 0..BLOCK {
            let mut interval = timer.interval(second);
            let mut dropped = timer.sleep(second);
            assert!(poll(&mut dropped, &wakers[0]));
            // To its end, polled by two tasks; in between it is in the wheel.
            let mut sleep = timer.sleep(second);
            assert!(poll(&mut sleep, &wakers[0]));
            drop(dropped);
            driver.turn();
            assert!(poll(&mut sleep, &wakers[1]));
            assert!(interval.poll_tick(&mut Context::from_waker(&wakers[0])).is_pending());
            sleep.reset(second * 2);
            clock.advance(second * 2);
            assert_eq!(driver.turn(), 2);
            assert!(!poll(&mut sleep, &wakers[0]));
            assert!(matches!(interval.poll_tick(&mut Context::from_waker(&wakers[0])), Poll::Ready(Ok(()))));
            assert!(!poll(&mut timer.timeout(second, std::future::ready(())), &wakers[0]));
        }
    };
    // Until the nodes that the worker gives back, a run at a time, are enough for what the thread takes.
    (0..3).for_each(|_| sleeps());
    let allocations = allocations_of(sleeps);
    assert!(allocations < 3 * 10, "{allocations}: blocks, and rows that grow");
}

/// A thread that ends gives back what it has of a timer.
#[test]
fn threads_that_come_and_go_leave_nothing_behind() {
    let _alone = ALONE.write();
    let (timer, mut driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let mut come_and_go = |threads| {
        for _ in 0..threads {
            let timer = timer.clone();
            let visit = std::thread::spawn(move || {
                let timeout = timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap();
                assert!(timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap().cancel());
                timeout
            });
            visit.join().unwrap().cancel();
            driver.turn();
        }
    };
    come_and_go(20);
    let before = LIVE.load(Relaxed);
    come_and_go(if cfg!(miri) { 3 } else { 2_000 });
    let after = LIVE.load(Relaxed);
    // A run of nodes is four thousand bytes, and so is a block.
    assert!(after < before + 50_000, "{before} bytes before, {after} after");
}

/// Who comes too late needs no lane, and gets none.
#[test]
fn a_cancel_that_comes_too_late_allocates_nothing() {
    let _with_others = ALONE.read();
    let (timer, _driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let timeouts: Vec<_> =
        (0..100).map(|_| timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap()).collect();
    drop(timer.stop());
    assert_eq!(allocations_of(|| timeouts.into_iter().for_each(|timeout| drop(timeout.cancel_on_drop()))), 0);
}

/// To take in what has come takes time, and a loop that sleeps as if it had not would be late.
#[test]
fn next_turn_looks_at_the_clock_when_it_has_taken_in_what_has_come() {
    let _with_others = ALONE.read();
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
