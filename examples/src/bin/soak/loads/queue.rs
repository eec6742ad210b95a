//! A `DelayQueue`. All threads that use a timer insert values into its queue and receive them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::delay_queue::{DelayQueue, Expired, Key};
use hashed_wheel::{HashedWheelTimer, NewTimeoutError};

use super::{Load, delay};
use crate::accounts::{Accounts, End, Kind};

/// How many values of its own a thread may remove or reset later.
const MAX_KEYS: usize = 100;

/// How many values the queue has at most, approximately.
const MAX_VALUES: usize = 2_000;

pub(crate) struct Queue {
    queue: DelayQueue<Value>,
    accounts: Arc<Accounts>,
    /// The values that have not been dropped.
    live: Arc<AtomicU64>,
    /// The keys of some values that this thread has inserted.
    keys: Vec<Key>,
    loses_values: bool,
}

struct Value(Arc<AtomicU64>);

impl Value {
    fn new(live: &Arc<AtomicU64>) -> Self {
        live.fetch_add(1, SeqCst);
        Self(Arc::clone(live))
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Another handle, of another thread.
impl Clone for Queue {
    fn clone(&self) -> Self {
        let (queue, accounts, live) = (self.queue.clone(), self.accounts.clone(), self.live.clone());
        Self { queue, accounts, live, keys: Vec::new(), loses_values: self.loses_values }
    }
}

impl Queue {
    /// `loses_values`: does not count the values that it removes.
    pub(super) fn new(timer: &HashedWheelTimer, accounts: &Arc<Accounts>, loses_values: bool) -> Self {
        let (queue, accounts, live) = (DelayQueue::new(timer), Arc::clone(accounts), Arc::default());
        Self { queue, accounts, live, keys: Vec::new(), loses_values }
    }

    fn insert(&mut self, delay: Duration) {
        self.accounts.register(Kind::Queue);
        let key = self.queue.insert(Value::new(&self.live), delay);
        self.keys.push(key);
        if self.keys.len() > MAX_KEYS {
            self.keys.swap_remove(0);
        }
    }

    fn take_key(&mut self, random: &mut Rng) -> Option<Key> {
        let count = self.keys.len();
        (count > 0).then(|| self.keys.swap_remove(random.usize(0..count)))
    }

    fn receive(&self, received: Result<Option<Expired<Value>>, NewTimeoutError>) {
        match received {
            // Also a value of the longest delay, which a reset has brought forward.
            Ok(Some(value)) => self.accounts.expire(Kind::Queue, Some(value.deadline())),
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
                let removed = self.take_key(random).and_then(|key| self.queue.remove(key));
                let is_counted = removed.is_some() && !self.loses_values;
                self.accounts.end_many(Kind::Queue, End::Cancelled, u64::from(is_counted));
            }
            9 | 10 => drop(self.take_key(random).map(|key| self.queue.reset(key, delay(random)))),
            11 => self.receive(self.queue.recv_timeout(Duration::from_micros(random.u64(0..2_000)))),
            _ => self.receive(Ok(self.queue.try_recv())),
        }
    }

    fn rest(&mut self) {
        let drained = self.queue.drain();
        self.accounts.end_many(Kind::Queue, End::Cancelled, drained.len() as u64);
        self.keys.clear();
    }

    /// Each thread does this. The first one finds everything.
    fn settle(&mut self) {
        let drained = self.queue.drain();
        self.accounts.end_many(Kind::Queue, End::LeftAtStop, drained.len() as u64);
        let is_stopped = matches!(self.queue.recv(), Err(NewTimeoutError::Stopped));
        self.accounts.expect(is_stopped, || "a queue of a stopped timer does not say so".into());
        drop(drained);
        let live = self.live.load(SeqCst);
        self.accounts.expect(live == 0, || format!("{live} values are left of an empty queue"));
    }
}
