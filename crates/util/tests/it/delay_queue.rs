//! `DelayQueue` on a clock that moves only when the test moves it; and with threads in real time.
//!
//! Many tests are those of tokio-util's `DelayQueue` and of the JSR-166 test suite for
//! `java.util.concurrent.DelayQueue`, under their names. `tests/peers.rs` has others of them, and
//! `docs/ported-tests.md` says what is different.

use crate::common;

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    AsyncTask, Driven, RewindableClock, TEST_TIMEOUT, TICK, ends, eventually, ms, quietly,
};
use hashed_wheel::{HashedWheelTimer, ManualClock, NewTimeoutError};
use hashed_wheel_util::delay_queue::{DelayQueue, Expired, Key};

impl AsyncTask {
    /// Polls for a value. `None` is pending.
    fn poll<T: Send + 'static>(self: &Arc<Self>, queue: &mut DelayQueue<T>) -> Option<T> {
        match self.try_poll(queue) {
            Poll::Ready(expired) => Some(expired.expect("a value").into_inner()),
            Poll::Pending => None,
        }
    }

    fn try_poll<T: Send + 'static>(
        self: &Arc<Self>,
        queue: &mut DelayQueue<T>,
    ) -> Poll<Result<Expired<T>, NewTimeoutError>> {
        queue.poll_expired(&mut Context::from_waker(&Waker::from(Arc::clone(self))))
    }
}

fn is_stopped<T>(poll: &Poll<Result<T, NewTimeoutError>>) -> bool {
    matches!(poll, Poll::Ready(Err(NewTimeoutError::Stopped)))
}

impl Driven {
    fn queue<T>(&self) -> DelayQueue<T> {
        DelayQueue::new(&self.timer)
    }

    /// Makes turns until the thread has ended.
    fn turn_until_ended<T>(&mut self, thread: thread::JoinHandle<T>) -> T {
        let began = Instant::now();
        while !thread.is_finished() {
            assert!(began.elapsed() < TEST_TIMEOUT, "the thread waits");
            self.driver.turn();
            thread::yield_now();
        }
        thread.join().unwrap()
    }

    /// Waits until so many consumers wait, and their timeouts are in the wheel. (The timer counts a
    /// timeout before the worker can find it. If the clock went on between, it would be late.)
    fn wait_for_waiters(&mut self, count: usize) {
        let began = Instant::now();
        while self.timer.pending_timeouts() != count || self.timeouts_in_wheel() < count {
            assert!(
                began.elapsed() < TEST_TIMEOUT,
                "{} wait",
                self.timer.pending_timeouts()
            );
            self.driver.turn();
            thread::yield_now();
        }
    }

    fn timeouts_in_wheel(&self) -> usize {
        let occupancy = self.timer.occupancy().expect("no turn is in progress");
        occupancy.levels.iter().flat_map(|level| &level.slots).sum()
    }
}

/// Everything that is due, in the order in which it comes out.
fn all_due<T>(queue: &DelayQueue<T>) -> Vec<T> {
    std::iter::from_fn(|| queue.try_recv())
        .map(Expired::into_inner)
        .collect()
}

#[test]
fn values_of_one_deadline_keep_their_order_after_a_later_one_has_come_out() {
    let driven = Driven::new();
    let queue = driven.queue();
    let past = driven.timer.now();
    driven.clock.advance(ms(10));
    // The places of these are used again, in another order.
    for value in ["a", "b", "c"] {
        queue.insert(value, Duration::ZERO).unwrap();
    }
    assert_eq!(all_due(&queue), ["a", "b", "c"]);
    let [first, _, third] = ["1", "2", "3"].map(|value| queue.insert_at(value, past).unwrap());
    assert!(queue.reset_at(first, past), "the same");
    assert_eq!(queue.peek(), Some(first));
    assert!(queue.reset_at(first, past + ms(1)));
    assert!(queue.reset_at(first, past));
    assert_eq!(queue.remove(third), Some("3"));
    queue.insert_at("4", past).unwrap();
    assert_eq!(all_due(&queue), ["2", "1", "4"]);
}

/// A peek may look further ahead than the present.
#[test]
fn values_before_the_one_that_was_found_first_come_out_in_order() {
    let driven = Driven::new();
    let queue = driven.queue();
    let never = queue.insert("never", Duration::MAX).unwrap();
    assert_eq!(queue.peek(), Some(never));
    let later = queue.insert("later", ms(20)).unwrap();
    assert_eq!(queue.peek(), Some(later));
    for value in ["1", "2", "3"] {
        queue.insert(value, ms(10)).unwrap();
    }
    queue.insert("too", ms(20)).unwrap();
    assert!(queue.try_recv().is_none());
    driven.clock.advance(ms(10));
    assert_eq!(all_due(&queue), ["1", "2", "3"]);
    driven.clock.advance(ms(10));
    assert_eq!(all_due(&queue), ["later", "too"]);
    driven.clock.advance(Duration::from_secs(1 << 40));
    assert!(queue.try_recv().is_none());
    assert_eq!(queue.drain(), ["never"]);
}

#[test]
#[cfg_attr(miri, ignore = "too many values")]
fn peeking_at_the_values_one_by_one_does_not_search_all_of_them_each_time() {
    let driven = Driven::new();
    let queue = driven.queue();
    for number in 0..100_000 {
        queue.insert(number, ms(3_600_000 - number)).unwrap();
    }
    let began = Instant::now();
    while let Some(key) = queue.peek() {
        queue.remove(key).unwrap();
        assert!(began.elapsed() < TEST_TIMEOUT, "{} are left", queue.len());
    }
}

// --- tokio-util ----------------------------------------------------------------------------------

#[test]
fn single_immediate_delay() {
    let (driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    queue.insert("foo", Duration::ZERO).unwrap();
    assert_eq!(task.poll(&mut queue), Some("foo"));
    assert_eq!(task.take_wakes(), 0);
    assert_eq!(
        driven.timer.pending_timeouts(),
        0,
        "a value that is due needs no timeout"
    );
}

#[test]
fn multi_immediate_delays() {
    let (driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    for value in ["1", "2", "3"] {
        queue.insert(value, Duration::ZERO).unwrap();
    }
    for value in ["1", "2", "3"] {
        assert_eq!(task.poll(&mut queue), Some(value), "in insertion order");
    }
}

#[test]
fn single_short_delay() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    queue.insert("foo", ms(5)).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    driven.pass(ms(5));
    assert_eq!(
        task.take_wakes(),
        0,
        "a waiting consumer is woken at a tick"
    );
    driven.pass(ms(5));
    assert_eq!(task.take_wakes(), 1);
    assert_eq!(task.poll(&mut queue), Some("foo"));
}

#[test]
#[cfg_attr(miri, ignore = "too many ticks")]
fn multi_delay_at_start() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    let long = 4_096 + 9 * 64;
    for delay in [1_000, 2, 234, long, 60, 10] {
        queue.insert(delay, TICK * delay).unwrap();
    }
    for tick in 1..=long {
        if task.take_wakes() > 0 || tick == 1 {
            while let Some(delay) = task.poll(&mut queue) {
                assert_eq!(delay, tick - 1);
            }
        }
        driven.pass(TICK);
    }
    assert_eq!(task.take_wakes(), 1);
    assert_eq!(task.poll(&mut queue), Some(long));
    assert!(queue.is_empty());
}

#[test]
fn insert_in_past_fires_immediately() {
    let now = Instant::now();
    let (driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    driven.clock.advance(ms(10));
    queue.insert_at("foo", now).unwrap();
    assert_eq!(task.poll(&mut queue), Some("foo"));
}

#[test]
fn insert_in_past_after_poll_fires_immediately() {
    let now = Instant::now();
    let (driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    queue.insert_at("later", now + ms(200_000)).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    queue.insert_at("now", now).unwrap();
    assert_eq!(task.take_wakes(), 1);
    assert_eq!(task.poll(&mut queue), Some("now"));
}

#[test]
fn remove_entry() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    let key = queue.insert("foo", ms(50)).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    assert_eq!(queue.remove(key), Some("foo"));
    driven.pass(ms(100));
    assert_eq!(task.poll(&mut queue), None);
}

#[test]
fn remove_expired_item() {
    let driven = Driven::new();
    let queue = driven.queue();
    driven.clock.advance(ms(10));
    let key = queue.insert("foo", Duration::ZERO).unwrap();
    driven.clock.advance(ms(10));
    assert_eq!(queue.remove(key), Some("foo"), "due, and not received");
    assert!(queue.try_recv().is_none());
}

#[test]
fn reset_entry() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    let key = queue.insert("foo", ms(50)).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    driven.pass(ms(30));
    assert!(queue.reset(key, ms(50)));
    driven.pass(ms(40));
    assert_eq!(task.poll(&mut queue), None);
    driven.pass(ms(10));
    assert_eq!(task.poll(&mut queue), Some("foo"));
    assert!(!queue.reset(key, ms(50)));
}

#[test]
fn reset_much_later() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    driven.pass(ms(10));
    let key = queue.insert("foo", ms(200)).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    driven.pass(ms(30));
    queue.reset(key, ms(1_000));
    for _ in 0..99 {
        driven.pass(TICK);
        assert_eq!(task.poll(&mut queue), None);
    }
    driven.pass(TICK);
    assert_eq!(task.poll(&mut queue), Some("foo"));
}

#[test]
fn reset_twice() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    let key = queue.insert("foo", ms(50)).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    for _ in 0..2 {
        driven.pass(ms(20));
        queue.reset(key, ms(50));
    }
    driven.pass(ms(40));
    assert_eq!(task.poll(&mut queue), None);
    driven.pass(ms(10));
    assert_eq!(task.poll(&mut queue), Some("foo"));
}

#[test]
fn repeatedly_reset_entry_inserted_as_expired() {
    let driven = Driven::new();
    let queue = driven.queue();
    let key = queue.insert("foo", Duration::ZERO).unwrap();
    driven.clock.advance(ms(10));
    for _ in 0..2 {
        assert!(queue.reset(key, ms(100)));
        assert!(queue.try_recv().is_none(), "a due value can be reset");
    }
    driven.clock.advance(ms(100));
    assert_eq!(all_due(&queue), ["foo"]);
}

#[test]
fn expire_first_key_when_reset_to_expire_earlier() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    let first = queue.insert("one", ms(200)).unwrap();
    queue.insert("two", ms(250)).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    queue.reset(first, ms(100));
    assert_eq!(task.take_wakes(), 1, "to set its alarm");
    assert_eq!(task.poll(&mut queue), None);
    driven.pass(ms(100));
    assert_eq!(task.take_wakes(), 1);
    assert_eq!(task.poll(&mut queue), Some("one"));
}

#[test]
fn expire_second_key_when_reset_to_expire_earlier() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    queue.insert("one", ms(200)).unwrap();
    let second = queue.insert("two", ms(250)).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    queue.reset(second, ms(100));
    assert_eq!((task.take_wakes(), task.poll(&mut queue)), (1, None));
    driven.pass(ms(100));
    assert_eq!((task.take_wakes(), task.poll(&mut queue)), (1, Some("two")));
}

#[test]
fn reset_first_expiring_item_to_expire_later() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    let first = queue.insert("one", ms(200)).unwrap();
    queue.insert("two", ms(250)).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    queue.reset(first, ms(300));
    assert_eq!(task.take_wakes(), 0, "its alarm is early enough");
    driven.pass(ms(250));
    assert_eq!(task.poll(&mut queue), Some("two"));
    driven.pass(ms(50));
    assert_eq!(task.poll(&mut queue), Some("one"));
}

#[test]
fn insert_before_first_after_poll() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    queue.insert("one", ms(200)).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    queue.insert("two", ms(100)).unwrap();
    assert_eq!((task.take_wakes(), task.poll(&mut queue)), (1, None));
    driven.pass(ms(100));
    assert_eq!((task.take_wakes(), task.poll(&mut queue)), (1, Some("two")));
}

#[test]
fn insert_after_ready_poll() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    for value in ["1", "2", "3"] {
        queue.insert(value, ms(100)).unwrap();
    }
    assert_eq!(task.poll(&mut queue), None);
    driven.pass(ms(100));
    assert_eq!(task.take_wakes(), 1);
    let mut received = BTreeSet::new();
    while let Some(value) = task.poll(&mut queue) {
        received.insert(value);
        queue.insert("later", ms(500)).unwrap();
    }
    assert_eq!((received.len(), queue.len()), (3, 3));
}

#[test]
fn wake_after_remove_last() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    let key = queue.insert("foo", ms(1_000)).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    queue.remove(key);
    // tokio-util's stream ends here. This one waits for the next value.
    queue.insert("bar", ms(10)).unwrap();
    assert_eq!((task.take_wakes(), task.poll(&mut queue)), (1, None));
    driven.pass(ms(10));
    assert_eq!(task.poll(&mut queue), Some("bar"));
}

#[test]
fn peek() {
    let (driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    assert_eq!(queue.peek(), None);
    let late = queue.insert("late", ms(20)).unwrap();
    assert_eq!(queue.peek(), Some(late));
    let early = queue.insert("early", ms(10)).unwrap();
    assert_eq!(queue.peek(), Some(early));
    driven.clock.advance(ms(10));
    assert_eq!(queue.peek(), Some(early), "also if it is due");
    assert_eq!(task.poll(&mut queue), Some("early"));
    assert_eq!(queue.peek(), Some(late));
    queue.remove(late);
    assert_eq!(queue.peek(), None);
}

#[test]
fn keys_of_removed_values_are_stale() {
    let driven = Driven::new();
    let queue = driven.queue();
    let removed = queue.insert("removed", ms(10)).unwrap();
    queue.remove(removed);
    let received = queue.insert("received", Duration::ZERO).unwrap();
    queue.try_recv().unwrap();
    let cleared = queue.insert("cleared", ms(10)).unwrap();
    queue.clear();
    let kept = queue.insert("kept", ms(10)).unwrap();
    for key in [removed, received, cleared] {
        assert_eq!((queue.remove(key), queue.deadline(key)), (None, None));
        assert!(!queue.reset(key, ms(10)) && !queue.reset_at(key, Instant::now()));
    }
    assert_eq!(queue.remove(kept), Some("kept"));
}

// --- java.util.concurrent ------------------------------------------------------------------------

#[test]
fn values_are_taken_in_the_order_of_their_deadlines() {
    let driven = Driven::new();
    let queue = driven.queue();
    for delay in [30, 10, 20, 0, 10] {
        queue.insert(delay, ms(delay)).unwrap();
    }
    driven.clock.advance(ms(20));
    assert_eq!(all_due(&queue), [0, 10, 10, 20]);
    driven.clock.advance(ms(10));
    assert_eq!(all_due(&queue), [30]);
}

/// `testDelay`: no value comes out before its delay is over, to the nanosecond.
#[test]
fn no_value_is_early() {
    let driven = Driven::new();
    let queue = driven.queue();
    queue.insert((), ms(10)).unwrap();
    driven.clock.advance(ms(10) - Duration::from_nanos(1));
    assert!(queue.try_recv().is_none());
    driven.clock.advance(Duration::from_nanos(1));
    assert!(queue.try_recv().is_some());
}

/// `testBlockingTake`, and `testTake`.
#[test]
fn recv_blocks_until_a_value_is_due() {
    let mut driven = Driven::new();
    let queue = driven.queue();
    let consumer = queue.clone();
    let received = thread::spawn(move || consumer.recv().unwrap().into_inner());
    driven.wait_for_waiters(1);
    driven.pass(TICK);
    assert!(!received.is_finished());
    queue.insert("foo", TICK).unwrap();
    // The thread has been woken to set its alarm, which may take some time.
    let value = ends(move || {
        while !received.is_finished() {
            driven.pass(TICK);
            thread::yield_now();
        }
        received.join().unwrap()
    });
    assert_eq!(value, "foo");
}

/// `testPollDelayed`, `testPoll0`, `testTimedPoll`.
#[test]
fn recv_timeout_waits_by_the_clock_of_the_timer() {
    let mut driven = Driven::new();
    let queue = driven.queue();
    queue.insert("later", ms(100)).unwrap();
    assert!(queue.recv_timeout(Duration::ZERO).unwrap().is_none());
    assert_eq!(
        driven.timer.stats().scheduled,
        0,
        "a timeout of zero does not wait"
    );

    let consumer = queue.clone();
    let waits = thread::spawn(move || consumer.recv_timeout(ms(50)).unwrap().is_none());
    driven.wait_for_waiters(1);
    driven.pass(ms(40));
    assert!(!waits.is_finished());
    driven.pass(ms(10));
    assert!(driven.turn_until_ended(waits), "the limit was reached");
    assert_eq!(driven.timer.pending_timeouts(), 0);

    let waits = thread::spawn(move || queue.recv_timeout(ms(100)).unwrap().unwrap().into_inner());
    driven.wait_for_waiters(1);
    driven.pass(ms(50));
    assert_eq!(driven.turn_until_ended(waits), "later");
}

/// `testTimedPollWithOffer`.
#[test]
fn recv_timeout_receives_what_is_inserted_meanwhile() {
    let mut driven = Driven::new();
    let queue = driven.queue();
    let consumer = queue.clone();
    let waits = thread::spawn(move || consumer.recv_timeout(ms(50)).unwrap().unwrap().into_inner());
    driven.wait_for_waiters(1);
    queue.insert("now", Duration::ZERO).unwrap();
    assert_eq!(ends(move || waits.join().unwrap()), "now");
}

/// `testPeekDelayed`, `testSize`, `testClear`, `testIterator`.
#[test]
fn values_that_are_not_due_are_counted_and_drained() {
    let driven = Driven::new();
    let queue = driven.queue();
    assert!(queue.is_empty() && queue.drain().is_empty());
    for delay in [20, 0, 10] {
        queue.insert(delay, ms(delay)).unwrap();
    }
    assert_eq!((queue.len(), queue.is_empty()), (3, false));
    assert_eq!(queue.drain(), [0, 10, 20]);
    assert_eq!((queue.len(), queue.peek()), (0, None));
    queue.insert(0, Duration::ZERO).unwrap();
    queue.clear();
    assert!(queue.try_recv().is_none());
}

// --- order and deadlines -------------------------------------------------------------------------

#[test]
fn values_come_out_in_the_order_in_which_they_got_one_deadline() {
    let driven = Driven::new();
    let queue = driven.queue();
    let keys: Vec<Key> = (0..100)
        .map(|value| queue.insert(value, ms(10)).unwrap())
        .collect();
    queue.reset(keys[7], ms(500));
    queue.reset(keys[7], ms(10));
    queue.reset(keys[8], ms(10)); // the same
    driven.clock.advance(ms(10));
    let expected = (0..100).filter(|&value| value != 7).chain([7]);
    assert_eq!(all_due(&queue), expected.collect::<Vec<_>>());
}

/// The queue beside a list, which is ordered by the deadlines and by when the values got them. Half
/// of the deadlines have passed, so many are earlier than one that has come out.
#[test]
fn random_operations_agree_with_a_list() {
    for seed in 0..if cfg!(miri) { 2 } else { 200 } {
        let mut random = fastrand::Rng::with_seed(seed);
        let driven = Driven::new();
        let queue = driven.queue();
        driven.clock.advance(ms(5_000));
        let mut values: Vec<(Instant, u64, Key)> = Vec::new();
        // A peek changes where later values are kept.
        let peeks = [1, 20, u64::MAX][seed as usize % 3];
        for number in 0..500 {
            let now = driven.timer.now();
            let deadline = now + 20 * ms(random.u64(..100)) - ms(1_000);
            let at = random.usize(..values.len().max(1));
            match random.u32(..8) {
                0..3 => {
                    let key = queue.insert_at(number, deadline).unwrap();
                    values.push((deadline, number, key));
                }
                3 if at < values.len() => {
                    assert!(queue.reset_at(values[at].2, deadline));
                    if values[at].0 != deadline {
                        (values[at].0, values[at].1) = (deadline, number);
                    }
                }
                4 if at < values.len() => {
                    let (deadline, _, key) = values.swap_remove(at);
                    assert_eq!(queue.deadline(key), Some(deadline));
                    assert!(queue.remove(key).is_some());
                    assert!(queue.remove(key).is_none() && !queue.reset(key, ms(1)));
                }
                5 if number % 50 == 0 => {
                    let kept = queue.drain().len();
                    assert_eq!(kept, values.len());
                    values.clear();
                }
                5 => driven.clock.advance(20 * ms(random.u64(..10))),
                _ => {
                    values.sort_unstable_by_key(|&(deadline, order, _)| (deadline, order));
                    let due = values.first().filter(|value| value.0 <= now);
                    let due = due.map(|&(deadline, _, key)| (deadline, key));
                    let received = queue.try_recv();
                    let received = received.map(|value| (value.deadline(), value.key()));
                    assert_eq!(received, due);
                    values.drain(..usize::from(due.is_some()));
                }
            }
            assert_eq!(queue.len(), values.len());
            if number % peeks == 0 {
                let first = values.iter().min_by_key(|value| (value.0, value.1));
                assert_eq!(queue.peek(), first.map(|value| value.2));
            }
        }
    }
}

#[test]
fn deadline_is_that_of_the_insertion() {
    let timer = HashedWheelTimer::default();
    let queue = DelayQueue::new(&timer);
    let (now, minute) = (Instant::now(), Duration::from_secs(60));
    let key = queue.insert_at("foo", now + minute).unwrap();
    assert_eq!(
        queue.deadline(key),
        Some(now + minute),
        "exact with the default clock"
    );
    assert!(queue.reset_at(key, now + 2 * minute));
    assert_eq!(queue.deadline(key), Some(now + 2 * minute));
    assert!(queue.reset(key, 3 * minute));
    assert!(queue.deadline(key).unwrap() >= now + 3 * minute);

    assert!(queue.reset_at(key, now));
    let expired = queue
        .try_recv()
        .expect("a value whose deadline has passed is due");
    assert!((now..=Instant::now()).contains(&expired.deadline()));
    assert_eq!((expired.key(), expired.get_ref()), (key, &"foo"));
}

/// An `Instant` of the machine that has passed is long ago on a manual clock, but not in any order.
#[test]
fn moments_of_the_machine_that_have_passed_keep_their_order_on_a_manual_clock() {
    let driven = Driven::new();
    let queue = driven.queue();
    let Some(past) = Instant::now().checked_sub(ms(60_000)) else {
        return;
    };
    queue.insert(5, Duration::ZERO).unwrap();
    for (value, after) in [(4, 2_000), (1, 0), (3, 1_000), (2, 0)] {
        queue.insert_at(value, past + ms(after)).unwrap();
    }
    let received: Vec<_> = std::iter::from_fn(|| queue.try_recv())
        .map(Expired::into_inner)
        .collect();
    assert_eq!(received, [1, 2, 3, 4, 5]);
}

/// A queue that was stored is loaded again. Some deadlines are before the timer was built.
#[test]
fn deadlines_that_have_passed_keep_their_order() {
    let driven = Driven::new();
    let manual = driven.queue();
    driven.clock.advance(ms(50));
    let now = driven.timer.now();
    let real = DelayQueue::new(&HashedWheelTimer::default());
    for (queue, now) in [(&manual, now), (&real, Instant::now())] {
        // Before the timer was built.
        let Some(past) = now.checked_sub(ms(60_000)) else {
            continue;
        };
        let deadlines = [
            now - ms(10),
            past,
            now + ms(60_000),
            now - ms(20),
            past + ms(1),
            now - ms(90),
        ];
        let keys = deadlines.map(|deadline| queue.insert_at(deadline, deadline).unwrap());
        for (key, deadline) in keys.into_iter().zip(deadlines) {
            assert_eq!(queue.deadline(key), Some(deadline));
        }
        assert!(queue.reset_at(keys[0], past - ms(1)));
        let mut expected = [deadlines[1], deadlines[4], deadlines[5], deadlines[3]];
        assert_eq!(queue.peek(), Some(keys[0]));
        expected.sort_unstable();
        let received: Vec<_> = std::iter::from_fn(|| queue.try_recv()).collect();
        assert_eq!(received[0].deadline(), past - ms(1));
        let rest: Vec<_> = received[1..].iter().map(Expired::deadline).collect();
        assert_eq!(rest, expected);
        assert_eq!(queue.len(), 1);
    }
}

#[test]
fn key_of_another_queue_is_refused() {
    let driven = Driven::new();
    let (queue, other) = (driven.queue(), driven.queue());
    let (key, others) = (
        queue.insert(1, ms(0)).unwrap(),
        other.insert(2, ms(0)).unwrap(),
    );
    assert_ne!(key, others);
    assert_eq!((queue.remove(others), queue.deadline(others)), (None, None));
    assert!(!queue.reset(others, ms(9)) && !queue.reset_at(others, driven.timer.now()));
    assert_eq!(
        queue.clone().remove(key),
        Some(1),
        "a clone is the same queue"
    );
    assert_eq!(other.remove(others), Some(2));
}

#[test]
fn deadline_by_another_clock_is_as_far_from_now() {
    let clock = ManualClock::new();
    let other = RewindableClock(clock.clone(), ManualClock::new());
    let driven = Driven::with(|builder| builder.clock(other));
    let queue = driven.queue();
    let key = queue.insert("foo", ms(5_000)).unwrap();
    clock.advance(ms(1_000));
    let (left, slack) = (ms(4_000), ms(2_000));
    let deadline = queue.deadline(key).unwrap();
    assert!(deadline <= Instant::now() + left && deadline + slack >= Instant::now() + left);
    clock.advance(ms(5_000));
    let expired = queue.try_recv().unwrap();
    assert!(
        expired.deadline() <= Instant::now() - ms(1_000),
        "due for a second"
    );
}

#[test]
fn value_with_no_reachable_deadline_is_never_due() {
    let (driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    let key = queue.insert("never", Duration::MAX).unwrap();
    let far = Instant::now() + Duration::from_secs(29 * 365 * 86_400);
    assert!(queue.deadline(key).unwrap() > far);
    driven.clock.advance(Duration::MAX);
    assert_eq!(task.poll(&mut queue), None);
    assert_eq!(queue.remove(key), Some("never"));
}

#[test]
fn value_with_no_delay_is_due_at_once_by_the_default_clock() {
    let queue = DelayQueue::new(&HashedWheelTimer::default());
    for value in 0..if cfg!(miri) { 50 } else { 10_000 } {
        queue.insert(value, Duration::ZERO).unwrap();
        assert_eq!(queue.try_recv().map(Expired::into_inner), Some(value));
    }
}

// --- waiting consumers ---------------------------------------------------------------------------

#[test]
fn consumer_is_woken_only_for_an_earlier_deadline() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    assert_eq!(task.poll(&mut queue), None);
    queue.insert("first", ms(100)).unwrap();
    assert_eq!((task.take_wakes(), task.poll(&mut queue)), (1, None));
    queue.insert("same", ms(100)).unwrap();
    queue.insert("later", ms(200)).unwrap();
    assert_eq!(task.take_wakes(), 0);
    queue.insert("earlier", ms(50)).unwrap();
    queue.insert("earliest", ms(20)).unwrap();
    assert_eq!(task.take_wakes(), 1, "once, until it looks");
    assert_eq!(
        driven.timer.pending_timeouts(),
        1,
        "one timeout per consumer"
    );
    driven.pass(ms(100));
    assert_eq!(task.poll(&mut queue), Some("earliest"));
}

#[test]
fn last_waker_is_called() {
    let (mut driven, [first, second]) = (Driven::new(), [AsyncTask::new(), AsyncTask::new()]);
    let mut queue = driven.queue();
    queue.insert("foo", TICK).unwrap();
    assert_eq!(first.poll(&mut queue), None);
    assert_eq!(second.poll(&mut queue), None);
    assert_eq!(Arc::strong_count(&first), 1, "its waker is dropped");
    driven.pass(TICK);
    assert_eq!((first.take_wakes(), second.take_wakes()), (0, 1));
    assert_eq!(second.poll(&mut queue), Some("foo"));
    assert_eq!(Arc::strong_count(&second), 1, "its waker is dropped");
}

#[test]
fn consumers_are_woken_one_at_a_time() {
    let (mut driven, tasks) = (
        Driven::new(),
        [AsyncTask::new(), AsyncTask::new(), AsyncTask::new()],
    );
    let queue = driven.queue();
    let mut queues = [queue.clone(), queue.clone(), queue.clone()];
    for (task, queue) in tasks.iter().zip(&mut queues) {
        assert_eq!(task.poll(queue), None);
    }
    queue.insert("1", TICK).unwrap();
    queue.insert("2", TICK).unwrap();
    assert_eq!(tasks.each_ref().map(|task| task.take_wakes()), [1, 0, 0]);
    assert_eq!(tasks[0].poll(&mut queues[0]), None);
    driven.pass(TICK);
    assert_eq!(tasks.each_ref().map(|task| task.take_wakes()), [1, 0, 0]);
    assert_eq!(tasks[0].poll(&mut queues[0]), Some("1"));
    assert_eq!(tasks.each_ref().map(|task| task.take_wakes()), [0, 1, 0]);
    assert_eq!(tasks[1].poll(&mut queues[1]), Some("2"));
    assert_eq!(
        tasks.each_ref().map(|task| task.take_wakes()),
        [0, 0, 1],
        "the next one sets its alarm"
    );
    assert_eq!(tasks[2].poll(&mut queues[2]), None);
    queue.insert("3", TICK).unwrap();
    assert_eq!(
        (tasks[2].take_wakes(), tasks[2].poll(&mut queues[2])),
        (1, None)
    );
    driven.pass(TICK);
    assert_eq!(tasks[2].poll(&mut queues[2]), Some("3"));
    assert_eq!(driven.timer.pending_timeouts(), 0);
}

#[test]
fn dropped_consumer_is_replaced_by_the_next() {
    let (mut driven, tasks) = (Driven::new(), [AsyncTask::new(), AsyncTask::new()]);
    let queue = driven.queue();
    let [mut first, mut second] = [queue.clone(), queue.clone()];
    assert_eq!(
        (tasks[0].poll(&mut first), tasks[1].poll(&mut second)),
        (None, None)
    );
    queue.insert("foo", TICK).unwrap();
    drop(first);
    assert_eq!(tasks[1].take_wakes(), 1);
    assert_eq!(tasks[1].poll(&mut second), None);
    driven.pass(TICK);
    assert_eq!(
        (tasks[1].take_wakes(), tasks[1].poll(&mut second)),
        (1, Some("foo"))
    );
    assert_eq!(driven.timer.pending_timeouts(), 0);
}

#[test]
fn dropped_future_leaves_its_place() {
    let driven = Driven::new();
    let queue = driven.queue();
    let (first, second) = (AsyncTask::new(), AsyncTask::new());
    let mut waits = pin!(queue.expired());
    let waker = Waker::from(Arc::clone(&second));
    {
        let mut dropped = pin!(queue.expired());
        assert!(
            dropped
                .as_mut()
                .poll(&mut Context::from_waker(&Waker::from(Arc::clone(&first))))
                .is_pending()
        );
        assert!(
            waits
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        assert_eq!(driven.timer.pending_timeouts(), 2);
    }
    assert_eq!((first.take_wakes(), second.take_wakes()), (0, 1));
    queue.insert("foo", Duration::ZERO).unwrap();
    let Poll::Ready(expired) = waits.as_mut().poll(&mut Context::from_waker(&waker)) else {
        panic!("a value is due")
    };
    assert_eq!(expired.unwrap().into_inner(), "foo");
    assert_eq!(driven.timer.pending_timeouts(), 0);
}

#[test]
fn value_that_another_consumer_takes_is_not_waited_for() {
    let (mut driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    queue.insert("1", TICK).unwrap();
    queue.insert("2", 3 * TICK).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    driven.pass(TICK);
    assert_eq!(queue.try_recv().map(Expired::into_inner), Some("1"));
    assert_eq!((task.take_wakes(), task.poll(&mut queue)), (1, None));
    driven.pass(2 * TICK);
    assert_eq!((task.take_wakes(), task.poll(&mut queue)), (1, Some("2")));
}

#[test]
fn waker_and_drop_of_a_value_may_use_the_queue() {
    struct User(DelayQueue<Option<User>>);

    impl Drop for User {
        fn drop(&mut self) {
            self.0.insert(None, Duration::ZERO).unwrap();
        }
    }

    impl Wake for User {
        fn wake(self: Arc<Self>) {
            assert_eq!(self.0.len(), 1);
        }
    }

    let driven = Driven::new();
    let mut queue = driven.queue();
    queue.insert(Some(User(queue.clone())), ms(10)).unwrap();
    queue.clear();
    assert_eq!(
        queue.len(),
        1,
        "the value that the dropped one has inserted"
    );
    assert!(queue.try_recv().is_some());
    let waker = Waker::from(Arc::new(User(queue.clone())));
    assert!(
        queue
            .poll_expired(&mut Context::from_waker(&waker))
            .is_pending()
    );
    drop(waker);
    queue.insert(None, Duration::ZERO).unwrap();
    assert_eq!(queue.len(), 2, "the waker has been called, and dropped");
}

// --- the end -------------------------------------------------------------------------------------

#[test]
fn stop_ends_every_wait_and_keeps_the_values() {
    let (mut driven, tasks) = (Driven::new(), [AsyncTask::new(), AsyncTask::new()]);
    let queue = driven.queue();
    let mut queues = [queue.clone(), queue.clone()];
    queue.insert("soon", ms(10)).unwrap();
    queue.insert("later", ms(1_000)).unwrap();
    let consumer = queue.clone();
    let blocked = thread::spawn(move || consumer.recv());
    driven.wait_for_waiters(1);
    for (task, queue) in tasks.iter().zip(&mut queues) {
        assert_eq!(task.poll(queue), None);
    }
    assert_eq!(driven.timer.stop().len(), 3);
    assert!(matches!(
        ends(move || blocked.join().unwrap()),
        Err(NewTimeoutError::Stopped)
    ));
    for (task, queue) in tasks.iter().zip(&mut queues) {
        assert!(task.take_wakes() > 0);
        assert!(is_stopped(&task.try_poll(queue)));
    }
    assert!(matches!(
        queue.recv_timeout(ms(10)),
        Err(NewTimeoutError::Stopped)
    ));
    // Time goes on.
    driven.clock.advance(ms(10));
    assert_eq!(queue.recv().unwrap().into_inner(), "soon");
    for rejected in [
        queue.insert("late", ms(20)),
        queue.insert_at("late", driven.timer.now()),
    ] {
        let rejected = rejected.unwrap_err();
        assert_eq!(
            (rejected.value, rejected.to_string()),
            ("late", NewTimeoutError::Stopped.to_string())
        );
        assert_eq!(
            format!("{rejected:?}"),
            "InsertError { error: Stopped, .. }"
        );
        assert!(matches!(
            NewTimeoutError::from(rejected),
            NewTimeoutError::Stopped
        ));
    }
    assert_eq!(queue.drain(), ["later"]);
}

/// Shuts a timer down while a consumer waits. Returns what the consumer has received.
fn received_during_shutdown() -> Vec<Option<&'static str>> {
    let timer = HashedWheelTimer::new(ms(1), 512);
    let queue = DelayQueue::new(&timer);
    queue.insert("soon", ms(200)).unwrap();
    queue.insert("later", ms(60_000)).unwrap();
    let consumer = queue.clone();
    let (sender, receiver) = mpsc::channel();
    let blocked = thread::spawn(move || {
        loop {
            let received = consumer.recv().map(Expired::into_inner);
            let is_stopped = received.is_err();
            sender.send(received.ok()).unwrap();
            if is_stopped {
                break;
            }
        }
    });
    eventually("the consumer waits", || timer.pending_timeouts() > 0);
    timer.shutdown(ms(10_000));
    blocked.join().unwrap();
    let received: Vec<_> = receiver.iter().collect();
    assert_eq!(
        queue.len() + received.len(),
        3,
        "each value is in the queue or received"
    );
    received
}

#[test]
fn shutdown_rejects_consumers_that_begin_to_wait() {
    // A consumer is rejected at once if the timer closes just before it waits, which is rare.
    for _ in 0..100 {
        match &received_during_shutdown()[..] {
            [None] => {}
            received => return assert_eq!(received, [Some("soon"), None]),
        }
    }
    panic!("no consumer waited before the timer closed");
}

#[test]
fn rejected_alarm_is_an_error_of_the_consumer() {
    let (mut driven, task) = (
        Driven::with(|builder| builder.max_pending_timeouts(Some(1))),
        AsyncTask::new(),
    );
    let mut queue = driven.queue();
    let lease = driven.timer.new_timeout(|_| (), ms(1_000)).unwrap();
    queue.insert("foo", TICK).unwrap();
    assert!(matches!(
        task.try_poll(&mut queue),
        Poll::Ready(Err(NewTimeoutError::TooManyPending { limit: 1 }))
    ));
    lease.cancel();
    assert_eq!(task.poll(&mut queue), None);
    driven.pass(TICK);
    assert_eq!(task.poll(&mut queue), Some("foo"));
}

#[test]
fn queue_is_a_handle_of_its_timer() {
    let (driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    let Driven {
        timer,
        mut driver,
        clock,
    } = driven;
    drop(timer);
    queue.insert("foo", TICK).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    clock.advance(TICK);
    driver.turn();
    assert_eq!(task.poll(&mut queue), Some("foo"));
    drop(queue);
    assert!(driver.is_stopped());
}

#[test]
fn dropped_queue_drops_its_values() {
    let (driven, task) = (Driven::new(), AsyncTask::new());
    let mut queue = driven.queue();
    let value = Arc::new(());
    queue.insert(Arc::clone(&value), ms(10)).unwrap();
    assert_eq!(task.poll(&mut queue), None);
    drop(queue);
    assert_eq!(
        (Arc::strong_count(&value), driven.timer.pending_timeouts()),
        (1, 0)
    );
}

#[test]
fn recv_on_the_worker_panics_if_it_would_wait() {
    let mut driven = Driven::new();
    let queue = driven.queue();
    let (consumer, (sender, receiver)) = (queue.clone(), mpsc::channel());
    queue.insert("due", Duration::ZERO).unwrap();
    let task = move |_: &hashed_wheel::Timeout| {
        sender.send(consumer.recv().unwrap().into_inner()).unwrap();
        sender.send(consumer.recv().unwrap().into_inner()).unwrap();
    };
    driven.timer.new_timeout(task, TICK).unwrap();
    quietly(|| driven.pass(TICK));
    assert_eq!(receiver.iter().collect::<Vec<_>>(), ["due"]);
    assert_eq!(
        (driven.timer.stats().panics, driven.timer.pending_timeouts()),
        (1, 0)
    );
}

// --- threads -------------------------------------------------------------------------------------

#[test]
fn each_value_is_received_or_removed_once() {
    const VALUES: u64 = if cfg!(miri) { 50 } else { 5_000 };
    const THREADS: u64 = 3;

    let timer = HashedWheelTimer::new(ms(1), 512);
    let queue = DelayQueue::new(&timer);
    let consumers: Vec<_> = (0..THREADS)
        .map(|_| {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut received = Vec::new();
                while let Ok(expired) = queue.recv() {
                    assert!(expired.deadline() <= Instant::now(), "never early");
                    received.push(expired.into_inner());
                }
                received
            })
        })
        .collect();
    let producers: Vec<_> = (0..THREADS)
        .map(|thread| {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let mut removed = Vec::new();
                for value in thread * VALUES..(thread + 1) * VALUES {
                    let key = queue
                        .insert(value, Duration::from_micros(random.u64(..20_000)))
                        .unwrap();
                    match random.u32(..8) {
                        0 => removed.extend(queue.remove(key)),
                        1 => _ = queue.reset(key, Duration::from_micros(random.u64(..20_000))),
                        2 => thread::yield_now(),
                        _ => {}
                    }
                }
                removed
            })
        })
        .collect();
    let mut all: Vec<_> = producers
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    eventually("no value is left", || queue.is_empty());
    timer.stop();
    all.extend(
        consumers
            .into_iter()
            .flat_map(|thread| thread.join().unwrap()),
    );
    all.sort_unstable();
    assert_eq!(all, (0..THREADS * VALUES).collect::<Vec<_>>());
}

// --- the stream ----------------------------------------------------------------------------------

#[cfg(feature = "stream")]
mod stream {
    use std::pin::Pin;

    use futures_core::{FusedStream, Stream};

    use super::*;

    fn next(
        task: &Arc<AsyncTask>,
        queue: &mut DelayQueue<u32>,
    ) -> Poll<Option<Result<u32, NewTimeoutError>>> {
        let waker = Waker::from(Arc::clone(task));
        let next = Pin::new(queue).poll_next(&mut Context::from_waker(&waker));
        next.map(|next| next.map(|expired| expired.map(Expired::into_inner)))
    }

    #[test]
    fn stream_ends_after_the_error_of_a_stopped_timer() {
        let (mut driven, task) = (Driven::new(), AsyncTask::new());
        let mut queue = driven.queue();
        assert!(next(&task, &mut queue).is_pending(), "an empty queue waits");
        queue.insert(7, TICK).unwrap();
        assert!(next(&task, &mut queue).is_pending());
        driven.pass(TICK);
        assert!(matches!(next(&task, &mut queue), Poll::Ready(Some(Ok(7)))));
        queue.insert(8, Duration::ZERO).unwrap();
        queue.insert(9, TICK).unwrap();
        driven.timer.stop();
        assert!(matches!(next(&task, &mut queue), Poll::Ready(Some(Ok(8)))));
        assert!(!queue.is_terminated());
        assert!(matches!(
            next(&task, &mut queue),
            Poll::Ready(Some(Err(NewTimeoutError::Stopped)))
        ));
        assert!(queue.is_terminated());
        assert!(matches!(next(&task, &mut queue), Poll::Ready(None)));
        assert_eq!(queue.drain(), [9]);
    }
}

#[test]
fn debug_output_shows_the_length_and_the_timer() {
    let t = Driven::new();
    let queue = t.queue();
    queue.insert(1, TICK).unwrap();
    let text = format!("{queue:?}");
    assert!(text.starts_with("DelayQueue { len: 1, timer: "), "{text}");
}
