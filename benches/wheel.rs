//! Benchmarks of the wheels as plain data structures, compared with other queues of deadlines. The
//! wheels have 512 slots and contain no entries, ten thousand or a million. (The benchmark in
//! which/ shows which queue suits which use.)

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{
    BatchSize, Bencher, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group,
    criterion_main,
};
use hashed_wheel_benches::wheel::Wheel;
use hashed_wheel_benches::{BTreeQueue, HeapQueue, SortedQueue};
use hashed_wheel_benches::{random, size, spread};
use timing_wheels::{HashedWheel, HierarchicalWheel};

/// The numbers of entries.
fn sizes() -> [usize; 3] {
    [0, 10_000, 1_000_000].map(size)
}

/// Returns deadlines of 30 to 90 s at a tick of 100 ms.
fn deadlines() -> impl Iterator<Item = u64> {
    spread(300..=900)
}

/// Returns a wheel that contains `size` entries, and their keys.
fn wheel_with_entries<W: Wheel>(size: usize) -> (W, Vec<W::Key>) {
    let mut wheel = W::new();
    let keys = deadlines()
        .take(size)
        .map(|deadline| wheel.insert(deadline, 0))
        .collect();
    (wheel, keys)
}

/// Returns a wheel with `size` entries. Their deadlines are so late that no benchmark reaches them.
fn wheel_with_late_entries<W: Wheel>(size: usize) -> W {
    let mut wheel = W::new();
    let mut random = random();
    for _ in 0..size {
        wheel.insert((1 << 40) + random.u64(..1 << 20), 0);
    }
    wheel
}

/// Runs a benchmark for each number of entries.
fn each_size<W: Wheel>(criterion: &mut Criterion, group: &str, run: fn(&mut Bencher, usize)) {
    let mut group = criterion.benchmark_group(group);
    for size in sizes() {
        let id = BenchmarkId::new(W::NAME, size);
        group.bench_function(id, |bencher| run(bencher, size));
    }
}

/// Measures inserting an entry and removing it immediately.
fn insert_remove<W: Wheel>(criterion: &mut Criterion) {
    each_size::<W>(criterion, "wheel/insert_remove", |bencher, size| {
        let (mut wheel, _) = wheel_with_entries::<W>(size);
        let mut deadlines = deadlines();
        bencher.iter(|| {
            let key = wheel.insert(deadlines.next().unwrap(), 0);
            wheel.remove(key)
        });
    });
}

/// Measures removing a random entry and inserting another one, so that gaps appear and are filled.
fn replace<W: Wheel>(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel/replace");
    for size in sizes().into_iter().filter(|&size| size > 0) {
        group.bench_function(BenchmarkId::new(W::NAME, size), |bencher| {
            let (mut wheel, mut keys) = wheel_with_entries::<W>(size);
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

/// Measures inserting an entry into a wheel of constant size.
///
/// Inserts a thousand entries at a time. They are removed again outside of the measured time.
fn insert<W: Wheel>(criterion: &mut Criterion) {
    const BATCH: u64 = 1_000;

    each_size::<W>(criterion, "wheel/insert", |bencher, size| {
        let (mut wheel, _) = wheel_with_entries::<W>(size);
        let mut deadlines = deadlines();
        let mut keys = Vec::with_capacity(BATCH as usize);
        bencher.iter_custom(|iters| {
            let mut elapsed = Duration::ZERO;
            let mut left = iters;
            while left > 0 {
                let batch = left.min(BATCH);
                let start = Instant::now();
                let deadlines = deadlines.by_ref().take(batch as usize);
                keys.extend(deadlines.map(|deadline| wheel.insert(deadline, 0)));
                elapsed += start.elapsed();
                // In reverse order, which leaves no gaps.
                for key in keys.drain(..).rev() {
                    wheel.remove(key);
                }
                left -= batch;
            }
            elapsed
        });
    });
}

/// Measures a tick in which no entry is due and no entry moves.
fn advance_idle<W: Wheel>(criterion: &mut Criterion) {
    each_size::<W>(criterion, "wheel/advance_idle", |bencher, size| {
        let mut wheel = wheel_with_late_entries::<W>(size);
        let (mut now, mut expired) = (0, 0);
        bencher.iter(|| {
            now += 1;
            wheel.advance(now, |value| expired += value);
            expired
        });
    });
}

/// Measures a tick in which one entry is due and no other entry moves.
///
/// The measured time includes the insertion of that entry. Each tick visits a slot and has to find
/// the next used slot.
fn advance_busy<W: Wheel>(criterion: &mut Criterion) {
    each_size::<W>(criterion, "wheel/advance_busy", |bencher, size| {
        let mut wheel = wheel_with_late_entries::<W>(size);
        let (mut now, mut expired) = (0, 0);
        bencher.iter(|| {
            now += 1;
            wheel.insert(now, 1);
            wheel.advance(now, |value| expired += value);
            expired
        });
    });
}

/// Measures expiring an entry.
///
/// Expires all entries of the wheel, over about 600 ticks. The throughput is per entry.
fn expire<W: Wheel>(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel/expire");
    group.sampling_mode(SamplingMode::Flat).sample_size(20);
    for size in sizes().into_iter().filter(|&size| size > 0) {
        group.throughput(Throughput::Elements(size as u64));
        group.bench_function(BenchmarkId::new(W::NAME, size), |bencher| {
            let expire_all = |mut wheel: W| {
                let mut count = 0;
                wheel.advance(1_000, |_| count += 1);
                assert_eq!(count, size);
                wheel
            };
            let wheel = || wheel_with_entries::<W>(size).0;
            bencher.iter_batched(wheel, expire_all, BatchSize::PerIteration);
        });
    }
}

/// Measures the query for the next deadline.
fn next_deadline<W: Wheel>(criterion: &mut Criterion) {
    each_size::<W>(criterion, "wheel/next_deadline", |bencher, size| {
        let (wheel, _) = wheel_with_entries::<W>(size);
        bencher.iter(|| black_box(&wheel).next_deadline());
    });
}

/// Measures a sleep of a microsecond timer: each task sleeps for 1 ms to 1 s, again and again.
///
/// The only benchmark with few entries. An array is the usual choice for these.
fn sleep<W: Wheel>(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel/sleep");
    for tasks in [4, 32, 512] {
        group.bench_function(BenchmarkId::new(W::NAME, tasks), |bencher| {
            let mut wheel = W::new();
            let mut delays = spread(1_000..=1_000_000);
            for task in 0..tasks {
                wheel.insert(delays.next().unwrap(), task);
            }
            let mut due = Vec::new();
            bencher.iter(|| {
                let now = wheel.next_deadline().unwrap();
                wheel.advance(now, |task| due.push(task));
                for task in due.drain(..) {
                    wheel.insert(now + delays.next().unwrap(), task);
                }
            });
        });
    }
}

fn all<W: Wheel>(criterion: &mut Criterion) {
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
    // The four competitors take about three minutes together.
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1));
    targets =
        all::<HashedWheel<u64>>,
        all::<HierarchicalWheel<u64>>,
        all::<HeapQueue>,
        all::<BTreeQueue>,
        sleep::<HierarchicalWheel<u64>>,
        sleep::<SortedQueue>,
}
criterion_main!(benches);
