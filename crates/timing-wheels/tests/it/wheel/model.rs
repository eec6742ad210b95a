//! Compares a wheel with a model of it. The actions follow from a string of bytes.

use std::collections::BTreeMap;

use timing_wheels::Key;

use super::bytes::Bytes;
use super::{Wheel, check_next, fired, fired_until_panic};

/// The maximum number of entries that one action adds.
const MAX_BATCH: u64 = 100;

/// The position of an entry in the order of expiry: its deadline or, if that had passed, the tick
/// of its insertion, and then its number in the order of insertion. The number is also its value. A
/// reset to another deadline counts as an insertion, and so does each reset of a due entry.
type Rank = (u64, u64);

pub(crate) struct Script {
    bytes: Bytes,
    slots: u64,
    wheel: Wheel<u64>,
    tick: u64,
    inserted: u64,
    /// The deadline and the key of each entry that the wheel should hold.
    entries: BTreeMap<Rank, (u64, Key)>,
    /// All live keys and some stale keys.
    keys: Vec<(Key, Rank)>,
    last_deadline: u64,
}

impl Script {
    /// Creates a script for `wheel`, which must be new.
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

    /// Performs all actions and then expires everything.
    pub(crate) fn run(mut self) {
        while !self.bytes.is_empty() {
            self.step();
            self.check();
        }
        self.check_all();
        let (due, fired) = (self.due(u64::MAX), fired(&mut self.wheel, u64::MAX));
        self.take(&due, &fired);
        assert!(self.wheel.is_empty());
    }

    fn step(&mut self) {
        match self.bytes.up_to(255) {
            0..=109 => self.insert(),
            110..=119 => self.insert_many(),
            120..=139 => self.look_up(false),
            140..=159 => self.look_up(true),
            160..=179 => self.reset(),
            180..=189 => self.remove_many(),
            190..=224 => self.advance(),
            225..=233 => self.pop_some(),
            234..=239 => self.peek_some(),
            240..=251 => self.advance_and_panic(),
            252..=253 => self.wheel.shrink_to_fit(),
            254 => self.clear(),
            _ => self.drain(),
        }
    }

    /// Returns the lowest bit of a random digit of a tick, to the base of the number of slots. Low
    /// digits are more frequent.
    fn digit(&mut self) -> u32 {
        let bits = u64::from(self.slots.max(2).trailing_zeros());
        let max = self.bytes.up_to(63 / bits - 1);
        (self.bytes.up_to(max) + 1) as u32 * bits as u32
    }

    /// Returns a tick close to the one at which a random digit of the time is incremented.
    fn tick_of_carry(&mut self) -> u64 {
        // Bounded, so that the time does not reach its maximum.
        let digit = self.digit().min(40);
        (self.tick | ((1 << digit) - 1)).saturating_add(self.bytes.up_to(2))
    }

    fn deadline(&mut self) -> u64 {
        let (tick, slots, bytes) = (self.tick, self.slots, &mut self.bytes);
        match bytes.up_to(21) {
            0..=4 => tick.saturating_add(bytes.up_to(4)),
            5..=8 => tick.saturating_add(bytes.up_to(slots)),
            9..=12 => tick
                .saturating_add((bytes.up_to(7) + 1) * slots + bytes.up_to(2))
                .saturating_sub(1),
            13 => slots.saturating_mul((tick / slots).saturating_add(bytes.up_to(3))),
            14..=16 => self.last_deadline,
            17 => bytes.up_to(tick),
            18 => u64::MAX - bytes.up_to(3 * slots),
            19 => self.tick_of_carry(),
            // All lower digits are those of the current tick.
            20 => tick.saturating_add((self.bytes.up_to(2) + 1) << self.digit()),
            _ => tick.saturating_add(bytes.any()),
        }
    }

    /// Records an entry that was inserted or reset now. Returns its rank.
    fn record(&mut self, deadline: u64, key: Key) -> Rank {
        self.last_deadline = deadline;
        let rank = (deadline.max(self.tick), self.inserted);
        self.inserted += 1;
        self.entries.insert(rank, (deadline, key));
        rank
    }

    fn insert_at(&mut self, deadline: u64) {
        let key = self.wheel.insert(deadline, self.inserted);
        let rank = self.record(deadline, key);
        self.keys.push((key, rank));
    }

    /// Resets a random entry, live or stale. The entry gets a new number.
    fn reset(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        let (at, deadline) = (self.bytes.below(self.keys.len()), self.deadline());
        let (key, rank) = self.keys[at];
        let before = self.entries.remove(&rank).map(|(deadline, _)| deadline);
        assert_eq!(self.wheel.reset(key, deadline), before.is_some());
        assert_eq!(self.wheel.deadline(key), before.map(|_| deadline));
        if before == Some(deadline) && deadline > self.tick {
            self.entries.insert(rank, (deadline, key));
        } else if before.is_some() {
            self.keys[at].1 = self.record(deadline, key);
            *self.wheel.get_mut(key).expect("the key is still valid") = self.keys[at].1.1;
        }
    }

    fn insert(&mut self) {
        let deadline = self.deadline();
        self.insert_at(deadline);
    }

    /// Inserts several entries at one deadline, in adjacent slots, or in one slot.
    fn insert_many(&mut self) {
        let (first, step) = (self.deadline(), self.bytes.one_of(&[0, 1, self.slots]));
        for index in 0..=self.bytes.up_to(MAX_BATCH) {
            self.insert_at(first.saturating_add(index * step));
        }
    }

    /// Returns what the wheel should find with this key, live or stale.
    fn expected(&self, at: usize) -> Option<u64> {
        let rank = self.keys[at].1;
        self.entries.contains_key(&rank).then_some(rank.1)
    }

    fn remove(&mut self, at: usize) {
        let (key, rank) = self.keys[at];
        assert_eq!(self.wheel.remove(key), self.expected(at));
        assert_eq!(self.wheel.get(key), None);
        self.entries.remove(&rank);
    }

    /// Calls `get` and perhaps `remove` with a random key, live or stale.
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
        // Keep a few stale keys for later, but not so many that live keys are rarely chosen.
        if expected.is_none() && self.keys.len() > 8 {
            self.keys.swap_remove(at);
        }
    }

    /// Removes consecutive entries: all of them, every second or third, or most.
    fn remove_many(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        let from = self.bytes.below(self.keys.len());
        let count = self.bytes.up_to(MAX_BATCH) as usize;
        let (step, skip) = (self.bytes.below(3) + 1, self.bytes.below(16) + 2);
        for at in (from..self.keys.len()).take(count).step_by(step) {
            if at % skip > 0 {
                self.remove(at);
            }
        }
    }

    fn target(&mut self) -> u64 {
        let (tick, slots) = (self.tick, self.slots);
        let [next, first] =
            [self.wheel.next_deadline(), self.first_deadline()].map(|next| next.unwrap_or(tick));
        let bytes = &mut self.bytes;
        match bytes.up_to(79) {
            0..=24 => tick.saturating_add(bytes.up_to(2) + 1),
            25..=29 => tick,
            30..=34 => bytes.up_to(tick),
            35..=49 => tick.saturating_add(bytes.up_to(slots)),
            50..=59 => next,
            60..=64 => first.saturating_sub(1),
            65..=70 => tick.saturating_add((bytes.up_to(7) + 1) * slots),
            71..=76 => self.tick_of_carry(),
            77 => first.saturating_add(bytes.up_to(slots)),
            _ => tick.saturating_add(bytes.any()),
        }
    }

    fn first_deadline(&self) -> Option<u64> {
        self.entries.first_key_value().map(|(rank, _)| rank.0)
    }

    /// Returns the entries that should come out when the time advances to `now`, in order. None if
    /// that would be a step back.
    fn due(&self, now: u64) -> Vec<Rank> {
        let due = self.entries.range(..=(now, u64::MAX));
        let due = due.filter(|_| now >= self.tick);
        due.map(|(&rank, _)| rank).collect()
    }

    fn take(&mut self, due: &[Rank], fired: &[u64]) {
        let agrees = due.iter().map(|rank| &rank.1).eq(fired);
        assert!(agrees, "{fired:?} instead of {due:?}");
        for rank in due {
            self.entries.remove(rank);
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

    /// Advances and takes some of the entries that are due, one by one.
    fn pop_some(&mut self) {
        let (now, limit) = (self.target(), self.bytes.up_to(MAX_BATCH) as usize);
        let mut due = self.due(now);
        let has_room = due.len() < limit;
        due.truncate(limit);
        if limit > 0 {
            self.tick = self.tick.max(now);
        }
        for rank in due {
            let (deadline, key) = self.entries.remove(&rank).unwrap();
            assert_eq!(self.wheel.pop_expired(now), Some((key, deadline, rank.1)));
            assert_eq!(self.wheel.get(key), None);
        }
        if has_room {
            assert_eq!(self.wheel.pop_expired(now), None);
        }
    }

    /// Advances and looks at some of the entries that are due, one by one. Resets most of them
    /// under their keys, and removes the others.
    fn peek_some(&mut self) {
        let now = self.target();
        for _ in 0..=self.bytes.up_to(MAX_BATCH) {
            let first = self.due(now).first().copied();
            let first = first.map(|rank| (rank, self.entries[&rank]));
            self.tick = self.tick.max(now);
            let found = self.wheel.peek_expired(now);
            let found = found.map(|(key, deadline, value)| (key, deadline, *value));
            let expected = first.map(|(rank, (deadline, key))| (key, deadline, rank.1));
            assert_eq!(found, expected);
            let Some((rank, (_, key))) = first else { break };
            self.entries.remove(&rank);
            if self.bytes.one_of(&[true, true, true, false]) {
                let deadline = self.deadline();
                assert!(self.wheel.reset(key, deadline));
                let renewed = self.record(deadline, key);
                *self.wheel.get_mut(key).expect("the key is still valid") = renewed.1;
                let mut keys = self.keys.iter_mut();
                keys.find(|(other, _)| *other == key).unwrap().1 = renewed;
            } else {
                assert_eq!(self.wheel.remove(key), Some(rank.1));
            }
        }
    }

    fn clear(&mut self) {
        self.wheel.clear();
        self.entries.clear();
    }

    fn advance_and_panic(&mut self) {
        let now = self.target();
        let due = self.due(now);
        if due.is_empty() {
            return;
        }
        let out = &due[..=self.bytes.below(due.len())];
        let fired = fired_until_panic(&mut self.wheel, now, out.len() - 1);
        self.take(out, &fired);

        // The wheel decides how far its time advances before a panic. The order of the remaining
        // entries does not depend on it.
        assert!((self.tick..=now).contains(&self.wheel.tick()));
        self.tick = self.wheel.tick();
    }

    fn drain(&mut self) {
        // The drain removes all entries, although only some are read.
        let part = self.bytes.up_to(self.entries.len() as u64) as usize;
        let mut drained: Vec<_> = self.wheel.drain().take(part).collect();
        drained.sort_unstable();
        drained.dedup();
        assert_eq!(drained.len(), part);
        let mut left: Vec<_> = self.entries.keys().map(|rank| rank.1).collect();
        left.sort_unstable();
        let is_left = |number: &u64| left.binary_search(number).is_ok();
        assert!(drained.iter().all(is_left));
        self.entries.clear();
    }

    fn check(&self) {
        assert_eq!(self.wheel.tick(), self.tick);
        assert_eq!(self.wheel.len(), self.entries.len());
        assert_eq!(self.wheel.is_empty(), self.entries.is_empty());
        check_next(&self.wheel, self.first_deadline());
        let first = self.entries.first_key_value();
        let first = first.map(|(rank, &(deadline, key))| (key, deadline, &rank.1));
        assert_eq!(self.wheel.peek(), first);
    }

    /// Checks the whole contents.
    fn check_all(&self) {
        let all = self.wheel.iter();
        let all = all.map(|(key, deadline, value)| (*value, (deadline, key)));
        let expected = self.entries.iter().map(|(rank, entry)| (rank.1, *entry));
        let [all, expected]: [BTreeMap<_, _>; 2] = [all.collect(), expected.collect()];
        assert_eq!((all.len(), all), (self.wheel.len(), expected));
        for (key, deadline, value) in self.wheel.iter() {
            let entry = (self.wheel.get(key), self.wheel.deadline(key));
            assert_eq!(entry, (Some(value), Some(deadline)));
        }
    }
}
