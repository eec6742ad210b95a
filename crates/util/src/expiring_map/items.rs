//! The items of a map of timeouts, and how each of them ends.
//!
//! An *item* is a key, a value, a deadline and a timeout. The clock decides until when it lives.
//! The timeout only says when the map has to pass it on. What happens to the item is decided under
//! the lock of its key's shard, by the thread that removes it from the place where it is. There are
//! three places: the list of pending items; the map of current items, which has at most one item
//! per key; and the dead items that were set aside because a new item needed their place. The value
//! is in the same place as its item, so the thread that removes the item owns the value.
//!
//! | from | to | by |
//! |---|---|---|
//! | – | pending | `arm`, before the timeout exists |
//! | pending | current | `arm`, once the timeout exists; removes the item that was current |
//! | pending | returned | `arm`, if a living item is current that must not be replaced |
//! | pending | started | the timeout, if it expires before `arm` goes on; removes the item that was current in place of `arm` |
//! | pending | occupied | the same, if that item lives and must not be replaced: `arm` returns the entry |
//! | pending | ended | the timeout: rejected, cancelled by `stop` or `cancel_all`, or dropped by the executor. `arm` takes the entry |
//! | current, dead | aside | `arm` of the same key, or the timeout of its item; not in a map with a limit |
//! | current, dead | passed on | the same in a map with a limit, and `arm` of another key, if the shard is full |
//! | pending, dead | passed on | `arm`, if the shard is full |
//! | current or aside | started | the timeout: its task has the entry |
//! | current or aside | passed on | the timeout: cancelled by `stop` or `cancel_all`, or dropped by the executor |
//! | current, alive | replaced, removed | `arm`, `remove`, `retain`, `clear`, `drain`: they have the entry |
//! | current, alive | evicted | `arm` of another key, if the shard is full: it has the entry |
//! | current or aside | passed on | the drop of the map |
//!
//! A timeout that expires and finds its item in no place is too late: it does not run the task. So
//! each item ends once. It makes no difference whether the timeout can still be cancelled or waits
//! in an executor's queue already. And no item is left behind: however the timeout ends, it starts
//! or drops the [`Registration`] in its task, and that removes the item.
//!
//! With a lock held, no user code runs except the keys' `Eq` or `Equivalent`, `Clone` of keys in
//! `keys` and of values in `get`, the closures of `with` and `retain`, and in `touch` the clock.
//! Each of these may panic. The items stay where they are until it has returned, so its panic drops
//! no item under the lock. Otherwise the timer, which calls the clock and the waker, is called
//! without a lock. Removed items are passed on, and dropped, after the lock is released.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use equivalent::Equivalent;
use hashed_wheel::{Cancel, NewTimeoutError, Timeout, TimerTask};

use super::cause::Cause;
use super::entry::Entry;
use super::error::InsertError;
use super::output::Output;
use super::table::Table;
use crate::sync::{Arc, Mutex, MutexGuard};

/// A part of the keys, and their lock. In cache lines of its own: processors prefetch pairs of
/// them.
#[repr(align(128))]
pub(super) struct Shard<K, V> {
    items: Mutex<Items<K, V>>,
    /// Here, because the task of an item has its shard anyway.
    output: Arc<Output<K, V>>,
}

/// The items of one shard.
pub(super) struct Items<K, V> {
    /// The items of calls of `arm` that are in progress.
    pending: PendingItems<K, V>,
    pub(super) current: Table<K, V>,
}

/// A list, because there are few.
struct PendingItems<K, V> {
    /// The number of the next item.
    next: u64,
    items: Vec<(u64, NewItem<K, V>)>,
}

/// A pending item.
pub(super) struct NewItem<K, V> {
    /// Once the task has started, the entry that it has replaced, if any.
    entry: Option<Entry<K, V>>,
    deadline: u64,
    /// Whether it replaces a living item of its key.
    replaces: bool,
    state: NewState,
}

enum NewState {
    /// The timeout has not ended.
    Armed,
    /// The timeout was rejected or cancelled, or the executor has dropped its task.
    Ended,
    /// A living item has the key.
    Occupied,
    /// The task has started.
    Started {
        /// Whether the item that it has replaced was alive.
        was_alive: bool,
    },
}

/// The item under a key.
pub(super) struct Current<K, V> {
    pub(super) hash: u64,
    pub(super) item: u64,
    /// Not later than that of the timeout, which has read the clock later.
    pub(super) deadline: u64,
    /// How often the deadline was set.
    pub(super) changes: u32,
    pub(super) timeout: Timeout,
    pub(super) entry: Entry<K, V>,
    /// Since it was inserted, or since an eviction has passed it over.
    pub(super) is_used: bool,
}

/// What became of a new item.
pub(super) enum Armed<K, V> {
    /// It is in the map. It has replaced a living item of its key, with this value.
    Inserted(Option<V>),
    /// It is not: a living item has the key.
    Occupied(Entry<K, V>),
}

impl<K, V> Shard<K, V> {
    pub(super) fn new(output: Arc<Output<K, V>>, max_entries: Option<usize>) -> Self {
        let pending = PendingItems {
            next: 0,
            items: Vec::new(),
        };
        let items = Items {
            pending,
            current: Table::new(max_entries),
        };
        Self {
            items: Mutex::new(items),
            output,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Items<K, V>> {
        self.items.lock()
    }

    /// Takes the lock for a call that has read the clock before.
    pub(super) fn lock_at(&self, now: u64) -> MutexGuard<'_, Items<K, V>> {
        let mut items = self.items.lock();
        items.current.see(now);
        items
    }
}

impl<K, V> PendingItems<K, V> {
    /// Returns the number of the new item.
    fn add(&mut self, new: NewItem<K, V>) -> u64 {
        let item = self.next;
        self.next += 1;
        self.items.push((item, new));
        item
    }

    fn find(&mut self, item: u64) -> Option<&mut NewItem<K, V>> {
        self.items
            .iter_mut()
            .find(|(number, _)| *number == item)
            .map(|(_, new)| new)
    }

    fn remove(&mut self, item: u64) -> Option<NewItem<K, V>> {
        let at = self.items.iter().position(|(number, _)| *number == item)?;
        Some(self.items.swap_remove(at).1)
    }
}

impl<K, V> NewItem<K, V> {
    pub(super) fn new(deadline: u64, replaces: bool) -> Self {
        Self {
            entry: None,
            deadline,
            replaces,
            state: NewState::Armed,
        }
    }

    pub(super) fn with(self, entry: Entry<K, V>) -> Self {
        Self {
            entry: Some(entry),
            ..self
        }
    }
}

impl<K: Eq, V> NewItem<K, V> {
    /// Frees the key for this item, if it has not started. Returns the living item that had the
    /// key. If it must not be replaced, it stays, and this item becomes `Occupied`.
    fn claim_key(&mut self, hash: u64, current: &mut Table<K, V>) -> Option<Current<K, V>> {
        let key = match (&self.state, &self.entry) {
            (NewState::Armed | NewState::Ended, Some(entry)) => entry.key(),
            _ => return None,
        };
        let has_key = |current: &Current<K, V>| current.has_key(key);
        if !self.replaces && current.find(hash, has_key).is_some() {
            self.state = NewState::Occupied;
            return None;
        }
        current.vacate(hash, has_key)
    }
}

impl<K, V> Current<K, V> {
    pub(super) fn is_alive(&self, now: u64) -> bool {
        now < self.deadline
    }

    /// Why the item has left: `cause` if it was alive.
    fn cause_at(&self, now: u64, cause: Cause) -> Cause {
        match self.is_alive(now) {
            true => cause,
            false => Cause::Expired,
        }
    }

    pub(super) fn set_deadline(&mut self, deadline: u64) {
        self.deadline = deadline;
        self.changes = self.changes.wrapping_add(1);
    }

    /// Whether the item is under this key.
    pub(super) fn has_key(&self, key: &(impl Equivalent<K> + ?Sized)) -> bool {
        key.equivalent(self.entry.key())
    }

    /// Cancels the timeout of an item that was removed, and returns its entry. Must be called
    /// without a lock held.
    pub(super) fn end(self) -> Entry<K, V> {
        // If the timeout has expired already, its registration finds the item removed and does not
        // run the task.
        self.timeout.cancel_and_drop();
        self.entry
    }
}

/// Why an item ends with its timeout, which did not start it. This reads the clock.
fn cause_of_end(is_alive: bool, timeout: &Timeout) -> Cause {
    match is_alive && !timeout.remaining().is_zero() {
        true => Cause::Stopped,
        false => Cause::Expired,
    }
}

/// Cancels the timeouts of removed items. Must be called without a lock held, and before the first
/// one is dropped, because dropping a key may panic.
pub(super) fn cancel_all<K, V>(removed: &[Current<K, V>]) {
    removed
        .iter()
        .for_each(|current| _ = current.timeout.cancel());
}

/// Ends removed items: cancels their timeouts, and passes all of them on, also if a handler panics.
/// Returns the first panic.
#[must_use]
pub(super) fn end_all<K, V>(
    removed: Vec<Current<K, V>>,
    output: &Output<K, V>,
    now: u64,
    cause: Cause,
) -> Option<Panic> {
    cancel_all(&removed);
    let mut panics = removed.into_iter().filter_map(|current| {
        let cause = current.cause_at(now, cause);
        catch_unwind(AssertUnwindSafe(|| output.pass_on(current.entry, cause))).err()
    });
    let first = panics.next();
    panics.for_each(drop_panic);
    first
}

/// What a panic carries.
pub(super) type Panic = Box<dyn Any + Send>;

/// Its `Drop` may panic too. Then what that one carries is leaked, because this could go on.
pub(super) fn drop_panic(panic: Panic) {
    mem::forget(catch_unwind(AssertUnwindSafe(|| drop(panic))));
}

impl<K, V> Armed<K, V> {
    /// Returns the value that was replaced.
    pub(super) fn replaced(self) -> Option<V> {
        match self {
            Self::Inserted(replaced) => replaced,
            Self::Occupied(_) => None,
        }
    }
}

/// Makes an item, and its timeout by `schedule`. Cancels the item that is current, unless the new
/// one must not replace it. If none is, and the shard is full, cancels another item, or the new one
/// if it is dead already.
///
/// If the clock or a key's `Eq` panics, the new item is removed, and the current one stays.
pub(super) fn arm<K: Eq, V>(
    shard: &Arc<Shard<K, V>>,
    hash: u64,
    now: u64,
    new: NewItem<K, V>,
    schedule: impl FnOnce(Registration<K, V>) -> Result<Timeout, NewTimeoutError>,
) -> Result<Armed<K, V>, InsertError<K, V>> {
    let item = shard.lock_at(now).pending.add(new);
    let mut arming = Arming {
        shard,
        item: Some(item),
        timeout: None,
    };
    match schedule(Registration {
        shard: Some(Arc::clone(shard)),
        hash,
        item,
    }) {
        Ok(timeout) => {
            arming.timeout = Some(timeout);
            Ok(arming.finish(item, hash))
        }
        Err(error) => match arming.remove().and_then(|new| new.entry) {
            Some(entry) => {
                let (key, value) = entry.into_pair();
                Err(InsertError { key, value, error })
            }
            None => unreachable!("a rejected task does not start"),
        },
    }
}

/// A call of [`arm`]. If it ends early, its item is removed and its timeout cancelled.
struct Arming<'a, K, V> {
    shard: &'a Shard<K, V>,
    /// `None` once the item is not pending any more.
    item: Option<u64>,
    timeout: Option<Timeout>,
}

impl<K: Eq, V> Arming<'_, K, V> {
    /// Makes the item current, or returns it.
    fn finish(mut self, item: u64, hash: u64) -> Armed<K, V> {
        let output = &self.shard.output;
        let mut items = self.shard.lock();
        let Items { pending, current } = &mut *items;
        // The first step, because a key's `Eq` may panic.
        let replaced = pending
            .find(item)
            .and_then(|new| new.claim_key(hash, current));
        let Some(new) = pending.remove(item) else {
            unreachable!("no other call removes the item")
        };
        self.item = None;
        let now = current.now();
        match (new.state, new.entry, self.timeout.take()) {
            (NewState::Armed, Some(entry), Some(timeout)) => {
                let removed = current.insert(Current {
                    hash,
                    item,
                    deadline: new.deadline,
                    changes: 0,
                    timeout,
                    entry,
                    is_used: false,
                });
                drop(items);
                // At most one of the two: the place of a replaced item is free.
                if let Some(removed) = removed {
                    let cause = removed.cause_at(now, Cause::Evicted);
                    output.pass_on(removed.end(), cause);
                }
                let replaced = replaced.and_then(|old| {
                    let was_alive = old.is_alive(now);
                    output.end_replaced(old.end(), was_alive)
                });
                Armed::Inserted(replaced)
            }
            (NewState::Ended, Some(entry), Some(timeout)) => {
                drop(items);
                let replaced = replaced.and_then(|old| {
                    let was_alive = old.is_alive(now);
                    output.end_replaced(old.end(), was_alive)
                });
                output.pass_on(entry, cause_of_end(now < new.deadline, &timeout));
                Armed::Inserted(replaced)
            }
            (NewState::Occupied, Some(entry), timeout) => {
                drop(items);
                if let Some(timeout) = timeout {
                    timeout.cancel_and_drop();
                }
                Armed::Occupied(entry)
            }
            (state, replaced, _) => {
                drop(items);
                let was_alive = matches!(state, NewState::Started { was_alive: true });
                Armed::Inserted(replaced.and_then(|old| output.end_replaced(old, was_alive)))
            }
        }
    }
}

impl<K, V> Arming<'_, K, V> {
    fn remove(&mut self) -> Option<NewItem<K, V>> {
        let item = self.item.take()?;
        self.shard.lock().pending.remove(item)
    }
}

impl<K, V> Drop for Arming<'_, K, V> {
    fn drop(&mut self) {
        let removed = self.remove();
        if let Some(timeout) = self.timeout.take() {
            timeout.cancel_and_drop();
        }
        drop(removed);
    }
}

/// A guard in the task of an item: it removes the item when the task starts or is dropped.
pub(super) struct Registration<K, V> {
    /// `None` once the item is removed.
    shard: Option<Arc<Shard<K, V>>>,
    hash: u64,
    item: u64,
}

type Started<K, V> = (Entry<K, V>, Arc<Shard<K, V>>);

impl<K: Eq, V> Registration<K, V> {
    /// Starts the item because its timeout has expired: removes it, or marks it as started if it is
    /// still pending. Returns the entry if the task is to run, and the shard.
    fn start(&mut self) -> Option<Started<K, V>> {
        // If a key's `Eq` panics, the item ends with this guard.
        let entry = self.shard.as_ref()?.start(self.hash, self.item);
        let shard = self.shard.take()?;
        Some((entry?, shard))
    }
}

impl<K: Eq, V> Shard<K, V> {
    fn start(&self, hash: u64, item: u64) -> Option<Entry<K, V>> {
        let mut items = self.lock();
        let Items { pending, current } = &mut *items;
        let Some(new) = pending.find(item) else {
            let own = current.remove_item(hash, item);
            drop(items);
            return own.map(|own| own.entry);
        };
        // `arm` has not gone on yet: do the rest of its work here.
        let replaced = new.claim_key(hash, current);
        if matches!(new.state, NewState::Occupied) {
            return None;
        }
        let was_alive = replaced
            .as_ref()
            .is_some_and(|old| old.is_alive(current.now()));
        new.state = NewState::Started { was_alive };
        let (old, timeout) = replaced.map(|old| (old.entry, old.timeout)).unzip();
        let entry = mem::replace(&mut new.entry, old);
        drop(items);
        if let Some(timeout) = timeout {
            timeout.cancel_and_drop();
        }
        entry
    }
}

/// The item ends without a start: `stop` or `cancel_all` has cancelled the timeout, or the executor
/// has dropped its task. (The map itself removes an item before it cancels it.)
impl<K, V> Drop for Registration<K, V> {
    fn drop(&mut self) {
        let Some(shard) = self.shard.take() else {
            return;
        };
        let mut items = shard.lock();
        if let Some(new) = items.pending.find(self.item) {
            // `arm` takes the entry.
            new.state = NewState::Ended;
            return;
        }
        let removed = items.current.remove_item(self.hash, self.item);
        let now = items.current.now();
        // Release the lock first, because the clock, the handler, the key and the value are user
        // code.
        drop(items);
        if let Some(removed) = removed {
            let cause = cause_of_end(removed.is_alive(now), &removed.timeout);
            shard.output.pass_on(removed.entry, cause);
        }
    }
}

/// The timer's task of an item.
pub(super) struct Expire<K, V, const ON_WORKER: bool>(pub(super) Registration<K, V>);

impl<K, V, const ON_WORKER: bool> TimerTask for Expire<K, V, ON_WORKER>
where
    K: Eq + Send + 'static,
    V: Send + 'static,
{
    const RUNS_ON_WORKER: bool = ON_WORKER;

    fn run(mut self, _: &Timeout) {
        if let Some((entry, shard)) = self.0.start() {
            shard.output.pass_on(entry, Cause::Expired);
        }
    }
}
