//! Two expiring maps. Expired values of the first go to a handler, those of the second to a handler
//! or to a receiver that threads poll.

use hashed_wheel_over_shuttle::util::{Cause, ExpiringMap, Removed, RemovedEntries};

use super::*;

/// Few keys, so that threads contend for them. Each of the two maps has two.
pub(super) const KEYS: usize = 4;

/// Whether the items of a key are in the second map.
fn is_in_second(key: usize) -> bool {
    key % 2 == 1
}

#[derive(Clone)]
pub(super) struct Keys {
    first: ExpiringMap<usize, Item>,
    second: ExpiringMap<usize, Item>,
    /// Where the values of the second map go, if they do not go to a handler. A thread takes it out
    /// to poll it.
    receiver: Arc<Mutex<Option<Receiver>>>,
    has_receiver: bool,
    world: World,
    replaced: Arc<AtomicU64>,
}

struct Receiver {
    entries: RemovedEntries<usize, Item>,
    /// The task of the last poll, if that poll was pending.
    waiting: Option<Arc<Poller>>,
}

struct Item {
    key: usize,
    ticket: Ticket,
}

impl Item {
    fn run(Removed { key, value, .. }: Removed<usize, Self>) {
        assert_eq!(key, value.key);
        value.ticket.expire();
    }
}

impl Keys {
    pub(super) fn new(timer: &HashedWheelTimer, world: &World, random: &mut Rng) -> Self {
        let mut receiver = None;
        let builder = || ExpiringMap::builder(timer).causes([Cause::Expired]);
        let with_handler = || builder().build_with_handler(Item::run);
        let second = if random.bool() {
            with_handler()
        } else {
            let (map, entries) = builder().build_with_receiver();
            receiver = Some(Receiver {
                entries,
                waiting: None,
            });
            map
        };
        Self {
            first: with_handler(),
            second,
            has_receiver: receiver.is_some(),
            receiver: Arc::new(Mutex::new(receiver)),
            world: world.clone(),
            replaced: Arc::default(),
        }
    }

    /// Polls the receiver, by another task than before.
    pub(super) fn receive(&self) {
        let Some(mut receiver) = self.receiver.lock().unwrap().take() else {
            return;
        };
        receiver.waiting = None;
        let poller = Arc::<Poller>::default();
        if receiver
            .poll(&Waker::from(Arc::clone(&poller)))
            .is_pending()
        {
            receiver.waiting = Some(poller);
        }
        *self.receiver.lock().unwrap() = Some(receiver);
    }

    /// Receives what is left. If there is anything, the task that waits was woken.
    fn receive_rest(&self) {
        let Some(mut receiver) = self.receiver.lock().unwrap().take() else {
            return;
        };
        let waiting = receiver.waiting.take();
        while receiver.poll(Waker::noop()).is_ready() {
            let is_woken = waiting.as_ref().is_none_or(|poller| poller.was_woken());
            assert!(is_woken, "a task waits for an entry that has come");
        }
    }

    fn map(&self, key: usize) -> &ExpiringMap<usize, Item> {
        if is_in_second(key) {
            &self.second
        } else {
            &self.first
        }
    }

    pub(super) fn schedule(&self, timer: &HashedWheelTimer, key: usize, delay: Duration) {
        let is_received = is_in_second(key) && self.has_receiver;
        let kind = if is_received {
            Kind::Received
        } else {
            Kind::Map
        };
        // Its deadline is not known: another thread may reset the entry of this key.
        let ticket = Ticket::new(&self.world.ledger, kind, Deadline::default());
        match self.map(key).insert(key, Item { key, ticket }, delay) {
            Ok(replaced) => {
                self.replaced.fetch_add(replaced.is_some().into(), Relaxed);
                replaced.inspect(|item| item.ticket.count(Count::Cancelled));
            }
            Err(rejected) => {
                rejected.value.ticket.count(Count::Rejected);
                self.world.assert_may_reject(timer, &rejected.error);
            }
        }
    }

    pub(super) fn cancel(&self, key: usize) {
        let removed = self.map(key).remove(&key);
        removed.inspect(|item| item.ticket.count(Count::Cancelled));
    }

    pub(super) fn reset(&self, key: usize, delay: Duration) {
        if self.map(key).touch(&key, delay) {
            self.world.ledger.add(Kind::Map, Count::Reset);
        }
    }

    /// After all threads have ended. Checks that at most `max_lost` items have neither run nor been
    /// replaced or cancelled.
    pub(super) fn check(&self, max_lost: u64) -> Counts {
        self.receive_rest();
        assert!(
            self.first.is_empty() && self.second.is_empty(),
            "each key is free"
        );
        let of = |count| [Kind::Map, Kind::Received].map(|kind| self.world.ledger.get(kind, count));
        let sum = |count| of(count).iter().sum();
        let (lost, replaced) = (sum(Count::Left), get(&self.replaced));
        assert!(lost <= max_lost, "{lost} items were due and did not end");
        Counts::of([
            ("run by key", sum(Count::Expired)),
            ("received by key", of(Count::Expired)[1]),
            ("replaced by key", replaced),
            ("cancelled by key", sum(Count::Cancelled) - replaced),
            ("reset by key", sum(Count::Reset)),
            ("stopped by key", lost),
        ])
    }
}

impl Receiver {
    /// Receives an entry, if there is one.
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        self.entries
            .poll_recv(&mut Context::from_waker(waker))
            .map(|entry| {
                Item::run(entry.expect("there is a handle of the map"));
            })
    }
}
