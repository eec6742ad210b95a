//! Benchmarks of the timer: the costs of its callers and of its worker.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use hashed_wheel::{Driver, HashedWheelTimer, ManualClock, Sleep, Timeout};
use hashed_wheel_benches::{cancel, new_timeout, new_timeout_cancel, random, reset_later};

/// The largest number of messages that one turn drains, so that one turn processes all timeouts.
const TIMEOUTS: u64 = 100_000;

const TICK: Duration = Duration::from_millis(10);

/// A driven timer with a manual clock.
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
        Self {
            timer,
            driver,
            clock,
        }
    }

    /// Schedules `TIMEOUTS` timeouts in random order, equally many for each of `ticks` consecutive
    /// ticks. The first of these ticks is the one after next. The timeouts stay in the queue until
    /// the next turn.
    fn schedule(&self, ticks: u64) -> Vec<Timeout> {
        let mut delays: Vec<_> = (0..TIMEOUTS)
            .map(|n| TICK * (2 + n % ticks) as u32)
            .collect();
        random().shuffle(&mut delays);
        delays
            .into_iter()
            .map(|delay| self.timer.new_timeout(|_| (), delay).unwrap())
            .collect()
    }

    fn turn(&mut self, ticks: u64) -> u64 {
        let tick = |_| {
            self.clock.advance(TICK);
            self.driver.turn() as u64
        };
        (0..ticks).map(tick).sum()
    }
}

/// Measures the throughput of the worker: inserting new timeouts, removing cancelled ones, expiring
/// all timeouts in one tick, and expiring them over a thousand ticks.
///
/// Each case uses a hundred thousand timeouts with empty tasks on a driven timer, with one turn per
/// tick.
fn turn(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("turn");
    group
        .throughput(Throughput::Elements(TIMEOUTS))
        .sample_size(30);
    let mut measure = |name: &str, prepare: fn(&mut Driven), ticks: u64, expired: u64| {
        group.bench_function(name, |bencher| {
            let setup = || {
                let mut driven = Driven::new();
                prepare(&mut driven);
                driven
            };
            let routine = |mut driven: Driven| {
                assert_eq!(driven.turn(ticks), expired);
                driven
            };
            bencher.iter_batched(setup, routine, BatchSize::PerIteration);
        });
    };

    let insert = |driven: &mut Driven| {
        driven.schedule(1_000);
    };
    measure("insert", insert, 1, 0);
    let remove_cancelled = |driven: &mut Driven| {
        let mut timeouts = driven.schedule(1_000);
        driven.turn(1);
        random().shuffle(&mut timeouts);
        assert!(timeouts.iter().all(Timeout::cancel));
    };
    measure("remove_cancelled", remove_cancelled, 1, 0);
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

/// Measures the cost of a `Sleep` future that nearly always ends before its deadline: creating it,
/// polling it once and dropping it. Also measures polling it again, from the same task and from
/// another one.
///
/// The timer's worker thread runs concurrently.
fn sleep(criterion: &mut Criterion) {
    let timer = HashedWheelTimer::new(TICK, 512);
    timer.start().unwrap();
    let minute = Duration::from_secs(60);
    let wakers = [(); 2].map(|()| Waker::from(Arc::new(Task)));
    let poll = |sleep: &mut Sleep, waker: &Waker| {
        let polled = Pin::new(sleep)
            .poll(&mut Context::from_waker(waker))
            .is_pending();
        assert!(polled);
    };
    let mut group = criterion.benchmark_group("sleep");
    group.bench_function("poll_and_drop", |bencher| {
        bencher.iter(|| poll(&mut timer.sleep(minute), &wakers[0]));
    });
    let mut sleep = timer.sleep(minute);
    group.bench_function("poll_again", |bencher| {
        bencher.iter(|| poll(&mut sleep, &wakers[0]))
    });
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
    // Keeps the whole benchmark below about two minutes.
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
