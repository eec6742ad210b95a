//! The tests of other delay queues, in our own words, on a clock that moves only when the test
//! moves it.
//!
//! `docs/ported-tests.md` says which versions the tests are from, and lists those that end
//! differently here. Each test names the cases that it stands for. Cases that another file already
//! had are not repeated.
// Miri would take hours.
#![cfg(not(miri))]

use crate::common;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{AsyncTask, Driven, ends, ms};
use hashed_wheel_util::delay_queue::DelayQueue;

const SECOND: Duration = Duration::from_secs(1);

impl Driven {
    /// Turns the timer every millisecond, for this many of them.
    fn run_for(&mut self, millis: u64) {
        for _ in 0..millis {
            self.pass(ms(1));
        }
    }
}

// --- tokio-util ----------------------------------------------------------------------------------

/// The cases of `DelayQueue` that `delay_queue.rs` does not have.
mod tokio_util {
    use super::*;

    /// A queue, and a task that polls it.
    struct Polled {
        t: Driven,
        queue: DelayQueue<&'static str>,
        task: Arc<AsyncTask>,
    }

    impl Polled {
        fn new() -> Self {
            let t = Driven::with(|builder| builder.tick(ms(1)).ticks_per_wheel(64));
            Self {
                queue: DelayQueue::new(&t.timer),
                t,
                task: AsyncTask::new(),
            }
        }

        /// Polls for a value. `None` is pending.
        fn poll(&mut self) -> Option<&'static str> {
            let waker = Waker::from(Arc::clone(&self.task));
            match self.queue.poll_expired(&mut Context::from_waker(&waker)) {
                Poll::Ready(expired) => Some(expired.unwrap().into_inner()),
                Poll::Pending => None,
            }
        }

        fn is_woken(&self) -> bool {
            self.task.take_wakes() > 0
        }
    }

    /// `reset_to_past_wakes_pending_queue`.
    #[test]
    fn a_reset_to_a_time_that_has_passed_wakes_the_consumer() {
        let mut q = Polled::new();
        q.t.run_for(200);
        let key = q.queue.insert("foo", ms(10_000)).unwrap();
        assert!(q.poll().is_none() && !q.is_woken());
        assert!(q.queue.reset_at(key, q.t.timer.now() - ms(100)));
        assert!(q.is_woken());
        assert_eq!(q.poll(), Some("foo"));
    }

    /// `reset_much_later`, `reset_inserted_expired`.
    #[test]
    fn a_reset_decides_whatever_the_deadline_was() {
        let mut q = Polled::new();
        q.t.run_for(200);
        let now = q.t.timer.now();
        q.t.run_for(1);
        let far = q.queue.insert_at("far", now + ms(200)).unwrap();
        assert!(q.poll().is_none());
        q.t.run_for(3);
        q.queue.reset_at(far, now + ms(10));
        q.t.run_for(20);
        assert!(q.is_woken());
        assert_eq!(q.poll(), Some("far"));

        let past = q.queue.insert_at("past", now - ms(100)).unwrap();
        q.queue.reset_at(past, q.t.timer.now() + ms(100));
        assert_eq!((q.queue.len(), q.poll()), (1, None));
        q.t.run_for(200);
        assert_eq!((q.poll(), q.queue.len()), (Some("past"), 0));
    }

    /// `remove_at_timer_wheel_threshold`.
    #[test]
    fn a_due_value_can_be_removed_after_another_of_its_deadline_came_out() {
        let mut q = Polled::new();
        q.queue.insert("foo", ms(64)).unwrap();
        let bar = q.queue.insert("bar", ms(64)).unwrap();
        q.t.run_for(80);
        assert_eq!(q.poll(), Some("foo"));
        assert_eq!(q.queue.remove(bar), Some("bar"));
    }

    /// `expires_before_last_insert`, `multi_reset`.
    #[test]
    fn the_consumer_wakes_for_the_earliest_of_several_deadlines() {
        let mut q = Polled::new();
        q.queue.insert("later", ms(10_000)).unwrap();
        assert_eq!(q.poll(), None);
        q.queue.insert("sooner", ms(600)).unwrap();
        assert_eq!((q.is_woken(), q.poll()), (true, None));
        q.t.run_for(600);
        assert_eq!((q.is_woken(), q.poll()), (true, Some("sooner")));

        let mut q = Polled::new();
        let now = q.t.timer.now();
        let (one, two) = (
            q.queue.insert("one", ms(200)).unwrap(),
            q.queue.insert("two", ms(250)).unwrap(),
        );
        assert_eq!(q.poll(), None);
        for (key, at) in [(one, 300), (two, 350), (one, 400)] {
            q.queue.reset_at(key, now + ms(at));
        }
        q.t.run_for(310);
        assert_eq!(q.poll(), None);
        q.t.run_for(50);
        assert_eq!((q.poll(), q.poll()), (Some("two"), None));
        q.t.run_for(50);
        assert_eq!(q.poll(), Some("one"));
    }

    /// `reset_later_after_slot_starts`: a difference.
    #[test]
    fn a_reset_to_a_later_time_wakes_the_consumer_at_the_old_time() {
        let mut q = Polled::new();
        let key = q.queue.insert("foo", ms(100)).unwrap();
        assert_eq!(q.poll(), None);
        q.t.run_for(80);
        q.queue.reset(key, ms(40));
        assert!(!q.is_woken(), "not at the reset");
        q.t.run_for(19);
        assert!(!q.is_woken());
        q.t.run_for(1);
        assert_eq!(
            (q.is_woken(), q.poll()),
            (true, None),
            "the alarm that was set comes"
        );
        q.t.run_for(19);
        assert!(!q.is_woken());
        q.t.run_for(1);
        assert_eq!((q.is_woken(), q.poll()), (true, Some("foo")));
    }

    /// `reset_earlier_after_slot_starts`.
    #[test]
    fn a_reset_to_an_earlier_time_wakes_the_consumer_to_set_its_alarm() {
        let mut q = Polled::new();
        let key = q.queue.insert("foo", ms(200)).unwrap();
        assert_eq!(q.poll(), None);
        q.t.run_for(80);
        assert!(!q.is_woken());
        q.queue.reset(key, ms(40));
        assert_eq!((q.is_woken(), q.poll()), (true, None));
        q.t.run_for(39);
        assert!(!q.is_woken());
        q.t.run_for(1);
        assert_eq!((q.is_woken(), q.poll()), (true, Some("foo")));
    }

    /// `delay_queue_poll_expired_when_empty`, `wake_after_remove_last`, `wake_after_clear`: a
    /// difference.
    #[test]
    fn an_empty_queue_is_pending() {
        let mut q = Polled::new();
        assert_eq!(q.poll(), None);
        let key = q.queue.insert("foo", SECOND).unwrap();
        assert_eq!((q.is_woken(), q.poll()), (true, None));
        q.queue.remove(key);
        assert_eq!((q.is_woken(), q.poll()), (false, None));
        q.queue.insert("bar", SECOND).unwrap();
        assert_eq!((q.is_woken(), q.poll()), (true, None));
        q.queue.clear();
        assert_eq!((q.is_woken(), q.poll()), (false, None));
    }

    /// `compact_remove_remapped_keys`, `compact_change_deadline`: without `compact`.
    #[test]
    fn keys_stay_valid_while_other_values_come_and_go() {
        let mut q = Polled::new();
        q.queue.insert("1", ms(10)).unwrap();
        q.queue.insert("2", ms(10)).unwrap();
        let (three, four) = (
            q.queue.insert("3", ms(20)).unwrap(),
            q.queue.insert("4", ms(20)).unwrap(),
        );
        q.t.run_for(10);
        assert_eq!([q.poll(), q.poll(), q.poll()], [Some("1"), Some("2"), None]);
        q.queue.insert("5", ms(10)).unwrap();
        let six = q.queue.insert("6", ms(10)).unwrap();
        q.queue.reset(six, ms(20));
        q.queue.reset(four, ms(30));
        assert_eq!(q.queue.remove(three), Some("3"));
        q.t.run_for(10);
        assert_eq!([q.poll(), q.poll()], [Some("5"), None]);
        q.t.run_for(10);
        assert_eq!([q.poll(), q.poll()], [Some("6"), None]);
        assert_eq!((q.queue.remove(four), q.queue.len()), (Some("4"), 0));
    }

    /// `item_expiry_greater_than_wheel`.
    #[test]
    fn a_queue_works_after_2_to_36_milliseconds() {
        let mut q = Polled::new();
        for _ in 0..2 {
            q.t.pass(ms(1 << 35));
            q.queue.insert("now", Duration::ZERO).unwrap();
            assert_eq!(q.poll(), Some("now"));
        }
        q.queue.insert("soon", ms(1)).unwrap();
        assert_eq!(q.poll(), None);
        q.t.run_for(1);
        assert_eq!(q.poll(), Some("soon"));
    }

    /// `peek`, `peek_entries_sharing_a_wheel_slot`.
    #[test]
    fn peek_returns_the_earliest_key() {
        let mut q = Polled::new();
        let (early, late) = (
            q.queue.insert("early", ms(100)).unwrap(),
            q.queue.insert("late", ms(120)).unwrap(),
        );
        assert_eq!(q.queue.peek(), Some(early));
        q.t.run_for(105);
        assert_eq!((q.queue.peek(), q.poll()), (Some(early), Some("early")));
        assert_eq!((q.queue.peek(), q.poll()), (Some(late), None));
        q.t.run_for(20);
        assert_eq!(
            (q.queue.peek(), q.poll(), q.queue.peek()),
            (Some(late), Some("late"), None)
        );
    }
}

// --- java.util.concurrent ------------------------------------------------------------------------

/// JSR-166: `DelayQueueTest`, `ScheduledExecutorTest`. See also `delay_queue.rs` and
/// `tests/periodic.rs`.
mod jsr166 {
    use super::*;

    const SIZE: usize = 20;

    fn populated(t: &Driven) -> DelayQueue<usize> {
        let queue = DelayQueue::new(&t.timer);
        let (odd, even) = (
            (0..SIZE).filter(|i| i % 2 == 1).rev(),
            (0..SIZE).filter(|i| i % 2 == 0),
        );
        for index in odd.chain(even) {
            queue.insert(index, ms(index as u64)).unwrap();
        }
        t.clock.advance(ms(SIZE as u64));
        queue
    }

    /// `testPoll`, `testTimedPoll0`, `testPeek`, `testClear`, `testEmpty`, `testDrainTo`; also
    /// `testElement` and `testRemove`, where an empty queue throws: a difference.
    #[test]
    fn an_empty_queue_returns_nothing() {
        let t = Driven::new();
        let queue = populated(&t);
        for index in 0..SIZE {
            let peeked = queue.peek();
            let expired = queue.recv_timeout(Duration::ZERO).unwrap().unwrap();
            assert_eq!(
                (expired.key(), *expired.get_ref()),
                (peeked.unwrap(), index)
            );
            assert_ne!(queue.peek(), peeked);
        }
        assert!(queue.is_empty() && queue.peek().is_none() && queue.try_recv().is_none());
        assert!(queue.recv_timeout(Duration::ZERO).unwrap().is_none());
        let queue = populated(&t);
        assert_eq!(queue.drain(), (0..SIZE).collect::<Vec<_>>());
        queue.insert(1, Duration::ZERO).unwrap();
        assert_eq!(queue.len(), 1);
        queue.clear();
        assert!(queue.is_empty());
    }

    /// `testDrainToN`.
    #[test]
    fn the_first_values_can_be_taken() {
        let t = Driven::new();
        for count in 0..SIZE + 2 {
            let queue = populated(&t);
            let taken: Vec<_> = std::iter::from_fn(|| queue.try_recv())
                .take(count)
                .collect();
            assert_eq!(
                (taken.len(), queue.len()),
                (count.min(SIZE), SIZE.saturating_sub(count))
            );
        }
    }

    /// `testDrainToWithActivePut`, `testPutWithTake`.
    #[test]
    fn an_insertion_waits_for_no_consumer_and_drain_for_no_producer() {
        let t = Driven::new();
        let queue = populated(&t);
        let producer = queue.clone();
        let inserted = std::thread::spawn(move || producer.insert(SIZE, Duration::ZERO).unwrap());
        let drained = queue.drain();
        ends(move || inserted.join().unwrap());
        assert!(drained.len() >= SIZE);
        assert_eq!(drained.len() + queue.len(), SIZE + 1);
    }
}
