//! `LocalTimer`, compared with a model, and the rounding of its times.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::rc::Rc;
use std::time::{Duration, Instant};

use timing_wheels::Key;
use timing_wheels::{LocalTimer, TimePoint};

const TICKS: [Duration; 6] = [
    Duration::from_nanos(1),
    Duration::from_nanos(7),
    Duration::from_micros(1),
    Duration::from_millis(1),
    Duration::from_nanos(1_234_567),
    Duration::from_secs(1),
];

/// 146 years: a later time never comes.
const NEVER: Duration = Duration::from_nanos(1 << 62);

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("the tests use short times")
}

/// The position of a value in the order in which they come: the tick, and then the number of the
/// insertion. A reset to another tick counts as an insertion.
type Rank = (u64, u64);

/// A timer, and what it should hold.
struct Model<I> {
    timer: LocalTimer<Rc<u64>, I>,
    origin: I,
    tick: u64,
    now: Duration,
    insertions: u64,
    values: BTreeMap<Rank, (Key, u64)>,
    /// How many values were removed or reset: so often `next` may be too early.
    early: usize,
}

impl<I: TimePoint + PartialOrd + Debug> Model<I> {
    fn new(origin: I, tick: Duration) -> Self {
        let timer = LocalTimer::new(origin, tick);
        let (tick, now) = (nanos(tick), Duration::ZERO);
        Self {
            timer,
            origin,
            tick,
            now,
            insertions: 0,
            values: BTreeMap::new(),
            early: 0,
        }
    }

    fn at(&self, time: Duration) -> I {
        self.origin.after(time).expect("the tests use short times")
    }

    /// The rank of a value that is inserted now.
    fn rank(&mut self, time: Duration) -> Rank {
        self.insertions += 1;
        // A value whose time has passed comes after those that are due already.
        let reached = nanos(self.now) / self.tick;
        let tick = (nanos(time) + self.tick - 1) / self.tick;
        (tick.max(reached), self.insertions)
    }

    fn insert(&mut self, time: Duration) {
        let rank = self.rank(time);
        let key = self.timer.insert(self.at(time), Rc::new(rank.1));
        self.values.insert(rank, (key, rank.1));
    }

    fn take_any(&mut self, random: &mut fastrand::Rng) -> Option<(Rank, (Key, u64))> {
        let at = random.usize(0..self.values.len().max(1));
        let rank = *self.values.keys().nth(at)?;
        self.early += 1;
        Some((rank, self.values.remove(&rank)?))
    }

    fn reset_any(&mut self, random: &mut fastrand::Rng, time: Duration) {
        let Some((before, (key, number))) = self.take_any(random) else {
            return;
        };
        let mut rank = self.rank(time);
        let is_due = before.0 <= nanos(self.now) / self.tick;
        if before.0 == rank.0 && !is_due {
            rank = before;
        }
        assert!(self.timer.reset(key, self.at(time)));
        self.values.insert(rank, (key, number));
    }

    fn remove_any(&mut self, random: &mut fastrand::Rng) {
        let Some((_, (key, number))) = self.take_any(random) else {
            return;
        };
        assert_eq!(self.timer.get(key).map(|value| **value), Some(number));
        let is_it = |(other, value): (Key, &Rc<u64>)| other == key && **value == number;
        assert!(self.timer.iter().any(is_it));
        assert_eq!(self.timer.remove(key), Some(Rc::new(number)));
        assert!(self.timer.get_mut(key).is_none() && !self.timer.reset(key, self.origin));
    }

    /// Takes out what is due, and checks it. Returns how many values that were.
    fn poll(&mut self, now: Duration) -> usize {
        self.now = now;
        let reached = nanos(now) / self.tick;
        let later = self.values.split_off(&(reached + 1, 0));
        let due = std::mem::replace(&mut self.values, later);
        for &(key, number) in due.values() {
            let polled = self.timer.poll(self.at(now));
            assert_eq!(polled, Some((key, Rc::new(number))), "at {now:?}");
        }
        assert_eq!(self.timer.poll(self.at(now)), None, "at {now:?}");
        assert_eq!(self.timer.len(), self.values.len());
        due.len()
    }

    /// Sleeps until `next`: then a value is due, and none is before.
    fn poll_next(&mut self) {
        let Some(next) = self.timer.next() else {
            assert!(self.timer.is_empty());
            return;
        };
        let first = self.values.keys().next().expect("`next` returns a time").0 * self.tick;
        let next = next.since(self.origin);
        let is_in_time = next <= Duration::from_nanos(first);
        assert!(is_in_time, "{next:?} is too late for {first}");
        assert!(next >= self.now || nanos(next) / self.tick == nanos(self.now) / self.tick);
        let before = next.checked_sub(Duration::from_nanos(1));
        if let Some(before) = before.filter(|&time| time > self.now) {
            assert_eq!(self.poll(before), 0, "nothing is due before `next`");
        }
        let count = self.poll(next.max(self.now));
        if count == 0 {
            assert!(self.early > 0, "nothing is due at {next:?}");
            self.early -= 1;
        }
    }
}

fn run_model<I: TimePoint + PartialOrd + Debug>(origin: I, tick: Duration, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = Model::new(origin, tick);
    for _ in 0..if cfg!(miri) { 60 } else { 600 } {
        // From less than a tick to more than three levels, sometimes exactly now or in the past.
        let range = (model.tick << random.u32(0..28)).max(2);
        let mut distance = || Duration::from_nanos(random.u64(0..range));
        let [back, forth] = [distance(), distance()];
        let time = match random.u32(0..8) {
            0 => model.now,
            1 => model.now.saturating_sub(back),
            _ => model.now + forth,
        };
        match random.u32(0..10) {
            0..=4 => model.insert(time),
            5 => model.reset_any(&mut random, time),
            6 => model.remove_any(&mut random),
            7 => _ = model.poll(model.now + Duration::from_nanos(random.u64(0..range))),
            _ => model.poll_next(),
        }
    }
    while !model.values.is_empty() {
        model.poll_next();
    }
    assert_eq!(model.timer.next(), None);
}

#[test]
fn timer_does_what_the_model_does() {
    for seed in 0..if cfg!(miri) { 1 } else { 20 } {
        for tick in TICKS {
            run_model(Duration::from_nanos(12_345), tick, seed);
            run_model(Instant::now(), tick, seed);
        }
    }
}

/// The trap of a loop that rounds by itself: it wakes at the time of a value, finds nothing due,
/// because the time is rounded down, and sleeps for no time, again and again.
#[test]
fn value_at_exactly_now_is_due_at_next() {
    for tick in TICKS {
        let mut timer = LocalTimer::new(Duration::ZERO, tick);
        for offset in [0, 1, nanos(tick) / 2, nanos(tick) - 1].map(Duration::from_nanos) {
            let now = tick * 1_000 + offset;
            assert_eq!(timer.poll(now), None);
            let key = timer.insert(now, ());
            let next = timer.next().unwrap();
            let is_within = next >= now && next - now < tick;
            assert!(is_within, "{now:?} is {next:?} with ticks of {tick:?}");
            let is_at_tick = offset.is_zero() || tick == Duration::from_nanos(1);
            assert_eq!(next == now, is_at_tick);
            assert_eq!(timer.poll(next), Some((key, ())));
            timer = LocalTimer::new(Duration::ZERO, tick);
        }
    }
}

/// An entry that the loop inserts is due in the same loop if a tick begins now, and not otherwise.
#[test]
fn value_that_is_inserted_at_now_is_due_in_the_same_loop_only_if_a_tick_begins_now() {
    for tick in TICKS {
        for offset in [0, 1, nanos(tick) - 1].map(Duration::from_nanos) {
            let (mut timer, now) = (LocalTimer::new(Duration::ZERO, tick), tick * 9 + offset);
            timer.insert(tick, ());
            assert!(timer.poll(now).is_some());
            timer.insert(now, ());
            let begins_now = nanos(now) % nanos(tick) == 0;
            let is_due = timer.poll(now).is_some();
            assert_eq!(is_due, begins_now, "{offset:?} after a tick of {tick:?}");
        }
    }
}

#[test]
fn value_whose_time_has_passed_by_a_tick_is_due_at_once() {
    for tick in TICKS {
        let mut timer = LocalTimer::new(tick, tick);
        let now = tick * 9;
        assert_eq!(timer.poll(now), None);
        for past in [now - tick, tick, Duration::ZERO] {
            let key = timer.insert(past, past);
            assert_eq!(timer.next(), Some(now));
            assert_eq!(timer.poll(now), Some((key, past)));
        }
    }
}

#[test]
fn time_beyond_146_years_never_comes() {
    for tick in TICKS {
        let mut timer = LocalTimer::new(Duration::ZERO, tick);
        let never = [timer.insert(Duration::MAX, 1), timer.insert(NEVER, 1)];
        assert_eq!(timer.next(), None);
        assert_eq!(timer.poll(Duration::MAX), None);
        assert_eq!(timer.len(), 2);
        assert!(timer.reset(never[0], NEVER - tick * 2));
        let next = timer.next().expect("this one comes");
        assert_eq!(timer.poll(next), Some((never[0], 1)));
        assert_eq!((timer.next(), timer.remove(never[1])), (None, Some(1)));
    }
}

#[test]
fn poll_does_not_go_back() {
    let mut timer = LocalTimer::new(Duration::ZERO, Duration::from_millis(1));
    let [first, second] = [1, 2].map(|time| timer.insert(Duration::from_millis(time), time));
    assert_eq!(timer.poll(Duration::from_millis(2)), Some((first, 1)));
    assert_eq!(timer.poll(Duration::from_millis(1)), None);
    assert_eq!(timer.next(), Some(Duration::from_millis(2)));
    assert_eq!(timer.poll(Duration::from_millis(2)), Some((second, 2)));
}

#[test]
fn debug_shows_the_tick_and_the_number_of_values() {
    let mut timer = LocalTimer::new(Duration::from_secs(5), Duration::from_millis(1));
    timer.insert(Duration::from_secs(6), ());
    let text = format!("{timer:?}");
    assert_eq!(text, "LocalTimer { len: 1, tick: 1ms, origin: 5s, .. }");
}

#[test]
#[should_panic(expected = "at least one nanosecond")]
fn tick_of_zero_is_a_panic() {
    let _ = LocalTimer::<(), _>::new(Duration::ZERO, Duration::ZERO);
}

#[test]
fn deadline_is_the_beginning_of_the_tick() {
    for tick in TICKS {
        let origin = Duration::from_nanos(777);
        let mut timer = LocalTimer::new(origin, tick);
        for time in [Duration::ZERO, origin, origin + tick / 2, origin + tick * 9] {
            let key = timer.insert(time, time);
            let due = timer.deadline(key).expect("it is in the timer");
            assert!(due >= time.max(origin) && due - time.max(origin) < tick);
            assert_eq!(timer.next(), Some(due));
            assert_eq!(timer.peek_expired(due), Some((key, &mut { time })));
            assert_eq!(timer.poll(due), Some((key, time)));
            assert_eq!(timer.deadline(key), None);
        }
        let never = timer.insert(Duration::MAX, Duration::MAX);
        assert_eq!(timer.deadline(never), Some(origin + NEVER));
        assert_eq!(timer.peek_expired(Duration::MAX), None);
    }
}

#[test]
fn value_that_is_due_lives_on_under_its_key() {
    let ms = Duration::from_millis;
    let mut timer = LocalTimer::with_capacity(Duration::ZERO, ms(1), 2);
    let keys = [5, 3].map(|time| timer.insert(ms(time), 0));
    assert_eq!(timer.peek_expired(ms(2)), None);
    for (now, key) in [(3, keys[1]), (5, keys[0]), (13, keys[1]), (15, keys[0])] {
        assert_eq!(timer.next(), Some(ms(now)));
        let (found, runs) = timer.peek_expired(ms(now)).expect("one is due");
        *runs += 1;
        assert_eq!(found, key);
        assert!(timer.reset(key, ms(now + 10)));
        assert_eq!(timer.peek_expired(ms(now)), None);
    }
    *timer.get_mut(keys[0]).expect("it is in the timer") += 1;
    assert_eq!(keys.map(|key| timer.get(key)), [Some(&3), Some(&2)]);
    timer.clear();
    let left = (timer.len(), timer.iter().count(), timer.next());
    assert_eq!(left, (0, 0, None));
    assert_eq!(timer.poll(ms(14)), None, "the time does not step back");
    timer.insert(ms(1), 7);
    assert_eq!(timer.next(), Some(ms(15)));
}
