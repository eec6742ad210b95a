//! Two expiring maps. Expired values of the first go to a handler, those of the second to a handler
//! or to a receiver that threads poll.

use std::task::{Context, Poll, Waker};

use hashed_wheel_over_shuttle::util::{Cause, ExpiringMap, Removed, RemovedEntries};

use super::sleeps::Poller;

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
    items: Arc<[Items; KEYS]>,
}

struct Receiver {
    entries: RemovedEntries<usize, Item>,
    /// The task of the last poll, if that poll was pending.
    waiting: Option<Arc<Poller>>,
}

/// Counts of what happened to the items of one key.
#[derive(Default)]
struct Items {
    accepted: AtomicUsize,
    rejected: AtomicUsize,
    runs: AtomicUsize,
    /// Those of the runs that were received by a poll.
    received: AtomicUsize,
    replaced: AtomicUsize,
    cancelled: AtomicUsize,
    resets: AtomicUsize,
    drops: AtomicUsize,
}

struct Item {
    key: usize,
    items: Arc<[Items; KEYS]>,
}

impl Item {
    fn run(Removed { key, value, .. }: Removed<usize, Self>) {
        assert_eq!(key, value.key);
        value.items[key].runs.fetch_add(1, Relaxed);
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.items[self.key].drops.fetch_add(1, Relaxed);
    }
}

impl Keys {
    pub(super) fn new(timer: &HashedWheelTimer, random: &mut Rng) -> Self {
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
        let receiver = Arc::new(Mutex::new(receiver));
        Self {
            first: with_handler(),
            second,
            receiver,
            items: Arc::default(),
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

    pub(super) fn schedule(&self, scenario: &Scenario, key: usize, delay: Duration) {
        let item = Item {
            key,
            items: Arc::clone(&self.items),
        };
        let items = &self.items[key];
        let inserted = self.map(key).insert(key, item, delay);
        match inserted
            .map(|replaced| replaced.is_some())
            .map_err(NewTimeoutError::from)
        {
            Ok(has_replaced) => {
                items.accepted.fetch_add(1, Relaxed);
                items.replaced.fetch_add(usize::from(has_replaced), Relaxed);
            }
            Err(error) => {
                items.rejected.fetch_add(1, Relaxed);
                scenario.world.assert_may_reject(&scenario.timer, &error);
            }
        }
    }

    pub(super) fn cancel(&self, key: usize) {
        let is_cancelled = self.map(key).remove(&key).is_some();
        self.items[key]
            .cancelled
            .fetch_add(usize::from(is_cancelled), Relaxed);
    }

    pub(super) fn reset(&self, key: usize, delay: Duration) {
        let is_reset = self.map(key).touch(&key, delay);
        self.items[key]
            .resets
            .fetch_add(usize::from(is_reset), Relaxed);
    }

    /// After all threads have ended. Checks that at most `max_lost` items have neither run nor been
    /// replaced or cancelled.
    pub(super) fn check(&self, max_lost: usize) -> Counts {
        self.receive_rest();
        assert!(
            self.first.is_empty() && self.second.is_empty(),
            "each key is free"
        );
        let (mut counts, mut lost) = (Counts::default(), 0);
        for items in &*self.items {
            let Items {
                accepted,
                rejected,
                runs,
                received,
                replaced,
                cancelled,
                resets,
                drops,
            } = items;
            let [accepted, runs, replaced, cancelled] =
                [accepted, runs, replaced, cancelled].map(get);
            assert_eq!(
                get(drops),
                accepted + get(rejected),
                "each task is dropped once"
            );
            let ended = runs + replaced + cancelled;
            assert!(
                ended <= accepted,
                "{runs} runs, {replaced} replaced, {cancelled} cancelled of {accepted}"
            );
            lost += accepted - ended;
            counts.add(&Counts::of([
                ("run by key", runs),
                ("received by key", get(received)),
                ("replaced by key", replaced),
                ("cancelled by key", cancelled),
                ("reset by key", get(resets)),
                ("stopped by key", accepted - ended),
            ]));
        }
        assert!(lost <= max_lost, "{lost} items were due and did not end");
        counts
    }
}

impl Receiver {
    /// Receives an entry, if there is one.
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        self.entries
            .poll_recv(&mut Context::from_waker(waker))
            .map(|entry| {
                let entry = entry.expect("there is a handle of the map");
                entry.value.items[entry.key].received.fetch_add(1, Relaxed);
                Item::run(entry);
            })
    }
}
