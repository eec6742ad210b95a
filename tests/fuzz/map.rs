//! Compares an expiring map that one thread uses with a plain map with deadlines, on a manual
//! clock: times to live and to idle, limits of the number and of the weight, each output, and
//! write-back.
//!
//! The model does not know when a dead entry leaves, except that it is due after a turn, before an
//! eviction, and with write-back when a call looks for its key. It predicts all else, also which
//! entry is evicted. `values.rs` has the calls by handlers, executors, and the ends of the timer.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hashed_wheel::{Driver, HashedWheelTimer, ManualClock, NewTimeoutError};
use hashed_wheel_util::{BoxFuture, Cause, Entry, ExpiringMap, Removed, RemovedEntries};

use crate::bytes::Bytes;

const TICK: Duration = Duration::from_millis(10);
const TIME_TO_LIVE: Duration = Duration::from_millis(70);
const KEYS: u64 = 6;

type Map = ExpiringMap<u8, Value>;

#[derive(Clone)]
struct Value {
    id: usize,
    weight: u32,
    _live: Arc<()>,
}

/// What has left the map: the key, the value, and the cause.
type Left = (u8, usize, Cause);

/// An entry of the model.
struct Item {
    key: u8,
    id: usize,
    weight: u32,
    deadline: Duration,
    /// Its latest deadline.
    end: Duration,
    is_used: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Output {
    Handler,
    Receiver,
    WriteBack,
    AsyncWriteBack,
}

struct Script {
    bytes: Bytes,
    clock: ManualClock,
    timer: HashedWheelTimer,
    driver: Driver,
    /// `None` once the last handle was dropped.
    map: Option<Map>,
    /// Another handle, for the handler.
    shared: Arc<Mutex<Option<Map>>>,
    output: Output,
    receiver: Option<RemovedEntries<u8, Value>>,
    bound: Option<usize>,
    /// What the handler got, and whether the key was reserved then.
    handled: Arc<Mutex<Vec<(Left, bool)>>>,
    futures: Arc<Mutex<VecDeque<BoxFuture>>>,
    live: Arc<()>,
    idle: Duration,
    max_entries: usize,
    max_weight: u32,
    replaced_go_out: bool,
    /// Whether the timer ends before the map.
    stops: bool,
    now: Duration,
    turned: u128,
    /// In the order in which they come up for eviction.
    items: Vec<Item>,
    /// The keys whose futures have not ended, in their order.
    reserved: VecDeque<u8>,
    /// The entries of these keys that have left the map. They go to the handler when an older one
    /// was written.
    waiting: Vec<Left>,
    /// When the last future of a key has ended.
    written: BTreeMap<u8, Duration>,
    ids: usize,
}

fn unused(item: Item) -> Item {
    let is_used = false;
    Item { is_used, ..item }
}

fn sorted<T: Ord>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.into_iter().collect();
    all.sort_unstable();
    all
}

/// Whether a call for this key would wait. It is no use of the entry.
fn is_reserved(map: &Map, key: u8) -> bool {
    let mut written = std::pin::pin!(map.written(&key));
    let mut context = Context::from_waker(Waker::noop());
    written.as_mut().poll(&mut context).is_pending()
}

/// The first bytes choose the options.
pub(crate) fn run(input: &[u8]) {
    let mut script = Script::new(Bytes::new(input));
    while !script.bytes.is_empty() {
        script.step();
    }
    script.end();
}

impl Script {
    fn new(mut bytes: Bytes) -> Self {
        let clock = ManualClock::new();
        let builder = HashedWheelTimer::builder().tick(TICK).clock(clock.clone());
        let (timer, driver) = builder.build_driven().unwrap();
        let has = bytes.up_to(63);
        let idle = if has & 1 > 0 { 3 * TICK } else { Duration::MAX };
        use Output::{AsyncWriteBack, Handler, Receiver, WriteBack};
        let output = bytes.one_of(&[Handler, Receiver, WriteBack, AsyncWriteBack]);
        let bound = (has & 16 > 0 && output == Output::Receiver).then_some(2);
        // An eviction may remove a dead entry that waits for its key, which the model does not see.
        let may_wait = has & 8 > 0 && output == Output::AsyncWriteBack;
        let has = if may_wait { has & !6 } else { has };
        let max_entries = match has & 2 {
            0 => usize::MAX,
            _ => 1 + bytes.below(5),
        };
        let max_weight = if has & 4 > 0 { 12 } else { u32::MAX };

        let mut builder = ExpiringMap::builder(&timer).time_to_live(TIME_TO_LIVE);
        if has & 1 > 0 {
            builder = builder.time_to_idle(idle);
        }
        if has & 2 > 0 {
            builder = builder.max_entries(max_entries);
        }
        if has & 4 > 0 {
            builder = builder.max_weight(max_weight.into(), |_, value: &Value| value.weight);
        }
        if has & 8 > 0 {
            use Cause::{Evicted, Expired, Removed, Replaced, Stopped};
            builder = builder.causes([Evicted, Expired, Removed, Replaced, Stopped]);
        }
        let shared = Arc::new(Mutex::new(None::<Map>));
        let handled = Arc::new(Mutex::new(Vec::new()));
        let futures = Arc::new(Mutex::new(VecDeque::new()));
        let (probe, log) = (Arc::clone(&shared), Arc::clone(&handled));
        let handle = move |Removed { key, value, cause }: &Removed<u8, Value>| {
            let map = probe.lock().unwrap().clone();
            let is_reserved = map.is_some_and(|map| is_reserved(&map, *key));
            let left = (*key, value.id, *cause);
            log.lock().unwrap().push((left, is_reserved));
        };
        let mut receiver = None;
        let map = match output {
            Output::Handler => builder.build_with_handler(move |removed| handle(&removed)),
            Output::WriteBack => builder.build_with_write_back(move |removed| handle(&removed)),
            Output::AsyncWriteBack => {
                let spawned = Arc::clone(&futures);
                let spawn = move |future| spawned.lock().unwrap().push_back(future);
                builder.build_with_async_write_back(spawn, move |removed| {
                    handle(&removed);
                    let mut has_begun = false;
                    let end = poll_fn(move |_| match mem::replace(&mut has_begun, true) {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    });
                    async move {
                        let _removed = removed;
                        end.await;
                    }
                })
            }
            Output::Receiver => {
                let (map, entries) = match bound {
                    Some(bound) => builder.build_with_bounded_receiver(bound),
                    None => builder.build_with_receiver(),
                };
                receiver = Some(entries);
                map
            }
        };
        *shared.lock().unwrap() = Some(map.clone());
        Self {
            bytes,
            clock,
            timer,
            driver,
            map: Some(map),
            shared,
            output,
            receiver,
            bound,
            handled,
            futures,
            live: Arc::new(()),
            idle,
            max_entries,
            max_weight,
            replaced_go_out: has & 8 > 0,
            stops: has & 32 > 0,
            now: Duration::ZERO,
            turned: 0,
            items: Vec::new(),
            reserved: VecDeque::new(),
            waiting: Vec::new(),
            written: BTreeMap::new(),
            ids: 0,
        }
    }

    fn map(&self) -> Map {
        self.map.clone().expect("it was not dropped")
    }

    fn value(&mut self) -> Value {
        self.ids += 1;
        let weight = self.bytes.up_to(14) as u32;
        let (id, _live) = (self.ids, Arc::clone(&self.live));
        Value { id, weight, _live }
    }

    fn delay(&mut self) -> Duration {
        match self.bytes.up_to(15) as u32 {
            15 => Duration::MAX,
            sixths => TICK * sixths / 2,
        }
    }

    fn is_alive(&self, item: &Item) -> bool {
        item.deadline > self.now
    }

    /// Returns the place of the living item of a key.
    fn find(&self, key: u8) -> Option<usize> {
        let mut items = self.items.iter();
        items.position(|item| item.key == key && self.is_alive(item))
    }

    fn has_dead(&self, key: u8) -> bool {
        let mut items = self.items.iter();
        items.any(|item| item.key == key && !self.is_alive(item))
    }

    /// Whether a call for this key waits for a future.
    fn waits(&self, key: u8) -> bool {
        let writes = self.output == Output::AsyncWriteBack;
        writes && (self.reserved.contains(&key) || self.has_dead(key))
    }

    /// Sets the time of an item that was inserted or touched.
    fn set_time(&mut self, at: usize, delay: Duration) {
        let [end, idle] = [delay, self.idle].map(|time| self.now.saturating_add(time));
        (self.items[at].deadline, self.items[at].end) = (end.min(idle), end);
        self.items[at].is_used = true;
    }

    /// Uses the living item of a key. Returns its value.
    fn use_item(&mut self, key: u8) -> Option<usize> {
        let at = self.find(key)?;
        let idle = self.now.saturating_add(self.idle);
        let item = &mut self.items[at];
        item.is_used = true;
        item.deadline = item.deadline.max(idle.min(item.end));
        Some(item.id)
    }

    fn step(&mut self) {
        let (map, key) = (self.map(), self.bytes.up_to(KEYS - 1) as u8);
        let call = self.bytes.up_to(23);
        match call {
            ..=13 | 20 if self.waits(key) => {
                assert!(map.try_get(&key).is_err() && map.try_entry(key).is_err());
                assert!(is_reserved(&map, key));
            }
            ..=4 => return self.insert(&map, key, call),
            5 => assert_eq!(map.get(&key).map(|value| value.id), self.use_item(key)),
            6 => assert_eq!(map.with(&key, |value| value.id), self.use_item(key)),
            7..=9 => self.touch(&map, key, call),
            10 => {
                let removed = self.find(key).map(|at| self.items.remove(at).id);
                assert_eq!(map.remove(&key).map(|value| value.id), removed);
            }
            11 | 12 => return self.entry(&map, key),
            13 => match self.use_item(key) {
                Some(id) => {
                    let found = map.get_or_insert_with(key, || unreachable!(), TICK);
                    assert_eq!(found.unwrap().id, id);
                }
                None => return self.insert(&map, key, call),
            },
            14 => {
                map.retain(|kept, _| *kept > key);
                return self.remove_living(|item| item.key <= key, Cause::Removed);
            }
            15 if key == 0 => {
                let is_found =
                    |item: &&Item| self.is_alive(item) && !self.reserved.contains(&item.key);
                let living = self.items.iter().filter(is_found).count();
                assert_eq!(map.clear(), living);
                return self.remove_living(|_| true, Cause::Removed);
            }
            16 if key == 0 => {
                let drained = map.drain().into_iter().map(|(_, value)| value.id);
                let living = self.take_living(true, |_| true).into_iter();
                assert_eq!(sorted(drained), sorted(living.map(|item| item.id)));
            }
            17 | 18 => {
                let next = self.end_future(call == 17);
                self.settle(next.into_iter().collect(), None);
            }
            19 if key == 0 => {
                let len = map.len();
                assert_eq!(self.timer.cancel_all(), len);
                self.remove_living(|_| true, Cause::Stopped);
                return assert!(self.items.is_empty(), "all leave");
            }
            20 => {
                let found = map.try_get(&key).unwrap().map(|value| value.id);
                assert_eq!(found, self.use_item(key));
            }
            _ => return self.pass(),
        }
        self.settle(Vec::new(), None);
        self.check(key);
    }

    fn pass(&mut self) {
        let by = TICK * self.bytes.up_to(11) as u32 / 4;
        self.clock.advance(by);
        self.now += by;
        if self.bytes.up_to(3) == 0 {
            return;
        }
        self.driver.turn();
        let reached = self.now.as_nanos() / TICK.as_nanos();
        let has_turned = mem::replace(&mut self.turned, reached) < reached;
        // Otherwise the receiver stays full.
        if self.bound.is_none() || self.bytes.up_to(1) == 0 {
            self.settle(Vec::new(), None);
            // One that has replaced another waits until that is written. The timer asks again at
            // the second tick at the latest.
            let due = |item: &Item| {
                let written = self.written.get(&item.key);
                let asked = written.map_or(Duration::ZERO, |&written| written + 2 * TICK);
                let due = item.deadline.max(asked);
                due.as_nanos().div_ceil(TICK.as_nanos()) <= reached
                    && !self.reserved.contains(&item.key)
            };
            let is_in_time = !has_turned || !self.items.iter().any(due);
            assert!(is_in_time, "an entry is late");
        }
    }

    /// Inserts in one of several ways.
    fn insert(&mut self, map: &Map, key: u8, call: u64) {
        let (delay, value) = (self.delay(), self.value());
        let new = self.item(key, &value);
        let (found, is_full) = (self.find(key), self.is_receiver_full());
        let deadline = self.timer.now().checked_add(delay);
        let mut delay = delay;
        let inserted = match (call, deadline) {
            (2, _) => {
                delay = TIME_TO_LIVE;
                map.put(key, value)
            }
            (3, Some(deadline)) => map.insert_at(key, value, deadline),
            (4, _) => {
                let present = map.insert_if_absent(key, value, delay);
                let present = present.map(|present| present.map(|(_, value)| value.id));
                if found.is_some() {
                    assert!(matches!(present, Ok(Some(id)) if id == new.id));
                    return self.settle(Vec::new(), None);
                }
                present.map(|_| None)
            }
            (13, _) => map.get_or_insert_with(key, || value, delay).map(|_| None),
            _ => map.insert(key, value, delay),
        };
        match inserted {
            Ok(old) => self.inserted(new, delay, old.map(|old| old.id), found),
            Err(rejected) => {
                let limit = NewTimeoutError::TooManyPending { limit: 2 };
                assert!(is_full && rejected.error == limit);
                assert_eq!(rejected.value.id, new.id);
            }
        }
        self.settle(Vec::new(), None);
        self.check(key);
    }

    fn item(&self, key: u8, value: &Value) -> Item {
        let Value { id, weight, .. } = *value;
        let [deadline, end] = [Duration::ZERO; 2];
        Item {
            key,
            id,
            weight,
            deadline,
            end,
            is_used: false,
        }
    }

    fn is_receiver_full(&self) -> bool {
        let len = self.receiver.as_ref().map_or(0, RemovedEntries::len);
        self.bound.is_some_and(|bound| len >= bound)
    }

    /// An item was inserted. The call has returned `old`. `found` is the place of the item that was
    /// under its key.
    fn inserted(&mut self, new: Item, delay: Duration, old: Option<usize>, found: Option<usize>) {
        let replaced = found.map(|at| self.items.remove(at));
        let mut expected = Vec::new();
        match replaced {
            Some(Item { key, id, .. }) if self.replaced_go_out => {
                assert_eq!(old, None);
                expected.push((key, id, Cause::Replaced));
            }
            replaced => assert_eq!(old, replaced.map(|replaced| replaced.id)),
        }
        let id = new.id;
        self.items.push(new);
        self.set_time(self.items.len() - 1, delay);
        self.settle(expected, Some(id));
    }

    fn touch(&mut self, map: &Map, key: u8, call: u64) {
        let (delay, found) = (self.delay(), self.find(key));
        let (is_touched, delay) = match (call, self.timer.now().checked_add(delay)) {
            (7, _) | (_, None) => (map.touch(&key, delay), delay),
            (8, Some(deadline)) => (map.touch_at(&key, deadline), delay),
            _ => (map.renew(&key), TIME_TO_LIVE),
        };
        assert_eq!(is_touched, found.is_some());
        if let Some(at) = found {
            self.set_time(at, delay);
        }
    }

    fn entry(&mut self, map: &Map, key: u8) {
        let (choice, delay) = (self.bytes.up_to(3), self.delay());
        let is_full = self.is_receiver_full();
        match map.entry(key) {
            Entry::Occupied(mut entry) => {
                assert_eq!(self.use_item(key), Some(entry.get().id));
                // It comes back as the last one.
                let at = self.find(key).expect("it is there");
                let item = self.items.remove(at);
                self.items.push(unused(item));
                match choice {
                    0 => {
                        let removed = self.items.pop().map(|item| item.id);
                        assert_eq!(Some(entry.remove().id), removed);
                    }
                    1 => {
                        assert!(entry.touch(delay));
                        self.set_time(self.items.len() - 1, delay);
                        self.items.last_mut().unwrap().is_used = false;
                    }
                    2 => {
                        let value = self.value();
                        let last = self.items.last_mut().unwrap();
                        let old = mem::replace(&mut last.id, value.id);
                        assert_eq!(entry.insert(value).id, old);
                    }
                    _ => {}
                }
            }
            Entry::Vacant(entry) if choice == 0 => assert_eq!(entry.into_key(), key),
            Entry::Vacant(entry) => {
                let value = self.value();
                let new = self.item(key, &value);
                match entry.insert(value, delay) {
                    Ok(entry) => {
                        drop(entry);
                        self.inserted(new, delay, None, None);
                    }
                    Err(rejected) => assert!(is_full && rejected.value.id == new.id),
                }
            }
        }
        self.settle(Vec::new(), None);
        self.check(key);
    }

    /// `spares`: those whose keys are reserved stay.
    fn take_living(&mut self, spares: bool, test: impl Fn(&Item) -> bool) -> Vec<Item> {
        let items = mem::take(&mut self.items).into_iter();
        let (taken, kept) = items.partition(|item| {
            let is_spared = spares && self.reserved.contains(&item.key);
            self.is_alive(item) && !is_spared && test(item)
        });
        self.items = kept;
        taken
    }

    /// The living items that pass the test have left.
    fn remove_living(&mut self, test: impl Fn(&Item) -> bool, cause: Cause) {
        let spares = cause == Cause::Removed;
        let removed = self.take_living(spares, test).into_iter();
        let left = removed.map(|Item { key, id, .. }| (key, id, cause));
        let (waiting, left): (Vec<_>, _) = left.partition(|(key, ..)| self.reserved.contains(key));
        self.waiting.extend(waiting);
        if !spares {
            // The dead ones too, which otherwise the timer leaves in the map.
            let items = mem::take(&mut self.items).into_iter();
            let is_reserved = |item: &Item| self.reserved.contains(&item.key);
            let (dead, rest): (Vec<_>, _) = items.partition(is_reserved);
            self.items = rest;
            let dead = dead.iter().map(|item| (item.key, item.id, Cause::Expired));
            self.waiting.extend(dead);
        }
        self.settle(left, None);
    }

    /// Returns the entry that is written next under the same key.
    fn end_future(&mut self, runs: bool) -> Option<Left> {
        let mut future = self.futures.lock().unwrap().pop_front()?;
        if runs {
            let mut context = Context::from_waker(Waker::noop());
            assert!(future.as_mut().poll(&mut context).is_pending());
            let key = self.reserved[0];
            assert!(self.map.as_ref().is_none_or(|map| is_reserved(map, key)));
            assert!(future.as_mut().poll(&mut context).is_ready());
        }
        drop(future);
        let key = self.reserved.pop_front().expect("there was a future");
        self.written.insert(key, self.now);
        let next = self.waiting.iter().position(|(own, ..)| *own == key)?;
        Some(self.waiting.remove(next))
    }

    /// Returns what has left the map.
    fn take_output(&mut self) -> Vec<Left> {
        let mut left = Vec::new();
        let is_reserved = matches!(self.output, Output::WriteBack | Output::AsyncWriteBack);
        for (entry, was_reserved) in self.handled.lock().unwrap().drain(..) {
            let is_expected = was_reserved == is_reserved || self.map.is_none();
            assert!(is_expected, "{entry:?} is not reserved");
            left.push(entry);
        }
        if self.output == Output::AsyncWriteBack {
            self.reserved.extend(left.iter().map(|(key, ..)| *key));
        }
        let Some(receiver) = &mut self.receiver else {
            return left;
        };
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(removed)) = receiver.poll_recv(&mut context) {
            left.push((removed.key, removed.value.id, removed.cause));
        }
        left
    }

    /// Compares what has left the map with what should have: `expected`, dead items, and what the
    /// `new` item has evicted.
    fn settle(&mut self, mut expected: Vec<Left>, new: Option<usize>) {
        let mut left = self.take_output();
        left.retain(|&(key, id, cause)| {
            if expected.contains(&(key, id, cause)) {
                return true;
            }
            let at = self.items.iter().position(|item| item.id == id);
            let is_dead = at.is_some_and(|at| !self.is_alive(&self.items[at]));
            if cause == Cause::Expired {
                assert!(is_dead, "{id} of key {key} is not dead");
                self.items.remove(at.unwrap());
            }
            cause != Cause::Expired
        });
        if new.is_some() && self.items.last().map(|item| item.id) == new {
            let new = self.items.pop().expect("there is a last one");
            expected.extend(self.evict(&new));
            if new.weight <= self.max_weight {
                self.items.push(unused(new));
            }
        }
        left.sort_unstable_by_key(|(_, id, _)| *id);
        expected.sort_unstable_by_key(|(_, id, _)| *id);
        assert_eq!(left, expected);
        let live = 1 + self.items.len() + self.reserved.len() + self.waiting.len();
        assert_eq!(Arc::strong_count(&self.live), live, "values");
        assert_eq!(self.timer.pending_timeouts(), self.items.len());
        let Some(map) = &self.map else { return };
        assert_eq!(map.len(), self.items.len());
        let living = self.items.iter().filter(|item| self.is_alive(item));
        assert_eq!(sorted(map.keys()), sorted(living.map(|item| item.key)));
    }

    /// Makes room for a new item. Returns what that evicts, perhaps the item itself.
    fn evict(&mut self, new: &Item) -> Vec<Left> {
        let mut evicted = Vec::new();
        let is_full = |items: &[Item]| {
            let weight: u32 = items.iter().map(|item| item.weight).sum();
            items.len() >= self.max_entries || weight + new.weight > self.max_weight
        };
        while is_full(&self.items) {
            let is_dead = |item: &Item| item.deadline <= self.now;
            let are_alive = !is_dead(new) && !self.items.iter().any(is_dead);
            assert!(are_alive, "the dead leave first");
            if new.weight > self.max_weight {
                evicted.push((new.key, new.id, Cause::Evicted));
                break;
            }
            let first = self.items.remove(0);
            match first.is_used {
                true => self.items.push(unused(first)),
                false => evicted.push((first.key, first.id, Cause::Evicted)),
            }
        }
        evicted
    }

    /// Looks for a key.
    fn check(&mut self, key: u8) {
        let map = self.map();
        if self.waits(key) {
            return;
        }
        let remaining = map.remaining(&key);
        let item = self.find(key).map(|at| &self.items[at]);
        let left = item.map(|item| match item.deadline {
            Duration::MAX => Duration::MAX,
            deadline => deadline - self.now,
        });
        assert_eq!((remaining, map.contains_key(&key)), (left, left.is_some()));
        self.settle(Vec::new(), None);
        let was_written = self.output != Output::WriteBack || !self.has_dead(key);
        assert!(was_written, "the key of an unwritten entry is free");
    }

    /// Ends the timer or the map: the rest comes out.
    fn end(mut self) {
        self.settle(Vec::new(), None);
        if self.stops {
            self.timer.stop();
            assert!(self.map().put(0, self.value()).is_err());
        } else {
            *self.shared.lock().unwrap() = None;
            self.map = None;
        }
        self.remove_living(|_| true, Cause::Stopped);
        assert!(self.items.is_empty(), "all leave");
        *self.shared.lock().unwrap() = None;
        self.map = None;
        if let Some(receiver) = &mut self.receiver {
            let polled = receiver.poll_recv(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(None)));
        }
        while !self.reserved.is_empty() {
            let next = self.end_future(self.ids % 2 == 0);
            self.settle(next.into_iter().collect(), None);
        }
        assert_eq!(Arc::strong_count(&self.live), 1, "a value was leaked");
        assert_eq!(self.timer.stats().panics, 0);
    }
}
