//! The `timeouts` queue without a timer, and the lanes of most models, which the worker knows from
//! the beginning.

use std::collections::VecDeque;

use super::{NewLanes, TimeoutsQueue};
use crate::node::inside::{messages, new_pool_id, push};
use crate::node::{Producer, lane};
use crate::sync::Mutex;
use crate::sync::inside::threads_come_and_go;

/// More threads than a model has.
const THREADS: usize = 4;

/// The lanes that no thread has yet. loom does not see it.
pub(super) type MadeLanes = std::sync::Mutex<VecDeque<Producer>>;

/// Makes the lanes of all threads, unless threads come and go.
pub(super) fn with_lanes(new: NewLanes) -> NewLanes {
    if !threads_come_and_go() {
        for _ in 0..THREADS {
            let (producer, consumer) = lane(new.pool);
            new.made.lock().unwrap().push_back(producer);
            new.lanes.push(consumer);
        }
    }
    new
}

/// Returns a lane for a thread, unless threads come and go.
pub(super) fn made_lane(new: &NewLanes) -> Option<Producer> {
    let made = (!threads_come_and_go()).then(|| new.made.lock().unwrap().pop_front());
    made.map(|lane| lane.expect("a model has at most this many threads"))
}

/// A queue with its lanes.
pub struct Lanes {
    new: NewLanes,
    queue: Mutex<TimeoutsQueue>,
}

/// A thread's end of a lane. Messages are numbers that are not zero.
pub struct Lane(Producer);

impl Lanes {
    #[allow(clippy::new_without_default, reason = "only models use it")]
    pub fn new() -> Self {
        Self {
            new: NewLanes::new(new_pool_id()),
            queue: Mutex::default(),
        }
    }

    pub fn open(&self) -> Lane {
        Lane(self.new.open())
    }

    /// Takes at most `most` messages. Returns them, with a zero for each message that was taken
    /// back, and whether more wait.
    pub fn take(&self, most: usize) -> (Vec<u64>, bool) {
        self.take_portions(most, most)
    }

    /// [`take`](Self::take), at most `portion` messages of each lane.
    pub fn take_portions(&self, most: usize, portion: usize) -> (Vec<u64>, bool) {
        let mut taken = Vec::new();
        let mut queue = self.queue.lock();
        let mut scan = queue.scan(&self.new, most, portion);
        while let Some(lane) = scan.next_lane() {
            taken.extend(messages(lane));
        }
        let (count, more) = scan.end(&self.new);
        assert_eq!(count, taken.len());
        (taken, more)
    }

    /// Returns how many lanes the worker has adopted and not dropped.
    pub fn count(&self) -> usize {
        self.queue.lock().count()
    }
}

impl TimeoutsQueue {
    /// How many lanes there are.
    pub(crate) fn count(&self) -> usize {
        self.lanes.len()
    }
}

impl Lane {
    /// Pushes a message. Returns its ticket.
    pub fn push(&mut self, message: u64) -> u64 {
        let ticket = self.0.ticket();
        push(&mut self.0, message);
        ticket
    }

    pub fn take_back(&self, ticket: u64, message: u64) -> bool {
        self.0.take_back(ticket, message, message)
    }

    pub fn retire(&self) {
        self.0.retire();
    }
}
