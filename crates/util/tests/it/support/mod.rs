//! A map in which each entry has a task of its own, and a model of maps.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::hash::Hash;
use std::ops::Deref;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_util::{Equivalent, ExpiringMap};

type Task<K> = Box<dyn FnOnce(K) + Send>;

/// A map whose values are tasks, which get their keys.
pub struct Tasks<K>(ExpiringMap<K, Task<K>>);

impl<K> Tasks<K> {
    pub fn new(timer: &HashedWheelTimer) -> Self {
        Self(ExpiringMap::with_handler(timer, |key, task: Task<K>| {
            task(key);
        }))
    }
}

impl<K: Hash + Eq + Send + 'static> Tasks<K> {
    /// Returns whether it has replaced another one.
    pub fn schedule<F>(&self, key: K, task: F, delay: Duration) -> Result<bool, NewTimeoutError>
    where
        F: FnOnce(K) + Send + 'static,
    {
        Ok(self.insert(key, Box::new(task), delay)?.is_some())
    }

    pub fn schedule_at<F>(
        &self,
        key: K,
        task: F,
        deadline: Instant,
    ) -> Result<bool, NewTimeoutError>
    where
        F: FnOnce(K) + Send + 'static,
    {
        Ok(self.insert_at(key, Box::new(task), deadline)?.is_some())
    }

    pub fn cancel<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.remove(key).is_some()
    }
}

impl<K> Deref for Tasks<K> {
    type Target = ExpiringMap<K, Task<K>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<K> Clone for Tasks<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The entries of a map: a deadline and a value under each key. It is scanned for due entries.
pub type Model = BTreeMap<u8, (Duration, u64)>;

/// Lets `by` pass on the model of a map whose timer has ticks of `tick`, and was turned once after
/// that. Removes the entries that are due by then, and returns them.
pub fn pass(model: &mut Model, now: &mut Duration, by: Duration, tick: Duration) -> Vec<(u8, u64)> {
    let mut due = vec![];
    let last = now.as_millis() / tick.as_millis();
    *now += by;
    let reached = now.as_millis() / tick.as_millis();
    model.retain(|key, (deadline, value)| {
        let expires = deadline
            .as_millis()
            .div_ceil(tick.as_millis())
            .max(last + 1);
        if expires <= reached {
            due.push((*key, *value));
        }
        expires > reached
    });
    due
}
