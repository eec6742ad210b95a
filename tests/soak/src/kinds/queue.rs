//! A `DelayQueue`. All threads that use a timer insert values into its queue and receive them.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_ledger::{Count, Kind, Ticket};
use hashed_wheel_util::delay_queue::{DelayQueue, Key};

use super::{A_DAY, Load, delay, take};
use crate::Sabotage;
use crate::tally::{Tally, fail, now};

/// How many values of its own a thread may remove or reset later.
const MAX_KEYS: usize = 100;

/// How many values the queue has at most, approximately.
const MAX_VALUES: usize = 2_000;

/// How many values a thread receives at once.
const MAX_RECEIVED: usize = 8;

pub(crate) struct Queue {
    /// A value comes out when its ticket is due, whatever the queue says about its deadline.
    queue: DelayQueue<Arc<Ticket>>,
    tally: Arc<Tally>,
    /// Some values that this thread has inserted, among them all that are due in a day: no thread
    /// would receive those, and they would fill the queue.
    own: Vec<(Key, Arc<Ticket>)>,
}

/// Another handle, of another thread.
impl Clone for Queue {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            tally: Arc::clone(&self.tally),
            own: Vec::new(),
        }
    }
}

impl Queue {
    pub(super) fn new(timer: &HashedWheelTimer, tally: &Arc<Tally>) -> Self {
        Self {
            queue: DelayQueue::new(timer),
            tally: Arc::clone(tally),
            own: Vec::new(),
        }
    }

    fn insert(&mut self, delay: Duration) {
        let inserted = match () {
            () if self.tally.does(Sabotage::Late) => A_DAY,
            () if self.tally.does(Sabotage::Half) => delay / 2,
            () => delay,
        };
        let deadline = self.tally.after(delay);
        let ticket = Arc::new(Ticket::new(&self.tally, Kind::Queue, deadline));
        let mut key = None;
        ticket.set(delay, || {
            key = Some(self.queue.insert(Arc::clone(&ticket), inserted));
            true
        });
        match key.expect("it was inserted or rejected") {
            Ok(key) => self.keep(key, ticket),
            Err(rejected) => fail(&ticket, &rejected.error, false),
        }
    }

    fn keep(&mut self, key: Key, ticket: Arc<Ticket>) {
        self.own.push((key, ticket));
        if self.own.len() > MAX_KEYS {
            let (key, ticket) = self.own.swap_remove(0);
            self.give_up(key, &ticket);
        }
    }

    /// Gives up a key. The value stays, unless it is due in a day.
    fn give_up(&self, key: Key, ticket: &Ticket) {
        if !ticket.deadline().is_before(now() + A_DAY / 2) {
            self.remove(key);
        }
    }

    fn remove(&self, key: Key) {
        match self.queue.remove(key) {
            Some(value) if self.tally.does(Sabotage::LostValue) => mem::forget(value),
            value => value.into_iter().for_each(|value| value.cancel()),
        }
    }

    fn try_recv(&self) -> bool {
        // Also a value of the longest delay, which a reset has brought forward.
        let received = self.queue.try_recv();
        received.map(|value| value.get_ref().expire()).is_some()
    }
}

impl Load for Queue {
    fn work(&mut self, random: &mut Rng) {
        match random.u8(0..20) {
            0..6 if self.queue.len() < MAX_VALUES => self.insert(delay(random)),
            6..9 => take(&mut self.own, random)
                .into_iter()
                .for_each(|(key, _)| self.remove(key)),
            9 | 10 => {
                let (Some((key, ticket)), delay) = (take(&mut self.own, random), delay(random))
                else {
                    return;
                };
                if ticket.set(delay, || self.queue.reset(key, delay)) {
                    self.keep(key, ticket);
                }
            }
            11 => {
                let limit = Duration::from_micros(random.u64(0..2_000));
                match self.queue.recv_timeout(limit) {
                    Ok(value) => value.into_iter().for_each(|value| value.get_ref().expire()),
                    // The timer is at its limit, or is stopped: the value stays.
                    Err(NewTimeoutError::Stopped | NewTimeoutError::TooManyPending { .. }) => {}
                    Err(error) => self.tally.expect(false, || format!("a queue: {error}")),
                }
            }
            _ => drop((0..MAX_RECEIVED).take_while(|_| self.try_recv()).count()),
        }
    }

    fn leave(&mut self) {
        for (key, ticket) in mem::take(&mut self.own) {
            self.give_up(key, &ticket);
        }
    }

    fn rest(&mut self) {
        self.leave();
        let now = now();
        while self.try_recv() {}
        // A receiver compares deadlines with the clock, so none of these may have been due.
        let drained = self.queue.drain();
        let due = drained.iter().map(|value| value.deadline().is_before(now));
        let due = due.filter(|is_due| *is_due).count();
        self.tally.expect(due == 0, || {
            format!("Queue: {due} due values were not received")
        });
        drained.iter().for_each(|value| value.cancel());
    }

    /// The first thread finds everything.
    fn settle(&mut self) {
        self.own.clear();
        for value in self.queue.drain() {
            value.count(Count::Left);
        }
        let is_stopped = matches!(self.queue.recv(), Err(NewTimeoutError::Stopped));
        self.tally.expect(is_stopped, || {
            "a queue of a stopped timer does not say so".into()
        });
    }
}
