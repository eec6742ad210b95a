//! A binary heap, as `java.util.concurrent.DelayQueue` is one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;

use crate::wheel::Wheel;

/// A heap by deadline and sequence number.
///
/// `DelayQueue` looks through the whole heap for what it is to remove. Here, as in most heaps that have to be fast, what
/// is removed stays in the heap as a stale item until it comes to the top or until more than half of the items are
/// stale, when all of these are thrown out at once. The values lie beside the heap, so a removal frees them at once.
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
    /// Never used again, so an item whose value has another one is stale.
    sequence: u64,
    place: u32,
}

struct Value {
    sequence: u64,
    value: u64,
}

#[derive(Clone, Copy)]
pub struct HeapKey {
    sequence: u64,
    place: u32,
}

fn take(values: &mut Slab<Value>, place: u32, sequence: u64) -> Option<u64> {
    is_there(values, place, sequence).then(|| values.remove(place as usize).value)
}

fn is_there(values: &Slab<Value>, place: u32, sequence: u64) -> bool {
    values.get(place as usize).is_some_and(|value| value.sequence == sequence)
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
        let place = self.values.insert(Value { sequence, value }) as u32;
        self.items.push(Reverse(Item { deadline, sequence, place }));
        HeapKey { sequence, place }
    }

    fn remove(&mut self, key: HeapKey) -> Option<u64> {
        let value = take(&mut self.values, key.place, key.sequence)?;
        self.stale += 1;
        if self.stale > self.items.len() / 2 {
            self.items.retain(|Reverse(item)| is_there(&self.values, item.place, item.sequence));
            self.stale = 0;
        }
        Some(value)
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        while self.next_deadline().is_some_and(|first| first <= now) {
            let Reverse(item) = self.items.pop().expect("there is a first one");
            match take(&mut self.values, item.place, item.sequence) {
                Some(value) => expired(value),
                None => self.stale -= 1,
            }
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        self.items.peek().map(|Reverse(item)| item.deadline)
    }
}
