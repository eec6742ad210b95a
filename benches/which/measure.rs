//! What a queue is asked, and how the answers of several are made comparable.

use std::hint::black_box;
use std::time::Instant;

use hashed_wheel::wheel::{HashedWheel, HierarchicalWheel};
use hashed_wheel_benches::random;
use hashed_wheel_benches::wheel::{BTreeQueue, HeapQueue, Wheel};

use crate::memory;

/// One figure for each competitor, in the order of `NAMES`.
pub type Each = [f64; 4];

pub const NAMES: [&str; 4] =
    [HashedWheel::<u64>::NAME, HierarchicalWheel::<u64>::NAME, HeapQueue::NAME, BTreeQueue::NAME];

const LIVES: [fn(&Case) -> Costs; 4] =
    [live::<HashedWheel<u64>>, live::<HierarchicalWheel<u64>>, live::<HeapQueue>, live::<BTreeQueue>];

/// How many ticks in which nothing is due are walked.
const STILL: u64 = 4_096;

/// Later by so much nothing is due in these ticks, nor soon: that entries move down belongs to what expiry costs.
const PUT_OFF: u64 = 2 * STILL;

/// How many entries a repetition measures at least: it takes as many queues as that needs.
const ENTRIES: usize = 20_000;

/// So many entries, each of which is due after 1 to `longest` ticks, all equally likely.
pub struct Case {
    deadlines: Vec<u64>,
    start: u64,
    asked: Asked,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Asked {
    Everything,
    /// Where cancelling comes in, or a tick with nothing due, the costs are no number then.
    Expiry,
}

impl Case {
    fn new(pending: usize, longest: u64, asked: Asked, random: &mut fastrand::Rng) -> Self {
        // No queue is to gain from a time that is a round number.
        let start = (1 << 40) + random.u64(..1 << 30);
        let deadlines = (0..pending).map(|_| start + random.u64(1..=longest)).collect();
        Self { deadlines, start, asked }
    }

    fn queue<W: Wheel>(&self) -> W {
        let mut queue = W::new();
        queue.advance(self.start, |_| ());
        queue
    }
}

/// What one operation costs: in nanoseconds, the longest one in microseconds, or bytes.
pub struct Costs<N = f64> {
    /// Of an entry, put into a queue that grows from nothing.
    pub insert: N,
    /// Of an entry, one after the other in random order until none is left.
    pub cancel: N,
    /// Of an entry, cancelled in random order, and another one put in at once.
    pub replace: N,
    /// Of an entry, going from one deadline to the next until all are out, as the timer's worker does.
    pub expire: N,
    /// Of the longest of these steps but the last: whoever moves many at once keeps the others waiting. (With the last the
    /// wheels give all memory back.)
    pub longest: N,
    /// Of a tick in which nothing is due.
    pub still: N,
    /// Of memory, an entry, when all are in.
    pub bytes: N,
    /// Of memory, an entry, at most until all are replaced.
    pub peak: N,
}

/// A queue's life, three times: in two all entries expire, in the other none does.
fn live<W: Wheel>(case: &Case) -> Costs {
    let pending = case.deadlines.len();
    let each = |start: Instant, count: usize| start.elapsed().as_nanos() as f64 / count as f64;

    let before = memory::live();
    let mut queue = case.queue::<W>();
    let start = Instant::now();
    for &deadline in &case.deadlines {
        black_box(queue.insert(deadline, deadline));
    }
    let insert = each(start, pending);
    let bytes = (memory::live() - before) as f64 / pending as f64;

    let mut expired = 0;
    let start = Instant::now();
    while let Some(next) = queue.next_deadline() {
        queue.advance(next, |_| expired += 1);
    }
    let expire = each(start, pending);
    assert_eq!(expired, pending);
    drop(queue);
    if case.asked == Asked::Expiry {
        let [cancel, replace, longest, still, peak] = [f64::NAN; 5];
        return Costs { insert, cancel, replace, expire, longest, still, bytes, peak };
    }

    // Not in the loop above, where looking at the clock would cost more than a step.
    let mut queue = case.queue::<W>();
    case.deadlines.iter().for_each(|&deadline| _ = queue.insert(deadline, deadline));
    let (mut longest, last) = (0.0_f64, case.deadlines.iter().max().copied());
    while let Some(next) = queue.next_deadline().filter(|&next| Some(next) < last) {
        let start = Instant::now();
        queue.advance(next, |value| _ = black_box(value));
        longest = longest.max(each(start, 1) / 1_000.0);
    }
    drop(queue);

    memory::forget_peak();
    let mut queue = case.queue::<W>();
    let mut keys: Vec<_> =
        case.deadlines.iter().map(|&deadline| queue.insert(deadline + PUT_OFF, deadline)).collect();
    let start = Instant::now();
    for tick in 1..=STILL {
        queue.advance(case.start + tick, |_| expired += 1);
    }
    let still = each(start, STILL as usize);
    assert_eq!(expired, pending);

    random().shuffle(&mut keys);
    let start = Instant::now();
    for (key, &deadline) in keys.iter_mut().zip(&case.deadlines) {
        black_box(queue.remove(*key));
        *key = queue.insert(deadline + PUT_OFF, deadline);
    }
    let replace = each(start, pending);
    let peak = (memory::peak() - before - size_of_val(&*keys)) as f64 / pending as f64;

    random().shuffle(&mut keys);
    let start = Instant::now();
    let cancelled = keys.iter().filter(|&&key| queue.remove(key).is_some()).count();
    let cancel = each(start, pending);
    assert_eq!(cancelled, pending);

    Costs { insert, cancel, replace, expire, longest, still, bytes, peak }
}

/// The medians of so many repetitions. In each all competitors take their turns, so that what else the machine does hits
/// all alike.
pub fn measure(asked: Asked, pending: usize, longest: u64, repetitions: usize) -> Costs<Each> {
    let mut random = random();
    let mut found: [Vec<Costs>; 4] = Default::default();
    for repetition in 0..repetitions {
        let cases: Vec<_> =
            (0..ENTRIES.div_ceil(pending)).map(|_| Case::new(pending, longest, asked, &mut random)).collect();
        for turn in 0..NAMES.len() {
            let competitor = (repetition + turn) % NAMES.len();
            let all: Vec<_> = cases.iter().map(LIVES[competitor]).collect();
            let mean = |of: fn(&Costs) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
            found[competitor].push(over(mean));
        }
    }
    over(|of| std::array::from_fn(|competitor| median(found[competitor].iter().map(of).collect())))
}

/// The same for each kind of cost.
fn over<N>(figure: impl Fn(fn(&Costs) -> f64) -> N) -> Costs<N> {
    Costs {
        insert: figure(|costs| costs.insert),
        cancel: figure(|costs| costs.cancel),
        replace: figure(|costs| costs.replace),
        expire: figure(|costs| costs.expire),
        longest: figure(|costs| costs.longest),
        still: figure(|costs| costs.still),
        bytes: figure(|costs| costs.bytes),
        peak: figure(|costs| costs.peak),
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Checks that all competitors do the same: what one of them leaves out would make it fast.
pub fn agree() {
    fn outcome<W: Wheel>() -> Vec<Option<u64>> {
        let mut random = random();
        let (mut queue, mut keys, mut outcome) = (W::new(), Vec::new(), Vec::new());
        let mut now = 0;
        for value in 0..20_000 {
            // Never in the past: what had passed when it came, a wheel hands out in the order in which it came.
            let longest = 1 << random.u32(..21);
            keys.push(queue.insert(now + random.u64(1..=longest), value));
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
