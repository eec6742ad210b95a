//! Threads that schedule, cancel and reset timeouts.

use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::HashedWheelTimer;

use crate::Sabotage;
use crate::ledger::{Action, Entry, Ledger, lock, schedule};

/// The maximum number of pending timeouts of a producer that it will cancel.
const MAX_TO_CANCEL: usize = 2_000;

/// The maximum number of timeouts to cancel that a thread leaves to others when it ends.
const MAX_LEFT_BY_VISITOR: usize = 4;

/// The maximum number of tasks of a producer that stall the worker, with the sabotage `stall`.
const MAX_STALLS: u8 = 10;

/// A timer and the parameters for its producers.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) timer: HashedWheelTimer,
    pub(crate) ledger: Arc<Ledger>,
    /// The limit of pending timeouts; 0 is none.
    pub(crate) limit: usize,
    pub(crate) sabotage: Option<Sabotage>,
    /// The longest time for which a task may block the worker.
    pub(crate) stall: Duration,
    /// The longest delay of timeouts that will fire.
    pub(crate) max_delay: Duration,
}

pub(crate) struct Producer {
    target: Target,
    random: Rng,
    /// Timeouts that the producer will cancel.
    to_cancel: Vec<Entry>,
    /// Timeouts that will fire.
    waiting: Vec<Entry>,
    /// The length of `waiting` at which ended timeouts are removed.
    cleanup_length: usize,
    /// For sabotage: limits the number of stalls, because a pool could not finish more of them.
    stalls: u8,
}

impl Producer {
    pub(crate) fn new(target: Target, seed: u64) -> Self {
        Self {
            target,
            random: Rng::with_seed(seed),
            to_cancel: Vec::new(),
            waiting: Vec::new(),
            cleanup_length: 1_000,
            stalls: 0,
        }
    }

    /// Works and rests for random times.
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
            // Long enough for an idle worker to fall asleep.
            _ => thread::sleep(Duration::from_millis(self.random.u64(0..200))),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.target.timer.is_stopped()
    }

    /// Schedules some timeouts on a timer, as a thread does that ends soon. Cancels most of them,
    /// and leaves the others to other threads.
    pub(crate) fn visit(mut self) {
        // There are many such threads: the stalls of all of them would take minutes.
        self.stalls = MAX_STALLS;
        for _ in 0..self.random.usize(1..200) {
            self.step();
        }
        while self.to_cancel.len() > MAX_LEFT_BY_VISITOR {
            self.cancel_one();
        }
        let ledger = Arc::clone(&self.target.ledger);
        let left = self.entries().into_iter().filter(|entry| !entry.is_settled());
        lock(&ledger.shared).extend(left);
    }

    /// Returns the timeouts that have not been observed to end.
    pub(crate) fn entries(self) -> Vec<Entry> {
        self.to_cancel.into_iter().chain(self.waiting).collect()
    }

    fn step(&mut self) {
        let will_cancel = self.random.u8(0..10) != 0;
        let delay = self.delay(will_cancel);
        let action = self.action(will_cancel);
        let target = &self.target;
        let scheduled = schedule(&target.timer, &target.ledger, delay, action);
        if target.limit > 0 {
            let pending = target.timer.pending_timeouts();
            target.ledger.expect(pending <= target.limit, || format!("{pending} timeouts are pending"));
        }
        let Some(entry) = scheduled else {
            self.cancel_one();
            return;
        };
        match self.random.u8(0..100) {
            // Another thread may cancel it at the same time.
            0 => lock(&target.ledger.shared).push(entry.clone()),
            1..4 => self.to_cancel.extend(lock(&target.ledger.shared).pop()),
            4..6 => self.reset_one(),
            _ => {}
        }
        if !will_cancel {
            self.waiting.push(entry);
            if self.waiting.len() > self.cleanup_length {
                self.remove_ended();
            }
        } else if self.random.bool() {
            self.to_cancel.push(entry);
            while self.to_cancel.len() > MAX_TO_CANCEL {
                self.cancel_one();
            }
        } else {
            // Usually before the worker has processed the message.
            self.cancel(&entry);
        }
    }

    fn delay(&mut self, will_cancel: bool) -> Duration {
        let micros = match self.random.u8(0..100) {
            // These timeouts race with the operations on them.
            0..3 => 0,
            3..10 => self.random.u64(0..5_000),
            10.. if !will_cancel => self.random.u64(0..=self.target.max_delay.as_micros() as u64),
            10..80 => self.random.u64(1_000_000..30_000_000),
            80..99 => 1 << self.random.u32(20..45),
            _ => return Duration::MAX,
        };
        Duration::from_micros(micros)
    }

    fn action(&mut self, will_cancel: bool) -> Action {
        if self.target.sabotage == Some(Sabotage::Stall) && !will_cancel && self.stalls < MAX_STALLS {
            self.stalls += 1;
            return Action::Stall(self.target.stall);
        }
        match self.random.u32(0..100_000) {
            0..100 => Action::PanicInRun,
            100..200 => Action::PanicInHook,
            200..300 => Action::PanicInDrop,
            300..2_300 => Action::Schedule(Duration::from_micros(self.random.u64(0..10_000))),
            2_300..2_310 => Action::Stall(self.target.stall.mul_f64(self.random.f64())),
            _ => Action::Nothing,
        }
    }

    fn cancel_one(&mut self) {
        if self.to_cancel.is_empty() {
            thread::yield_now();
            return;
        }
        let entry = self.to_cancel.swap_remove(self.random.usize(0..self.to_cancel.len()));
        self.cancel(&entry);
    }

    fn cancel(&mut self, entry: &Entry) {
        match self.target.sabotage {
            Some(Sabotage::LostCancel) if self.random.u8(0..100) == 0 => drop(entry.timeout.cancel()),
            _ => drop(entry.cancel()),
        }
        if !entry.is_settled() {
            // Another thread has ended it and has not recorded that yet.
            self.waiting.push(entry.clone());
        }
    }

    fn reset_one(&mut self) {
        let list = if self.random.bool() { &self.to_cancel } else { &self.waiting };
        if list.is_empty() {
            return;
        }
        let entry = &list[self.random.usize(0..list.len())];
        // Resets some timeouts that will fire, to an earlier or later deadline within their range,
        // so that they do fire.
        let max_delay = self.target.max_delay.as_micros() as u64;
        entry.reset(Duration::from_micros(self.random.u64(0..=max_delay)));
    }

    /// Cancels all timeouts, and drops their handles, as far as they have ended.
    ///
    /// Those that are due fire first, so that a lost one is noticed.
    pub(crate) fn rest(&mut self) {
        self.waiting.iter().for_each(Entry::await_if_due);
        let shared = mem::take(&mut *lock(&self.target.ledger.shared));
        let lists = [shared, mem::take(&mut self.to_cancel), mem::take(&mut self.waiting)];
        lists.iter().flatten().for_each(|entry| self.cancel(entry));
        self.remove_ended();
        self.waiting.shrink_to_fit();
    }

    fn remove_ended(&mut self) {
        let now = Instant::now();
        self.waiting.retain(|entry| {
            let goes = entry.is_settled();
            if !goes {
                entry.expect_not_overdue(now);
            }
            !goes
        });
        self.cleanup_length = self.waiting.len() * 2 + 1_000;
    }
}
