//! A map in which each entry has a task of its own, and a model of maps.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::hash::Hash;
use std::ops::Deref;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_util::{Cause, Equivalent, ExpiringMap, Removed};

type Task<K> = Box<dyn FnOnce(K) + Send>;

/// A map whose values are tasks, which get their keys.
pub struct Tasks<K>(ExpiringMap<K, Task<K>>);

impl<K> Tasks<K> {
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

/// A map that is scanned for due entries.
#[derive(Default)]
pub struct Model {
    now: Duration,
    /// A deadline and a value under each key.
    entries: BTreeMap<u8, (Duration, u64)>,
    /// The dead entries whose keys have others.
    aside: Vec<(u8, (Duration, u64))>,
}

impl Model {
    pub fn get(&self, key: u8) -> Option<&(Duration, u64)> {
        self.entries.get(&key).filter(|(end, _)| *end > self.now)
    }

    pub fn get_mut(&mut self, key: u8) -> Option<&mut (Duration, u64)> {
        let now = self.now;
        self.entries.get_mut(&key).filter(|(end, _)| *end > now)
    }

    /// Returns the value that it has replaced.
    pub fn insert(&mut self, key: u8, value: u64, delay: Duration) -> Option<u64> {
        let old = self.entries.insert(key, (self.now + delay, value))?;
        if old.0 > self.now {
            return Some(old.1);
        }
        self.aside.push((key, old));
        None
    }

    pub fn touch(&mut self, key: u8, delay: Duration) -> bool {
        let end = self.now + delay;
        let entry = self.get_mut(key);
        entry.map(|(deadline, _)| *deadline = end).is_some()
    }

    pub fn remove(&mut self, key: u8) -> Option<u64> {
        self.get(key)?;
        self.entries.remove(&key).map(|(_, value)| value)
    }

    /// Returns how many it has removed.
    pub fn retain(&mut self, keep: impl Fn(u8, u64) -> bool) -> usize {
        let (now, before) = (self.now, self.entries.len());
        self.entries
            .retain(|key, (end, value)| *end <= now || keep(*key, *value));
        before - self.entries.len()
    }

    /// Returns the keys of the living entries.
    pub fn keys(&self) -> Vec<u8> {
        let keys = self.entries.keys().copied();
        keys.filter(|key| self.get(*key).is_some()).collect()
    }

    pub fn remaining(&self, key: u8) -> Option<Duration> {
        self.get(key).map(|(end, _)| *end - self.now)
    }

    /// Returns the number of timeouts.
    pub fn timeouts(&self) -> usize {
        self.entries.len() + self.aside.len()
    }

    /// Lets `by` pass. The timer has ticks of `tick` and was turned once after that. Removes the
    /// entries that are due by then, and returns them.
    pub fn pass(&mut self, by: Duration, tick: Duration) -> Vec<(u8, u64)> {
        let mut due = vec![];
        let last = self.now.as_millis() / tick.as_millis();
        self.now += by;
        let reached = self.now.as_millis() / tick.as_millis();
        let mut stays = |key, (deadline, value): (Duration, u64)| {
            let expires = deadline
                .as_millis()
                .div_ceil(tick.as_millis())
                .max(last + 1);
            if expires <= reached {
                due.push((key, value));
            }
            expires > reached
        };
        self.entries.retain(|key, entry| stays(*key, *entry));
        self.aside.retain(|(key, entry)| stays(*key, *entry));
        due
    }
}
