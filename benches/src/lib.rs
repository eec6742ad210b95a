//! What is asked of every timer in the same way: the questions that a caller has, and [`Timer`], the face that a
//! competitor puts on to be asked them. Each question is a criterion group, and each timer one line in it.
//!
//! For the data structures alone there is [`wheel`].

mod btree;
mod heap;
pub mod wheel;

use std::hint::black_box;
use std::iter;
use std::ops::RangeInclusive;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};
use hashed_wheel::{HashedWheelTimer, Timeout};

/// A timer as its callers see it. It runs until it is dropped, beside them, as it would in a service.
pub trait Timer: Sized {
    const NAME: &'static str;

    type Timeout;

    fn start() -> Self;

    fn new_timeout(&self, delay: Duration) -> Self::Timeout;

    /// The caller is done with it: what dropping the handle costs is part of this.
    fn cancel(&self, timeout: Self::Timeout);

    fn reset(&self, timeout: &Self::Timeout, delay: Duration);

    /// Returns when all timeouts so far are where they stay until they are due.
    fn settle(&self);
}

impl Timer for HashedWheelTimer {
    const NAME: &'static str = "hashed-wheel";

    type Timeout = Timeout;

    fn start() -> Self {
        // Short enough that the worker does its part while a batch is measured, as it would under steady traffic.
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
        timeout.reset(delay);
    }

    fn settle(&self) {
        let (ran, wait) = mpsc::channel();
        // The last of the queue: when it runs, all before it are in the wheel.
        self.new_timeout(move |_| ran.send(()).unwrap(), Duration::ZERO).unwrap();
        wait.recv().unwrap();
    }
}

/// How many timeouts there are at a time: what a busy service has, and some ten megabytes.
const BATCH: usize = 100_000;

/// The longest delay, and so one to re-arm with.
const LONGEST: Duration = Duration::from_secs(90);

/// Seeded: every competitor is asked the same, in every run.
pub fn random() -> fastrand::Rng {
    fastrand::Rng::with_seed(0x5eed)
}

/// Numbers from `range`, without end. They come from a table, for the random numbers are not to be measured.
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

/// Request timeouts, from 30 to 90 s.
fn delays() -> impl Iterator<Item = Duration> {
    spread(30_000..=90_000).map(Duration::from_millis)
}

/// A timer that `BATCH` timeouts are settled in, and these in random order.
fn settled<T: Timer>() -> (T, Vec<T::Timeout>) {
    let timer = T::start();
    let mut timeouts: Vec<_> = delays().take(BATCH).map(|delay| timer.new_timeout(delay)).collect();
    timer.settle();
    random().shuffle(&mut timeouts);
    (timer, timeouts)
}

/// A group for questions that need a new timer each time: an iteration is a whole batch.
fn batches<'a>(criterion: &'a mut Criterion, question: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(question);
    group.throughput(Throughput::Elements(BATCH as u64));
    // To prepare a batch takes longer than to measure it.
    group.sampling_mode(SamplingMode::Flat).sample_size(50).measurement_time(Duration::from_secs(2));
    group
}

/// What does a caller pay to schedule a timeout that it keeps?
///
/// One thread and a hundred thousand timeouts, whose timer is new; its worker takes them in meanwhile.
pub fn new_timeout<T: Timer>(criterion: &mut Criterion) {
    batches(criterion, "new_timeout").bench_function(T::NAME, |bencher| {
        let mut delays = delays();
        let mut kept = Vec::with_capacity(BATCH);
        let mut batch = || {
            let timer = T::start();
            let start = Instant::now();
            kept.extend(delays.by_ref().take(BATCH).map(|delay| timer.new_timeout(delay)));
            let elapsed = start.elapsed();
            kept.clear();
            elapsed
        };
        bencher.iter_custom(|iters| (0..iters).map(|_| batch()).sum());
    });
}

/// What does a caller pay for a request that is answered at once: to schedule its timeout and cancel it?
///
/// One thread, one timer, without a pause: the worker disposes of what is left of them meanwhile.
pub fn new_timeout_cancel<T: Timer>(criterion: &mut Criterion) {
    criterion.benchmark_group("new_timeout_cancel").bench_function(T::NAME, |bencher| {
        let timer = T::start();
        let mut delays = delays();
        bencher.iter(|| timer.cancel(timer.new_timeout(delays.next().unwrap())));
    });
}

/// What does a caller pay to cancel a timeout, long after it was scheduled?
///
/// One thread and a hundred thousand timeouts, all of them in random order.
pub fn cancel<T: Timer>(criterion: &mut Criterion) {
    batches(criterion, "cancel").bench_function(T::NAME, |bencher| {
        let batch = || {
            let (timer, timeouts) = settled::<T>();
            let start = Instant::now();
            timeouts.into_iter().for_each(|timeout| timer.cancel(timeout));
            start.elapsed()
        };
        bencher.iter_custom(|iters| (0..iters).map(|_| batch()).sum());
    });
}

/// What does a caller pay to put off an idle timeout, as it does with each packet?
///
/// One thread and a hundred thousand timeouts, in random order. Each time it is the longest delay from now, which is
/// later than before.
pub fn reset_later<T: Timer>(criterion: &mut Criterion) {
    criterion.benchmark_group("reset_later").bench_function(T::NAME, |bencher| {
        let (timer, timeouts) = settled::<T>();
        let mut timeouts = timeouts.iter().cycle();
        bencher.iter(|| timer.reset(black_box(timeouts.next().unwrap()), LONGEST));
    });
}
