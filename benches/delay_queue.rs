//! `DelayQueue` of hashed-wheel-util beside that of tokio-util.
//!
//! Each figure is the time per value, on one thread, with this many other values in the queue. Both
//! read real clocks, except in `expire`, where the clocks are turned by hand.

use std::future::poll_fn;
use std::hint::black_box;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hashed_wheel::{HashedWheelTimer, ManualClock};
use hashed_wheel_benches::random;
use hashed_wheel_util::delay_queue;
use tokio::runtime::{Builder, Runtime};
use tokio_util::time::DelayQueue as TokioQueue;

const COUNTS: [u64; 3] = [100, 10_000, 1_000_000];

/// The longest delay. None is due while the others are measured.
const HOUR: u64 = 3_600_000;

fn runtime(is_paused: bool) -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(is_paused)
        .build()
        .unwrap()
}

/// Returns delays of ten minutes to an hour.
fn delays(count: u64) -> Vec<Duration> {
    let mut random = random();
    (0..count)
        .map(|_| Duration::from_millis(random.u64(HOUR / 6..HOUR)))
        .collect()
}

/// A value comes and is removed; a value gets another deadline.
fn change(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("insert and remove");
    for count in COUNTS {
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("hashed-wheel-util", count), |bencher| {
            let queue = delay_queue::DelayQueue::new(&HashedWheelTimer::default());
            let delays = delays(count);
            delays
                .iter()
                .for_each(|delay| _ = queue.insert(0_u64, *delay).unwrap());
            let mut next = delays.iter().cycle();
            bencher.iter(|| {
                let key = queue.insert(0, *next.next().unwrap()).unwrap();
                black_box(queue.remove(key))
            });
        });
        group.bench_function(BenchmarkId::new("tokio-util", count), |bencher| {
            let runtime = runtime(false);
            let _entered = runtime.enter();
            let mut queue = TokioQueue::new();
            let delays = delays(count);
            delays
                .iter()
                .for_each(|delay| _ = queue.insert(0_u64, *delay));
            let mut next = delays.iter().cycle();
            bencher.iter(|| {
                let key = queue.insert(0, *next.next().unwrap());
                black_box(queue.remove(&key))
            });
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("reset");
    for count in COUNTS {
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("hashed-wheel-util", count), |bencher| {
            let queue = delay_queue::DelayQueue::new(&HashedWheelTimer::default());
            let delays = delays(count);
            // Not as many, so that a key gets another delay each time.
            let others = self::delays(count + 1);
            let keys: Vec<_> = delays
                .iter()
                .map(|delay| queue.insert(0_u64, *delay).unwrap())
                .collect();
            let mut next = keys.iter().cycle().zip(others.iter().cycle());
            bencher.iter(|| {
                let (key, delay) = next.next().unwrap();
                black_box(queue.reset(*key, *delay))
            });
        });
        group.bench_function(BenchmarkId::new("tokio-util", count), |bencher| {
            let runtime = runtime(false);
            let _entered = runtime.enter();
            let mut queue = TokioQueue::new();
            let delays = delays(count);
            // Not as many, so that a key gets another delay each time.
            let others = self::delays(count + 1);
            let keys: Vec<_> = delays
                .iter()
                .map(|delay| queue.insert(0_u64, *delay))
                .collect();
            let mut next = keys.iter().cycle().zip(others.iter().cycle());
            bencher.iter(|| {
                let (key, delay) = next.next().unwrap();
                queue.reset(key, *delay);
            });
        });
    }
    group.finish();
}

/// All values fall due and are received. The insertions are not measured.
fn expire(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("expire");
    for count in COUNTS {
        group
            .throughput(Throughput::Elements(count))
            .sample_size(10);
        group.bench_function(BenchmarkId::new("hashed-wheel-util", count), |bencher| {
            let delays = delays(count);
            let setup = || {
                let clock = ManualClock::new();
                let (timer, driver) = HashedWheelTimer::builder()
                    .clock(clock.clone())
                    .build_driven()
                    .unwrap();
                let queue = delay_queue::DelayQueue::new(&timer);
                delays
                    .iter()
                    .for_each(|delay| _ = queue.insert(0_u64, *delay).unwrap());
                clock.advance(Duration::from_millis(HOUR));
                (queue, driver)
            };
            let receive = |(mut queue, driver): (delay_queue::DelayQueue<u64>, _)| {
                let mut context = Context::from_waker(Waker::noop());
                for _ in 0..count {
                    assert!(queue.poll_expired(&mut context).is_ready());
                }
                (queue, driver)
            };
            bencher.iter_batched(setup, receive, criterion::BatchSize::PerIteration);
        });
        group.bench_function(BenchmarkId::new("tokio-util", count), |bencher| {
            let runtime = runtime(true);
            let delays = delays(count);
            let setup = || {
                runtime.block_on(async {
                    let mut queue = TokioQueue::new();
                    delays
                        .iter()
                        .for_each(|delay| _ = queue.insert(0_u64, *delay));
                    tokio::time::advance(Duration::from_millis(HOUR)).await;
                    queue
                })
            };
            let receive = |mut queue: TokioQueue<u64>| {
                let mut left = count;
                runtime.block_on(poll_fn(|context| {
                    loop {
                        match queue.poll_expired(context) {
                            Poll::Ready(Some(expired)) => {
                                left -= 1;
                                black_box(expired);
                            }
                            Poll::Ready(None) => return Poll::Ready(()),
                            Poll::Pending => return Poll::Pending,
                        }
                    }
                }));
                assert_eq!(left, 0);
                queue
            };
            bencher.iter_batched(setup, receive, criterion::BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(benches, change, expire);
criterion_main!(benches);
