//! A `DelayQueue`. All threads that use a timer insert values into its queue and receive them.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_util::delay_queue::{DelayQueue, Expired, Key};

use super::{A_DAY, Load, delay};
use crate::Sabotage;
use crate::accounts::{Accounts, Deadline, End, Kind};
use crate::ledger::lock;

/// How many values of its own a thread may remove or reset later.
const MAX_KEYS: usize = 100;

/// How many values the queue has at most, approximately.
const MAX_VALUES: usize = 2_000;

/// How many values a thread receives at once.
const MAX_RECEIVED: usize = 8;

pub(crate) struct Queue {
    queue: DelayQueue<Value>,
    accounts: Arc<Accounts>,
    /// The values that have not been dropped.
    live: Arc<AtomicU64>,
    /// Some values that this thread has inserted, among them all that are due in a day: no thread
    /// would receive those, and they would fill the queue.
    keys: Vec<Own>,
    sabotage: Option<Sabotage>,
}

/// The key of a value, and when that is due.
type Own = (Key, Arc<Mutex<Deadline>>);

struct Value {
    live: Arc<AtomicU64>,
    /// When it must come out, whatever the queue says about its deadline. Only the thread that has
    /// the key changes this.
    deadline: Arc<Mutex<Deadline>>,
}

impl Value {
    fn new(live: &Arc<AtomicU64>, deadline: &Arc<Mutex<Deadline>>) -> Self {
        live.fetch_add(1, SeqCst);
        Self { live: Arc::clone(live), deadline: Arc::clone(deadline) }
    }

    fn deadline(&self) -> Deadline {
        *lock(&self.deadline)
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.live.fetch_sub(1, SeqCst);
    }
}

/// Another handle, of another thread.
impl Clone for Queue {
    fn clone(&self) -> Self {
        let (queue, accounts, live) = (self.queue.clone(), self.accounts.clone(), self.live.clone());
        Self { queue, accounts, live, keys: Vec::new(), sabotage: self.sabotage }
    }
}

impl Queue {
    pub(super) fn new(
        timer: &HashedWheelTimer,
        accounts: &Arc<Accounts>,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let (queue, accounts, live) = (DelayQueue::new(timer), Arc::clone(accounts), Arc::default());
        Self { queue, accounts, live, keys: Vec::new(), sabotage }
    }

    fn insert(&mut self, delay: Duration) {
        self.accounts.register(Kind::Queue);
        let inserted = match self.sabotage {
            Some(Sabotage::Late) => A_DAY,
            Some(Sabotage::Half) => delay / 2,
            _ => delay,
        };
        let due = Instant::now() + delay;
        let deadline = Arc::new(Mutex::new(Deadline::at(due).while_set_to(due)));
        match self.queue.insert(Value::new(&self.live, &deadline), inserted) {
            Ok(key) => self.keep(key, deadline, due, delay),
            Err(rejected) => self.accounts.fail(Kind::Queue, &rejected.error, false),
        }
    }

    /// Keeps the key of a value that was set to the delay after `due` was computed from it.
    fn keep(&mut self, key: Key, deadline: Arc<Mutex<Deadline>>, due: Instant, delay: Duration) {
        *lock(&deadline) = Deadline::between(due, Instant::now() + delay);
        self.keys.push((key, deadline));
        if self.keys.len() > MAX_KEYS {
            let own = self.keys.swap_remove(0);
            self.give_up(own);
        }
    }

    /// Gives up a key. The value stays, unless it is due in a day.
    fn give_up(&self, (key, deadline): Own) {
        let is_far = !lock(&deadline).is_before(Instant::now() + A_DAY / 2);
        if is_far {
            self.remove(key);
        }
    }

    fn take_key(&mut self, random: &mut Rng) -> Option<Own> {
        let count = self.keys.len();
        (count > 0).then(|| self.keys.swap_remove(random.usize(0..count)))
    }

    fn remove(&self, key: Key) {
        let Some(value) = self.queue.remove(key) else { return };
        self.expect_not_overdue(&value);
        let is_counted = self.sabotage != Some(Sabotage::LostValue);
        self.accounts.end_many(Kind::Queue, End::Cancelled, u64::from(is_counted));
    }

    fn reset(&mut self, random: &mut Rng) {
        let Some((key, deadline)) = self.take_key(random) else { return };
        let delay = delay(random);
        let due = Instant::now() + delay;
        let before = *lock(&deadline);
        *lock(&deadline) = before.while_set_to(due);
        if self.queue.reset(key, delay) {
            self.keep(key, deadline, due, delay);
        }
    }

    /// Checks that no thread should have received the value long ago.
    fn expect_not_overdue(&self, value: &Value) {
        self.accounts.expect_not_overdue(Kind::Queue, value.deadline(), Instant::now());
    }

    fn drain(&self, end: End) -> Vec<Value> {
        let drained = self.queue.drain();
        drained.iter().for_each(|value| self.expect_not_overdue(value));
        self.accounts.end_many(Kind::Queue, end, drained.len() as u64);
        drained
    }

    fn receive(&self, received: Result<Option<Expired<Value>>, NewTimeoutError>) {
        match received {
            // Also a value of the longest delay, which a reset has brought forward.
            Ok(Some(value)) => {
                self.accounts.expire(Kind::Queue, value.get_ref().deadline(), Instant::now());
            }
            // The timer is at its limit, or is stopped: the value stays.
            Ok(None) | Err(NewTimeoutError::Stopped | NewTimeoutError::TooManyPending { .. }) => {}
            Err(error) => self.accounts.expect(false, || format!("a queue: {error}")),
        }
    }
}

impl Load for Queue {
    fn work(&mut self, random: &mut Rng) {
        match random.u8(0..20) {
            0..6 if self.queue.len() < MAX_VALUES => self.insert(delay(random)),
            6..9 => {
                let Some((key, _)) = self.take_key(random) else { return };
                self.remove(key);
            }
            9 | 10 => self.reset(random),
            11 => self.receive(self.queue.recv_timeout(Duration::from_micros(random.u64(0..2_000)))),
            _ => (0..MAX_RECEIVED)
                .map_while(|_| self.queue.try_recv())
                .for_each(|value| self.receive(Ok(Some(value)))),
        }
    }

    fn leave(&mut self) {
        mem::take(&mut self.keys).into_iter().for_each(|own| self.give_up(own));
    }

    fn rest(&mut self) {
        self.leave();
        let now = Instant::now();
        while let Some(value) = self.queue.try_recv() {
            self.receive(Ok(Some(value)));
        }
        // A receiver compares deadlines with the clock, so none of these may have been due.
        let drained = self.drain(End::Cancelled);
        let due = drained.iter().filter(|value| value.deadline().is_before(now)).count();
        self.accounts.expect(due == 0, || format!("Queue: {due} due values were not received"));
    }

    /// Each thread does this. The first one finds everything.
    fn settle(&mut self) {
        drop(self.drain(End::LeftAtStop));
        let is_stopped = matches!(self.queue.recv(), Err(NewTimeoutError::Stopped));
        self.accounts.expect(is_stopped, || "a queue of a stopped timer does not say so".into());
        let live = self.live.load(SeqCst);
        self.accounts.expect(live == 0, || format!("{live} values are left of an empty queue"));
    }
}
