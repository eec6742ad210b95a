//! Netty's `timeouts` queue: from all callers to the worker.
//!
//! The queue has many producers and one consumer. It is built from one lane (`node/lane.rs`) per
//! thread, so a push contends with no other thread. Each thread opens its lane in [`NewLanes`]; the
//! worker adopts it and takes messages from all lanes, at most so many at a time. There is no
//! cancellation queue (Netty's `cancelledTimeouts`): a cancellation is a message in this queue.

use crate::node::{Consumer, PoolId, Producer, Waiting, lane};
#[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
use crate::sync::ModelQueue as Lanes;
#[cfg(not(all(hashed_wheel_loom, not(hashed_wheel_shuttle))))]
use crate::sync::SegQueue as Lanes;

/// The lanes that the worker has not adopted yet.
///
/// If the worker has not adopted a lane, it has seen nothing of what is in it. So in loom's models
/// the worker knows all lanes from the beginning. loom compares operations on the same atomic.
/// Otherwise it would not try that a thread pushes to an unknown lane before the worker looks.
pub(crate) struct NewLanes {
    lanes: Lanes<Consumer>,
    #[cfg(not(all(hashed_wheel_loom, not(hashed_wheel_shuttle))))]
    pool: PoolId,
    #[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
    made: Lanes<Producer>,
}

#[cfg(not(all(hashed_wheel_loom, not(hashed_wheel_shuttle))))]
impl NewLanes {
    pub(crate) fn new(pool: PoolId) -> Self {
        Self { lanes: Lanes::new(), pool }
    }

    /// Opens a lane.
    pub(crate) fn open(&self) -> Producer {
        let (producer, consumer) = lane(self.pool);
        self.lanes.push(consumer);
        producer
    }
}

#[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
impl NewLanes {
    pub(crate) fn new(pool: PoolId) -> Self {
        let (lanes, made) = (Lanes::new(), Lanes::new());
        for _ in 0..4 {
            let (producer, consumer) = lane(pool);
            made.push(producer);
            lanes.push(consumer);
        }
        Self { lanes, made }
    }

    /// Opens a lane.
    pub(crate) fn open(&self) -> Producer {
        self.made.pop().expect("a model has at most so many threads")
    }
}

/// The consumer's side of the queue: all lanes that the worker has adopted.
#[derive(Default)]
pub(crate) struct TimeoutsQueue {
    lanes: Vec<Consumer>,
    /// The lane that is looked at first. If more messages wait than may be taken at a time, each
    /// lane gets its turn.
    first: usize,
}

impl TimeoutsQueue {
    fn adopt_new_lanes(&mut self, new: &NewLanes) {
        while let Some(lane) = new.lanes.pop() {
            self.lanes.push(lane);
        }
    }

    /// Takes what waits now, at most `most` messages. `take` is given a lane in which messages wait
    /// and how many of them to take at most; it returns how many it has taken. Returns how many
    /// these were together, and whether more wait.
    pub(crate) fn take(
        &mut self,
        new: &NewLanes,
        most: usize,
        mut take: impl FnMut(Waiting<'_>, u64) -> u64,
    ) -> (usize, bool) {
        self.adopt_new_lanes(new);
        let mut left = most as u64;
        let mut any_retired = false;
        let (first, mut next) = (self.first, None);
        let count = self.lanes.len();
        for at in (first..count).chain(0..first) {
            let waiting = self.lanes[at].look();
            any_retired |= waiting.is_retired();
            if waiting.count() > left && next.is_none() {
                // A lane that was left out is the first one next time.
                next = Some(if left > 0 { at + 1 } else { at });
            }
            if waiting.count() > 0 {
                left -= take(waiting, left);
            }
        }
        self.first = next.unwrap_or(0);
        if any_retired {
            // A thread may have pushed to its lane before it retired it, and after this step has
            // looked: a lane goes only when it is empty.
            self.lanes.retain(|lane| lane.waiting() != (0, true));
        }
        if self.first >= self.lanes.len() {
            self.first = 0;
        }
        ((most as u64 - left) as usize, left == 0 && !self.is_empty(new))
    }

    /// From now on the messages that wait now are owed, or none are.
    pub(crate) fn owe(&mut self, all: bool) {
        self.lanes.iter_mut().for_each(|lane| lane.owe(all));
    }

    pub(crate) fn is_empty(&self, new: &NewLanes) -> bool {
        new.lanes.is_empty() && self.lanes.iter().all(|lane| lane.waiting().0 == 0)
    }
}
