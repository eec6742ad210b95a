//! The hot paths. Each has timers without a thread and a clock that stands still, or a wheel by itself: one thread does
//! it all, and does the same in every run.
//!
//! What is made ready does not depend on the number of operations, and is forgotten in the end: two runs differ by their
//! operations alone. Timers hold what they need before that, so that little grows meanwhile.

use std::hint::black_box;
use std::mem;
use std::time::Duration;

use hashed_wheel::wheel::{HashedWheel, HierarchicalWheel};
use hashed_wheel::{Builder, Driver, HashedWheelTimer, ManualClock, Timeout};
use hashed_wheel_benches::wheel::Wheel;
use hashed_wheel_benches::{random, spread};

/// The most operations in a run. What a turn takes off the queue is more.
pub const MOST: usize = 20_000;

/// A number of operations has to be a multiple of it.
pub const BATCH: usize = 1_000;

/// As many are due in the same tick.
const DUE: usize = 40;

const TICK: Duration = Duration::from_millis(100);

/// A name, and what does so many operations.
pub type Path = (&'static str, fn(usize));

pub const PATHS: [Path; 15] = [
    ("new_timeout", new_timeout),
    ("new_timeout_cancel", new_timeout_cancel),
    ("new_timeout_drop", new_timeout_drop),
    ("cancel", cancel),
    ("reset_later", reset_later),
    ("reset_earlier", reset_earlier),
    ("hashed/expire_short", |n| expire_short(n, hashed())),
    ("hashed/expire_100_rounds", |n| expire_100_rounds(n, hashed())),
    ("hierarchical/expire_short", |n| expire_short(n, hashed().hierarchical())),
    ("hierarchical/expire_100_rounds", |n| expire_100_rounds(n, hashed().hierarchical())),
    ("turn/empty", turn_empty),
    ("turn/far", turn_far),
    ("wheel/hashed/insert_remove", insert_remove::<HashedWheel<u64>>),
    ("wheel/hierarchical/insert_remove", insert_remove::<HierarchicalWheel<u64>>),
    ("wheel/hierarchical/cascade", cascade),
];

/// `operation` is told how many there were before.
fn repeat<S>(n: usize, mut state: S, mut operation: impl FnMut(&mut S, usize)) {
    assert!(n <= MOST && n % BATCH == 0);
    for i in 0..n {
        operation(black_box(&mut state), i);
    }
    mem::forget(state);
}

fn is_last_of(size: usize, i: usize) -> bool {
    i % size == size - 1
}

/// Request timeouts, from 30 to 90 s, for `MOST` operations.
fn delays() -> Vec<Duration> {
    spread(30_000..=90_000).map(Duration::from_millis).take(MOST).collect()
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
        Self { timer, driver, clock }
    }

    /// It has held `MOST` timeouts, and holds none.
    fn used() -> Self {
        let (mut driven, timeouts) = Self::settled(&delays());
        assert!(timeouts.iter().all(Timeout::cancel));
        drop(timeouts);
        driven.turn();
        driven
    }

    /// It has a timeout for each delay in its wheel.
    fn settled(delays: &[Duration]) -> (Self, Vec<Timeout>) {
        let mut driven = Self::new(hashed());
        let timeouts = delays.iter().map(|&delay| driven.schedule(delay)).collect();
        driven.turn();
        (driven, timeouts)
    }

    fn schedule(&self, delay: Duration) -> Timeout {
        self.timer.new_timeout(|_| (), delay).unwrap()
    }

    fn turn(&mut self) -> usize {
        self.driver.turn()
    }

    fn tick(&mut self) -> usize {
        self.clock.advance(TICK);
        self.turn()
    }
}

/// To schedule a timeout and keep it. The worker's part, once a thousand, is in this and all that follow.
fn new_timeout(n: usize) {
    let delays = delays();
    repeat(n, (Driven::used(), Vec::with_capacity(MOST)), |(driven, kept), i| {
        kept.push(driven.schedule(delays[i]));
        if is_last_of(BATCH, i) {
            driven.turn();
        }
    });
}

/// A request that is answered at once.
fn new_timeout_cancel(n: usize) {
    let delays = delays();
    repeat(n, Driven::used(), |driven, i| {
        driven.schedule(delays[i]).cancel();
        if is_last_of(BATCH, i) {
            driven.turn();
        }
    });
}

/// To schedule a timeout that nobody means to cancel.
fn new_timeout_drop(n: usize) {
    let delays = delays();
    repeat(n, Driven::used(), |driven, i| {
        drop(driven.schedule(delays[i]));
        if is_last_of(BATCH, i) {
            driven.turn();
        }
    });
}

/// To cancel a timeout that is in the wheel, in no order.
fn cancel(n: usize) {
    let (driven, mut timeouts) = Driven::settled(&delays());
    random().shuffle(&mut timeouts);
    repeat(n, (driven, timeouts), |(driven, timeouts), i| {
        timeouts.pop().unwrap().cancel();
        if is_last_of(BATCH, i) {
            driven.turn();
        }
    });
}

/// An idle timeout is put off.
fn reset_later(n: usize) {
    let settled = Driven::settled(&delays()[..BATCH]);
    repeat(n, settled, |(driven, timeouts), i| {
        timeouts[i % BATCH].reset(Duration::new(90, i as u32));
        if is_last_of(BATCH, i) {
            driven.turn();
        }
    });
}

/// A timeout is brought forward, to another slot.
fn reset_earlier(n: usize) {
    let settled = Driven::settled(&[Duration::from_secs(90); BATCH]);
    let delays: Vec<_> = (0..MOST as u64).map(|i| Duration::from_millis(80_000 - i)).collect();
    repeat(n, settled, |(driven, timeouts), i| {
        timeouts[i % BATCH].reset(delays[i]);
        if is_last_of(BATCH, i) {
            driven.turn();
        }
    });
}

/// Timeouts that stand in the wheel expire, within its first turn.
fn expire_short(n: usize, builder: Builder) {
    let mut driven = Driven::new(builder);
    for i in 0..MOST {
        driven.schedule(TICK * (1 + i / DUE) as u32);
    }
    driven.turn();
    let mut expired = 0;
    repeat(n, driven, |driven, i| {
        if is_last_of(DUE, i) {
            expired += driven.tick();
        }
    });
    assert_eq!(expired, n);
}

/// Timeouts of a hundred turns of the wheel, one a tick: each time one more is scheduled, and one expires.
///
/// A small wheel, for they all have to be there first.
fn expire_100_rounds(n: usize, builder: Builder) {
    const SLOTS: usize = 64;
    const DELAY: usize = 100 * SLOTS;

    let mut driven = Driven::new(builder.ticks_per_wheel(SLOTS));
    let next = |driven: &mut Driven| {
        driven.schedule(TICK * DELAY as u32);
        driven.tick()
    };
    let before: usize = (0..DELAY).map(|_| next(&mut driven)).sum();
    assert_eq!(before, 1);
    let mut expired = 0;
    repeat(n, driven, |driven, _| expired += next(driven));
    assert_eq!(expired, n);
}

/// A tick while nothing is pending.
fn turn_empty(n: usize) {
    repeat(n, Driven::used(), |driven, _| {
        driven.tick();
    });
}

/// A tick in which nothing is due, with ten timeouts that are rounds off in each of a thousand slots.
fn turn_far(n: usize) {
    const SLOTS: usize = 1_024;

    let mut driven = Driven::new(hashed().ticks_per_wheel(SLOTS));
    for i in 0..10_000 {
        driven.schedule(TICK * (1_000 * SLOTS + 1 + i % 1_000) as u32);
    }
    driven.turn();
    repeat(n, driven, |driven, _| assert_eq!(driven.tick(), 0));
}

/// An entry is put into a wheel that holds ten thousand, and taken out at once.
fn insert_remove<W: Wheel>(n: usize) {
    let mut wheel = W::new();
    let deadlines: Vec<_> = spread(300..=900).take(MOST).collect();
    for &deadline in &deadlines[..10_000] {
        wheel.insert(deadline, 0);
    }
    repeat(n, wheel, |wheel, i| {
        let key = wheel.insert(deadlines[i], 0);
        black_box(wheel.remove(key));
    });
}

/// Entries move down two levels, and come out.
fn cascade(n: usize) {
    const LEVEL_1: u64 = 512;
    const LEVEL_2: u64 = 512 * LEVEL_1;

    let mut wheel = HierarchicalWheel::new(512);
    // In a slot for themselves on either level.
    let slots = |i: usize| ((1 + (i / DUE) as u64) * LEVEL_2, LEVEL_2 / 2);
    for i in 0..MOST {
        let (upper, lower) = slots(i);
        wheel.insert(upper + lower + 1 + (i % DUE) as u64, i);
    }
    let mut expired = 0;
    repeat(n, wheel, |wheel, i| {
        if is_last_of(DUE, i) {
            let (upper, lower) = slots(i);
            for now in [upper, upper + lower, upper + lower + DUE as u64] {
                wheel.advance(now, |_| expired += 1);
            }
        }
    });
    assert_eq!(expired, n);
}
