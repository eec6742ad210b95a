//! The wheels by themselves, as plain data structures, beside what else keeps deadlines in order: 512 slots that hold
//! nothing, ten thousand, a million entries. (Which of them for what: see which/.)

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{
    BatchSize, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use hashed_wheel::wheel::{HashedWheel, HierarchicalWheel};
use hashed_wheel_benches::wheel::{BTreeQueue, HeapQueue, Wheel};
use hashed_wheel_benches::{random, spread};

const SIZES: [usize; 3] = [0, 10_000, 1_000_000];

/// What is 30 to 90 s off at a tick of 100 ms.
fn deadlines() -> impl Iterator<Item = u64> {
    spread(300..=900)
}

/// A wheel that holds `size` entries, and their keys.
fn holding<W: Wheel>(size: usize) -> (W, Vec<W::Key>) {
    let mut wheel = W::new();
    let keys = deadlines().take(size).map(|deadline| wheel.insert(deadline, 0)).collect();
    (wheel, keys)
}

/// A wheel with `size` entries that stand so far off that no bench comes to them.
fn holding_far<W: Wheel>(size: usize) -> W {
    let mut wheel = W::new();
    let mut random = random();
    for _ in 0..size {
        wheel.insert((1 << 40) + random.u64(..1 << 20), 0);
    }
    wheel
}

/// What does it cost to put an entry in and take it out at once?
fn insert_remove<W: Wheel>(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel/insert_remove");
    for size in SIZES {
        group.bench_function(BenchmarkId::new(W::NAME, size), |bencher| {
            let (mut wheel, _) = holding::<W>(size);
            let mut deadlines = deadlines();
            bencher.iter(|| {
                let key = wheel.insert(deadlines.next().unwrap(), 0);
                wheel.remove(key)
            });
        });
    }
}

/// What does it cost to take a random entry out and put another one in, so that holes come and go?
fn replace<W: Wheel>(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel/replace");
    for size in SIZES.into_iter().filter(|&size| size > 0) {
        group.bench_function(BenchmarkId::new(W::NAME, size), |bencher| {
            let (mut wheel, mut keys) = holding::<W>(size);
            random().shuffle(&mut keys);
            let mut deadlines = deadlines();
            let mut next = 0;
            bencher.iter(|| {
                let key = &mut keys[next];
                let removed = wheel.remove(*key);
                *key = wheel.insert(deadlines.next().unwrap(), 0);
                next = if next + 1 == size { 0 } else { next + 1 };
                removed
            });
        });
    }
}

/// What does it cost to put an entry into a wheel that keeps its size?
///
/// A thousand at a time, which are taken out again outside of the measured time.
fn insert<W: Wheel>(criterion: &mut Criterion) {
    const BATCH: u64 = 1_000;

    let mut group = criterion.benchmark_group("wheel/insert");
    for size in SIZES {
        group.bench_function(BenchmarkId::new(W::NAME, size), |bencher| {
            let (mut wheel, _) = holding::<W>(size);
            let mut deadlines = deadlines();
            let mut keys = Vec::with_capacity(BATCH as usize);
            bencher.iter_custom(|iters| {
                let mut elapsed = Duration::ZERO;
                let mut left = iters;
                while left > 0 {
                    let batch = left.min(BATCH);
                    let start = Instant::now();
                    keys.extend(
                        deadlines.by_ref().take(batch as usize).map(|deadline| wheel.insert(deadline, 0)),
                    );
                    elapsed += start.elapsed();
                    // The last one first, which leaves no holes.
                    for key in keys.drain(..).rev() {
                        wheel.remove(key);
                    }
                    left -= batch;
                }
                elapsed
            });
        });
    }
}

/// What does a tick cost in which nothing is due, while all that the wheel holds stands still?
fn advance_idle<W: Wheel>(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel/advance_idle");
    for size in SIZES {
        group.bench_function(BenchmarkId::new(W::NAME, size), |bencher| {
            let mut wheel = holding_far::<W>(size);
            let (mut now, mut expired) = (0, 0);
            bencher.iter(|| {
                now += 1;
                wheel.advance(now, |value| expired += value);
                expired
            });
        });
    }
}

/// What does a tick cost in which one entry is due, while all others that the wheel holds stand still?
///
/// Inserting that one entry is measured with it. Each tick visits a slot, and has to find the next one.
fn advance_busy<W: Wheel>(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel/advance_busy");
    for size in SIZES {
        group.bench_function(BenchmarkId::new(W::NAME, size), |bencher| {
            let mut wheel = holding_far::<W>(size);
            let (mut now, mut expired) = (0, 0);
            bencher.iter(|| {
                now += 1;
                wheel.insert(now, 1);
                wheel.advance(now, |value| expired += value);
                expired
            });
        });
    }
}

/// What does it cost to hand out an entry that is due?
///
/// All that the wheel holds, over some 600 ticks; the throughput is per entry.
fn expire<W: Wheel>(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel/expire");
    group.sampling_mode(SamplingMode::Flat).sample_size(20);
    for size in SIZES.into_iter().filter(|&size| size > 0) {
        group.throughput(Throughput::Elements(size as u64));
        group.bench_function(BenchmarkId::new(W::NAME, size), |bencher| {
            let expired = |mut wheel: W| {
                let mut count = 0;
                wheel.advance(1_000, |_| count += 1);
                assert_eq!(count, size);
                wheel
            };
            bencher.iter_batched(|| holding::<W>(size).0, expired, BatchSize::PerIteration);
        });
    }
}

/// What does it cost to ask when the next entry is due?
fn next_deadline<W: Wheel>(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel/next_deadline");
    for size in SIZES {
        group.bench_function(BenchmarkId::new(W::NAME, size), |bencher| {
            let (wheel, _) = holding::<W>(size);
            bencher.iter(|| black_box(&wheel).next_deadline());
        });
    }
}

fn questions<W: Wheel>(criterion: &mut Criterion) {
    insert_remove::<W>(criterion);
    replace::<W>(criterion);
    insert::<W>(criterion);
    advance_idle::<W>(criterion);
    advance_busy::<W>(criterion);
    expire::<W>(criterion);
    next_deadline::<W>(criterion);
}

criterion_group! {
    name = benches;
    // Four competitors in some three minutes.
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1));
    targets =
        questions::<HashedWheel<u64>>,
        questions::<HierarchicalWheel<u64>>,
        questions::<HeapQueue>,
        questions::<BTreeQueue>,
}
criterion_main!(benches);
