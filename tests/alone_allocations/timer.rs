//! Operations of a timer that do not allocate.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{ALLOCATIONS, EXCLUSIVE, LIVE};
use hashed_wheel::{Clock, HashedWheelTimer, ManualClock, Timeout};

fn allocations_of(code: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    code();
    ALLOCATIONS.get() - before
}

#[test]
fn a_run_of_a_periodic_task_allocates_nothing() {
    let _shared = EXCLUSIVE.read();
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder()
        .clock(clock.clone())
        .build_driven()
        .unwrap();
    let period = Duration::from_millis(300);
    let large = [0_u64; 32];
    let periodic = timer
        .schedule_at_fixed_rate(move || assert_eq!(large[31], 0), period, period)
        .unwrap();
    let mut pass = |times| {
        for _ in 0..times {
            clock.advance(period);
            assert_eq!(driver.turn(), 1);
        }
    };
    // The warm-up uses each slot once.
    let (warm_up, counted) = if cfg!(miri) { (5, 20) } else { (2_000, 10_000) };
    pass(warm_up);
    assert_eq!(allocations_of(|| pass(counted)), 0);
    assert_eq!(periodic.runs(), warm_up + counted);
}

#[test]
fn a_reset_to_later_allocates_nothing_and_sends_no_message() {
    let _shared = EXCLUSIVE.read();
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder()
        .clock(clock.clone())
        .build_driven()
        .unwrap();
    let idle = timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap();
    driver.turn();
    let allocations = allocations_of(|| {
        for _ in 0..if cfg!(miri) { 200 } else { 200_000 } {
            clock.advance(Duration::from_micros(1));
            assert!(idle.reset(Duration::from_secs(60)));
        }
    });
    assert_eq!(allocations, 0);
    // 200 000 messages would be more than one turn reads. If the resets had sent messages, another
    // turn would be due immediately.
    driver.turn();
    assert_ne!(driver.next_turn(), Some(Duration::ZERO));
}

/// The number of messages in one block of a lane. Blocks are the only allocations.
const BLOCK: usize = if cfg!(miri) { 128 } else { 512 };

/// So many timeouts fill ten blocks.
const TEN_BLOCKS: usize = if cfg!(miri) { 20 } else { 10 * BLOCK };

/// The threads of a warm-up.
const FIRST_THREADS: usize = if cfg!(miri) { 5 } else { 20 };

#[test]
fn expired_timeouts_are_recycled() {
    let _shared = EXCLUSIVE.read();
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder()
        .clock(clock.clone())
        .build_driven()
        .unwrap();
    let captured = [0_usize; 3];
    let mut schedule_and_expire = || {
        for _ in 0..TEN_BLOCKS {
            drop(
                timer
                    .new_timeout(move |_| assert_eq!(captured[0], 0), Duration::ZERO)
                    .unwrap(),
            );
        }
        driver.turn();
        clock.advance(Duration::from_millis(100));
        assert_eq!(driver.turn(), TEN_BLOCKS);
    };
    (0..3).for_each(|_| schedule_and_expire());
    let allocations = allocations_of(|| (0..10).for_each(|_| schedule_and_expire()));
    assert!(
        allocations < 10 * (10 + 30),
        "{allocations}: more than blocks of the lane and growing arrays"
    );
}

#[test]
fn a_task_of_more_than_three_words_is_an_allocation() {
    let _shared = EXCLUSIVE.read();
    let (timer, _driver) = HashedWheelTimer::builder().build_driven().unwrap();
    timer.new_timeout(|_| (), Duration::ZERO).unwrap().cancel();
    let (three, four) = ([0_usize; 3], [0_usize; 4]);
    let small = || {
        drop(
            timer
                .new_timeout(move |_| assert_eq!(three[0], 0), Duration::ZERO)
                .unwrap(),
        );
    };
    let large = || {
        drop(
            timer
                .new_timeout(move |_| assert_eq!(four[0], 0), Duration::ZERO)
                .unwrap(),
        );
    };
    assert_eq!(allocations_of(|| (0..50).for_each(|_| small())), 0);
    assert_eq!(allocations_of(|| (0..7).for_each(|_| large())), 7);
}

#[test]
fn immediate_cancel_allocates_only_queue_blocks() {
    let _shared = EXCLUSIVE.read();
    let (timer, mut driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let mut pairs = || {
        for _ in 0..TEN_BLOCKS {
            assert!(
                timer
                    .new_timeout(|_| (), Duration::from_secs(60))
                    .unwrap()
                    .cancel()
            );
        }
        driver.turn();
    };
    pairs();
    let allocations = allocations_of(pairs);
    assert!(allocations <= 11, "{allocations}");
}

#[test]
fn cancel_in_the_wheel_allocates_only_queue_blocks() {
    let _shared = EXCLUSIVE.read();
    let (timer, mut driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let timeouts: Vec<_> = (0..TEN_BLOCKS)
        .map(|_| timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap())
        .collect();
    driver.turn();
    let allocations = allocations_of(|| {
        timeouts
            .iter()
            .for_each(|timeout| assert!(timeout.cancel()));
    });
    assert!(allocations <= 11, "{allocations}");
}

/// After the thread's cache has been filled: the waker is stored in the timeout's node.
#[cfg(feature = "async")]
#[test]
fn a_sleep_allocates_only_queue_blocks() {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};

    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> bool {
        Pin::new(future)
            .poll(&mut Context::from_waker(waker))
            .is_pending()
    }

    let _shared = EXCLUSIVE.read();
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder()
        .clock(clock.clone())
        .build_driven()
        .unwrap();
    let wakers = [(); 2].map(|()| Waker::from(Arc::new(Task)));
    let second = Duration::from_secs(1);
    let mut sleeps = || {
        for _ in 0..TEN_BLOCKS / 10 {
            let mut interval = timer.interval_at(timer.now() + second, second);
            let mut dropped = timer.sleep(second);
            assert!(poll(&mut dropped, &wakers[0]));
            // This future runs to its end, and two tasks poll it. Between the polls its timeout is
            // in the wheel.
            let mut sleep = timer.sleep(second);
            assert!(poll(&mut sleep, &wakers[0]));
            drop(dropped);
            driver.turn();
            assert!(poll(&mut sleep, &wakers[1]));
            assert!(
                interval
                    .poll_tick(&mut Context::from_waker(&wakers[0]))
                    .is_pending()
            );
            sleep.reset(second * 2);
            clock.advance(second * 2);
            assert_eq!(driver.turn(), 2);
            assert!(!poll(&mut sleep, &wakers[0]));
            assert!(matches!(
                interval.poll_tick(&mut Context::from_waker(&wakers[0])),
                Poll::Ready(Ok(_))
            ));
            assert!(!poll(
                &mut timer.timeout(second, std::future::ready(())),
                &wakers[0]
            ));
        }
    };
    // The worker returns free nodes one page at a time. The warm-up lasts until they are enough for
    // this thread.
    (0..3).for_each(|_| sleeps());
    let allocations = allocations_of(sleeps);
    assert!(
        allocations < 3 * 10,
        "{allocations}: more than blocks of the lane and growing arrays"
    );
}

/// A thread that ends releases what its cache holds of a timer.
#[test]
fn threads_that_end_leak_no_memory() {
    let _exclusive = EXCLUSIVE.write();
    let (timer, mut driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let mut use_threads = |threads| {
        for _ in 0..threads {
            let timer = timer.clone();
            let thread = std::thread::spawn(move || {
                let timeout = timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap();
                assert!(
                    timer
                        .new_timeout(|_| (), Duration::from_secs(60))
                        .unwrap()
                        .cancel()
                );
                timeout
            });
            thread.join().unwrap().cancel();
            driver.turn();
        }
    };
    use_threads(FIRST_THREADS);
    let before = LIVE.load(Relaxed);
    use_threads(if cfg!(miri) { 3 } else { 2_000 });
    let after = LIVE.load(Relaxed);
    // A page of nodes has about four thousand bytes, and so has a block of a lane (under Miri, a
    // thousand).
    let more = if cfg!(miri) { 2_000 } else { 50_000 };
    assert!(
        after < before + more,
        "{before} bytes before, {after} after"
    );
}

/// Two chunks of nodes per timer, the smaller of which has 64 KiB.
#[test]
fn timers_that_end_leak_no_memory() {
    const TIMERS: usize = if cfg!(miri) { 3 } else { 10 };

    let _exclusive = EXCLUSIVE.write();
    let use_timers = |timers| {
        for _ in 0..timers {
            let (timer, mut driver) = HashedWheelTimer::builder().build_driven().unwrap();
            let timeout = || timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap();
            let timeouts: Vec<_> = (0..if cfg!(miri) { 150 } else { 1_100 })
                .map(|_| timeout())
                .collect();
            driver.turn();
            drop(timeouts);
        }
    };
    use_timers(2);
    let before = LIVE.load(Relaxed);
    use_timers(TIMERS);
    let after = LIVE.load(Relaxed);
    assert!(
        before.abs_diff(after) < TIMERS * 50_000,
        "{before} bytes before, {after} after"
    );
}

/// The worker does not look at the lanes of these threads any more when they end.
#[test]
fn threads_that_end_after_they_were_idle_leak_no_memory() {
    // The worker stops looking at idle lanes only if there are more than 16.
    const THREADS: usize = if cfg!(miri) { 17 } else { 20 };

    let _exclusive = EXCLUSIVE.write();
    let (timer, mut driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let mut use_threads = |times| {
        for _ in 0..times {
            let barrier = std::sync::Arc::new(std::sync::Barrier::new(THREADS + 1));
            let threads = std::array::from_fn::<_, THREADS, _>(|_| {
                let (timer, barrier) = (timer.clone(), barrier.clone());
                std::thread::spawn(move || {
                    let timeout = timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap();
                    barrier.wait();
                    barrier.wait();
                    timeout
                })
            });
            barrier.wait();
            (0..if cfg!(miri) { 70 } else { 200 }).for_each(|_| _ = driver.turn());
            barrier.wait();
            threads
                .into_iter()
                .for_each(|thread| _ = thread.join().unwrap().cancel());
            driver.turn();
        }
    };
    use_threads(2);
    let before = LIVE.load(Relaxed);
    use_threads(if cfg!(miri) { 1 } else { 100 });
    let after = LIVE.load(Relaxed);
    let more = if cfg!(miri) { 10_000 } else { 50_000 };
    assert!(
        after < before + more,
        "{before} bytes before, {after} after"
    );
}

/// The thread's cache of each timer stays where it is, however many timers the thread uses.
#[test]
fn a_thread_that_alternates_between_timers_allocates_nothing() {
    let _shared = EXCLUSIVE.read();
    for count in [2, if cfg!(miri) { 8 } else { 64 }] {
        let timers: Vec<_> = (0..count)
            .map(|_| HashedWheelTimer::builder().build_driven().unwrap())
            .collect();
        let idle: Vec<_> = timers
            .iter()
            .map(|(timer, _)| timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap())
            .collect();
        let alternate = |times| {
            for _ in 0..times {
                for ((timer, _), idle) in timers.iter().zip(&idle) {
                    assert!(
                        timer
                            .new_timeout(|_| (), Duration::from_secs(60))
                            .unwrap()
                            .cancel()
                    );
                    assert!(idle.reset(Duration::from_secs(60)));
                }
            }
        };
        alternate(if cfg!(miri) { 1 } else { 10 });
        assert_eq!(
            allocations_of(|| alternate(if cfg!(miri) { 2 } else { BLOCK / 4 })),
            0,
            "{count} timers"
        );
    }
}

/// Returns how many more bytes are allocated after `threads` threads have executed `work`, one
/// after the other. As a warm-up, `FIRST_THREADS` other threads execute it first.
fn bytes_left_by_threads(threads: usize, work: impl Fn() + Clone + Send + 'static) -> usize {
    let execute = |threads| {
        for _ in 0..threads {
            std::thread::spawn(work.clone()).join().unwrap();
        }
    };
    execute(FIRST_THREADS);
    let before = LIVE.load(Relaxed);
    execute(threads);
    LIVE.load(Relaxed).saturating_sub(before)
}

/// The worker does not turn meanwhile: what a thread leaves is for the next thread.
#[test]
fn threads_that_come_and_go_leave_no_memory_until_the_next_turn() {
    let _exclusive = EXCLUSIVE.write();
    let (timer, _driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let threads = if cfg!(miri) { 5 } else { 1_000 };
    let left = bytes_left_by_threads(threads, move || {
        assert!(
            timer
                .new_timeout(|_| (), Duration::from_secs(60))
                .unwrap()
                .cancel()
        );
    });
    // The message of each takes eight bytes in a lane, whose blocks have 4 KiB.
    assert!(left <= 8 * threads + 10_000, "{left} bytes");
}

/// A thread that only resets timeouts to later deadlines has no lane, no nodes and no counts.
#[test]
fn threads_that_only_reset_open_no_lane() {
    let _shared = EXCLUSIVE.read();
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder()
        .clock(clock.clone())
        .build_driven()
        .unwrap();
    let idle = timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap();
    for is_in_wheel in [false, true] {
        if is_in_wheel {
            driver.turn();
        }
        let (idle, clock) = (idle.clone(), clock.clone());
        let thread = std::thread::spawn(move || {
            allocations_of(|| {
                for _ in 0..10 {
                    clock.advance(Duration::from_micros(1));
                    assert!(idle.reset(Duration::from_secs(60)));
                }
            })
        });
        assert_eq!(thread.join().unwrap(), 0);
    }
}

/// An operation in the destructor of a thread-local, when the thread's caches are destroyed.
#[test]
fn operations_of_ending_threads_leave_no_memory_until_the_next_turn() {
    struct AtTheEnd(Option<(HashedWheelTimer, Timeout)>, usize);

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            let Some((timer, idle)) = self.0.take() else {
                return;
            };
            for _ in 0..self.1 {
                assert!(
                    timer
                        .new_timeout(|_| (), Duration::from_secs(60))
                        .unwrap()
                        .cancel()
                );
                assert!(idle.reset(Duration::from_secs(60)));
            }
        }
    }

    thread_local!(static LAST: RefCell<AtTheEnd> = const { RefCell::new(AtTheEnd(None, 0)) });

    let _exclusive = EXCLUSIVE.write();
    let (timer, _driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let idle = timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap();
    let (threads, times) = if cfg!(miri) { (3, 3) } else { (20, 50) };
    let left = bytes_left_by_threads(threads, move || {
        // As a rule, the thread-local that was used first is destroyed last.
        LAST.set(AtTheEnd(Some((timer.clone(), idle.clone())), times));
        assert!(
            timer
                .new_timeout(|_| (), Duration::from_secs(60))
                .unwrap()
                .cancel()
        );
    });
    // Per operation: a message, and the number of the node on its way to the worker.
    assert!(left <= 60 * threads * times + 10_000, "{left} bytes");
}

/// The timer has already ended, so the cancel sends no message and creates no lane.
#[test]
fn cancel_after_the_timer_ended_allocates_nothing() {
    let _shared = EXCLUSIVE.read();
    let (timer, _driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let timeouts: Vec<_> = (0..100)
        .map(|_| timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap())
        .collect();
    drop(timer.stop());
    assert_eq!(
        allocations_of(|| timeouts
            .into_iter()
            .for_each(|timeout| drop(timeout.cancel_on_drop()))),
        0
    );
}

/// Reading the messages takes time. `next_turn` must read the clock afterwards, or a loop would
/// sleep too long.
#[test]
fn next_turn_reads_the_clock_after_the_messages() {
    let _shared = EXCLUSIVE.read();
    thread_local!(static AT_LAST_READ: Cell<usize> = const { Cell::new(0) });

    /// Records how many allocations had been made when the clock was read.
    struct RecordingClock;

    impl Clock for RecordingClock {
        fn now(&self) -> Duration {
            AT_LAST_READ.set(ALLOCATIONS.get());
            Duration::ZERO
        }
    }

    let (timer, driver) = HashedWheelTimer::builder()
        .clock(RecordingClock)
        .build_driven()
        .unwrap();
    (0..if cfg!(miri) { 100 } else { 1_000 })
        .for_each(|_| drop(timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap()));
    let before = ALLOCATIONS.get();
    assert_eq!(driver.next_turn(), Some(Duration::from_secs(60)));
    assert!(
        AT_LAST_READ.get() > before,
        "the clock was read before the wheel had grown"
    );
}
