//! The timer: what its callers pay, and what its worker does for them.

use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use hashed_wheel::{Driver, HashedWheelTimer, ManualClock, Timeout};
use hashed_wheel_benches::{cancel, new_timeout, new_timeout_cancel, random, reset_later};

/// What a turn takes off each queue at most, so that one turn does it all.
const TIMEOUTS: u64 = 100_000;

const TICK: Duration = Duration::from_millis(10);

/// A timer without a thread, on a clock that stands still.
struct Driven {
    timer: HashedWheelTimer,
    driver: Driver,
    clock: ManualClock,
}

impl Driven {
    fn new() -> Self {
        let clock = ManualClock::new();
        let builder = HashedWheelTimer::builder().tick(TICK).clock(clock.clone());
        let (timer, driver) = builder.build_driven().unwrap();
        Self { timer, driver, clock }
    }

    /// As many due in each of `ticks` ticks, from the one after next on, in random order. All are in the queue.
    fn schedule(&self, ticks: u64) -> Vec<Timeout> {
        let mut delays: Vec<_> = (0..TIMEOUTS).map(|n| TICK * (2 + n % ticks) as u32).collect();
        random().shuffle(&mut delays);
        delays.into_iter().map(|delay| self.timer.new_timeout(|_| (), delay).unwrap()).collect()
    }

    fn turn(&mut self, ticks: u64) -> u64 {
        let each = |_| {
            self.clock.advance(TICK);
            self.driver.turn() as u64
        };
        (0..ticks).map(each).sum()
    }
}

/// What does the worker do in a second: how many timeouts can it take in, take out cancelled, expire all in one tick,
/// expire over a thousand ticks?
///
/// A hundred thousand timeouts each time, one `turn` a tick on a driven timer; the tasks do nothing.
fn turn(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("turn");
    group.throughput(Throughput::Elements(TIMEOUTS)).sample_size(30);
    let mut measure = |name: &str, prepare: fn(&mut Driven), ticks: u64, expired: u64| {
        group.bench_function(name, |bencher| {
            let prepared = || {
                let mut driven = Driven::new();
                prepare(&mut driven);
                driven
            };
            let turned = |mut driven: Driven| {
                assert_eq!(driven.turn(ticks), expired);
                driven
            };
            bencher.iter_batched(prepared, turned, BatchSize::PerIteration);
        });
    };

    let take_in = |driven: &mut Driven| {
        driven.schedule(1_000);
    };
    measure("take_in", take_in, 1, 0);
    let take_out = |driven: &mut Driven| {
        let mut timeouts = driven.schedule(1_000);
        driven.turn(1);
        random().shuffle(&mut timeouts);
        assert!(timeouts.iter().all(Timeout::cancel));
    };
    measure("take_out", take_out, 1, 0);
    let in_one_tick = |driven: &mut Driven| {
        driven.schedule(1);
        driven.turn(1);
    };
    measure("expire_in_one_tick", in_one_tick, 1, TIMEOUTS);
    let over_ticks = |driven: &mut Driven| {
        driven.schedule(1_000);
        driven.turn(1);
    };
    measure("expire_over_1000_ticks", over_ticks, 1_000, TIMEOUTS);
}

criterion_group! {
    name = benches;
    // All of it in a minute or two.
    config = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    targets =
        new_timeout::<HashedWheelTimer>,
        new_timeout_cancel::<HashedWheelTimer>,
        cancel::<HashedWheelTimer>,
        reset_later::<HashedWheelTimer>,
        turn,
}
criterion_main!(benches);
