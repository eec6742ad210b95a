//! The timer: what its callers pay, and what its worker does for them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use hashed_wheel::{Driver, HashedWheelTimer, ManualClock, Sleep, Timeout};
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

/// What does a future pay that waits with a deadline, and nearly always ends before it: made, polled once, and dropped? And
/// polled again: by the same task, and by another one?
///
/// Beside a worker, as the callers' questions are.
fn sleep(criterion: &mut Criterion) {
    let timer = HashedWheelTimer::new(TICK, 512);
    timer.start().unwrap();
    let minute = Duration::from_secs(60);
    let wakers = [(); 2].map(|()| Waker::from(Arc::new(Task)));
    let poll = |sleep: &mut Sleep, waker: &Waker| {
        assert!(Pin::new(sleep).poll(&mut Context::from_waker(waker)).is_pending());
    };
    let mut group = criterion.benchmark_group("sleep");
    group.bench_function("poll_and_drop", |bencher| {
        bencher.iter(|| poll(&mut timer.sleep(minute), &wakers[0]));
    });
    let mut sleep = timer.sleep(minute);
    group.bench_function("poll_again", |bencher| bencher.iter(|| poll(&mut sleep, &wakers[0])));
    group.bench_function("poll_from_two_tasks", |bencher| {
        bencher.iter(|| wakers.iter().for_each(|waker| poll(&mut sleep, waker)));
    });
}

struct Task;

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
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
        sleep,
}
criterion_main!(benches);
