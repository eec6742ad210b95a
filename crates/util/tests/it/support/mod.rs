//! A map in which each entry has a task of its own.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::hash::Hash;
use std::ops::Deref;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_util::{Cause, Equivalent, ExpiringMap, Removed};

type Task<K> = Box<dyn FnOnce(K) + Send>;

/// A map whose values are tasks, which get their keys.
pub struct Tasks<K>(ExpiringMap<K, Task<K>>);

impl<K: Send + 'static> Tasks<K> {
    pub fn new(timer: &HashedWheelTimer) -> Self {
        let run = |Removed { key, value, .. }: Removed<K, Task<K>>| value(key);
        Self(
            ExpiringMap::builder(timer)
                .causes([Cause::Expired])
                .build_with_handler(run),
        )
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
