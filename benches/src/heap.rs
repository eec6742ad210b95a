//! A binary heap. `java.util.concurrent.DelayQueue` uses a binary heap too.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;

use crate::wheel::Wheel;

/// A heap ordered by deadline and sequence number.
///
/// `DelayQueue` searches the whole heap for the entry to remove. This heap does not: a removed
/// entry stays in the heap as a stale item. A stale item leaves the heap when it reaches the top.
/// When more than half of the items are stale, all stale items are discarded together. The values
/// are stored outside of the heap, so a removal frees them immediately.
#[derive(Default)]
pub struct HeapQueue {
    items: BinaryHeap<Reverse<Item>>,
    values: Slab<Value>,
    stale: usize,
    sequence: u64,
}

/// Ordered by deadline, then by sequence.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    deadline: u64,
    /// Never reused. An item is stale if the value at its index has another sequence number.
    sequence: u64,
    index: u32,
}

struct Value {
    sequence: u64,
    value: u64,
}

#[derive(Clone, Copy)]
pub struct HeapKey {
    sequence: u64,
    index: u32,
}

fn take(values: &mut Slab<Value>, index: u32, sequence: u64) -> Option<u64> {
    contains(values, index, sequence).then(|| values.remove(index as usize).value)
}

fn contains(values: &Slab<Value>, index: u32, sequence: u64) -> bool {
    values
        .get(index as usize)
        .is_some_and(|value| value.sequence == sequence)
}

impl Wheel for HeapQueue {
    const NAME: &'static str = "heap";

    type Key = HeapKey;

    fn new() -> Self {
        Self::default()
    }

    fn insert(&mut self, deadline: u64, value: u64) -> HeapKey {
        self.sequence += 1;
        let sequence = self.sequence;
        let index = self.values.insert(Value { sequence, value }) as u32;
        self.items.push(Reverse(Item {
            deadline,
            sequence,
            index,
        }));
        HeapKey { sequence, index }
    }

    fn remove(&mut self, key: HeapKey) -> Option<u64> {
        let value = take(&mut self.values, key.index, key.sequence)?;
        self.stale += 1;
        if self.stale > self.items.len() / 2 {
            self.items
                .retain(|Reverse(item)| contains(&self.values, item.index, item.sequence));
            self.stale = 0;
        }
        Some(value)
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        while self.next_deadline().is_some_and(|first| first <= now) {
            let Reverse(item) = self.items.pop().expect("the heap is not empty");
            match take(&mut self.values, item.index, item.sequence) {
                Some(value) => expired(value),
                None => self.stale -= 1,
            }
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        self.items.peek().map(|Reverse(item)| item.deadline)
    }
}
