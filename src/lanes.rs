//! How callers tell the worker: each thread that uses a timer has a lane to it, which nobody else writes.
//!
//! A lane is a queue with one producer, the thread, and one consumer, the worker: a push is two stores. What a thread pushes
//! comes in the order in which it pushed it. A message that the worker has not seen can be taken back by the thread that
//! pushed it: most timeouts are cancelled, and many before the worker has looked.
//!
//! | word | written by | how | order | pairs with |
//! |---|---|---|---|---|
//! | slot | the producer, [`push`](Sender::push) | a message, before it is counted in `pushed` | `Relaxed` | – |
//! | slot | the producer, [`take_back`](Sender::take_back) | message → 0, by compare-exchange | `Relaxed` | –: a thread takes back what it has pushed itself |
//! | slot | the worker, [`take`](Receiver::take) | message → 0, by a swap | `Relaxed` | –: it has seen it counted |
//! | `pushed` | the producer | + 1; RETIRED when the thread lets go of it | `Release` | the `Acquire` of `waiting`: who sees the count sees the messages |
//!
//! A block's memory goes when both have gone past it.

#[cfg(not(hashed_wheel_loom))]
use crate::sync::Loads;
#[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
use crate::sync::ModelQueue as SegQueue;
#[cfg(not(all(hashed_wheel_loom, not(hashed_wheel_shuttle))))]
use crate::sync::SegQueue;
use crate::sync::unmodelled::OnceLock;
use crate::sync::{Arc, AtomicU64, CachePadded, IS_EXPLORED, Ordering};

/// How many messages a block holds.
const BLOCK: u64 = if cfg!(hashed_wheel_loom) { 2 } else { 512 };

/// No more messages will come.
const RETIRED: u64 = 1 << 63;

struct Lane {
    pushed: CachePadded<AtomicU64>,
}

struct Block {
    /// Zero is a message that was taken, or taken back.
    slots: [AtomicU64; BLOCK as usize],
    next: OnceLock<Arc<Block>>,
}

impl Block {
    fn new() -> Arc<Self> {
        Arc::new(Self { slots: std::array::from_fn(|_| AtomicU64::new(0)), next: OnceLock::new() })
    }
}

/// One after the other, for there may be many.
impl Drop for Block {
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(block) = next {
            next = Arc::into_inner(block).and_then(|mut block| block.next.take());
        }
    }
}

/// The thread's end of a lane.
pub(crate) struct Sender {
    lane: Arc<Lane>,
    /// Where the last message is, and the block before.
    block: Arc<Block>,
    before: Option<Arc<Block>>,
    pushed: u64,
}

/// The worker's end of a lane.
pub(crate) struct Receiver {
    lane: Arc<Lane>,
    block: Arc<Block>,
    taken: u64,
    /// See [`Inbox::owe`].
    owed: u64,
}

fn lane() -> (Sender, Receiver) {
    let lane = Arc::new(Lane { pushed: CachePadded::new(AtomicU64::new(0)) });
    let block = Block::new();
    let receiver = Receiver { lane: Arc::clone(&lane), block: Arc::clone(&block), taken: 0, owed: 0 };
    (Sender { lane, block, before: None, pushed: 0 }, receiver)
}

impl Sender {
    /// What the next message can be taken back by.
    pub(crate) fn ticket(&self) -> u64 {
        self.pushed
    }

    #[inline]
    pub(crate) fn push(&mut self, message: u64) {
        let place = self.pushed % BLOCK;
        if place == 0 && self.pushed > 0 {
            self.extend();
        }
        self.block.slots[place as usize].store(message, Ordering::Relaxed);
        self.pushed += 1;
        self.lane.pushed.store(self.pushed, Ordering::Release);
    }

    #[cold]
    fn extend(&mut self) {
        let block = Block::new();
        // Nobody else sets it.
        let _ = self.block.next.set(Arc::clone(&block));
        self.before = Some(std::mem::replace(&mut self.block, block));
    }

    /// Takes back `message`, if that is what was pushed with this ticket, here, not long ago, and the worker has not seen it.
    #[inline]
    pub(crate) fn take_back(&self, ticket: u64, message: u64) -> bool {
        let Some(last) = self.pushed.checked_sub(1) else { return false };
        let block = match (last / BLOCK).wrapping_sub(ticket / BLOCK) {
            0 => &self.block,
            1 => match &self.before {
                Some(before) => before,
                None => return false,
            },
            _ => return false,
        };
        let slot = &block.slots[(ticket % BLOCK) as usize];
        slot.compare_exchange(message, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// No more will come.
    pub(crate) fn retire(&self) {
        self.lane.pushed.store(self.pushed | RETIRED, Ordering::Release);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // Each thread of a model ends some time, and loom would try that at each look of the worker's. It has a model of its own.
        if !IS_EXPLORED {
            self.retire();
        }
    }
}

impl Receiver {
    /// How many messages wait, and whether no more will come.
    fn waiting(&self) -> (u64, bool) {
        let pushed = self.lane.pushed.load_of_another(Ordering::Acquire);
        ((pushed & !RETIRED) - self.taken, pushed & RETIRED != 0)
    }

    /// The next message, of those that wait; zero if it was taken back.
    #[inline]
    fn take(&mut self) -> u64 {
        let place = self.taken % BLOCK;
        if place == 0 && self.taken > 0 {
            let next = self.block.next.get().expect("a message that waits has a block");
            self.block = Arc::clone(next);
        }
        self.taken += 1;
        let slot = &self.block.slots[place as usize];
        // What is taken back stays so.
        if cfg!(not(hashed_wheel_loom)) && slot.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        slot.swap(0, Ordering::Relaxed)
    }
}

/// Where lanes that the worker has not seen yet wait for it.
///
/// That one is not seen yet is the same as that nothing in it is. So in loom's models the worker knows all lanes from the
/// beginning, or loom, which goes by what meets in an atomic, would not try that a lane that the worker does not know is
/// pushed to before it looks.
pub(crate) struct Door {
    new: SegQueue<Receiver>,
    #[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
    made: SegQueue<Sender>,
}

impl Door {
    pub(crate) fn new() -> Self {
        let door = Self {
            new: SegQueue::new(),
            #[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
            made: SegQueue::new(),
        };
        #[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
        for _ in 0..4 {
            let (sender, receiver) = lane();
            door.made.push(sender);
            door.new.push(receiver);
        }
        door
    }

    /// A new lane.
    #[cfg(not(all(hashed_wheel_loom, not(hashed_wheel_shuttle))))]
    pub(crate) fn open(&self) -> Sender {
        let (sender, receiver) = lane();
        self.new.push(receiver);
        sender
    }

    #[cfg(all(hashed_wheel_loom, not(hashed_wheel_shuttle)))]
    pub(crate) fn open(&self) -> Sender {
        self.made.pop().expect("a model has at most so many threads")
    }
}

/// All lanes, in the worker's hands.
#[derive(Default)]
pub(crate) struct Inbox {
    lanes: Vec<Receiver>,
    /// The lane that is looked at first: each in its turn, where there is more than may be taken at a time.
    first: usize,
}

/// A message, and whether it is owed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Taken {
    /// Zero if it was taken back.
    pub(crate) message: u64,
    pub(crate) is_owed: bool,
}

/// So many messages are taken before the first is looked at: what they name can be fetched meanwhile.
pub(crate) const GROUP: usize = if cfg!(hashed_wheel_loom) { 1 } else { 16 };

impl Inbox {
    fn welcome(&mut self, door: &Door) {
        while let Some(lane) = door.new.pop() {
            self.lanes.push(lane);
        }
    }

    /// Takes what waits now, `most` messages at most, and says how many these were, and whether more wait.
    pub(crate) fn take(&mut self, door: &Door, most: usize, mut heed: impl FnMut(&[Taken])) -> (usize, bool) {
        self.welcome(door);
        let mut left = most as u64;
        let mut any_retired = false;
        let (first, mut next) = (self.first, None);
        let count = self.lanes.len();
        for at in (first..count).chain(0..first) {
            let lane = &mut self.lanes[at];
            let (mut waiting, is_retired) = lane.waiting();
            any_retired |= is_retired;
            if waiting > left && next.is_none() {
                // Who had nothing of it is the first to be looked at next time.
                next = Some(if left > 0 { at + 1 } else { at });
            }
            waiting = waiting.min(left);
            left -= waiting;
            while waiting > 0 {
                let mut group = [Taken::default(); GROUP];
                let taken = group.len().min(waiting as usize);
                for each in &mut group[..taken] {
                    *each = Taken { is_owed: lane.taken < lane.owed, message: lane.take() };
                }
                heed(&group[..taken]);
                waiting -= taken as u64;
            }
        }
        self.first = next.unwrap_or(0);
        if any_retired {
            self.lanes.retain(|lane| lane.waiting() != (0, true));
        }
        if self.first >= self.lanes.len() {
            self.first = 0;
        }
        ((most as u64 - left) as usize, left == 0 && !self.is_empty(door))
    }

    /// From now on what waits now is owed, or nothing.
    pub(crate) fn owe(&mut self, all: bool) {
        for lane in &mut self.lanes {
            lane.owed = if all { lane.taken + lane.waiting().0 } else { 0 };
        }
    }

    pub(crate) fn is_empty(&self, door: &Door) -> bool {
        door.new.is_empty() && self.lanes.iter().all(|lane| lane.waiting().0 == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where more waits than may be taken, no lane waits for ever.
    #[test]
    fn each_lane_has_its_turn() {
        for most in 1..12 {
            let (door, mut inbox) = (Door::new(), Inbox::default());
            let mut senders = [(); 5].map(|()| door.open());
            let mut came = [0; 5];
            for _ in 0..100 {
                for (number, sender) in (1..).zip(&mut senders) {
                    // The first three more than all that is taken, the others little.
                    (0..if number < 4 { most as u64 } else { 1 }).for_each(|_| sender.push(number));
                }
                let (count, more) = inbox.take(&door, most, |taken| {
                    taken.iter().for_each(|taken| came[taken.message as usize - 1] += 1);
                });
                assert_eq!((count, more), (most, true));
            }
            assert!(came.iter().all(|&came| came >= 15), "of 100 times {most} they had {came:?}");
        }
    }
}
