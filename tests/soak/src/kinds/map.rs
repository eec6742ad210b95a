//! Expiring maps of three kinds. All threads that use a timer share its maps.
//!
//! The threads contend for a few keys. Their entries may be replaced, removed or reset at any time,
//! so most of them do not live until they are due. Other keys are used once. Nothing ends those
//! before they are due, except a pause and the end of the timer, so a lost one is noticed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::HashedWheelTimer;
use hashed_wheel_ledger::{Count, Deadline, Kind, Ticket};
use hashed_wheel_util::{Cause, ExpiringMap, Removed, RemovedEntries};

use super::{A_DAY, Load, delay, short_delay};
use crate::Sabotage;
use crate::tally::{Tally, await_if_due, comes, fail, lock, now};

/// The keys for which threads contend. Few, so that they do.
const KEYS: u32 = 64;

/// One in so many of these keys may be reset to any deadline.
const ANY_DEADLINE: u32 = 8;

/// How many keys that are used once may be pending in a map.
const MAX_ONCE: usize = 100;

/// How many entries a receiver takes at a time.
const MANY: usize = 100;

/// The state of one map, for all threads.
struct Shared {
    kind: Kind,
    tally: Arc<Tally>,
    entries: ExpiringMap<u32, Entry>,
    /// `None`: a handler receives the expired entries.
    receiver: Option<Mutex<RemovedEntries<u32, Entry>>>,
    /// The entries that have not been dropped.
    live: Arc<AtomicU64>,
    next_key: AtomicU32,
    /// The keys that are used once. Of all threads, because the first thread that has a pause ends
    /// the keys of all.
    once: Mutex<Vec<Arc<Ticket>>>,
    resets: Resets,
}

/// The latest deadline to which each of the first keys was reset. It is set before the call. A
/// reset concerns an entry that was current then or later, so no entry has a later deadline than
/// its own one and this one.
type Resets = Arc<[Mutex<Option<Duration>>; KEYS as usize]>;

/// The value under a key.
struct Entry {
    ticket: Arc<Ticket>,
    key: usize,
    resets: Resets,
    live: Arc<AtomicU64>,
}

impl Entry {
    /// Ends it, after its deadline is known.
    fn end(&self, end: impl FnOnce(&Ticket)) {
        if let Some(reset) = self.resets.get(self.key) {
            let latest = (*lock(reset)).max(self.ticket.deadline().latest);
            self.ticket.set_deadline(Deadline {
                earliest: None,
                latest,
            });
        }
        end(&self.ticket);
    }

    fn expire(entry: Removed<u32, Self>) {
        entry.value.end(Ticket::expire);
    }

    fn cancel(self) {
        self.end(Ticket::cancel);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Of one that is left, the deadline is checked by its ticket.
        self.end(|_| ());
        self.ticket.count(Count::TaskDrop);
        self.live.fetch_sub(1, SeqCst);
    }
}

#[derive(Clone)]
pub(crate) struct Keys(Arc<Shared>);

impl Keys {
    pub(super) fn new(kind: Kind, timer: &HashedWheelTimer, tally: &Arc<Tally>) -> Self {
        let builder = ExpiringMap::builder(timer).causes([Cause::Expired]);
        let (entries, receiver) = if kind == Kind::Map {
            (builder.build_with_handler(Entry::expire), None)
        } else {
            let (entries, expired) = builder.build_with_receiver();
            (entries, Some(Mutex::new(expired)))
        };
        Self(Arc::new(Shared {
            kind,
            tally: Arc::clone(tally),
            entries,
            receiver,
            live: Arc::default(),
            next_key: AtomicU32::new(KEYS),
            once: Mutex::default(),
            resets: Arc::new(std::array::from_fn(|_| Mutex::default())),
        }))
    }

    /// Receives all expired entries, if there is a receiver.
    fn receive(&self) {
        let Some(receiver) = &self.0.receiver else {
            return;
        };
        let (mut receiver, mut context) = (lock(receiver), Context::from_waker(Waker::noop()));
        if self.0.kind == Kind::Batched {
            let mut expired = Vec::new();
            while let Poll::Ready(1..) = receiver.poll_recv_many(&mut context, &mut expired, MANY) {
                expired.drain(..).for_each(Entry::expire);
            }
        } else {
            while let Poll::Ready(Some(entry)) = receiver.poll_recv(&mut context) {
                Entry::expire(entry);
            }
        }
    }

    fn insert(&self, key: u32, recorded: Duration, delay: Duration) -> Arc<Ticket> {
        let Shared {
            kind,
            tally,
            entries,
            live,
            resets,
            ..
        } = &*self.0;
        let ticket = Arc::new(Ticket::new(tally, *kind, tally.after(recorded)));
        live.fetch_add(1, SeqCst);
        let (resets, live) = (Arc::clone(resets), Arc::clone(live));
        let entry = Entry {
            ticket: Arc::clone(&ticket),
            key: key as usize,
            resets,
            live,
        };
        match entries.insert(key, entry, delay) {
            Ok(replaced) => replaced.into_iter().for_each(Entry::cancel),
            Err(rejected) => fail(&ticket, &rejected.error, false),
        }
        ticket
    }

    fn insert_once(&self, random: &mut Rng) {
        let Shared {
            tally,
            next_key,
            once,
            ..
        } = &*self.0;
        let mut pending = lock(once);
        pending.retain(|ticket| ticket.get(Count::TaskDrop) == 0);
        if pending.len() < MAX_ONCE {
            drop(pending);
            let recorded = short_delay(random);
            let is_late = tally.does(Sabotage::Late);
            let delay = if is_late { A_DAY } else { recorded };
            let ticket = self.insert(next_key.fetch_add(1, SeqCst), recorded, delay);
            lock(once).push(ticket);
        }
    }

    /// Whether each entry was dropped, or is in the map: none is on the way to a handler or a
    /// receiver. Exact when no thread uses the map.
    fn has_arrived(&self) -> bool {
        self.receive();
        self.0.live.load(SeqCst) == self.0.entries.len() as u64
    }
}

impl Load for Keys {
    fn work(&mut self, random: &mut Rng) {
        let Shared {
            entries, resets, ..
        } = &*self.0;
        let key = random.u32(0..KEYS);
        match random.u8(0..10) {
            0..5 => {
                let delay = delay(random);
                self.insert(key, delay, delay);
            }
            5 | 6 => {
                let delay = match key % ANY_DEADLINE {
                    0 => delay(random),
                    _ => short_delay(random),
                };
                let due = Some(now() + delay);
                {
                    let mut latest = lock(&resets[key as usize]);
                    *latest = due.max(*latest);
                }
                entries.touch(&key, delay);
            }
            7 => entries.remove(&key).into_iter().for_each(Entry::cancel),
            8 => self.insert_once(random),
            _ => self.receive(),
        }
    }

    /// Other threads continue to use the keys.
    fn leave(&mut self) {}

    fn rest(&mut self) {
        let pending = lock(&self.0.once).clone();
        for ticket in pending {
            await_if_due(&ticket, || {
                self.receive();
                ticket.get(Count::TaskDrop) > 0
            });
        }
        for (_, entry) in self.0.entries.drain() {
            entry.cancel();
        }
        // No thread receives during the pause, in which an entry would become late. The last thread
        // that rests waits for all entries. `settle` reports those that never arrive.
        comes(|| self.has_arrived());
    }

    fn settle(&mut self) {
        let is_free = comes(|| self.has_arrived() && self.0.entries.is_empty());
        self.0.tally.expect(is_free, || {
            format!("{:?}: an entry is left on a stopped timer", self.0.kind)
        });
        lock(&self.0.once).clear();
    }
}
