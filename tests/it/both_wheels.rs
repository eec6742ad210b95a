//! A timer does the same with either wheel, in the same order: random scripts run on two driven
//! timers. The model of `tests/fuzz` says whether it is right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::Schedules;
use fastrand::Rng;
use hashed_wheel::{Clock, Driver, HashedWheelTimer, ManualClock, Timeout};

/// In nanoseconds. This is the shortest tick, so that 2^40 ticks are a plausible time.
const TICK: u64 = 1_000;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    Fired(usize),
    Cancelled(usize, bool),
    Reset(usize, bool),
}

/// The operations on a timer and their results.
struct Record {
    timer: HashedWheelTimer,
    clock: ManualClock,
    seed: u64,
    slots: usize,
    timeouts: Vec<Timeout>,
    /// The deadline of each timeout that has not ended, in nanoseconds.
    pending: BTreeMap<usize, u64>,
    events: Vec<Event>,
}

type SharedRecord = Arc<Mutex<Record>>;

impl Record {
    fn now(&self) -> u64 {
        self.clock.now().as_nanos() as u64
    }

    fn deadline(&self, delay: Duration) -> u64 {
        let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.now().saturating_add(delay)
    }

    fn schedule(&mut self, record: &SharedRecord, delay: Duration) {
        let (id, record) = (self.timeouts.len(), Arc::clone(record));
        self.timeouts
            .push(self.timer.schedule(move |_| fire(&record, id), delay));
        self.pending.insert(id, self.deadline(delay));
    }

    fn cancel(&mut self, id: usize) {
        let succeeded = self.timeouts[id].cancel();
        assert_eq!(succeeded, self.pending.remove(&id).is_some());
        self.events.push(Event::Cancelled(id, succeeded));
    }

    fn reset(&mut self, id: usize, delay: Duration) {
        let succeeded = self.timeouts[id].reset(delay);
        assert_eq!(succeeded, self.pending.contains_key(&id));
        if succeeded {
            self.pending.insert(id, self.deadline(delay));
        }
        self.events.push(Event::Reset(id, succeeded));
    }

    /// Returns the time until the first tick at which a timeout is due.
    fn until_first(&self) -> u64 {
        let first = self.pending.values().min().copied().unwrap_or(0);
        let due = first.div_ceil(TICK).saturating_mul(TICK);
        due.saturating_sub(self.now())
    }

    /// A delay of any length.
    fn delay(&self, random: &mut Rng) -> Duration {
        let round = TICK * self.slots as u64;
        let nanos = match random.u32(..12) {
            0 => 0,
            1 => random.u64(..TICK),
            2..5 => random.u64(..5) * TICK,
            5 => random.u64(..20 * TICK),
            6 => round - TICK + random.u64(..3) * TICK,
            7 => random.u64(..5) * round + random.u64(..=TICK),
            8 => random.u64(..) >> random.u32(24..63),
            // The same deadline as another timeout.
            9 => {
                let deadline = self.pending.values().next().copied().unwrap_or(0);
                deadline.saturating_sub(self.now())
            }
            10 => random.u64(..1 << 60),
            _ => return [Duration::MAX, Duration::from_nanos(1 << 62)][random.usize(..2)],
        };
        Duration::from_nanos(nanos)
    }

    /// A random timeout, more often one that may be pending.
    fn any(&self, random: &mut Rng) -> Option<usize> {
        let pending = self.pending.len();
        if pending > 0 && random.u32(..4) > 0 {
            return self.pending.keys().nth(random.usize(..pending)).copied();
        }
        (!self.timeouts.is_empty()).then(|| random.usize(..self.timeouts.len()))
    }

    /// Cancels or resets a random timeout.
    fn cancel_or_reset(&mut self, random: &mut Rng) {
        let Some(id) = self.any(random) else { return };
        if random.bool() {
            self.cancel(id);
        } else {
            self.reset(id, self.delay(random));
        }
    }
}

/// The task of the timeout `id`. What it does depends only on the seed and its number.
fn fire(shared: &SharedRecord, id: usize) {
    let mut record = shared.lock().unwrap();
    let deadline = record.pending.remove(&id);
    assert!(deadline.expect("it has not ended before") <= record.now());
    record.events.push(Event::Fired(id));
    let mut random = Rng::with_seed(record.seed ^ (id as u64) << 32);
    match random.u32(..10) {
        0 => {
            let delay = record.delay(&mut random);
            record.schedule(shared, delay);
        }
        1..4 => record.cancel_or_reset(&mut random),
        _ => {}
    }
}

/// One of the two timers.
struct Side {
    record: SharedRecord,
    timer: HashedWheelTimer,
    driver: Driver,
    clock: ManualClock,
    /// The most tasks that a turn runs.
    portion: usize,
}

impl Side {
    fn new(slots: usize, seed: u64, is_hierarchical: bool) -> Self {
        let clock = ManualClock::new();
        let builder = HashedWheelTimer::builder()
            .tick(Duration::from_nanos(TICK))
            .ticks_per_wheel(slots)
            .hierarchical(is_hierarchical);
        let (timer, driver) = builder.clock(clock.clone()).build_driven().unwrap();
        let record = Record {
            timer: timer.clone(),
            clock: clock.clone(),
            seed,
            slots,
            timeouts: Vec::new(),
            pending: BTreeMap::new(),
            events: Vec::new(),
        };
        Self {
            record: Arc::new(Mutex::new(record)),
            timer,
            driver,
            clock,
            portion: if seed % 16 < 8 {
                seed as usize / 16 + 1
            } else {
                usize::MAX
            },
        }
    }

    fn with<R>(&self, run: impl FnOnce(&mut Record) -> R) -> R {
        run(&mut self.record.lock().unwrap())
    }

    /// Expires what is due, and returns how many that were.
    fn turn(&mut self) -> usize {
        let mut sum = 0;
        loop {
            let expired = self.driver.turn_at_most(self.portion);
            sum += expired;
            if expired < self.portion {
                return sum;
            }
        }
    }

    /// Stops the timer and returns the numbers of the returned timeouts.
    fn stop(self) -> BTreeSet<usize> {
        let rest = self.timer.stop();
        let record = self.record.lock().unwrap();
        let numbers: BTreeSet<_> = rest
            .iter()
            .map(|timeout| {
                record
                    .timeouts
                    .iter()
                    .position(|other| other == timeout)
                    .unwrap()
            })
            .collect();
        assert_eq!(numbers.len(), rest.len());
        assert!(numbers.iter().eq(record.pending.keys()));
        numbers
    }
}

/// The step of the clock, in nanoseconds.
fn jump(record: &Record, random: &mut Rng) -> u64 {
    let round = TICK * record.slots as u64;
    let until = record.until_first().min(TICK << 40);
    match random.u32(..50) {
        0..5 => 0,
        5..12 => random.u64(..TICK),
        12..25 => random.u64(1..4) * TICK,
        25..32 => until,
        32..36 => until.saturating_sub(1),
        36..40 => random.u64(1..4) * round,
        40..44 => random.u64(1..30) * round + random.u64(..TICK),
        44..49 => random.u64(..) >> random.u32(28..63),
        _ => TICK << 40,
    }
}

fn run(slots: usize, seed: u64, steps: usize) {
    let mut random = Rng::with_seed(seed);
    let mut sides = [false, true].map(|is_hierarchical| Side::new(slots, seed, is_hierarchical));
    for _ in 0..steps {
        let (choice, same) = (random.u32(..20), random.fork());
        let outcomes = sides.each_mut().map(|side| {
            let mut random = same.clone();
            let mut record = side.record.lock().unwrap();
            match choice {
                0..7 => {
                    let delay = record.delay(&mut random);
                    record.schedule(&side.record, delay);
                }
                7 => {
                    let delay = record.delay(&mut random);
                    (0..random.u32(2..30)).for_each(|_| record.schedule(&side.record, delay));
                }
                8..11 => record.cancel_or_reset(&mut random),
                _ => {
                    let jump = jump(&record, &mut random);
                    drop(record);
                    side.clock.advance(Duration::from_nanos(jump));
                    // Otherwise the turn is late.
                    return if random.u32(..4) > 0 { side.turn() } else { 0 };
                }
            }
            0
        });
        assert_eq!(outcomes[0], outcomes[1]);
        let [hashed, hierarchical] = sides
            .each_ref()
            .map(|side| side.with(|record| std::mem::take(&mut record.events)));
        assert_eq!(hashed, hierarchical);
        for side in &sides {
            let pending = side.timer.pending_timeouts();
            assert_eq!(pending, side.with(|record| record.pending.len()));
        }
    }
    let [hashed, hierarchical] = sides.map(Side::stop);
    assert_eq!(hashed, hierarchical);
}

#[test]
fn random_scripts_have_the_same_results_on_both_wheels() {
    const STEPS: usize = if cfg!(miri) { 20 } else { 400 };
    const SEEDS: u64 = if cfg!(miri) { 1 } else { 64 };

    for slots in [1, 2, 8, 512] {
        for seed in 0..SEEDS {
            // If one fails, the harness prints those up to it.
            println!("{slots} slots, seed {seed}");
            run(slots, seed, STEPS);
        }
    }
}

#[test]
fn a_level_has_at_least_two_slots() {
    for (requested, slots) in [(1, 2), (2, 2), (3, 4), (512, 512)] {
        let builder = HashedWheelTimer::builder().hierarchical(true);
        let builder = builder.ticks_per_wheel(requested);
        let (timer, _driver) = builder.build_driven().unwrap();
        assert_eq!(timer.ticks_per_wheel(), slots);
    }
}
