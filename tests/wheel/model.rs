use std::collections::BTreeMap;
use std::thread;

use super::*;

/// Scripts that failed once: the number of slots and the seed. They run first.
const FAILED_ONCE: &[(usize, u64)] = &[];

/// When an entry comes out: at its deadline or, if that had passed, at the tick it was inserted at; then in the order
/// of insertion. The second half is also its value.
type Turn = (u64, u64);

/// Names the script in the output of a test that fails.
struct Report {
    slots: usize,
    seed: u64,
    step: usize,
}

impl Drop for Report {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self { slots, seed, step } = self;
            eprintln!(
                "Step {step} of a script of {slots} slots has failed. To run it first, put ({slots}, {seed:#x}) into \
                 FAILED_ONCE in tests/wheel/model.rs: cargo test --test {} agree_with_a_model",
                env!("CARGO_CRATE_NAME"),
            );
        }
    }
}

struct Script {
    random: Rng,
    slots: u64,
    wheel: Wheel<u64>,
    tick: u64,
    inserted: u64,
    /// What the wheel should hold: the deadline of each entry.
    entries: BTreeMap<Turn, u64>,
    /// All live keys and some stale ones.
    keys: Vec<(Key, Turn)>,
    last_deadline: u64,
}

impl Script {
    fn new(slots: usize, seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            slots: slots as u64,
            wheel: Wheel::new(slots),
            tick: 0,
            inserted: 0,
            entries: BTreeMap::new(),
            keys: Vec::new(),
            last_deadline: 0,
        }
    }

    /// A number of any magnitude.
    fn any(&mut self) -> u64 {
        let shift = self.random.u32(..64);
        self.random.u64(..) >> shift
    }

    /// How far some digit of a tick stands from the right, to the base of the number of slots; more often a low one.
    fn digit(&mut self) -> u32 {
        let bits = self.slots.max(2).trailing_zeros();
        let most = self.random.u32(1..=63 / bits);
        self.random.u32(1..=most) * bits
    }

    /// Around the tick at which that digit of the time is the next one.
    fn turn_of(&mut self, digit: u32) -> u64 {
        (self.tick | ((1 << digit) - 1)).saturating_add(self.random.u64(..3))
    }

    fn deadline(&mut self) -> u64 {
        let digit = self.digit();
        let (slots, random) = (self.slots, &mut self.random);
        match random.u32(..22) {
            0..5 => self.tick.saturating_add(random.u64(..5)),
            5..9 => self.tick.saturating_add(random.u64(1..=slots)),
            9..13 => self.tick.saturating_add(random.u64(1..9) * slots + random.u64(..3)).saturating_sub(1),
            13 => (self.tick / slots).saturating_add(random.u64(..4)).saturating_mul(slots),
            14..17 => self.last_deadline,
            17 => random.u64(..=self.tick),
            18 => u64::MAX - random.u64(..3 * slots),
            19 => self.turn_of(digit),
            // All lower digits are those of now.
            20 => self.tick.saturating_add(random.u64(1..4) << digit),
            _ => self.tick.saturating_add(self.any()),
        }
    }

    fn insert(&mut self) {
        let deadline = self.deadline();
        self.last_deadline = deadline;
        let key = self.wheel.insert(deadline, self.inserted);
        let turn = (deadline.max(self.tick), self.inserted);
        self.inserted += 1;
        self.entries.insert(turn, deadline);
        self.keys.push((key, turn));
    }

    /// `get` and perhaps `remove` with some key, live or stale.
    fn look_up(&mut self, remove: bool) {
        if self.keys.is_empty() {
            return;
        }
        let at = self.random.usize(..self.keys.len());
        let (key, turn) = self.keys[at];
        let expected = self.entries.contains_key(&turn).then_some(turn.1);
        assert_eq!(self.wheel.get(key), expected.as_ref());
        if remove {
            assert_eq!(self.wheel.remove(key), expected);
            assert_eq!(self.wheel.get(key), None);
            self.entries.remove(&turn);
        }
        // Some stale keys stay for later, but not so many that live ones are hard to hit.
        if expected.is_none() && self.random.u32(..4) > 0 {
            self.keys.swap_remove(at);
        }
    }

    fn target(&mut self) -> u64 {
        // Not so far that the time runs out.
        let digit = self.digit().min(40);
        let (slots, random) = (self.slots, &mut self.random);
        match random.u32(..80) {
            0..30 => self.tick.saturating_add(random.u64(1..4)),
            30..35 => self.tick,
            35..40 => random.u64(..=self.tick),
            40..55 => self.tick.saturating_add(random.u64(1..=slots)),
            55..65 => self.wheel.next_deadline().unwrap_or(self.tick),
            65..70 => self.first_deadline().unwrap_or(self.tick).saturating_sub(1),
            70..76 => self.tick.saturating_add(random.u64(1..9) * slots),
            76..79 => self.turn_of(digit),
            _ => self.tick.saturating_add(self.any()),
        }
    }

    fn first_deadline(&self) -> Option<u64> {
        // What is overdue is not sorted by its deadline.
        let overdue = self.entries.range(..=(self.tick, u64::MAX)).map(|(_, &deadline)| deadline).min();
        overdue.or_else(|| self.entries.first_key_value().map(|(_, &deadline)| deadline))
    }

    /// What should come out when the time moves on to `now`, in order.
    fn due(&self, now: u64) -> Vec<Turn> {
        self.entries.range(..=(now, u64::MAX)).map(|(&turn, _)| turn).collect()
    }

    fn take(&mut self, due: &[Turn], fired: &[u64]) {
        assert!(due.iter().map(|turn| &turn.1).eq(fired), "{fired:?} instead of {due:?}");
        for turn in due {
            self.entries.remove(turn);
        }
    }

    fn advance(&mut self) {
        let now = self.target();
        if now >= self.tick {
            self.tick = now;
            let due = self.due(now);
            let fired = fired(&mut self.wheel, now);
            self.take(&due, &fired);
        } else {
            assert_eq!(fired(&mut self.wheel, now), []);
        }
    }

    fn advance_and_panic(&mut self) {
        let now = self.target();
        let due = if now >= self.tick { self.due(now) } else { Vec::new() };
        if due.is_empty() {
            return;
        }
        let out = &due[..=self.random.usize(..due.len())];
        let fired = fired_until_panic(&mut self.wheel, now, out.len() - 1);
        self.take(out, &fired);

        // How far the clock has come is the wheel's choice. The order of what is left does not depend on it.
        assert!((self.tick..=now).contains(&self.wheel.tick()));
        self.tick = self.wheel.tick();
    }

    fn drain(&mut self) {
        // Some are read, all are out.
        let part = self.random.usize(..=self.entries.len());
        let mut drained: Vec<_> = self.wheel.drain().take(part).collect();
        drained.sort_unstable();
        drained.dedup();
        assert_eq!(drained.len(), part);
        let mut left: Vec<_> = self.entries.keys().map(|turn| turn.1).collect();
        left.sort_unstable();
        assert!(drained.iter().all(|number| left.binary_search(number).is_ok()));
        self.entries.clear();
    }

    fn check(&self) {
        assert_eq!(self.wheel.tick(), self.tick);
        assert_eq!(self.wheel.len(), self.entries.len());
        assert_eq!(self.wheel.is_empty(), self.entries.is_empty());
        check_next(&self.wheel, self.first_deadline());
    }

    fn step(&mut self, crowd: usize) {
        let grow = if self.entries.len() < crowd { 50 } else { 20 };
        match self.random.u32(..100) {
            dice if dice < grow => self.insert(),
            dice if dice < grow + 10 => self.look_up(false),
            95..99 => self.advance_and_panic(),
            99 if self.random.u32(..10) == 0 => self.drain(),
            80..95 => self.advance(),
            _ => self.look_up(true),
        }
    }

    fn run(slots: usize, seed: u64, steps: usize) {
        let mut report = Report { slots, seed, step: 0 };
        let mut script = Self::new(slots, seed);
        let crowd = [2, 10, 100, 400][script.random.usize(..4)];
        for step in 0..steps {
            report.step = step;
            script.step(crowd);
            script.check();
        }
        report.step = steps;
        let (due, fired) = (script.due(u64::MAX), fired(&mut script.wheel, u64::MAX));
        script.take(&due, &fired);
        assert!(script.wheel.is_empty());
    }
}

#[test]
fn random_scripts_agree_with_a_model() {
    const STEPS: usize = if cfg!(miri) { 60 } else { 1_000 };
    const SEEDS: u64 = if cfg!(miri) { 1 } else { 200 };

    for &(slots, seed) in FAILED_ONCE {
        Script::run(slots, seed, STEPS);
    }
    for slots in SIZES {
        for seed in 0..SEEDS {
            Script::run(slots, seed, STEPS);
        }
    }
}
