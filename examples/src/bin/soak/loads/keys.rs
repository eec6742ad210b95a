//! Expiring maps of three kinds. All threads that use a timer share its maps.
//!
//! The threads contend for a few keys. Their tasks may be replaced, cancelled or reset at any time,
//! so most of them do not live until they are due. Other keys are used once. Nothing ends those
//! before they are due, except a pause and the end of the timer, so a lost one is noticed.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_util::{ExpiredEntries, ExpiringMap};

use super::{A_DAY, Load, TIMEOUT, delay, short_delay};
use crate::Sabotage;
use crate::accounts::{Accounts, Deadline, End, Kind, Latest, wait_until};
use crate::ledger::lock;

/// The keys for which threads contend. Few, so that they do.
const KEYS: u32 = 64;

/// One in so many of these keys may be reset to any deadline.
const ANY_DEADLINE: u32 = 8;

/// How many keys that are used once may be pending in a map.
const MAX_AWAITED: usize = 100;

/// How many entries a receiver takes at a time.
const MANY: usize = 100;

/// A map, and where its expired entries go.
#[derive(Clone)]
struct Map {
    entries: ExpiringMap<u32, Entry>,
    /// `None`: to a handler.
    receiver: Option<Arc<Mutex<ExpiredEntries<u32, Entry>>>>,
    /// Whether the receiver takes many at a time.
    takes_many: bool,
}

impl Map {
    fn new(kind: Kind, timer: &HashedWheelTimer) -> Self {
        if matches!(kind, Kind::Batched | Kind::Received) {
            let (entries, expired) = ExpiringMap::with_receiver(timer);
            let receiver = Some(Arc::new(Mutex::new(expired)));
            Self { entries, receiver, takes_many: kind == Kind::Batched }
        } else {
            let entries = ExpiringMap::with_handler(timer, |_, entry: Entry| entry.expire());
            Self { entries, receiver: None, takes_many: false }
        }
    }

    /// Returns whether it has replaced another entry, which is cancelled.
    fn schedule(&self, key: u32, entry: Entry, delay: Duration) -> Result<bool, NewTimeoutError> {
        Ok(self.entries.insert(key, entry, delay).map(|replaced| replaced.is_some())?)
    }

    fn reset(&self, key: u32, delay: Duration) -> bool {
        self.entries.touch(&key, delay)
    }

    fn cancel(&self, key: u32) -> bool {
        self.entries.remove(&key).is_some()
    }

    fn clear(&self) -> usize {
        self.entries.clear()
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    /// Receives all expired entries, if there is a receiver.
    fn receive(&self) {
        let Some(receiver) = &self.receiver else { return };
        let mut receiver = lock(receiver);
        let mut context = TaskContext::from_waker(Waker::noop());
        if self.takes_many {
            let mut expired = Vec::new();
            while let Poll::Ready(1..) = receiver.poll_recv_many(&mut context, &mut expired, MANY) {
                expired.drain(..).for_each(|(_, entry)| entry.expire());
            }
        } else {
            while let Poll::Ready(Some((_, entry))) = receiver.poll_recv(&mut context) {
                entry.expire();
            }
        }
    }
}

/// What all threads know of one map.
struct Shared {
    kind: Kind,
    accounts: Arc<Accounts>,
    /// The entries that were made, and those that were dropped.
    made: AtomicU64,
    dropped: AtomicU64,
    next_unused_key: AtomicU32,
    /// The keys that are used once. Of all threads, because the first thread that has a pause ends
    /// the keys of all.
    awaited: Mutex<Vec<Awaited>>,
    /// The latest deadline to which each of the first keys was reset. It is set before the call. A
    /// reset concerns an entry that was current then or later, so no entry has a later deadline
    /// than its own one and this one.
    resets: [Latest; KEYS as usize],
}

/// The value under a key.
struct Entry {
    shared: Arc<Shared>,
    key: u32,
    /// When it is due, if it is never reset.
    due: Instant,
    has_expired: bool,
    has_ended: Arc<AtomicBool>,
}

impl Entry {
    fn deadline(&self) -> Deadline {
        match self.shared.resets.get(self.key as usize) {
            Some(reset) => Deadline::until(reset.get().max(self.due)),
            None => Deadline::at(self.due),
        }
    }

    fn expire(mut self) {
        self.has_expired = true;
        self.shared.accounts.expire(self.shared.kind, self.deadline(), Instant::now());
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.has_expired {
            self.shared.accounts.expect_not_overdue(self.shared.kind, self.deadline(), Instant::now());
        }
        self.has_ended.store(true, SeqCst);
        self.shared.dropped.fetch_add(1, SeqCst);
    }
}

/// A key that was used once.
#[derive(Clone)]
struct Awaited {
    deadline: Deadline,
    has_ended: Arc<AtomicBool>,
}

impl Awaited {
    fn has_ended(&self) -> bool {
        self.has_ended.load(SeqCst)
    }
}

#[derive(Clone)]
pub(crate) struct Keys {
    map: Map,
    shared: Arc<Shared>,
    sabotage: Option<Sabotage>,
}

impl Keys {
    pub(super) fn new(
        kind: Kind,
        timer: &HashedWheelTimer,
        accounts: &Arc<Accounts>,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let shared = Arc::new(Shared {
            kind,
            accounts: Arc::clone(accounts),
            made: AtomicU64::default(),
            dropped: AtomicU64::default(),
            next_unused_key: AtomicU32::new(KEYS),
            awaited: Mutex::default(),
            resets: std::array::from_fn(|_| Latest::default()),
        });
        Self { map: Map::new(kind, timer), shared, sabotage }
    }

    fn schedule(&self, key: u32, recorded: Duration, delay: Duration) -> Awaited {
        let Shared { kind, accounts, made, .. } = &*self.shared;
        made.fetch_add(1, SeqCst);
        accounts.register(*kind);
        let has_ended = Arc::<AtomicBool>::default();
        let due = Instant::now() + recorded;
        let shared = Arc::clone(&self.shared);
        let entry = Entry { shared, key, due, has_expired: false, has_ended: Arc::clone(&has_ended) };
        match self.map.schedule(key, entry, delay) {
            Ok(true) => accounts.end(*kind, End::Cancelled),
            Ok(false) => {}
            Err(error) => accounts.fail(*kind, &error, false),
        }
        Awaited { deadline: Deadline::at(due), has_ended }
    }

    fn schedule_once(&self, random: &mut Rng) {
        let mut awaited = lock(&self.shared.awaited);
        awaited.retain(|one| !one.has_ended());
        if awaited.len() < MAX_AWAITED {
            drop(awaited);
            let recorded = short_delay(random);
            let delay = if self.sabotage == Some(Sabotage::Late) { A_DAY } else { recorded };
            let key = self.shared.next_unused_key.fetch_add(1, SeqCst);
            let one = self.schedule(key, recorded, delay);
            lock(&self.shared.awaited).push(one);
        }
    }

    fn reset(&self, key: u32, random: &mut Rng) {
        let delay = if key % ANY_DEADLINE == 0 { delay(random) } else { short_delay(random) };
        self.shared.resets[key as usize].raise(Instant::now() + delay);
        self.map.reset(key, delay);
    }

    /// Waits for the keys that are used once and are due.
    fn await_due(&self) {
        let awaited = lock(&self.shared.awaited).clone();
        for one in awaited {
            let has_ended = || {
                self.map.receive();
                one.has_ended()
            };
            self.shared.accounts.await_if_due(self.shared.kind, one.deadline, has_ended);
        }
    }

    fn cancelled(&self, count: usize) {
        self.shared.accounts.end_many(self.shared.kind, End::Cancelled, count as u64);
    }

    /// Whether every entry that was made was dropped, or is in the map: no entry is on the way to a
    /// task, a handler or a receiver. Exact when no thread uses the map.
    fn has_arrived(&self) -> bool {
        self.map.receive();
        // In this order: an entry that ends in between is not counted twice.
        let dropped = self.shared.dropped.load(SeqCst);
        dropped + self.map.len() as u64 == self.shared.made.load(SeqCst)
    }
}

impl Load for Keys {
    fn work(&mut self, random: &mut Rng) {
        let key = random.u32(0..KEYS);
        match random.u8(0..10) {
            0..5 => {
                let delay = delay(random);
                self.schedule(key, delay, delay);
            }
            5 | 6 => self.reset(key, random),
            7 => self.cancelled(self.map.cancel(key).into()),
            8 => self.schedule_once(random),
            _ => self.map.receive(),
        }
    }

    /// Other threads continue to use the keys.
    fn leave(&mut self) {}

    fn rest(&mut self) {
        self.await_due();
        self.cancelled(self.map.clear());
        // No thread receives during the pause, in which an entry would become late. The last thread
        // that rests waits for all entries. `settle` reports those that never arrive.
        wait_until(TIMEOUT, || self.has_arrived());
    }

    /// Each thread does this. The first one finds everything.
    fn settle(&mut self) {
        let is_free = wait_until(TIMEOUT, || self.has_arrived() && self.map.len() == 0);
        self.shared.accounts.expect(is_free, || {
            format!("{:?}: an entry or a key is left on a stopped timer", self.shared.kind)
        });
    }
}
