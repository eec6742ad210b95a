//! The `timeouts` queue without a timer: the worker takes each message that a thread pushes, once.

use hashed_wheel::inside::{Lane, Lanes};
use loom::sync::atomic::AtomicUsize;

use super::*;

/// A queue, and a flag per message that is set before the push. An order has to make the flag
/// visible.
struct Queue {
    lanes: Lanes,
    written: [AtomicUsize; 8],
}

impl Queue {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            lanes: Lanes::new(),
            written: std::array::from_fn(|_| AtomicUsize::new(0)),
        })
    }

    /// One thread pushes the messages 1 to 3, another one 4 to 6.
    fn two_producers(self: &Arc<Self>) -> [thread::JoinHandle<()>; 2] {
        [1, 4].map(|first| {
            let queue = Arc::clone(self);
            thread::spawn(move || {
                let mut lane = queue.lanes.open();
                (first..first + 3).for_each(|message| _ = queue.push(&mut lane, message));
            })
        })
    }

    fn push(&self, lane: &mut Lane, message: u64) -> u64 {
        self.written[message as usize].store(1, Relaxed);
        lane.push(message)
    }

    /// Takes at most `most` messages. Zeros are messages that were taken back.
    #[track_caller]
    fn take(&self, most: usize, taken: &mut Vec<u64>) {
        self.take_portions(most, most, taken);
    }

    /// [`take`](Self::take), at most `portion` messages of each lane. Returns whether more wait.
    #[track_caller]
    fn take_portions(&self, most: usize, portion: usize, taken: &mut Vec<u64>) -> bool {
        let (messages, more) = self.lanes.take_portions(most, portion);
        for &message in messages.iter().filter(|message| **message != 0) {
            assert_eq!(
                self.written[message as usize].load(Relaxed),
                1,
                "the flag was set before {message} was pushed"
            );
        }
        taken.extend(messages);
        more
    }
}

/// All messages of this range were taken, in order. Messages of other lanes may be between them.
#[track_caller]
fn assert_in_order(taken: &[u64], range: std::ops::RangeInclusive<u64>) {
    let arrived: Vec<_> = taken
        .iter()
        .copied()
        .filter(|message| range.contains(message))
        .collect();
    assert_eq!(
        arrived,
        Vec::from_iter(range),
        "each message arrives once, in order"
    );
}

/// A block has two slots in a model, so the lane has three blocks.
#[test]
fn messages_of_one_thread_arrive_in_order() {
    explore(
        None,
        [
            no_release("node/lane.rs push"),
            no_acquire("node/lane.rs waiting"),
            mutant("LaneOutOfOrder"),
        ],
        || {
            let queue = Queue::new();
            let other = Arc::clone(&queue);
            let producer = thread::spawn(move || {
                let mut lane = other.lanes.open();
                (1..=5).for_each(|message| _ = other.push(&mut lane, message));
            });
            let mut taken = Vec::new();
            queue.take(2, &mut taken);
            queue.take(2, &mut taken);
            producer.join().unwrap();
            queue.take(8, &mut taken);
            assert_in_order(&taken, 1..=5);
        },
    );
}

#[test]
fn messages_of_two_threads_arrive_in_order_of_each() {
    explore(
        bound(2, Some(3)),
        [
            no_release("node/lane.rs push"),
            no_acquire("node/lane.rs waiting"),
        ],
        || {
            let queue = Queue::new();
            let producers = queue.two_producers();
            let mut taken = Vec::new();
            queue.take(2, &mut taken);
            queue.take(2, &mut taken);
            producers
                .into_iter()
                .for_each(|producer| producer.join().unwrap());
            queue.take(8, &mut taken);
            assert_eq!(taken.len(), 6, "no message arrives twice: {taken:?}");
            assert_in_order(&taken, 1..=3);
            assert_in_order(&taken, 4..=6);
        },
    );
}

/// The worker takes one message of each lane at a time.
#[test]
fn portions_of_two_lanes_arrive_in_order_of_each() {
    explore(
        bound(2, Some(3)),
        [
            no_release("node/lane.rs push"),
            mutant("LaneOutOfOrder"),
            mutant("PortionWithoutBacklog"),
        ],
        || {
            let queue = Queue::new();
            let producers = queue.two_producers();
            let mut taken = Vec::new();
            queue.take_portions(8, 1, &mut taken);
            producers
                .into_iter()
                .for_each(|producer| producer.join().unwrap());
            while queue.take_portions(8, 1, &mut taken) {}
            assert_eq!(taken.len(), 6, "no message stays: {taken:?}");
            assert_in_order(&taken, 1..=3);
            assert_in_order(&taken, 4..=6);
        },
    );
}

/// The thread takes back the last message and one in the block before.
#[test]
fn message_is_taken_or_taken_back() {
    explore(
        None,
        [mutant("TakeBackWithoutCompare"), mutant("SettledTooEarly")],
        || {
            let queue = Queue::new();
            let other = Arc::clone(&queue);
            let producer = thread::spawn(move || {
                let mut lane = other.lanes.open();
                let tickets = [1, 2, 3].map(|message| other.push(&mut lane, message));
                [1, 3].map(|message| lane.take_back(tickets[message as usize - 1], message))
            });
            let mut taken = Vec::new();
            queue.take(8, &mut taken);
            let back = producer.join().unwrap();
            queue.take(8, &mut taken);
            assert_eq!(
                taken.len(),
                3,
                "a message that was taken back leaves a zero"
            );
            for (message, is_back) in [1, 3].into_iter().zip(back) {
                assert_ne!(
                    taken.contains(&message),
                    is_back,
                    "message {message} is either taken or taken back"
                );
            }
            assert!(taken.contains(&2));
        },
    );
}

#[test]
fn retired_lane_is_dropped_when_it_is_empty() {
    explore(
        None,
        [
            no_release("node/lane.rs retire"),
            no_acquire("node/lane.rs waiting"),
            mutant("RetiredLaneDroppedEarly"),
        ],
        || {
            let queue = Queue::new();
            let mut taken = Vec::new();
            queue.take(1, &mut taken);
            let (other, lanes) = (Arc::clone(&queue), queue.lanes.count());
            let producer = thread::spawn(move || {
                let mut lane = other.lanes.open();
                (1..=3).for_each(|message| _ = other.push(&mut lane, message));
                lane.retire();
            });
            for _ in 0..2 {
                queue.take(2, &mut taken);
                if queue.lanes.count() < lanes {
                    assert_in_order(&taken, 1..=3);
                }
            }
            producer.join().unwrap();
            queue.take(8, &mut taken);
            assert_in_order(&taken, 1..=3);
            assert_eq!(queue.lanes.count(), lanes - 1);
        },
    );
}
