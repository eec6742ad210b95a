//! Timeouts by key. All threads that use a timer share its keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};

use super::{Load, TIMEOUT, delay};
use crate::accounts::{Accounts, End, Kind, wait_until};

/// Few, so that threads contend for them.
const KEYS: u32 = 64;

#[derive(Clone)]
pub(crate) struct Keys {
    keyed: KeyedTimeouts<u32>,
    accounts: Arc<Accounts>,
    /// The tasks that were made, and those that were dropped.
    made: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
}

/// What the task of a key captures.
struct Guard(Arc<AtomicU64>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Keys {
    pub(super) fn new(timer: &HashedWheelTimer, accounts: &Arc<Accounts>) -> Self {
        let (made, dropped) = (Arc::default(), Arc::default());
        Self { keyed: KeyedTimeouts::new(timer), accounts: Arc::clone(accounts), made, dropped }
    }

    fn schedule(&self, key: u32, delay: Duration) {
        let accounts = Arc::clone(&self.accounts);
        self.made.fetch_add(1, SeqCst);
        let guard = Guard(Arc::clone(&self.dropped));
        let task = move |_: u32| {
            // A reset may have moved the deadline.
            let _guard = guard;
            accounts.expire(Kind::Keyed, None);
        };
        self.accounts.register(Kind::Keyed);
        match self.keyed.schedule(key, task, delay) {
            Ok(true) => self.accounts.end(Kind::Keyed, End::Cancelled),
            Ok(false) => {}
            Err(error) => self.accounts.fail(Kind::Keyed, &error, false),
        }
    }
}

impl Load for Keys {
    fn work(&mut self, random: &mut Rng) {
        let key = random.u32(0..KEYS);
        match random.u8(0..10) {
            0..6 => self.schedule(key, delay(random)),
            6 | 7 => drop(self.keyed.reset(&key, delay(random))),
            _ => {
                let is_cancelled = self.keyed.cancel(&key);
                self.accounts.end_many(Kind::Keyed, End::Cancelled, u64::from(is_cancelled));
            }
        }
    }

    fn rest(&mut self) {
        self.accounts.end_many(Kind::Keyed, End::Cancelled, self.keyed.clear() as u64);
    }

    /// Each thread does this. The first one finds everything.
    fn settle(&mut self) {
        let is_over = || self.dropped.load(SeqCst) == self.made.load(SeqCst);
        let is_free = wait_until(TIMEOUT, || is_over() && self.keyed.is_empty());
        self.accounts.expect(is_free, || "a task or a key is left on a stopped timer".into());
    }
}
