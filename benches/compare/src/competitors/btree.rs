//! A `BTreeMap` ordered by deadline. A sequence number orders entries with equal deadlines.

use std::collections::BTreeMap;

use super::locked::DeadlineQueue;
use crate::task::Task;

#[derive(Default)]
pub(crate) struct ByDeadline {
    tasks: BTreeMap<(u64, u64), Task>,
    sequence: u64,
}

impl DeadlineQueue for ByDeadline {
    type Key = (u64, u64);

    fn insert(&mut self, deadline: u64, task: Task) -> Self::Key {
        self.sequence += 1;
        let key = (deadline, self.sequence);
        self.tasks.insert(key, task);
        key
    }

    fn remove(&mut self, key: &Self::Key) -> Option<Task> {
        self.tasks.remove(key)
    }

    fn first(&self) -> Option<u64> {
        self.tasks.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    fn take(&mut self, now: u64) -> Option<Task> {
        self.first().filter(|&first| first <= now)?;
        self.tasks.pop_first().map(|(_, task)| task)
    }
}
