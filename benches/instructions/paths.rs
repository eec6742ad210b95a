//! The hot paths. Each one uses a driven timer with a manual clock, or a wheel without a timer. One
//! thread does all the work, and does the same work in every process.
//!
//! The setup does not depend on the number of operations, and its result is never dropped
//! (`mem::forget`). Therefore two processes differ only by their operations. The setup lets the
//! timers allocate their memory in advance, so that little is allocated during the operations.

use std::hint::black_box;
use std::mem;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use hashed_wheel::{Builder, Driver, HashedWheelTimer, ManualClock, Timeout};
use hashed_wheel_benches::wheel::Wheel;
use hashed_wheel_benches::{random, spread};
use timing_wheels::{HashedWheel, HierarchicalWheel};

/// The largest number of operations of one process. One turn drains more messages than that.
pub const MAX_OPERATIONS: usize = 20_000;

/// The number of operations must be a multiple of this number.
pub const BATCH: usize = 1_000;

/// How many timeouts or entries are due in the same tick.
const DUE_PER_TICK: usize = 40;

const TICK: Duration = Duration::from_millis(100);

/// A name, and a function that performs the given number of operations.
pub type Path = (&'static str, fn(usize));

pub const PATHS: [Path; 21] = [
    ("new_timeout", new_timeout),
    ("new_timeout_cancel", new_timeout_cancel),
    ("new_timeout_drop", new_timeout_drop),
    ("new_timeout_warm", new_timeout_warm),
    ("cancel", cancel),
    ("cancel_by_guard", cancel_by_guard),
    ("cancel_each", cancel_each),
    ("reset_later", reset_later),
    ("reset_earlier", reset_earlier),
    ("reset_each", reset_each),
    ("sleep_polled_dropped", sleep_polled_dropped),
    ("hashed/expire_short", |n| expire_short(n, hashed())),
    ("hashed/expire_100_rounds", |n| {
        expire_100_rounds(n, hashed())
    }),
    ("hierarchical/expire_short", |n| {
        expire_short(n, hashed().hierarchical(true))
    }),
    ("hierarchical/expire_100_rounds", |n| {
        expire_100_rounds(n, hashed().hierarchical(true))
    }),
    ("turn/empty", turn_empty),
    ("turn/far", turn_far),
    (
        "wheel/hashed/insert_remove",
        insert_remove::<HashedWheel<u64>>,
    ),
    (
        "wheel/hierarchical/insert_remove",
        insert_remove::<HierarchicalWheel<u64>>,
    ),
    ("wheel/hierarchical/cascade", cascade),
    ("wheel/hierarchical/sleep", sleep),
];

/// Calls `operation` `n` times. Its second argument is the number of calls before.
fn repeat<S>(n: usize, mut state: S, mut operation: impl FnMut(&mut S, usize)) {
    assert!(n <= MAX_OPERATIONS && n % BATCH == 0);
    for i in 0..n {
        operation(black_box(&mut state), i);
    }
    mem::forget(state);
}

fn is_last_in_group(size: usize, i: usize) -> bool {
    i % size == size - 1
}

/// Returns the delays of request timeouts, 30 to 90 s, for `MAX_OPERATIONS` operations.
fn delays() -> Vec<Duration> {
    spread(30_000..=90_000)
        .map(Duration::from_millis)
        .take(MAX_OPERATIONS)
        .collect()
}

fn hashed() -> Builder {
    HashedWheelTimer::builder().tick(TICK)
}

struct Driven {
    timer: HashedWheelTimer,
    driver: Driver,
    clock: ManualClock,
}

impl Driven {
    fn new(builder: Builder) -> Self {
        let clock = ManualClock::new();
        let (timer, driver) = builder.clock(clock.clone()).build_driven().unwrap();
        Self {
            timer,
            driver,
            clock,
        }
    }

    /// Returns a timer that held a timeout per delay before and holds none now.
    fn used(builder: Builder, delays: &[Duration]) -> Self {
        let (mut driven, timeouts) = Self::with_timeouts(builder, delays);
        assert!(timeouts.iter().all(Timeout::cancel));
        drop(timeouts);
        driven.turn();
        driven
    }

    /// Returns a timer whose wheel contains one timeout per delay.
    fn with_timeouts(builder: Builder, delays: &[Duration]) -> (Self, Vec<Timeout>) {
        let mut driven = Self::new(builder);
        let timeouts = delays.iter().map(|&delay| driven.schedule(delay)).collect();
        driven.turn();
        (driven, timeouts)
    }

    fn schedule(&self, delay: Duration) -> Timeout {
        self.timer.new_timeout(|_| (), delay).unwrap()
    }

    /// All of the worker's work. Counted by its name: neither inlined nor left by a jump.
    #[inline(never)]
    fn turn(&mut self) -> usize {
        black_box(self.driver.turn())
    }

    fn tick(&mut self) -> usize {
        self.clock.advance(TICK);
        self.turn()
    }
}

/// Calls `operation` `n` times, with a turn after each thousand calls: the worker's share of the
/// work.
fn call<S>(n: usize, driven: Driven, state: S, mut operation: impl FnMut(&Driven, &mut S, usize)) {
    repeat(n, (driven, state), |(driven, state), i| {
        operation(driven, state, i);
        if is_last_in_group(BATCH, i) {
            driven.turn();
        }
    });
}

/// Schedules a timeout and keeps the handle.
fn new_timeout(n: usize) {
    let delays = delays();
    call(
        n,
        Driven::used(hashed(), &delays),
        Vec::with_capacity(MAX_OPERATIONS),
        |driven, kept, i| {
            kept.push(driven.schedule(delays[i]));
        },
    );
}

/// Schedules a timeout and cancels it immediately, as for a request with an immediate answer.
fn new_timeout_cancel(n: usize) {
    let delays = delays();
    call(n, Driven::used(hashed(), &delays), (), |driven, (), i| {
        driven.schedule(delays[i]).cancel();
    });
}

/// Schedules a timeout and drops the handle: the timeout will not be cancelled.
fn new_timeout_drop(n: usize) {
    let delays = delays();
    call(n, Driven::used(hashed(), &delays), (), |driven, (), i| {
        drop(driven.schedule(delays[i]));
    });
}

/// The same on a timer that held five times as many timeouts before, with a tick of 10 ms and a
/// closure that captures a word.
fn new_timeout_warm(n: usize) {
    let before: Vec<_> = spread(30_000..=90_000)
        .map(Duration::from_millis)
        .take(5 * MAX_OPERATIONS)
        .collect();
    let builder = HashedWheelTimer::builder()
        .tick(Duration::from_millis(10))
        .ticks_per_wheel(512);
    call(n, Driven::used(builder, &before), (), |driven, (), i| {
        drop(
            driven
                .timer
                .new_timeout(move |_| _ = black_box(i), before[i])
                .unwrap(),
        );
    });
}

/// Cancels timeouts that are in the wheel, in random order.
fn cancel(n: usize) {
    let (driven, mut timeouts) = Driven::with_timeouts(hashed(), &delays());
    random().shuffle(&mut timeouts);
    call(n, driven, timeouts, |_, timeouts, _| {
        timeouts.pop().unwrap().cancel();
    });
}

/// The same, by dropping a guard.
fn cancel_by_guard(n: usize) {
    let (driven, mut timeouts) = Driven::with_timeouts(hashed(), &delays());
    random().shuffle(&mut timeouts);
    let guards: Vec<_> = timeouts.into_iter().map(Timeout::cancel_on_drop).collect();
    call(n, driven, guards, |_, guards, _| {
        drop(guards.pop());
    });
}

/// The same, a thousand at a time.
fn cancel_each(n: usize) {
    let (driven, mut timeouts) = Driven::with_timeouts(hashed(), &delays());
    random().shuffle(&mut timeouts);
    call(n, driven, timeouts, |_, timeouts, i| {
        if is_last_in_group(BATCH, i) {
            let first = timeouts.len() - BATCH;
            Timeout::cancel_each(timeouts.drain(first..));
        }
    });
}

/// Resets an idle timeout to a later deadline.
fn reset_later(n: usize) {
    let (driven, timeouts) = Driven::with_timeouts(hashed(), &delays()[..BATCH]);
    call(n, driven, timeouts, |_, timeouts, i| {
        _ = timeouts[i % BATCH].reset(Duration::new(90, i as u32));
    });
}

/// Resets a timeout to an earlier deadline in another slot.
fn reset_earlier(n: usize) {
    let (driven, timeouts) = Driven::with_timeouts(hashed(), &[Duration::from_secs(90); BATCH]);
    let delays: Vec<_> = (0..MAX_OPERATIONS as u64)
        .map(|i| Duration::from_millis(80_000 - i))
        .collect();
    call(n, driven, timeouts, |_, timeouts, i| {
        _ = timeouts[i % BATCH].reset(delays[i]);
    });
}

/// Resets idle timeouts to a later deadline, a thousand at a time.
fn reset_each(n: usize) {
    let (driven, timeouts) = Driven::with_timeouts(hashed(), &delays()[..BATCH]);
    let begin = driven.timer.now();
    call(n, driven, timeouts, |_, timeouts, i| {
        if is_last_in_group(BATCH, i) {
            Timeout::reset_each(&*timeouts, begin + Duration::new(90, i as u32));
        }
    });
}

/// Polls a `Sleep` once and drops it, as for a request with a deadline that is answered later.
fn sleep_polled_dropped(n: usize) {
    let delays = delays();
    call(n, Driven::used(hashed(), &delays), (), |driven, (), i| {
        let sleep = pin!(driven.timer.sleep(delays[i]));
        let polled = sleep
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending();
        assert!(polled);
    });
}

/// Expires timeouts that are in the wheel, with delays of less than one round.
fn expire_short(n: usize, builder: Builder) {
    let mut driven = Driven::new(builder);
    for i in 0..MAX_OPERATIONS {
        driven.schedule(TICK * (1 + i / DUE_PER_TICK) as u32);
    }
    driven.turn();
    let mut expired = 0;
    repeat(n, driven, |driven, i| {
        if is_last_in_group(DUE_PER_TICK, i) {
            expired += driven.tick();
        }
    });
    assert_eq!(expired, n);
}

/// Expires timeouts with delays of a hundred rounds. In each tick one more timeout is scheduled and
/// one expires.
///
/// The wheel is small because all of these timeouts must be scheduled first.
fn expire_100_rounds(n: usize, builder: Builder) {
    const SLOTS: usize = 64;
    const DELAY: usize = 100 * SLOTS;

    let mut driven = Driven::new(builder.ticks_per_wheel(SLOTS));
    let schedule_and_tick = |driven: &mut Driven| {
        driven.schedule(TICK * DELAY as u32);
        driven.tick()
    };
    let before: usize = (0..DELAY).map(|_| schedule_and_tick(&mut driven)).sum();
    assert_eq!(before, 1);
    let mut expired = 0;
    repeat(n, driven, |driven, _| expired += schedule_and_tick(driven));
    assert_eq!(expired, n);
}

/// Advances by one tick while nothing is pending.
fn turn_empty(n: usize) {
    repeat(n, Driven::used(hashed(), &delays()), |driven, _| {
        driven.tick();
    });
}

/// Advances by one tick in which nothing is due. Each of a thousand slots contains ten timeouts
/// that are due many rounds later.
fn turn_far(n: usize) {
    const SLOTS: usize = 1_024;

    let mut driven = Driven::new(hashed().ticks_per_wheel(SLOTS));
    for i in 0..10_000 {
        driven.schedule(TICK * (1_000 * SLOTS + 1 + i % 1_000) as u32);
    }
    driven.turn();
    repeat(n, driven, |driven, _| assert_eq!(driven.tick(), 0));
}

/// Inserts an entry into a wheel of ten thousand entries and removes it immediately.
fn insert_remove<W: Wheel>(n: usize) {
    let mut wheel = W::new();
    let deadlines: Vec<_> = spread(300..=900).take(MAX_OPERATIONS).collect();
    for &deadline in &deadlines[..10_000] {
        wheel.insert(deadline, 0);
    }
    repeat(n, wheel, |wheel, i| {
        let key = wheel.insert(deadlines[i], 0);
        black_box(wheel.remove(key));
    });
}

/// Moves entries down two levels of the hierarchical wheel and expires them.
fn cascade(n: usize) {
    const LEVEL_1: u64 = 512;
    const LEVEL_2: u64 = 512 * LEVEL_1;

    let mut wheel = HierarchicalWheel::new(512);
    // On both levels, each group of entries has its own slot.
    let slots = |i: usize| ((1 + (i / DUE_PER_TICK) as u64) * LEVEL_2, LEVEL_2 / 2);
    for i in 0..MAX_OPERATIONS {
        let (upper, lower) = slots(i);
        wheel.insert(upper + lower + 1 + (i % DUE_PER_TICK) as u64, i);
    }
    let mut expired = 0;
    repeat(n, wheel, |wheel, i| {
        if is_last_in_group(DUE_PER_TICK, i) {
            let (upper, lower) = slots(i);
            for now in [upper, upper + lower, upper + lower + DUE_PER_TICK as u64] {
                wheel.advance(now, |_| expired += 1);
            }
        }
    });
    assert_eq!(expired, n);
}

/// Four tasks sleep again and again, for 1 ms to 1 s at a tick of a microsecond.
fn sleep(n: usize) {
    let mut wheel = HierarchicalWheel::new(256);
    let delays: Vec<_> = spread(1_000..=1_000_000).take(MAX_OPERATIONS).collect();
    for &delay in &delays[..4] {
        wheel.insert(delay, 0);
    }
    repeat(n, wheel, |wheel, i| {
        let now = wheel.next_deadline().unwrap();
        while wheel.pop_expired(now).is_some() {
            wheel.insert(now + delays[i], 0);
        }
    });
}
