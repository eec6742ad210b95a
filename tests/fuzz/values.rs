//! Compares an expiring map with a map from each key to its timeout. Expired entries go to a
//! handler or to a receiver.
//!
//! To a receiver they go without a call of the user's code. So the model looks for them whenever
//! the timer calls back: see `settle_values`.
//!
//! An entry lives until its deadline by the clock. A dead one leaves its key when the timer has
//! fired, or when another entry gets the key. If its timeout or the map ends before the timer has
//! fired, it comes out as expired too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::{Cause, Entry, ExpiringMap, Removed, RemovedEntries};

use super::{Kind, Model, Phase, Script, State, Task};

const KEYS: u64 = 4;

pub(super) struct ValuesModel {
    /// Counts as a handle of the timer and is dropped before the last handle.
    map: Option<ExpiringMap<u8, Task>>,
    output: Output,
    /// The timeout of each key. It is pending, or in the executor's queue.
    keys: BTreeMap<u8, usize>,
    /// Those of dead entries whose keys have others. They are in the map until their timeouts have
    /// fired.
    aside: BTreeSet<usize>,
    /// The entries that have expired and were not delivered, in the order in which they expired.
    expired: Vec<usize>,
    receiver: Option<Receiver>,
}

/// Where expired entries go.
#[derive(Clone, Copy, PartialEq)]
enum Output {
    Handler,
    Receiver,
}

struct Receiver {
    entries: RemovedEntries<u8, Task>,
    /// Entries that the model has received before the script does.
    arrived: VecDeque<(u8, Task)>,
    /// Those that were dead when they ended otherwise.
    dead: Vec<Task>,
    task: Arc<ReceiverTask>,
    /// The last poll has found no entry, and none has expired since.
    is_waiting: bool,
    /// How often its task should have been woken.
    wakes: usize,
}

/// The task of an executor that polls the receiver.
#[derive(Default)]
struct ReceiverTask(AtomicUsize);

impl Wake for ReceiverTask {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl ValuesModel {
    /// `choice` 0 makes no map.
    pub(super) fn new(choice: u64, timer: &HashedWheelTimer) -> Option<Self> {
        let model = |map, output| Self {
            map: Some(map),
            output,
            keys: BTreeMap::new(),
            aside: BTreeSet::new(),
            expired: Vec::new(),
            receiver: None,
        };
        let builder = ExpiringMap::builder(timer).causes([Cause::Expired]);
        match choice {
            1 => {
                let map = builder.build_with_handler(Task::run_value);
                Some(model(map, Output::Handler))
            }
            2 | 3 => {
                let (map, entries) = builder.build_with_receiver();
                let receiver = Receiver {
                    entries,
                    arrived: VecDeque::new(),
                    dead: Vec::new(),
                    task: Arc::default(),
                    is_waiting: false,
                    wakes: 0,
                };
                Some(Self {
                    receiver: Some(receiver),
                    ..model(map, Output::Receiver)
                })
            }
            _ => None,
        }
    }

    /// Removes the timeout of an entry of this key, if it is still there.
    fn free_key(&mut self, key: u8, id: usize) -> bool {
        if self.keys.get(&key) == Some(&id) {
            return self.keys.remove(&key).is_some();
        }
        self.aside.remove(&id)
    }
}

impl Model {
    /// With an executor, at most one timeout without a handle may be pending. The executor's model
    /// could not tell two of them apart.
    ///
    /// `replaced` is the timeout whose place a new one takes.
    pub(super) fn has_room_for_hidden(&self, max: usize, replaced: Option<usize>) -> bool {
        let is_other = |id: &&usize| {
            let record = &self.records[**id];
            record.is_periodic()
                || self.has_executor && record.is_hidden() && Some(**id) != replaced
        };
        let max = if self.has_executor { 1 } else { max };
        self.pending.iter().filter(is_other).count() < max && self.has_room()
    }

    /// Finds the entries that have expired since the last call without a call of the user's code.
    pub(super) fn settle_values(&mut self) {
        let values = self.values.as_mut();
        let Some(receiver) = values.and_then(|values| values.receiver.as_mut()) else {
            return;
        };
        let (count, mut arrived) = (receiver.entries.len(), Vec::new());
        if count == 0 {
            return;
        }
        let mut context = Context::from_waker(Waker::noop());
        let entries = &mut receiver.entries;
        let polled = entries.poll_recv_many(&mut context, &mut arrived, count);
        assert_eq!(polled, Poll::Ready(count));
        let mut is_tick_uncertain = false;
        for Removed { key, value, cause } in arrived {
            assert_eq!(cause, Cause::Expired);
            if self.was_dead(value.id) {
                let receiver = self.values().receiver.as_mut().expect("it has received");
                receiver.dead.push(value);
                continue;
            }
            self.fire_next(value.id);
            is_tick_uncertain |= self.fired.is_tick_uncertain;
            assert!(self.free_key(value.id), "entry {} was removed", value.id);
            let values = self.values();
            values.expired.push(value.id);
            let receiver = values.receiver.as_mut().expect("it has received");
            receiver.arrived.push_back((key, value));
        }
        self.fired.is_tick_uncertain = is_tick_uncertain;
        self.expect_wake();
    }

    /// Whether an entry that comes out as expired was dead when the map or its timeout ended. The
    /// timer has not fired for it.
    fn was_dead(&mut self, id: usize) -> bool {
        let is_turning = self.phase == Phase::Turning && !self.is_stopped;
        if is_turning && self.closing.is_some() {
            self.shutdown_turns();
        }
        let record = &self.records[id];
        let was_dead = match record.state {
            State::Pending => {
                let is_reached = record.deadline.div_ceil(self.tick) <= self.turned;
                let is_due = record.due <= self.turned || record.may_fire_now;
                !is_turning || !is_reached || !is_due
            }
            state => state != State::HandedOver,
        };
        let is_dead = !was_dead || self.remaining(id).is_zero();
        assert!(is_dead, "entry {id} is alive");
        was_dead
    }

    /// Frees the key of this timeout, if the key is still its own.
    pub(super) fn free_key(&mut self, id: usize) -> bool {
        let Kind::Value { key, .. } = self.records[id].kind else {
            return false;
        };
        let values = self.values.as_mut();
        values.is_some_and(|values| values.free_key(key, id))
    }

    fn values(&mut self) -> &mut ValuesModel {
        self.values.as_mut().expect("there is a map")
    }

    /// Entries have gone to the receiver, if there is one.
    fn expect_wake(&mut self) {
        let Some(receiver) = &mut self.values().receiver else {
            return;
        };
        receiver.wakes += usize::from(std::mem::take(&mut receiver.is_waiting));
    }

    /// An expired entry was delivered. Those that were never reset come in the order in which they
    /// have expired.
    fn deliver(&mut self, id: usize, key: u8) {
        let expired = &self.values.as_ref().expect("there is a map").expired;
        let at = expired.iter().position(|&expired| expired == id);
        let at = at.expect("the entry has expired");
        let is_first = expired[..at].iter().all(|&id| self.records[id].was_reset);
        let is_in_order = is_first || self.records[id].was_reset;
        assert!(is_in_order, "entry {id} is not in order");
        self.values().expired.remove(at);
        let record = &mut self.records[id];
        assert!(matches!(record.kind, Kind::Value { key: own, .. } if own == key));
        assert_eq!(record.state, State::HandedOver);
        record.state = State::Ran;
    }

    /// Returns the timeout of the living entry of a key.
    fn living(&mut self, key: u8) -> Option<usize> {
        let id = self.values().keys.get(&key).copied()?;
        (!self.remaining(id).is_zero()).then_some(id)
    }

    /// Removes the living entry of a key, so that it is not delivered any more. Returns its
    /// timeout.
    fn remove_value(&mut self, key: u8) -> Option<usize> {
        let id = self.living(key)?;
        self.values().keys.remove(&key);
        self.cancel_record(id);
        self.records[id].state = State::Cancelled;
        Some(id)
    }

    /// The same for all keys. Returns how many there were. The dead entries are set aside.
    fn remove_all_values(&mut self) -> usize {
        let keys: Vec<_> = self.values().keys.keys().copied().collect();
        let removed = keys.iter().filter_map(|key| self.remove_value(*key));
        let removed = removed.count();
        let values = self.values();
        let dead = std::mem::take(&mut values.keys).into_values();
        values.aside.extend(dead);
        removed
    }

    /// Removes all entries, also the dead ones.
    fn end_all_values(&mut self) {
        self.remove_all_values();
        for id in std::mem::take(&mut self.values().aside) {
            self.cancel_record(id);
            self.records[id].state = State::Cancelled;
        }
    }

    /// After a turn.
    pub(super) fn check_values(&mut self) {
        self.settle_values();
    }
}

impl Script {
    /// `choice` is at most 15.
    pub(super) fn use_value_map(&self, choice: u64) {
        let model = self.model();
        // While the timer is being stopped, the number of free keys is not specified.
        let is_draining = model.phase == Phase::Draining;
        let Some(values) = model.values.as_ref().filter(|_| !is_draining) else {
            return;
        };
        let Some(map) = values.map.clone() else {
            drop(model);
            self.receive();
            return;
        };
        let key = model.bytes.up_to(KEYS - 1) as u8;
        drop(model);
        match choice {
            0..7 => self.insert(&map, key),
            7 | 8 => self.touch(&map, key),
            9 | 10 => self.remove(&map, key),
            11 => self.check_map(&map, key),
            12 => self.retain(&map, key),
            13..15 => self.receive(),
            _ if key == 0 => {
                drop(map);
                self.drop_values();
            }
            _ => {
                let removed = self.model().remove_all_values();
                assert_eq!(map.clear(), removed);
            }
        }
    }

    fn insert(&self, map: &ExpiringMap<u8, Task>, key: u8) {
        let mut model = self.model();
        let is_silent = model.values().output != Output::Handler;
        let replaced = model.living(key);
        if !is_silent && !model.has_room_for_hidden(usize::MAX, replaced) || !model.has_room() {
            return;
        }
        // Some calls that drop values do not catch their panics.
        let (delay, behaviour) = (model.delay(), model.bytes.up_to(255) & !1);
        let deadline = model.deadline(delay);
        // The entry would take over the timeout, and have no record of its own.
        let is_later = |id: usize| deadline >= model.records[id].deadline;
        if replaced.is_some_and(is_later) {
            return;
        }
        let id = model.schedule(Kind::Value { key, is_silent }, deadline);
        let is_rejected = model.records[id].state == State::Rejected;
        if !is_rejected {
            model.remove_value(key);
            let values = model.values();
            values.aside.extend(values.keys.insert(key, id));
        }
        drop(model);
        let value = Task {
            id,
            behaviour,
            script: self.clone(),
        };
        // The same, if there is no living entry.
        let inserted = match replaced {
            None if key % 2 == 1 => map.entry(key).or_insert(value, delay).map(|_| None),
            _ => map.insert(key, value, delay),
        };
        match inserted {
            Ok(old) => assert_eq!((old.map(|old| old.id), is_rejected), (replaced, false)),
            Err(rejected) => {
                self.model().expect_rejection(&rejected.error);
                let returned = (rejected.key, rejected.value.id);
                assert_eq!(returned, (key, id), "the value comes back");
            }
        }
    }

    fn touch(&self, map: &ExpiringMap<u8, Task>, key: u8) {
        let mut model = self.model();
        let delay = model.delay();
        let id = model.living(key);
        if let Some(id) = id {
            let deadline = model.deadline(delay);
            // The timer would ask for it when the old one comes, which this model does not know.
            if deadline > model.records[id].deadline {
                return;
            }
            model.reset_record(id, deadline);
        }
        drop(model);
        let is_touched = match map.entry(key) {
            Entry::Occupied(mut entry) if key % 2 == 1 => entry.touch(delay),
            entry => {
                drop(entry);
                map.touch(&key, delay)
            }
        };
        assert_eq!(is_touched, id.is_some());
    }

    fn remove(&self, map: &ExpiringMap<u8, Task>, key: u8) {
        let expected = self.model().remove_value(key);
        let removed = match map.entry(key) {
            Entry::Occupied(entry) if key % 2 == 1 => Some(entry.remove()),
            entry => {
                drop(entry);
                map.remove(&key)
            }
        };
        assert_eq!(removed.as_ref().map(|task| task.id), expected);
        drop(removed);
        assert!(expected.is_none_or(|id| self.model().records[id].is_dropped()));
    }

    fn check_map(&self, map: &ExpiringMap<u8, Task>, key: u8) {
        let mut model = self.model();
        let id = model.living(key);
        let keys: BTreeSet<_> = model.values().keys.keys().copied().collect();
        let len = keys.len() + model.values().aside.len();
        assert_eq!((map.len(), map.is_empty()), (len, len == 0));
        let mut living = keys;
        living.retain(|key| model.living(*key).is_some());
        assert_eq!(map.keys().into_iter().collect::<BTreeSet<_>>(), living);
        let found = (map.contains_key(&key), map.with(&key, |task| task.id));
        assert_eq!(found, (id.is_some(), id));
        let remaining = id.map(|id| model.remaining(id));
        assert_eq!(map.remaining(&key), remaining);
    }

    /// Removes the keys up to this one.
    fn retain(&self, map: &ExpiringMap<u8, Task>, key: u8) {
        let removed: Vec<_> = (0..=key)
            .filter_map(|key| self.model().remove_value(key))
            .collect();
        map.retain(|kept, _| *kept > key);
        let model = self.model();
        assert!(removed.iter().all(|&id| model.records[id].is_dropped()));
    }

    /// Polls the receiver, perhaps by another task than before.
    fn receive(&self) {
        let mut model = self.model();
        let is_another = model.bytes.up_to(1) == 1;
        let ValuesModel {
            receiver,
            expired,
            map,
            ..
        } = model.values();
        let (has_entries, is_closed) = (!expired.is_empty(), map.is_none());
        let Some(receiver) = receiver else { return };
        receiver.check();
        if is_another {
            (receiver.task, receiver.wakes) = (Arc::default(), 0);
        }
        if let Some((key, task)) = receiver.arrived.pop_front() {
            model.deliver(task.id, key);
            drop(model);
            drop(task);
            return;
        }
        let waker = Waker::from(Arc::clone(&receiver.task));
        let polled = receiver.entries.poll_recv(&mut Context::from_waker(&waker));
        receiver.is_waiting = polled.is_pending();
        assert!(!has_entries, "all that have expired have arrived");
        assert_eq!(is_closed, matches!(polled, Poll::Ready(None)));
    }

    /// Cancels all entries. Those that have expired already can still be received.
    pub(super) fn drop_values(&self) {
        let mut model = self.model();
        let Some(values) = &mut model.values else {
            return;
        };
        let map = values.map.take();
        model.end_all_values();
        if map.is_some() {
            // The end of the map wakes a task that waits.
            model.expect_wake();
        }
        drop(model);
        drop(map);
        self.drop_dead();
    }

    /// Drops the entries that were dead when they ended.
    pub(super) fn drop_dead(&self) {
        let mut model = self.model();
        model.settle_values();
        let values = model.values.as_mut();
        let Some(receiver) = values.and_then(|values| values.receiver.as_mut()) else {
            return;
        };
        let dead = std::mem::take(&mut receiver.dead);
        drop(model);
        drop(dead);
    }

    /// Drops the map, and receives what is left.
    pub(super) fn end_values(&self) {
        self.drop_values();
        let is_expected = |values: &ValuesModel| !values.expired.is_empty();
        while self.model().values.as_ref().is_some_and(is_expected) {
            self.receive();
        }
        let values = self.model().values.take();
        if let Some(Receiver { entries, task, .. }) = values.and_then(|values| values.receiver) {
            drop(entries);
            assert_eq!(std::sync::Arc::strong_count(&task), 1, "a waker was leaked");
        }
    }
}

impl Receiver {
    /// The receiver has the waker of a task that waits, and has woken it once if an entry came.
    fn check(&self) {
        let wakes = self.task.0.load(SeqCst);
        assert_eq!(wakes, self.wakes, "wakes of the receiver");
        let held = Arc::strong_count(&self.task) - 1;
        assert_eq!(held, usize::from(self.is_waiting), "wakers of the receiver");
    }
}

impl Task {
    /// The handler of entries.
    fn run_value(removed: Removed<u8, Self>) {
        let (key, task) = (removed.key, removed.value);
        {
            let mut model = task.script.model();
            if model.was_dead(task.id) {
                drop(model);
                return drop(task);
            }
            if !model.has_executor {
                model.fire(task.id);
            }
            assert!(model.free_key(task.id), "entry {} was removed", task.id);
            model.values().expired.push(task.id);
            model.deliver(task.id, key);
        }
        task.act();
    }
}
