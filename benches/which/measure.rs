//! Measures the operations of a queue of deadlines under the same conditions for all competitors.

use std::hint::black_box;
use std::time::Instant;

use hashed_wheel_benches::random;
use hashed_wheel_benches::wheel::Wheel;
use hashed_wheel_benches::{BTreeQueue, HeapQueue};
use timing_wheels::{HashedWheel, HierarchicalWheel};

use crate::memory;

/// One value per competitor, in the order of `NAMES`.
pub type Each = [f64; 4];

pub const NAMES: [&str; 4] = [
    HashedWheel::<u64>::NAME,
    HierarchicalWheel::<u64>::NAME,
    HeapQueue::NAME,
    BTreeQueue::NAME,
];

const MEASURE_QUEUE: [fn(&Case) -> Costs; 4] = [
    measure_queue::<HashedWheel<u64>>,
    measure_queue::<HierarchicalWheel<u64>>,
    measure_queue::<HeapQueue>,
    measure_queue::<BTreeQueue>,
];

/// The number of measured ticks in which nothing is due.
const EMPTY_TICKS: u64 = 4_096;

/// Added to the deadlines, so that nothing is due in the empty ticks or soon after them. Otherwise
/// entries would move down a level during the empty ticks, and these moves belong to the cost of
/// expiry.
const DEADLINE_OFFSET: u64 = 2 * EMPTY_TICKS;

/// The smallest number of entries of one repetition. A repetition uses as many queues as that
/// requires.
const MIN_ENTRIES: usize = 20_000;

/// The entries of one queue. Their delays are uniformly distributed over 1 to `max_delay` ticks.
pub struct Case {
    deadlines: Vec<u64>,
    start: u64,
    scope: Scope,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Scope {
    All,
    /// Only insertion, expiry and memory. All other costs are NaN.
    Expiry,
}

impl Case {
    fn new(pending: usize, max_delay: u64, scope: Scope, random: &mut fastrand::Rng) -> Self {
        // A random start, because a power of two could be an advantage for some queue.
        let start = (1 << 40) + random.u64(..1 << 30);
        let deadlines = (0..pending)
            .map(|_| start + random.u64(1..=max_delay))
            .collect();
        Self {
            deadlines,
            start,
            scope,
        }
    }

    fn queue<W: Wheel>(&self) -> W {
        let mut queue = W::new();
        queue.advance(self.start, |_| ());
        queue
    }
}

/// The costs of one operation.
pub struct Costs<N = f64> {
    /// Nanoseconds per entry to insert into a queue that is empty at first.
    pub insert: N,
    /// Nanoseconds per entry to cancel all entries in random order.
    pub cancel: N,
    /// Nanoseconds per entry to cancel it, in random order, and to insert another one immediately.
    pub replace: N,
    /// Nanoseconds per entry to advance from one deadline to the next until all entries have
    /// expired, as the timer's worker does.
    pub expire: N,
    /// Microseconds of the longest of these steps. A step that moves many entries delays all
    /// others. The last step does not count, because the wheels free all memory in it.
    pub longest_step: N,
    /// Nanoseconds of a tick in which nothing is due.
    pub empty_tick: N,
    /// Bytes per entry after all insertions.
    pub bytes: N,
    /// The largest number of bytes per entry until all entries have been replaced.
    pub peak: N,
}

/// Measures one queue in three passes. In two of them all entries expire, in the third one none
/// expires.
fn measure_queue<W: Wheel>(case: &Case) -> Costs {
    let pending = case.deadlines.len();
    let nanos_each =
        |start: Instant, count: usize| start.elapsed().as_nanos() as f64 / count as f64;

    let before = memory::live();
    let mut queue = case.queue::<W>();
    let start = Instant::now();
    for &deadline in &case.deadlines {
        black_box(queue.insert(deadline, deadline));
    }
    let insert = nanos_each(start, pending);
    let bytes = (memory::live() - before) as f64 / pending as f64;

    let mut expired = 0;
    let start = Instant::now();
    while let Some(next) = queue.next_deadline() {
        queue.advance(next, |_| expired += 1);
    }
    let expire = nanos_each(start, pending);
    assert_eq!(expired, pending);
    drop(queue);
    if case.scope == Scope::Expiry {
        let [cancel, replace, longest_step, empty_tick, peak] = [f64::NAN; 5];
        return Costs {
            insert,
            cancel,
            replace,
            expire,
            longest_step,
            empty_tick,
            bytes,
            peak,
        };
    }

    // A separate pass, because reading the clock in the loop above would cost more than a step.
    let mut queue = case.queue::<W>();
    case.deadlines
        .iter()
        .for_each(|&deadline| _ = queue.insert(deadline, deadline));
    let (mut longest_step, last) = (0.0_f64, case.deadlines.iter().max().copied());
    while let Some(next) = queue.next_deadline().filter(|&next| Some(next) < last) {
        let start = Instant::now();
        queue.advance(next, |value| _ = black_box(value));
        longest_step = longest_step.max(nanos_each(start, 1) / 1_000.0);
    }
    drop(queue);

    memory::reset_peak();
    let mut queue = case.queue::<W>();
    let mut keys: Vec<_> = case
        .deadlines
        .iter()
        .map(|&deadline| queue.insert(deadline + DEADLINE_OFFSET, deadline))
        .collect();
    let start = Instant::now();
    for tick in 1..=EMPTY_TICKS {
        queue.advance(case.start + tick, |_| expired += 1);
    }
    let empty_tick = nanos_each(start, EMPTY_TICKS as usize);
    assert_eq!(expired, pending);

    random().shuffle(&mut keys);
    let start = Instant::now();
    for (key, &deadline) in keys.iter_mut().zip(&case.deadlines) {
        black_box(queue.remove(*key));
        *key = queue.insert(deadline + DEADLINE_OFFSET, deadline);
    }
    let replace = nanos_each(start, pending);
    let peak = (memory::peak() - before - size_of_val(&*keys)) as f64 / pending as f64;

    random().shuffle(&mut keys);
    let start = Instant::now();
    let cancelled = keys
        .iter()
        .filter(|&&key| queue.remove(key).is_some())
        .count();
    let cancel = nanos_each(start, pending);
    assert_eq!(cancelled, pending);

    Costs {
        insert,
        cancel,
        replace,
        expire,
        longest_step,
        empty_tick,
        bytes,
        peak,
    }
}

/// Returns the medians of the repetitions. Each repetition measures all competitors one after the
/// other, so that a disturbance by other processes affects all of them.
pub fn measure(scope: Scope, pending: usize, max_delay: u64, repetitions: usize) -> Costs<Each> {
    let mut random = random();
    let mut results: [Vec<Costs>; 4] = Default::default();
    for repetition in 0..repetitions {
        let cases: Vec<_> = (0..MIN_ENTRIES.div_ceil(pending))
            .map(|_| Case::new(pending, max_delay, scope, &mut random))
            .collect();
        for offset in 0..NAMES.len() {
            let competitor = (repetition + offset) % NAMES.len();
            let all: Vec<_> = cases.iter().map(MEASURE_QUEUE[competitor]).collect();
            let mean =
                |cost: fn(&Costs) -> f64| all.iter().map(cost).sum::<f64>() / all.len() as f64;
            results[competitor].push(for_each_cost(mean));
        }
    }
    for_each_cost(|cost| {
        std::array::from_fn(|competitor| median(results[competitor].iter().map(cost).collect()))
    })
}

/// Calls `value` with the accessor of each cost and returns its results.
fn for_each_cost<N>(value: impl Fn(fn(&Costs) -> f64) -> N) -> Costs<N> {
    Costs {
        insert: value(|costs| costs.insert),
        cancel: value(|costs| costs.cancel),
        replace: value(|costs| costs.replace),
        expire: value(|costs| costs.expire),
        longest_step: value(|costs| costs.longest_step),
        empty_tick: value(|costs| costs.empty_tick),
        bytes: value(|costs| costs.bytes),
        peak: value(|costs| costs.peak),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Checks that all competitors behave the same. A competitor that omits some work would be faster
/// than the others.
pub fn assert_same_behaviour() {
    fn outcome<W: Wheel>() -> Vec<Option<u64>> {
        let mut random = random();
        let (mut queue, mut keys, mut outcome) = (W::new(), Vec::new(), Vec::new());
        let mut now = 0;
        for value in 0..20_000 {
            // All deadlines are in the future: overdue entries leave a wheel in the order of
            // insertion, not of deadlines.
            let max_delay = 1 << random.u32(..21);
            keys.push(queue.insert(now + random.u64(1..=max_delay), value));
            if random.bool() {
                outcome.push(queue.remove(keys[random.usize(..keys.len())]));
            }
            now += random.u64(..10);
            queue.advance(now, |value| outcome.push(Some(value)));
        }
        while let Some(next) = queue.next_deadline() {
            queue.advance(next, |value| outcome.push(Some(value)));
        }
        outcome
    }

    let hashed = outcome::<HashedWheel<u64>>();
    assert!(hashed == outcome::<HierarchicalWheel<u64>>());
    assert!(hashed == outcome::<HeapQueue>());
    assert!(hashed == outcome::<BTreeQueue>());
}
