//! Who schedules, cancels and re-arms.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::HashedWheelTimer;

use crate::Sabotage;
use crate::ledger::{Deed, Entry, Ledger, lock, schedule};

/// How many timeouts that are to be cancelled a producer has at a time, at most.
const DOOMED: usize = 2_000;

/// Where to schedule.
pub(crate) struct Place {
    pub(crate) timer: HashedWheelTimer,
    pub(crate) ledger: Arc<Ledger>,
    /// 0 is none.
    pub(crate) limit: usize,
    pub(crate) sabotage: Option<Sabotage>,
    /// The longest that a task may hold the worker up.
    pub(crate) stall: Duration,
    /// The longest delay of what is to fire.
    pub(crate) longest: Duration,
}

pub(crate) struct Producer {
    place: Place,
    random: Rng,
    /// To be cancelled, sooner or later.
    doomed: Vec<Entry>,
    /// To fire.
    waiting: Vec<Entry>,
    /// How long that may become before it is looked through.
    enough: usize,
    /// For sabotage: a pool would never come to an end of them.
    stalls: u8,
}

impl Producer {
    pub(crate) fn new(place: Place, seed: u64) -> Self {
        Self {
            place,
            random: Rng::with_seed(seed),
            doomed: Vec::new(),
            waiting: Vec::new(),
            enough: 1_000,
            stalls: 0,
        }
    }

    /// Some work and some rest, of random length.
    pub(crate) fn work(&mut self) {
        for _ in 0..10_usize.pow(self.random.u32(0..5)) {
            self.step();
            if self.is_over() {
                return;
            }
        }
        match self.random.u8(0..20) {
            0..8 => thread::yield_now(),
            8..19 => thread::sleep(Duration::from_micros(self.random.u64(0..10_000))),
            // Long enough for a worker with nothing to do to fall asleep.
            _ => thread::sleep(Duration::from_millis(self.random.u64(0..200))),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.place.timer.is_stopped()
    }

    /// What has not been seen to end.
    pub(crate) fn entries(self) -> Vec<Entry> {
        self.doomed.into_iter().chain(self.waiting).collect()
    }

    fn step(&mut self) {
        let dies = self.random.u8(0..10) != 0;
        let delay = self.delay(dies);
        let deed = self.deed(dies);
        let place = &self.place;
        let scheduled = schedule(&place.timer, &place.ledger, delay, deed);
        if place.limit > 0 {
            let pending = place.timer.pending_timeouts();
            place.ledger.expect(pending <= place.limit, || format!("{pending} are pending"));
        }
        let Some(entry) = scheduled else {
            self.cancel_one();
            return;
        };
        match self.random.u8(0..100) {
            // For another thread to cancel at the same time.
            0 => lock(&place.ledger.shared).push(entry.clone()),
            1..4 => self.doomed.extend(lock(&place.ledger.shared).pop()),
            4..6 => self.reset_one(),
            _ => {}
        }
        if !dies {
            self.waiting.push(entry);
            if self.waiting.len() > self.enough {
                self.look_through();
            }
        } else if self.random.bool() {
            self.doomed.push(entry);
            while self.doomed.len() > DOOMED {
                self.cancel_one();
            }
        } else {
            // Most likely before the worker has seen it.
            self.cancel(&entry);
        }
    }

    fn delay(&mut self, dies: bool) -> Duration {
        let micros = match self.random.u8(0..100) {
            // These race.
            0..3 => 0,
            3..10 => self.random.u64(0..5_000),
            10.. if !dies => self.random.u64(0..=self.place.longest.as_micros() as u64),
            10..80 => self.random.u64(1_000_000..30_000_000),
            80..99 => 1 << self.random.u32(20..45),
            _ => return Duration::MAX,
        };
        Duration::from_micros(micros)
    }

    fn deed(&mut self, dies: bool) -> Deed {
        if self.place.sabotage == Some(Sabotage::Stall) && !dies && self.stalls < 10 {
            self.stalls += 1;
            return Deed::Stall(self.place.stall);
        }
        match self.random.u32(0..100_000) {
            0..100 => Deed::PanicInRun,
            100..200 => Deed::PanicInHook,
            200..300 => Deed::PanicInDrop,
            300..2_300 => Deed::Again(Duration::from_micros(self.random.u64(0..10_000))),
            2_300..2_310 => Deed::Stall(self.place.stall.mul_f64(self.random.f64())),
            _ => Deed::Nothing,
        }
    }

    fn cancel_one(&mut self) {
        if self.doomed.is_empty() {
            thread::yield_now();
            return;
        }
        let entry = self.doomed.swap_remove(self.random.usize(0..self.doomed.len()));
        self.cancel(&entry);
    }

    fn cancel(&mut self, entry: &Entry) {
        match self.place.sabotage {
            Some(Sabotage::LostCancel) if self.random.u8(0..100) == 0 => drop(entry.timeout.cancel()),
            _ => drop(entry.cancel()),
        }
        if !entry.is_settled() {
            // Somebody else was faster, and has not said so yet.
            self.waiting.push(entry.clone());
        }
    }

    fn reset_one(&mut self) {
        let list = if self.random.bool() { &self.doomed } else { &self.waiting };
        if list.is_empty() {
            return;
        }
        let entry = &list[self.random.usize(0..list.len())];
        // Earlier or later, of those that wait: so that they do fire.
        let longest = self.place.longest.as_micros() as u64;
        entry.reset(Duration::from_micros(self.random.u64(0..=longest)));
    }

    fn look_through(&mut self) {
        let now = Instant::now();
        self.waiting.retain(|entry| {
            let goes = entry.is_settled();
            if !goes {
                entry.expect_not_overdue(now);
            }
            !goes
        });
        self.enough = self.waiting.len() * 2 + 1_000;
    }
}
