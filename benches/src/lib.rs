//! Benchmarks of the operations that a caller performs on a timer. Every timer implements
//! [`Timer`]. Each operation is a criterion group, and each timer is one line in it.
//!
//! The module [`wheel`] is for the data structures without a timer. A heap, a B-tree and a
//! sorted array, which other timers use instead of a wheel, are beside it.

mod btree;
mod heap;
mod sorted;
pub mod wheel;

use std::hint::black_box;
use std::ops::RangeInclusive;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, iter};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};
use hashed_wheel::{HashedWheelTimer, Timeout};

pub use btree::BTreeQueue;
pub use heap::HeapQueue;
pub use sorted::SortedQueue;

/// Returns the size of a benchmark: `full`, or a thousandth of it if it only has to show that it
/// works (`--test`).
pub fn size(full: usize) -> usize {
    let is_test = env::args().any(|argument| argument == "--test");
    if is_test { full / 1_000 } else { full }
}

/// A timer from the point of view of its callers. Its worker runs concurrently with the callers, as
/// in a service, until the timer is dropped.
pub trait Timer: Sized {
    const NAME: &'static str;

    type Timeout;

    fn start() -> Self;

    fn new_timeout(&self, delay: Duration) -> Self::Timeout;

    /// Cancels the timeout and drops the handle: the cost of dropping it is part of the measured
    /// operation.
    fn cancel(&self, timeout: Self::Timeout);

    fn reset(&self, timeout: &Self::Timeout, delay: Duration);

    /// Waits until all timeouts that were scheduled before this call are in the timer's data
    /// structure.
    fn wait_until_inserted(&self);
}

impl Timer for HashedWheelTimer {
    const NAME: &'static str = "hashed-wheel";

    type Timeout = Timeout;

    fn start() -> Self {
        // The tick is short, so that the worker does its work during the measurement of a batch, as
        // under steady load.
        let timer = Self::new(Duration::from_millis(10), 512);
        timer.start().unwrap();
        timer
    }

    fn new_timeout(&self, delay: Duration) -> Timeout {
        self.new_timeout(|_| (), delay).unwrap()
    }

    fn cancel(&self, timeout: Timeout) {
        timeout.cancel();
    }

    fn reset(&self, timeout: &Timeout, delay: Duration) {
        _ = timeout.reset(delay);
    }

    fn wait_until_inserted(&self) {
        let (ran, wait) = mpsc::channel();
        // The queue is FIFO: when this timeout runs, all earlier ones are in the wheel.
        self.new_timeout(move |_| ran.send(()).unwrap(), Duration::ZERO)
            .unwrap();
        wait.recv().unwrap();
    }
}

/// The number of timeouts that are pending at the same time: about as many as in a busy service.
const BATCH: usize = 100_000;

/// The longest delay of [`delays`]. A reset to it always moves the deadline later.
const MAX_DELAY: Duration = Duration::from_secs(90);

/// Returns a generator with a fixed seed: every competitor gets the same input in every run.
pub fn random() -> fastrand::Rng {
    fastrand::Rng::with_seed(0x5eed)
}

/// Returns an endless iterator of random numbers from `range`. It reads them from a table, so that
/// the measured time does not include the random number generator.
pub fn spread(range: RangeInclusive<u64>) -> impl Iterator<Item = u64> {
    const TABLE: usize = 4_096;

    let mut random = random();
    let table: Vec<_> = (0..TABLE).map(|_| random.u64(range.clone())).collect();
    let mut next = 0;
    iter::repeat_with(move || {
        next = (next + 1) % TABLE;
        table[next]
    })
}

/// Returns delays of request timeouts, 30 to 90 s.
fn delays() -> impl Iterator<Item = Duration> {
    spread(30_000..=90_000).map(Duration::from_millis)
}

/// Returns a timer whose data structure contains `BATCH` timeouts, and their handles in random
/// order.
fn timer_with_timeouts<T: Timer>() -> (T, Vec<T::Timeout>) {
    let timer = T::start();
    let mut timeouts: Vec<_> = delays()
        .take(BATCH)
        .map(|delay| timer.new_timeout(delay))
        .collect();
    timer.wait_until_inserted();
    random().shuffle(&mut timeouts);
    (timer, timeouts)
}

/// Returns a group for operations that need a new timer each time: an iteration is a whole batch.
fn batches<'a>(criterion: &'a mut Criterion, operation: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(operation);
    group.throughput(Throughput::Elements(BATCH as u64));
    // Flat sampling with few samples, because the setup of a batch takes longer than its
    // measurement.
    group
        .sampling_mode(SamplingMode::Flat)
        .sample_size(50)
        .measurement_time(Duration::from_secs(2));
    group
}

/// Measures what a caller pays to schedule a timeout and keep its handle.
///
/// One thread schedules a hundred thousand timeouts on a new timer. Its worker inserts them
/// concurrently.
pub fn new_timeout<T: Timer>(criterion: &mut Criterion) {
    batches(criterion, "new_timeout").bench_function(T::NAME, |bencher| {
        let mut delays = delays();
        let mut kept = Vec::with_capacity(BATCH);
        let mut batch = || {
            let timer = T::start();
            let start = Instant::now();
            kept.extend(
                delays
                    .by_ref()
                    .take(BATCH)
                    .map(|delay| timer.new_timeout(delay)),
            );
            let elapsed = start.elapsed();
            kept.clear();
            elapsed
        };
        bencher.iter_custom(|iters| (0..iters).map(|_| batch()).sum());
    });
}

/// Measures what a caller pays to schedule a timeout and cancel it immediately, as for a request
/// with an immediate answer.
///
/// One thread uses one timer without a pause. The worker processes the cancellations concurrently.
pub fn new_timeout_cancel<T: Timer>(criterion: &mut Criterion) {
    criterion
        .benchmark_group("new_timeout_cancel")
        .bench_function(T::NAME, |bencher| {
            let timer = T::start();
            let mut delays = delays();
            bencher.iter(|| timer.cancel(timer.new_timeout(delays.next().unwrap())));
        });
}

/// Measures what a caller pays to cancel a timeout long after it was scheduled.
///
/// One thread cancels a hundred thousand timeouts in random order.
pub fn cancel<T: Timer>(criterion: &mut Criterion) {
    batches(criterion, "cancel").bench_function(T::NAME, |bencher| {
        let batch = || {
            let (timer, timeouts) = timer_with_timeouts::<T>();
            let start = Instant::now();
            timeouts
                .into_iter()
                .for_each(|timeout| timer.cancel(timeout));
            start.elapsed()
        };
        bencher.iter_custom(|iters| (0..iters).map(|_| batch()).sum());
    });
}

/// Measures what a caller pays to reset an idle timeout to a later deadline, as for every packet of
/// a connection.
///
/// One thread resets a hundred thousand timeouts in random order. Each reset uses the longest
/// delay, so the new deadline is later than the old one.
pub fn reset_later<T: Timer>(criterion: &mut Criterion) {
    criterion
        .benchmark_group("reset_later")
        .bench_function(T::NAME, |bencher| {
            let (timer, timeouts) = timer_with_timeouts::<T>();
            let mut timeouts = timeouts.iter().cycle();
            bencher.iter(|| timer.reset(black_box(timeouts.next().unwrap()), MAX_DELAY));
        });
}
