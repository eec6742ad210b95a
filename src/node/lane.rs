//! The lane of a thread: a queue of messages from that thread to the worker.
//!
//! A lane has one producer, the thread, and one consumer, the worker, so a push is two stores. (If
//! the thread ends, another thread may go on with its lane.) The messages of a thread arrive in the
//! order in which it pushed them. The thread can take back a message that the worker has not seen:
//! most timeouts are cancelled, many of them before the worker has looked. All lanes of a timer
//! together are its `timeouts` queue (`TimeoutsQueue`).
//!
//! | word | written by | how | order | pairs with |
//! |---|---|---|---|---|
//! | slot | the producer, [`push`](Producer::push) | a message, before it is counted | `Relaxed` | – |
//! | slot | the producer, [`take_back`](Producer::take_back) | message → 0, by compare-exchange | `Relaxed` | –: a thread takes back only what it has pushed itself, or what was pushed before it got the lane |
//! | slot | the worker, [`next`](Waiting::next), in the last two blocks that it has seen counted | message → 0, by a swap | `Relaxed` | –: it has seen the message counted |
//! | slot | the worker, in an earlier block | only read: the thread takes no message back from there any more | `Relaxed` | the same |
//! | `shared`, which counts what was pushed | the producer | + 1; `RETIRED` when the thread retires the lane | `Release` | the `Acquire` of [`waiting`](Consumer::waiting): a worker that sees the count sees the messages |
//!
//! The memory of a block is freed when both ends have passed it.

#![allow(unsafe_code)]

use super::arena::PoolId;
use crate::sync::unmodelled::OnceLock;
use crate::sync::{Arc, AtomicU64, CachePadded, Ordering, drop_list};

/// How many messages a block holds. (Under Miri, a thread's first timeout would take most of its
/// time for a block of 512 slots.)
const BLOCK: u64 = if cfg!(hashed_wheel_loom) {
    2
} else if cfg!(miri) {
    128
} else {
    512
};

/// Set in the shared word when no more messages will come.
const RETIRED: u64 = 1 << 63;

/// For how many messages at a time the nodes are fetched into the cache, so that the cache misses
/// overlap.
const GROUP: u64 = 16;

/// Returns the ticket of the first message of the block before the last one, if this many messages
/// were pushed. The thread takes no earlier message back: see [`Producer::take_back`].
#[inline]
fn first_takeable(pushed: u64) -> u64 {
    (pushed.saturating_sub(1) / BLOCK).saturating_sub(1) * BLOCK
}

struct Block {
    /// Zero is a message that was taken by a swap, or taken back.
    slots: [AtomicU64; BLOCK as usize],
    next: OnceLock<Arc<Block>>,
}

impl Block {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            slots: std::array::from_fn(|_| AtomicU64::new(0)),
            next: OnceLock::new(),
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        drop_list(self.next.take(), |block| block.next.take());
    }
}

/// The thread's end of a lane.
pub(crate) struct Producer {
    /// The messages are about nodes of this pool.
    pub(super) pool: PoolId,
    /// The word that both ends share.
    shared: Arc<CachePadded<AtomicU64>>,
    /// The block of the last message, and the block before it.
    block: Arc<Block>,
    before: Option<Arc<Block>>,
    pushed: u64,
}

/// The worker's end of a lane.
pub(crate) struct Consumer {
    pool: PoolId,
    shared: Arc<CachePadded<AtomicU64>>,
    block: Arc<Block>,
    taken: u64,
    /// How many messages were pushed, as far as this end has seen.
    seen: u64,
    /// Messages below this count are carried over: see [`carry_over`](Self::carry_over).
    carried_over: u64,
}

/// Makes a lane for messages about the nodes of one pool.
pub(crate) fn lane(pool: PoolId) -> (Producer, Consumer) {
    let shared = Arc::new(CachePadded::new(AtomicU64::new(0)));
    let block = Block::new();
    let consumer = Consumer {
        pool,
        shared: Arc::clone(&shared),
        block: Arc::clone(&block),
        taken: 0,
        seen: 0,
        carried_over: 0,
    };
    let producer = Producer {
        pool,
        shared,
        block,
        before: None,
        pushed: 0,
    };
    (producer, consumer)
}

impl Producer {
    /// The ticket of the next message, by which it can be taken back.
    #[inline]
    pub(crate) fn ticket(&self) -> u64 {
        self.pushed
    }

    /// Whether the next message begins another block.
    #[inline]
    pub(super) fn is_block_full(&self) -> bool {
        self.pushed % BLOCK == 0 && self.pushed > 0
    }

    /// Pushes a message, which is not zero.
    ///
    /// # Safety
    ///
    /// The message is about a node of this lane's pool, and is the one message about it that may be
    /// under way now.
    #[inline]
    pub(super) unsafe fn push(&mut self, message: u64) {
        if self.is_block_full() {
            self.extend();
        }
        let place = self.pushed % BLOCK;
        self.block.slots[place as usize].store(message, Ordering::Relaxed);
        self.pushed += 1;
        // Release: pairs with the `Acquire` in `waiting`.
        self.shared.store(self.pushed, Ordering::Release);
    }

    #[cold]
    fn extend(&mut self) {
        let block = Block::new();
        // Only the producer sets it.
        let _ = self.block.next.set(Arc::clone(&block));
        self.before = Some(std::mem::replace(&mut self.block, block));
    }

    /// Returns the block of the message with this ticket, if it is the last one or the one before.
    #[inline]
    fn block_of(&self, ticket: u64) -> Option<&Block> {
        let last = self.pushed.checked_sub(1)?;
        match (last / BLOCK).wrapping_sub(ticket / BLOCK) {
            0 => Some(&self.block),
            1 => self.before.as_deref(),
            _ => None,
        }
    }

    /// Takes `message` or `other` back, if it was pushed to this lane with this ticket and the
    /// worker has not taken it. A message that is more than a block old is not taken back.
    #[inline]
    pub(crate) fn take_back(&self, ticket: u64, message: u64, other: u64) -> bool {
        let Some(block) = self.block_of(ticket) else {
            return false;
        };
        let slot = &block.slots[(ticket % BLOCK) as usize];
        // The worker swaps zero in at the same time. One of the two finds the message.
        let take =
            |message| slot.compare_exchange(message, 0, Ordering::Relaxed, Ordering::Relaxed);
        match take(message) {
            Err(found) if found == other => take(other).is_ok(),
            result => result.is_ok(),
        }
    }

    /// Retires the lane: no more messages will come.
    pub(crate) fn retire(&self) {
        self.shared.store(self.pushed | RETIRED, Ordering::Release);
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.retire();
    }
}

impl Consumer {
    /// How many messages wait, and whether the lane is retired.
    #[inline]
    pub(crate) fn waiting(&self) -> (u64, bool) {
        // Acquire: pairs with the `Release` in `push`.
        let pushed = self.shared.load(Ordering::Acquire);
        ((pushed & !RETIRED) - self.taken, pushed & RETIRED != 0)
    }

    /// [`waiting`](Self::waiting) before messages are [taken](Self::take).
    #[inline]
    pub(crate) fn look(&mut self) -> (u64, bool) {
        let (count, is_retired) = self.waiting();
        self.seen = self.taken + count;
        (count, is_retired)
    }

    /// Takes at most `most` of the messages that waited at the last [`look`](Self::look).
    #[inline]
    pub(crate) fn take(&mut self, most: u64) -> Waiting<'_> {
        Waiting {
            pool: self.pool,
            first_takeable: first_takeable(self.seen),
            group_end: self.taken,
            end: self.seen.min(self.taken.saturating_add(most)),
            lane: self,
        }
    }

    /// From now on the messages that wait now are carried over. A message that is carried over was
    /// waiting when the wheel reached its tick, in a turn that could not take all messages.
    pub(crate) fn carry_over(&mut self) {
        self.carried_over = self.taken + self.waiting().0;
    }
}

/// Messages that wait in a lane, and that the worker takes.
pub(crate) struct Waiting<'a> {
    lane: &'a mut Consumer,
    pub(super) pool: PoolId,
    /// No message below this count is taken back any more.
    first_takeable: u64,
    /// The count of messages at which the next group begins.
    group_end: u64,
    /// The count of messages at which the worker stops.
    end: u64,
}

impl Waiting<'_> {
    /// Takes the next message, which is about a node of this pool; zero if it was taken back.
    /// `prefetch` is called with the messages of each group before they are taken.
    ///
    /// # Panics
    ///
    /// If the lane is one of another pool.
    #[inline(always)]
    pub(super) fn next(&mut self, pool: PoolId, prefetch: impl FnMut(u64)) -> Option<u64> {
        assert_eq!(self.pool, pool, "the lane is one of this timer");
        let is_final = self.lane.taken < self.first_takeable;
        if self.lane.taken == self.group_end {
            self.begin_group(prefetch)?;
        }
        let place = self.lane.taken % BLOCK;
        let slot = &self.lane.block.slots[place as usize];
        self.lane.taken += 1;
        // Without a locked instruction, if possible. A slot that was taken back stays zero.
        if is_final || slot.load(Ordering::Relaxed) == 0 {
            return Some(slot.load(Ordering::Relaxed));
        }
        Some(slot.swap(0, Ordering::Relaxed))
    }

    /// Begins a group of messages of one block.
    #[inline]
    fn begin_group(&mut self, prefetch: impl FnMut(u64)) -> Option<()> {
        let Consumer { block, taken, .. } = &mut *self.lane;
        let left = self.end - *taken;
        if left == 0 {
            return None;
        }
        let place = *taken % BLOCK;
        if place == 0 && *taken > 0 {
            let next = block.next.get().expect("a message that waits has a block");
            *block = Arc::clone(next);
        }
        let len = left.min(GROUP).min(BLOCK - place);
        self.group_end += len;
        let group = &block.slots[place as usize..(place + len) as usize];
        group
            .iter()
            .map(|slot| slot.load(Ordering::Relaxed))
            .for_each(prefetch);
        Some(())
    }

    /// Whether the last message that was taken is [carried over](Consumer::carry_over).
    #[inline]
    pub(crate) fn is_carried_over(&self) -> bool {
        self.lane.taken <= self.lane.carried_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::thread;

    /// No message of these tests.
    const NONE: u64 = u64::MAX;

    /// A producer and a consumer. The pool has no nodes, so the messages are only numbers.
    fn new() -> (Producer, Consumer) {
        lane(PoolId::new())
    }

    /// Pushes this many messages. Each is its ticket and one.
    fn push(producer: &mut Producer, count: u64) {
        for _ in 0..count {
            let message = producer.ticket() + 1;
            // SAFETY: no consumer of these tests looks for the node of a message.
            unsafe { producer.push(message) };
        }
    }

    /// Takes at most this many messages. Returns each of them, and whether it is carried over.
    fn take(consumer: &mut Consumer, most: u64) -> Vec<(u64, bool)> {
        let (count, _) = consumer.look();
        let mut waiting = consumer.take(most);
        let pool = waiting.pool;
        let all =
            std::iter::from_fn(|| Some((waiting.next(pool, |_| ())?, waiting.is_carried_over())));
        let all: Vec<_> = all.collect();
        assert_eq!(all.len() as u64, count.min(most));
        all
    }

    #[test]
    fn messages_before_the_last_two_blocks_are_settled() {
        for (pushed, first) in [
            (0, 0),
            (1, 0),
            (BLOCK, 0),
            (2 * BLOCK, 0),
            (2 * BLOCK + 1, BLOCK),
        ] {
            assert_eq!(first_takeable(pushed), first, "{pushed} messages");
        }
        assert_eq!(first_takeable(3 * BLOCK), BLOCK);
        assert_eq!(first_takeable(3 * BLOCK + 1), 2 * BLOCK);
    }

    #[test]
    fn message_of_the_last_two_blocks_is_taken_back() {
        let (mut producer, mut consumer) = new();
        push(&mut producer, 2 * BLOCK + 1);
        assert!(
            !producer.take_back(BLOCK - 1, BLOCK, NONE),
            "more than a block old"
        );
        for ticket in [BLOCK, 2 * BLOCK - 1, 2 * BLOCK] {
            assert!(
                !producer.take_back(ticket, 1, 2),
                "{ticket}: another message"
            );
            assert!(producer.take_back(ticket, ticket + 1, NONE), "{ticket}");
            assert!(
                !producer.take_back(ticket, ticket + 1, NONE),
                "{ticket}: twice"
            );
        }
        assert!(
            producer.take_back(BLOCK + 1, 1, BLOCK + 2),
            "the second of the two messages"
        );
        let taken_back = [BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK];
        for (ticket, (message, _)) in (0..).zip(take(&mut consumer, u64::MAX)) {
            let expected = if taken_back.contains(&ticket) {
                0
            } else {
                ticket + 1
            };
            assert_eq!(message, expected);
        }
    }

    /// One of both ends finds each message, whatever the worker has taken before.
    #[test]
    fn message_that_the_worker_has_taken_is_not_taken_back() {
        for &before in if cfg!(miri) {
            &[100][..]
        } else {
            &[0, 1, 100, 2 * BLOCK]
        } {
            for pushed in [1, BLOCK, BLOCK + 100, 2 * BLOCK + 1, 3 * BLOCK] {
                let (mut producer, mut consumer) = new();
                push(&mut producer, before);
                take(&mut consumer, before);
                push(&mut producer, pushed);
                assert_eq!(take(&mut consumer, u64::MAX).len() as u64, pushed);
                for ticket in before..before + pushed {
                    assert!(
                        !producer.take_back(ticket, ticket + 1, NONE),
                        "{before}, {pushed}: {ticket}"
                    );
                }
            }
        }
    }

    #[test]
    fn messages_that_wait_are_owed_and_later_ones_are_not() {
        let (mut producer, mut consumer) = new();
        push(&mut producer, 5);
        assert!(
            take(&mut consumer, 2)
                .iter()
                .all(|(_, is_carried_over)| !is_carried_over)
        );
        consumer.carry_over();
        push(&mut producer, 7);
        let carried_over = |consumer: &mut Consumer| take(consumer, 1)[0].1;
        assert!((0..3).all(|_| carried_over(&mut consumer)));
        assert!(!carried_over(&mut consumer));
    }

    #[test]
    fn retired_lane_says_so_and_keeps_its_messages() {
        let (mut producer, mut consumer) = new();
        push(&mut producer, 3);
        assert_eq!(consumer.waiting(), (3, false));
        drop(producer);
        assert_eq!(consumer.waiting(), (3, true));
        assert_eq!(take(&mut consumer, u64::MAX).len(), 3);
        assert_eq!(consumer.waiting(), (0, true));
    }

    /// If each block dropped the next one, a long lane would overflow the stack.
    #[test]
    fn long_lane_is_dropped_on_a_small_stack() {
        const BLOCKS: u64 = if cfg!(miri) { 4 } else { 4_000 };

        let (mut producer, consumer) = new();
        push(&mut producer, BLOCKS * BLOCK);
        let thread = thread::Builder::new()
            .stack_size(128 << 10)
            .spawn(move || drop((producer, consumer)));
        thread.unwrap().join().unwrap();
    }
}
