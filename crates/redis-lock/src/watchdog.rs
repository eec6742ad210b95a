//! Renews leases in batches.
//!
//! Locks that one call can renew form a group: those with the same lease, on a cluster those of
//! one slot. (A lock with a shorter lease would have the others renewed with it, more
//! often than necessary, in calls that fail earlier than theirs.) Each group has one timeout on the
//! wheel, at the time when the first of its locks is due. Then one call renews up to 256 locks:
//! those that are due, and those that are due next, even if that is later. So the locks of a batch
//! are due together from then on, and a group of n locks needs n/256 calls per third of the lease,
//! however the locks were taken.
//!
//! A lock is due a third of its lease after the start of its last renewal, or a sixth after the
//! start of one that failed. While a call renews it, it is in no group, so the watchdog never
//! renews a lock twice at a time. A lock that was released or lost in the meantime is not put back.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_util::{Cause, ExpiringMap, RemovedEntries};
use tokio::runtime::Handle;

use crate::calls::Calls;
use crate::error::{LockError, Loss};
use crate::hold::{GroupKey, Hold};
use crate::observe;
use crate::scripts::Found;

/// The maximum number of leases per call. Redis processes nothing else during a call.
const BATCH: usize = 256;

/// The held locks of a client that have to be renewed.
pub(crate) struct Watchdog {
    groups: Mutex<HashMap<GroupKey, Group>>,
    due: ExpiringMap<GroupKey, ()>,
    calls: Arc<Calls>,
    runtime: Handle,
}

/// The locks that one call can renew.
#[derive(Default)]
struct Group {
    /// In the order in which they are due.
    holds: BTreeMap<(Instant, u64), Arc<Hold>>,
    due_times: HashMap<u64, Instant>,
    /// When the timeout of the group expires.
    armed: Option<Instant>,
}

impl Group {
    fn insert(&mut self, due: Instant, hold: Arc<Hold>) {
        self.due_times.insert(hold.id, due);
        self.holds.insert((due, hold.id), hold);
    }

    fn remove(&mut self, id: u64) {
        if let Some(due) = self.due_times.remove(&id) {
            self.holds.remove(&(due, id));
        }
    }

    fn first_due(&self) -> Option<Instant> {
        self.holds.first_key_value().map(|(&(due, _), _)| due)
    }

    /// Removes a batch, if a lock is due.
    fn take_batch(&mut self, now: Instant) -> Option<Vec<Arc<Hold>>> {
        if self.first_due()? > now {
            return None;
        }
        let mut batch = Vec::new();
        while batch.len() < BATCH {
            let Some((_, hold)) = self.holds.pop_first() else {
                break;
            };
            self.due_times.remove(&hold.id);
            // A lock that is lost is not renewed, even if Redis still has it.
            if hold.is_renewable() {
                batch.push(hold);
            }
        }
        Some(batch)
    }
}

impl Watchdog {
    /// Starts a watchdog, which runs until it is dropped.
    pub(crate) fn start(
        calls: &Arc<Calls>,
        timer: &HashedWheelTimer,
        runtime: &Handle,
    ) -> Arc<Self> {
        let due = ExpiringMap::builder(timer).causes([Cause::Expired]);
        let (due, expired) = due.build_with_receiver();
        let (groups, calls) = (Mutex::default(), Arc::clone(calls));
        let watchdog = Arc::new(Self {
            groups,
            due,
            calls,
            runtime: runtime.clone(),
        });
        runtime.spawn(run(Arc::downgrade(&watchdog), expired));
        watchdog
    }

    /// Renews the lock from now on, if its options say so. `start` is when the call that took it
    /// was made.
    ///
    /// # Errors
    ///
    /// If the timer does not accept the timeout.
    pub(crate) fn watch(&self, hold: &Arc<Hold>, start: Instant) -> Result<(), NewTimeoutError> {
        if !hold.options.has_watchdog() {
            return Ok(());
        }
        self.put(hold, start + hold.options.lease_time() / 3)
    }

    /// Ends the renewals of a lock whose hold has ended.
    pub(crate) fn unwatch(&self, hold: &Hold) {
        let mut groups = self.groups();
        let Some(group) = groups.get_mut(&hold.group) else {
            return;
        };
        group.remove(hold.id);
        if group.holds.is_empty() {
            groups.remove(&hold.group);
            self.due.remove(&hold.group);
        }
    }

    /// Does nothing if renewals of this lock are not necessary any more.
    fn put(&self, hold: &Arc<Hold>, due: Instant) -> Result<(), NewTimeoutError> {
        let mut groups = self.groups();
        // Under the mutex: otherwise `unwatch` could come between the check and the insertion.
        if !hold.is_renewable() {
            return Ok(());
        }
        let group = groups.entry(hold.group).or_default();
        group.insert(due, Arc::clone(hold));
        self.arm(hold.group, group)
    }

    /// Schedules the timeout of the group, unless it already expires early enough.
    fn arm(&self, key: GroupKey, group: &mut Group) -> Result<(), NewTimeoutError> {
        let Some(due) = group.first_due() else {
            return Ok(());
        };
        if group.armed.is_some_and(|armed| armed <= due) {
            return Ok(());
        }
        self.due.insert_at(key, (), due)?;
        group.armed = Some(due);
        Ok(())
    }

    /// Returns the batches of a group that is due.
    fn take_due(&self, key: GroupKey) -> Vec<Vec<Arc<Hold>>> {
        let now = Instant::now();
        let mut groups = self.groups();
        let Some(group) = groups.get_mut(&key) else {
            return Vec::new();
        };
        group.armed = None;
        let mut batches = Vec::new();
        while let Some(batch) = group.take_batch(now) {
            batches.push(batch);
        }
        if group.holds.is_empty() {
            groups.remove(&key);
            return batches;
        }
        if self.arm(key, group).is_err() {
            let holds = group.holds.values().cloned().collect();
            drop(groups);
            lose_all(holds);
        }
        batches
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<GroupKey, Group>> {
        // Nothing panics while it is locked.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lose_all(holds: Vec<Arc<Hold>>) {
    holds.iter().for_each(|hold| hold.lose(Loss::Timer));
}

/// Renews the groups that are due. It ends when the watchdog is dropped.
async fn run(watchdog: Weak<Watchdog>, mut due: RemovedEntries<GroupKey, ()>) {
    while let Some(group) = due.recv().await {
        let Some(watchdog) = watchdog.upgrade() else {
            return;
        };
        for batch in watchdog.take_due(group.key) {
            watchdog.spawn_renewal(batch);
        }
    }
}

impl Watchdog {
    /// Renews a batch in a task, so that one that is not answered does not delay the others.
    fn spawn_renewal(self: &Arc<Self>, batch: Vec<Arc<Hold>>) {
        self.runtime.spawn(Arc::clone(self).renew_batch(batch));
    }

    async fn renew_batch(self: Arc<Self>, batch: Vec<Arc<Hold>>) {
        let start = Instant::now();
        let renewed = renew(&self.calls, &batch).await;
        // While a slot of a cluster moves to another node, Redis executes only calls with one key.
        if batch.len() > 1
            && matches!(&renewed, Err(LockError::Redis(error)) if error.code() == Some("TRYAGAIN"))
        {
            return batch
                .into_iter()
                .for_each(|hold| self.spawn_renewal(vec![hold]));
        }
        for hold in &batch {
            let lease = hold.options.lease_time();
            let due = start
                + if renewed.is_ok() {
                    lease / 3
                } else {
                    lease / 6
                };
            if self.put(hold, due).is_err() {
                hold.lose(Loss::Timer);
            }
        }
    }
}

/// Renews locks that one call can renew, and records the answers.
///
/// # Errors
///
/// If the call failed. Then this is recorded too.
pub(crate) async fn renew(calls: &Calls, holds: &[Arc<Hold>]) -> Result<(), LockError> {
    let Some(timeout) = holds.iter().map(|hold| hold.options.call_timeout()).min() else {
        return Ok(());
    };
    let start = Instant::now();
    let leases: Vec<_> = holds.iter().map(|hold| hold.lease_at(start)).collect();
    let locks = holds.iter().zip(&leases);
    let locks = locks.map(|(hold, lease)| (&*hold.keys, &*hold.owner, lease.as_millis() as u64));
    let locks: Vec<_> = locks.collect();
    match calls.renew(&locks, timeout).await {
        Ok(answers) => {
            observe::renewed(
                answers
                    .iter()
                    .filter(|&&answer| answer == Found::Caller)
                    .count(),
            );
            for ((hold, answer), lease) in holds.iter().zip(answers).zip(leases) {
                apply(hold, answer, start + lease);
            }
            Ok(())
        }
        Err(error) => {
            observe::renewal_failed(holds.len(), &error);
            holds.iter().for_each(|hold| hold.failed(&error));
            Err(error)
        }
    }
}

fn apply(hold: &Hold, found: Found, until: Instant) {
    match found {
        Found::Caller => hold.renewed(until),
        Found::NoOwner => hold.lose(Loss::NoOwner),
        Found::OtherOwner => hold.lose(Loss::OtherOwner),
    }
}
