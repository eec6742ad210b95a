//! The lanes by themselves: what threads push, the worker takes, each message once.

use hashed_wheel::inside::{Lane, Lanes};
use loom::sync::atomic::AtomicUsize;

use super::*;

/// Some lanes, and what was done before a message was pushed, by its number: to be seen only if some order says so.
struct Post {
    lanes: Lanes,
    done: [AtomicUsize; 8],
}

impl Post {
    fn new() -> Arc<Self> {
        Arc::new(Self { lanes: Lanes::new(), done: std::array::from_fn(|_| AtomicUsize::new(0)) })
    }

    fn push(&self, lane: &mut Lane, message: u64) -> u64 {
        self.done[message as usize].store(1, Relaxed);
        lane.push(message)
    }

    /// Takes so many at most. Zeros are what was taken back.
    #[track_caller]
    fn take(&self, most: usize, taken: &mut Vec<u64>) {
        let messages = self.lanes.take(most).0;
        for &message in messages.iter().filter(|message| **message != 0) {
            assert_eq!(self.done[message as usize].load(Relaxed), 1, "it was done before {message}");
        }
        taken.extend(messages);
    }
}

/// All of these, in this order, whatever lies between them.
#[track_caller]
fn assert_in_order(taken: &[u64], of_one: std::ops::RangeInclusive<u64>) {
    let came: Vec<_> = taken.iter().copied().filter(|message| of_one.contains(message)).collect();
    assert_eq!(came, Vec::from_iter(of_one), "each once, in their order");
}

/// (A block holds two, in a model.)
#[test]
fn what_a_thread_pushes_comes_in_its_order() {
    explore(
        None,
        [no_release("node/lane.rs push"), no_acquire("node/lane.rs waiting"), mutant("LaneOutOfOrder")],
        || {
            let post = Post::new();
            let other = Arc::clone(&post);
            let producer = thread::spawn(move || {
                let mut lane = other.lanes.open();
                (1..=5).for_each(|message| _ = other.push(&mut lane, message));
            });
            let mut taken = Vec::new();
            post.take(2, &mut taken);
            post.take(2, &mut taken);
            producer.join().unwrap();
            post.take(8, &mut taken);
            assert_in_order(&taken, 1..=5);
        },
    );
}

#[test]
fn what_two_threads_push_comes_in_the_order_of_each() {
    explore(Some(3), [no_release("node/lane.rs push"), no_acquire("node/lane.rs waiting")], || {
        let post = Post::new();
        let producers = [1, 4].map(|first| {
            let other = Arc::clone(&post);
            thread::spawn(move || {
                let mut lane = other.lanes.open();
                (first..first + 3).for_each(|message| _ = other.push(&mut lane, message));
            })
        });
        let mut taken = Vec::new();
        post.take(2, &mut taken);
        post.take(2, &mut taken);
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        post.take(8, &mut taken);
        assert_eq!(taken.len(), 6, "nothing comes twice: {taken:?}");
        assert_in_order(&taken, 1..=3);
        assert_in_order(&taken, 4..=6);
    });
}

/// The last one, one in the block before, and none that is further back.
#[test]
fn a_message_is_taken_or_taken_back() {
    explore(None, [mutant("TakeBackWithoutCompare")], || {
        let post = Post::new();
        let other = Arc::clone(&post);
        let producer = thread::spawn(move || {
            let mut lane = other.lanes.open();
            let tickets = [1, 2, 3].map(|message| other.push(&mut lane, message));
            [1, 3].map(|message| lane.take_back(tickets[message as usize - 1], message))
        });
        let mut taken = Vec::new();
        post.take(8, &mut taken);
        let back = producer.join().unwrap();
        post.take(8, &mut taken);
        assert_eq!(taken.len(), 3, "what was taken back leaves a gap");
        for (message, is_back) in [1, 3].into_iter().zip(back) {
            assert_ne!(taken.contains(&message), is_back, "one of both has {message}");
        }
        assert!(taken.contains(&2));
    });
}

#[test]
fn a_lane_goes_when_all_is_taken() {
    explore(
        None,
        [no_release("node/lane.rs retire"), no_acquire("node/lane.rs waiting"), mutant("RetiredLaneGoes")],
        || {
            let post = Post::new();
            let mut taken = Vec::new();
            post.take(1, &mut taken);
            let (other, lanes) = (Arc::clone(&post), post.lanes.count());
            let producer = thread::spawn(move || {
                let mut lane = other.lanes.open();
                (1..=3).for_each(|message| _ = other.push(&mut lane, message));
                lane.retire();
            });
            for _ in 0..2 {
                post.take(2, &mut taken);
                if post.lanes.count() < lanes {
                    assert_in_order(&taken, 1..=3);
                }
            }
            producer.join().unwrap();
            post.take(8, &mut taken);
            assert_in_order(&taken, 1..=3);
            assert_eq!(post.lanes.count(), lanes - 1);
        },
    );
}
