//! A binary heap by deadline. What is cancelled stays in it until it comes to the top, or until more than half of the heap is
//! stale, when all of that is thrown out at once. The tasks lie beside it, so that a cancellation drops them there and then.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;

use super::locked::ByTime;
use crate::task::Task;

#[derive(Default)]
pub(crate) struct Heap {
    items: BinaryHeap<Reverse<Item>>,
    tasks: Slab<(Number, Task)>,
    stale: usize,
    number: Number,
}

/// Never used again, so an item whose place holds another one is stale.
type Number = u64;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    deadline: u64,
    number: Number,
    place: usize,
}

fn take(tasks: &mut Slab<(Number, Task)>, place: usize, number: Number) -> Option<Task> {
    is_there(tasks, place, number).then(|| tasks.remove(place).1)
}

fn is_there(tasks: &Slab<(Number, Task)>, place: usize, number: Number) -> bool {
    tasks.get(place).is_some_and(|(there, _)| *there == number)
}

impl ByTime for Heap {
    type Key = (Number, usize);

    fn insert(&mut self, deadline: u64, task: Task) -> Self::Key {
        self.number += 1;
        let number = self.number;
        let place = self.tasks.insert((number, task));
        self.items.push(Reverse(Item { deadline, number, place }));
        (number, place)
    }

    fn remove(&mut self, &(number, place): &Self::Key) -> Option<Task> {
        let task = take(&mut self.tasks, place, number)?;
        self.stale += 1;
        if self.stale > self.items.len() / 2 {
            self.items.retain(|Reverse(item)| is_there(&self.tasks, item.place, item.number));
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
            match take(&mut self.tasks, item.place, item.number) {
                Some(task) => return Some(task),
                None => self.stale -= 1,
            }
        }
        None
    }
}
