//! A binary heap ordered by deadline.
//!
//! A cancelled timeout stays in the heap as a stale item until it reaches the top. When more than
//! half of the items are stale, all stale items are discarded together. The tasks are stored
//! outside of the heap, so a cancellation drops its task immediately.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;

use super::locked::DeadlineQueue;
use crate::task::Task;

#[derive(Default)]
pub(crate) struct Heap {
    items: BinaryHeap<Reverse<Item>>,
    tasks: Slab<(Sequence, Task)>,
    stale: usize,
    sequence: Sequence,
}

/// Never reused. An item is stale if the task at its index has another sequence number.
type Sequence = u64;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    deadline: u64,
    sequence: Sequence,
    index: usize,
}

fn take(tasks: &mut Slab<(Sequence, Task)>, index: usize, sequence: Sequence) -> Option<Task> {
    contains(tasks, index, sequence).then(|| tasks.remove(index).1)
}

fn contains(tasks: &Slab<(Sequence, Task)>, index: usize, sequence: Sequence) -> bool {
    tasks.get(index).is_some_and(|(stored, _)| *stored == sequence)
}

impl DeadlineQueue for Heap {
    type Key = (Sequence, usize);

    fn insert(&mut self, deadline: u64, task: Task) -> Self::Key {
        self.sequence += 1;
        let sequence = self.sequence;
        let index = self.tasks.insert((sequence, task));
        self.items.push(Reverse(Item { deadline, sequence, index }));
        (sequence, index)
    }

    fn remove(&mut self, &(sequence, index): &Self::Key) -> Option<Task> {
        let task = take(&mut self.tasks, index, sequence)?;
        self.stale += 1;
        if self.stale > self.items.len() / 2 {
            self.items.retain(|Reverse(item)| contains(&self.tasks, item.index, item.sequence));
            self.stale = 0;
        }
        Some(task)
    }

    fn first(&self) -> Option<u64> {
        self.items.peek().map(|Reverse(item)| item.deadline)
    }

    fn take(&mut self, now: u64) -> Option<Task> {
        while self.first().is_some_and(|first| first <= now) {
            let Reverse(item) = self.items.pop()?;
            match take(&mut self.tasks, item.index, item.sequence) {
                Some(task) => return Some(task),
                None => self.stale -= 1,
            }
        }
        None
    }
}
