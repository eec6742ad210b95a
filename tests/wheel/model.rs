//! A wheel beside a model of it, under actions that follow from a string of bytes. Random ones come from `random.rs`,
//! others from a fuzzer: `tests/fuzz/wheels.rs`.

use std::collections::BTreeMap;

use hashed_wheel::wheel::Key;

use super::bytes::Bytes;
use super::{Wheel, check_next, fired, fired_until_panic};

/// The most entries that one action adds.
const CROWD: u64 = if cfg!(miri) { 8 } else { 100 };

/// When an entry comes out: at its deadline or, if that had passed, at the tick it was inserted at; then in the order
/// of insertion. The second half is also its value.
type Turn = (u64, u64);

pub(crate) struct Script {
    bytes: Bytes,
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
    /// `wheel` is a new one.
    pub(crate) fn new(wheel: Wheel<u64>, slots: usize, bytes: Bytes) -> Self {
        Self {
            bytes,
            slots: slots as u64,
            wheel,
            tick: 0,
            inserted: 0,
            entries: BTreeMap::new(),
            keys: Vec::new(),
            last_deadline: 0,
        }
    }

    /// All actions; then everything comes out. Tells `step` of each before it happens.
    pub(crate) fn run(mut self, mut step: impl FnMut()) {
        while !self.bytes.is_empty() {
            step();
            self.step();
            self.check();
        }
        let (due, fired) = (self.due(u64::MAX), fired(&mut self.wheel, u64::MAX));
        self.take(&due, &fired);
        assert!(self.wheel.is_empty());
    }

    fn step(&mut self) {
        match self.bytes.up_to(255) {
            0..110 => self.insert(),
            110..120 => self.insert_many(),
            120..140 => self.look_up(false),
            140..180 => self.look_up(true),
            180..190 => self.remove_many(),
            190..240 => self.advance(),
            240..254 => self.advance_and_panic(),
            _ => self.drain(),
        }
    }

    /// How far some digit of a tick stands from the right, to the base of the number of slots; more often a low one.
    fn digit(&mut self) -> u32 {
        let bits = u64::from(self.slots.max(2).trailing_zeros());
        let most = self.bytes.up_to(63 / bits - 1);
        (self.bytes.up_to(most) + 1) as u32 * bits as u32
    }

    /// Around the tick at which a digit of the time is the next one.
    fn turn_of_digit(&mut self) -> u64 {
        // Not so far that the time runs out.
        let digit = self.digit().min(40);
        (self.tick | ((1 << digit) - 1)).saturating_add(self.bytes.up_to(2))
    }

    fn deadline(&mut self) -> u64 {
        let (tick, slots, bytes) = (self.tick, self.slots, &mut self.bytes);
        match bytes.up_to(21) {
            0..5 => tick.saturating_add(bytes.up_to(4)),
            5..9 => tick.saturating_add(bytes.up_to(slots)),
            9..13 => tick.saturating_add((bytes.up_to(7) + 1) * slots + bytes.up_to(2)).saturating_sub(1),
            13 => (tick / slots).saturating_add(bytes.up_to(3)).saturating_mul(slots),
            14..17 => self.last_deadline,
            17 => bytes.up_to(tick),
            18 => u64::MAX - bytes.up_to(3 * slots),
            19 => self.turn_of_digit(),
            // All lower digits are those of now.
            20 => tick.saturating_add((self.bytes.up_to(2) + 1) << self.digit()),
            _ => tick.saturating_add(bytes.any()),
        }
    }

    fn insert_at(&mut self, deadline: u64) {
        self.last_deadline = deadline;
        let key = self.wheel.insert(deadline, self.inserted);
        let turn = (deadline.max(self.tick), self.inserted);
        self.inserted += 1;
        self.entries.insert(turn, deadline);
        self.keys.push((key, turn));
    }

    fn insert(&mut self) {
        let deadline = self.deadline();
        self.insert_at(deadline);
    }

    /// At one deadline, in adjacent slots, or in one slot.
    fn insert_many(&mut self) {
        let (first, step) = (self.deadline(), self.bytes.one_of(&[0, 1, self.slots]));
        for index in 0..=self.bytes.up_to(CROWD) {
            self.insert_at(first.saturating_add(index * step));
        }
    }

    /// What it is to find, with some key, live or stale.
    fn expected(&self, at: usize) -> Option<u64> {
        let turn = self.keys[at].1;
        self.entries.contains_key(&turn).then_some(turn.1)
    }

    fn remove(&mut self, at: usize) {
        let (key, turn) = self.keys[at];
        assert_eq!(self.wheel.remove(key), self.expected(at));
        assert_eq!(self.wheel.get(key), None);
        self.entries.remove(&turn);
    }

    /// `get` and perhaps `remove` with some key, live or stale.
    fn look_up(&mut self, remove: bool) {
        if self.keys.is_empty() {
            return;
        }
        let at = self.bytes.below(self.keys.len());
        let expected = self.expected(at);
        assert_eq!(self.wheel.get(self.keys[at].0), expected.as_ref());
        if remove {
            self.remove(at);
        }
        // Some stale keys stay for later, but not so many that live ones are hard to hit.
        if expected.is_none() && self.keys.len() > 8 {
            self.keys.swap_remove(at);
        }
    }

    /// Of some that were inserted one after the other: all, or every other one, or most.
    fn remove_many(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        let (from, count) = (self.bytes.below(self.keys.len()), self.bytes.up_to(CROWD) as usize);
        let (step, spared) = (self.bytes.below(3) + 1, self.bytes.below(16) + 2);
        for at in (from..self.keys.len()).take(count).step_by(step) {
            if at % spared > 0 {
                self.remove(at);
            }
        }
    }

    fn target(&mut self) -> u64 {
        let (tick, slots) = (self.tick, self.slots);
        let (next, first) =
            (self.wheel.next_deadline().unwrap_or(tick), self.first_deadline().unwrap_or(tick));
        let bytes = &mut self.bytes;
        match bytes.up_to(79) {
            0..25 => tick.saturating_add(bytes.up_to(2) + 1),
            25..30 => tick,
            30..35 => bytes.up_to(tick),
            35..50 => tick.saturating_add(bytes.up_to(slots)),
            50..60 => next,
            60..65 => first.saturating_sub(1),
            65..71 => tick.saturating_add((bytes.up_to(7) + 1) * slots),
            71..77 => self.turn_of_digit(),
            77 => first.saturating_add(bytes.up_to(slots)),
            _ => tick.saturating_add(bytes.any()),
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
        let out = &due[..=self.bytes.below(due.len())];
        let fired = fired_until_panic(&mut self.wheel, now, out.len() - 1);
        self.take(out, &fired);

        // How far the clock has come is the wheel's choice. The order of what is left does not depend on it.
        assert!((self.tick..=now).contains(&self.wheel.tick()));
        self.tick = self.wheel.tick();
    }

    fn drain(&mut self) {
        // Some are read, all are out.
        let part = self.bytes.up_to(self.entries.len() as u64) as usize;
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
}
