//! Timeouts by key, with and without values.

use hashed_wheel_over_shuttle::KeyedTimeouts;

use super::*;

/// Few keys, so that threads contend for them.
pub(super) const KEYS: usize = 2;

/// Whether the items of a key are values of a map. Those of the other keys are captured by tasks.
fn has_value(key: usize) -> bool {
    key % 2 == 1
}

#[derive(Clone)]
pub(super) struct Keys {
    keyed: KeyedTimeouts<usize>,
    /// A map with values, for some of the keys.
    values: KeyedTimeouts<usize, Item>,
    items: Arc<[Items; KEYS]>,
}

/// Counts of what happened to the items of one key.
#[derive(Default)]
struct Items {
    accepted: AtomicUsize,
    rejected: AtomicUsize,
    runs: AtomicUsize,
    replaced: AtomicUsize,
    cancelled: AtomicUsize,
    resets: AtomicUsize,
    drops: AtomicUsize,
}

/// The value that the task of an item captures.
struct Item {
    key: usize,
    items: Arc<[Items; KEYS]>,
}

impl Item {
    fn run(self, key: usize) {
        assert_eq!(key, self.key);
        self.items[key].runs.fetch_add(1, Relaxed);
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.items[self.key].drops.fetch_add(1, Relaxed);
    }
}

impl Keys {
    pub(super) fn new(timer: &HashedWheelTimer) -> Self {
        let values = KeyedTimeouts::with_handler(timer, |key, item: Item| item.run(key));
        Self { keyed: KeyedTimeouts::new(timer), values, items: Arc::default() }
    }

    pub(super) fn schedule(&self, scenario: &Scenario, key: usize, delay: Duration) {
        let item = Item { key, items: Arc::clone(&self.items) };
        let items = &self.items[key];
        let scheduled = if has_value(key) {
            let inserted = self.values.insert(key, item, delay);
            inserted.map(|replaced| replaced.is_some()).map_err(NewTimeoutError::from)
        } else {
            self.keyed.schedule(key, move |key| item.run(key), delay)
        };
        match scheduled {
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
        let is_cancelled =
            if has_value(key) { self.values.remove(&key).is_some() } else { self.keyed.cancel(&key) };
        self.items[key].cancelled.fetch_add(usize::from(is_cancelled), Relaxed);
    }

    pub(super) fn reset(&self, key: usize, delay: Duration) {
        let is_reset =
            if has_value(key) { self.values.touch(&key, delay) } else { self.keyed.reset(&key, delay) };
        self.items[key].resets.fetch_add(usize::from(is_reset), Relaxed);
    }

    /// Checks that at most `max_lost` items have neither run nor been replaced or cancelled.
    pub(super) fn check(&self, max_lost: usize) -> Counts {
        assert!(self.keyed.is_empty() && self.values.is_empty(), "each key is free");
        let (mut counts, mut lost) = (Counts::default(), 0);
        for items in &*self.items {
            let Items { accepted, rejected, runs, replaced, cancelled, resets, drops } = items;
            let [accepted, runs, replaced, cancelled] = [accepted, runs, replaced, cancelled].map(get);
            assert_eq!(get(drops), accepted + get(rejected), "each task is dropped once");
            let ended = runs + replaced + cancelled;
            assert!(
                ended <= accepted,
                "{runs} runs, {replaced} replaced, {cancelled} cancelled of {accepted}"
            );
            lost += accepted - ended;
            counts.add(&Counts::of([
                ("run by key", runs),
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
