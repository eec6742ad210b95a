//! Netty's `timeouts` queue: from all callers to the worker.
//!
//! The queue has many producers and one consumer. It is built from one lane (`node/lane.rs`) per
//! thread, so a push contends with no other thread. Each thread opens its lane in [`NewLanes`]; the
//! worker adopts it and takes messages from all lanes, at most so many at a time. There is no
//! cancellation queue (Netty's `cancelledTimeouts`): a cancellation is a message in this queue.
//!
//! # Unlisted lanes
//!
//! The worker looks only at lanes that it has *listed*. It unlists lanes that were empty for
//! [`IDLE_LOOKS`] looks, if there are at least [`MANY_IDLE`]. So it never looks at more than a few
//! lanes of threads that do not use the timer. A thread that pushes to an unlisted lane lists it
//! again: it puts the consumer's end into [`NewLanes`], as for a new lane. The word `unlisted` of
//! the lane says whether it has to.
//!
//! | the thread | the worker |
//! |---|---|
//! | pushes a message | sets `unlisted` |
//! | fence: [`fence_after_push`](super::state::TimerState::fence_after_push) | fence: [`fence_after_change`](super::state::TimerState::fence_after_change) |
//! | reads `unlisted` | looks at the lane again |
//! | if it is set: clears it, and lists the lane | if a message waits: clears `unlisted`, and the lane stays listed |
//! | fence, if it was set; reads the state word | if none waits: drops the consumer's end |
//!
//! The fences have an order. If the thread's fence is first, the worker's second look sees the
//! message. Otherwise the thread sees `unlisted`. If both see it, one of them clears it, by
//! compare-exchange, and keeps the lane listed or lists it. So when a push is over, its lane is
//! listed or in `NewLanes` until the message is taken. (A thread that has not executed its fence
//! yet is about to do all this, as if it was about to push.)
//!
//! For the other rules of "push, fence, look" (`state.rs`) the listing is a part of the push: the
//! thread executes the fence once more before it reads the state word. So a thread that puts the
//! worker to sleep, or closes the timer, sees the lane in `NewLanes`, or the caller sees the change
//! of the word. Neither has to look at unlisted lanes.
//!
//! The worker holds no reference to an unlisted lane. Its memory is freed with its [`Producer`], so
//! the worker has nothing to do when the thread ends.
//!
//! | the worker unlists | fence |
//! |---|---|
//! | before a sleep that it announces ([`unlist_idle`](TimeoutsQueue::unlist_idle)) | that of the announced sleep |
//! | every [`UNLIST_INTERVAL`] looks: a worker that expires something in each tick announces no sleep, and some drivers never do | one of its own |

use crate::node::{Consumer, PoolId, Producer, Waiting, lane};
#[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
use crate::sync::ModelQueue;
#[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
use crate::sync::SeenQueue as Lanes;
#[cfg(not(all(hashed_wheel_loom, not(hashed_wheel_shuttle))))]
use crate::sync::SegQueue as Lanes;
#[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
use crate::sync::threads_come_and_go;

/// A lane that was empty for so many looks is unlisted. Not after the first one, because to unlist
/// it and to list it again takes longer than a look.
const IDLE_LOOKS: u64 = 4;

/// At least so many looks are between two fences that only unlist lanes: their cost does not matter
/// then.
const UNLIST_INTERVAL: u64 = if cfg!(hashed_wheel_loom) { 6 } else { 64 };

/// Fewer idle lanes stay listed. To look at them costs the worker less than their threads would pay
/// to list them again.
const MANY_IDLE: usize = if cfg!(hashed_wheel_loom) { 1 } else { 16 };

/// The lanes that the worker has to adopt: new ones, and unlisted ones to which their threads have
/// pushed.
///
/// In most of loom's models the worker knows all lanes from the beginning: see
/// `threads_come_and_go`.
pub(crate) struct NewLanes {
    lanes: Lanes<Consumer>,
    pool: PoolId,
    /// The lanes that no thread has yet.
    #[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
    made: ModelQueue<Producer>,
}

impl NewLanes {
    /// Opens a lane.
    pub(crate) fn open(&self) -> Producer {
        #[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
        if !threads_come_and_go() {
            return self.made.pop().expect("a model has at most so many threads");
        }
        let (producer, consumer) = lane(self.pool);
        self.lanes.push(consumer);
        producer
    }

    /// Lists a lane again.
    pub(crate) fn list(&self, lane: Consumer) {
        self.lanes.push(lane);
    }
}

#[cfg(not(all(hashed_wheel_loom, not(hashed_wheel_shuttle))))]
impl NewLanes {
    pub(crate) fn new(pool: PoolId) -> Self {
        Self { lanes: Lanes::new(), pool }
    }
}

#[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
impl NewLanes {
    pub(crate) fn new(pool: PoolId) -> Self {
        let (lanes, made) = (Lanes::new(), ModelQueue::new());
        for _ in 0..if threads_come_and_go() { 0 } else { 4 } {
            let (producer, consumer) = lane(pool);
            made.push(producer);
            lanes.push(consumer);
        }
        Self { lanes, pool, made }
    }
}

/// The consumer's side of the queue: the lanes that are listed.
#[derive(Default)]
pub(crate) struct TimeoutsQueue {
    lanes: Vec<ListedLane>,
    /// The lane that is looked at first. If more messages wait than may be taken at a time, each
    /// lane gets its turn.
    first: usize,
    /// How often the worker has looked at the lanes.
    looks: u64,
    /// How many lanes were idle at the last look.
    idle: usize,
    /// The look after which lanes were last unlisted.
    unlisted_after: u64,
    /// Messages were marked as owed. Some of them may have been taken.
    has_owed: bool,
}

struct ListedLane {
    lane: Consumer,
    /// The look that last found a message, or was the first one.
    used_at: u64,
}

impl ListedLane {
    /// Whether the lane was empty for some looks, of which this was the last one.
    #[inline]
    fn is_idle(&self, looks: u64) -> bool {
        looks - self.used_at >= IDLE_LOOKS
    }
}

impl TimeoutsQueue {
    fn adopt_new_lanes(&mut self, new: &NewLanes) {
        while let Some(lane) = new.lanes.pop() {
            self.lanes.push(ListedLane { lane, used_at: self.looks });
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
        self.looks += 1;
        self.adopt_new_lanes(new);
        let mut left = most as u64;
        let mut any_retired = false;
        let (first, mut next) = (self.first, None);
        let count = self.lanes.len();
        self.idle = 0;
        for at in (first..count).chain(0..first) {
            let listed = &mut self.lanes[at];
            let waiting = listed.lane.look();
            any_retired |= waiting.is_retired();
            if waiting.count() > left && next.is_none() {
                // A lane that was left out is the first one next time.
                next = Some(if left > 0 { at + 1 } else { at });
            }
            if waiting.count() > 0 {
                left -= take(waiting, left);
                listed.used_at = self.looks;
            } else if listed.is_idle(self.looks) {
                self.idle += 1;
            }
        }
        self.first = next.unwrap_or(0);
        if any_retired {
            // A thread may have pushed to its lane before it retired it, and after this step has
            // looked: a lane goes only when it is empty.
            self.retain(|listed| listed.lane.waiting() != (0, true));
        }
        ((most as u64 - left) as usize, left == 0 && !self.is_empty(new))
    }

    fn retain(&mut self, keeps: impl FnMut(&mut ListedLane) -> bool) {
        self.lanes.retain_mut(keeps);
        if self.first >= self.lanes.len() {
            self.first = 0;
        }
    }

    /// Unlists the lanes that are idle, if there are many. `fence` executes the fence, whether or
    /// not there are.
    pub(crate) fn unlist_idle(&mut self, fence: impl FnOnce()) {
        if self.idle < MANY_IDLE {
            return fence();
        }
        let looks = self.looks;
        let idle = self.lanes.iter().filter(|listed| listed.is_idle(looks));
        idle.for_each(|listed| listed.lane.unlist());
        fence();
        self.retain(|listed| {
            let is_in_use = !listed.is_idle(looks);
            is_in_use || {
                listed.used_at = looks;
                listed.lane.stays_listed()
            }
        });
        (self.idle, self.unlisted_after) = (0, looks);
    }

    /// Whether lanes should be unlisted although the worker does not sleep.
    #[inline]
    pub(crate) fn has_many_idle(&self) -> bool {
        self.idle >= MANY_IDLE && self.looks - self.unlisted_after >= UNLIST_INTERVAL
    }

    /// From now on the messages that wait now are owed, or none are.
    pub(crate) fn owe(&mut self, new: &NewLanes, all: bool) {
        if all {
            self.adopt_new_lanes(new);
            // A lane that was idle at the last look may have messages, and a lane that is listed
            // again does not owe them.
            self.idle = 0;
            self.has_owed = true;
        }
        self.lanes.iter_mut().for_each(|listed| listed.lane.owe(all));
    }

    /// Whether owed messages may have been taken since the last call. `has_backlog`: more may be
    /// taken later.
    pub(crate) fn may_have_owed(&mut self, has_backlog: bool) -> bool {
        let had_owed = self.has_owed;
        self.has_owed &= has_backlog;
        had_owed
    }

    /// Whether no message waits. What a thread has pushed and not listed yet does not count.
    pub(crate) fn is_empty(&self, new: &NewLanes) -> bool {
        new.lanes.is_empty() && self.lanes.iter().all(|listed| listed.lane.waiting().0 == 0)
    }
}
