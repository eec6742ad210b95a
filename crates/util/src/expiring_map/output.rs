//! Where the entries go that leave a map.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout};

use super::cause::{Cause, Removed};
use super::item::Armed;
use super::panics::Panics;
use super::receiver::Sender;
use super::shard::{Leaving, Reservation, Shard};
use crate::sync::Arc;

/// The destination of entries that leave a map, chosen by its constructor. Each method must be
/// called without a lock held, because it runs user code.
// `AssertUnwindSafe`: the engine catches the panics of a task, and a call on the map passes its
// panic on when it has done its work.
pub(super) struct Output<K, V> {
    /// Takes an entry, and what keeps its key reserved until the output has done with it.
    pub(super) take: AssertUnwindSafe<Box<Take<K, V>>>,
    pub(super) arm: Arm<K, V>,
    /// Whether the key of an entry stays reserved until the output has done with it.
    pub(super) reserves_keys: bool,
    pub(super) causes: Vec<Cause>,
    /// The receiver, and how many entries it takes.
    pub(super) bound: Option<(Arc<Sender<K, V>>, usize)>,
}

type Take<K, V> = dyn Fn(Removed<K, V>, Option<Reservation<K, V>>) + Send + Sync;

/// Schedules the timeout of an item, whose task runs where the output needs it.
type Arm<K, V> =
    fn(&Arc<Shard<K, V>>, &HashedWheelTimer, u64, Duration) -> Result<Timeout, NewTimeoutError>;

impl<K, V> Output<K, V> {
    pub(super) fn new(
        arm: Arm<K, V>,
        reserves_keys: bool,
        take: impl Fn(Removed<K, V>, Option<Reservation<K, V>>) + Send + Sync + 'static,
    ) -> Self {
        Self {
            take: AssertUnwindSafe(Box::new(take)),
            arm,
            reserves_keys,
            causes: Vec::new(),
            bound: None,
        }
    }

    /// Returns the error of an insertion if the receiver is full.
    pub(super) fn check(&self) -> Result<(), NewTimeoutError> {
        match &self.bound {
            &Some((ref queue, limit)) if queue.len() >= limit => {
                Err(NewTimeoutError::TooManyPending { limit })
            }
            _ => Ok(()),
        }
    }

    /// Passes on an entry that has left the map. Drops it if its cause was not chosen.
    pub(super) fn pass_on(&self, leaving: Leaving<K, V>) {
        drop(leaving.timeout);
        let is_chosen = |entry: &Removed<K, V>| self.causes.contains(&entry.cause);
        if let Some(entry) = leaving.entry.filter(is_chosen) {
            (self.take)(entry, leaving.reservation);
        }
    }

    /// The same for several. If one panics, the others are passed on all the same.
    ///
    /// All timeouts are cancelled first, so the timer has room for what the handlers insert.
    pub(super) fn pass_on_all(&self, mut removed: Vec<Leaving<K, V>>, panics: &mut Panics) {
        for leaving in &mut removed {
            leaving.timeout = Armed(None);
        }
        for leaving in removed {
            panics.catch(|| self.pass_on(leaving));
        }
    }

    /// Ends a replaced entry. Returns its value, unless it is passed on.
    pub(super) fn end_replaced(&self, leaving: Leaving<K, V>) -> Option<V> {
        if self.causes.contains(&Cause::Replaced) {
            self.pass_on(leaving);
            return None;
        }
        drop(leaving.timeout);
        leaving.entry.map(|Removed { key, value, .. }| {
            // First: if it panics, the value is dropped too.
            drop(key);
            value
        })
    }
}

/// A future of a handler, for a function that runs futures.
pub type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
