//! A queue of values: no consumer misses a value that is due, and each value leaves once.

use std::task::{Context, Poll, Waker};

use hashed_wheel::util::delay_queue::{DelayQueue, Expired};

use super::wakers::Poller;
use super::*;

impl Poller {
    /// Polls for a value. `None` is pending.
    fn receives(self: &Arc<Self>, queue: &mut DelayQueue<u8>) -> Option<u8> {
        match queue.poll_expired(&mut Context::from_waker(&Waker::from(Arc::clone(self)))) {
            Poll::Ready(expired) => Some(expired.unwrap().into_inner()),
            Poll::Pending => None,
        }
    }

    /// Polls again if the task was woken, as an executor does.
    fn receives_if_woken(self: &Arc<Self>, queue: &mut DelayQueue<u8>) -> Option<u8> {
        if self.was_woken() {
            self.receives(queue)
        } else {
            None
        }
    }
}

fn received(queue: &DelayQueue<u8>) -> u8 {
    queue.recv().unwrap().into_inner()
}

// --- insert and reset ----------------------------------------------------------------------------

#[test]
fn insert_wakes_a_consumer_that_waits() {
    explore(
        None,
        [mutant("InsertWithoutNotify"), mutant("WaitInTwoSteps")],
        || {
            let driven = Driven::new();
            let mut queue = DelayQueue::new(&driven.timer);
            let producer = queue.clone();
            let insert = thread::spawn(move || _ = producer.insert(7, Duration::ZERO).unwrap());
            let poller = Poller::new();
            let first = poller.receives(&mut queue);
            insert.join().unwrap();
            assert_eq!(
                first.or_else(|| poller.receives_if_woken(&mut queue)),
                Some(7)
            );
        },
    );
}

/// A lost wake-up is a deadlock, which loom reports.
#[test]
fn insert_wakes_a_thread_that_waits() {
    explore(
        None,
        [mutant("InsertWithoutNotify"), mutant("WaitInTwoSteps")],
        || {
            let driven = Driven::new();
            let queue = DelayQueue::new(&driven.timer);
            let producer = queue.clone();
            let insert = thread::spawn(move || _ = producer.insert(7, Duration::ZERO).unwrap());
            assert_eq!(received(&queue), 7);
            insert.join().unwrap();
            assert_eq!(driven.timer.pending_timeouts(), 0);
        },
    );
}

/// The consumer begins to wait for a later value while another thread calls `change`. Then it is
/// woken at the tick of the earlier one.
fn earlier_deadline_is_awaited(change: fn(&DelayQueue<u8>)) {
    let mut driven = Driven::new();
    let mut queue = DelayQueue::new(&driven.timer);
    queue.insert(5, TICK * 5).unwrap();
    let other = queue.clone();
    let changes = thread::spawn(move || change(&other));
    let poller = Poller::new();
    assert_eq!(poller.receives(&mut queue), None);
    changes.join().unwrap();
    assert_eq!(poller.receives_if_woken(&mut queue), None);
    driven.driver.turn();
    driven.clock.advance(TICK);
    assert_eq!(driven.driver.turn(), 1);
    assert!(poller.receives_if_woken(&mut queue).is_some());
}

#[test]
fn earlier_value_is_awaited() {
    explore(
        None,
        [mutant("InsertWithoutNotify"), mutant("AwaitedNotStored")],
        || {
            earlier_deadline_is_awaited(|queue| _ = queue.insert(1, TICK).unwrap());
        },
    );
}

#[test]
fn earlier_reset_is_awaited() {
    explore(
        None,
        [
            mutant("QueueResetWithoutNotify"),
            mutant("AwaitedNotStored"),
        ],
        || {
            earlier_deadline_is_awaited(|queue| assert!(queue.reset(queue.peek().unwrap(), TICK)));
        },
    );
}

// --- several consumers ---------------------------------------------------------------------------

#[test]
fn two_values_wake_two_consumers() {
    explore(Some(2), [mutant("LeaveWithoutNotify")], || {
        let driven = Driven::new();
        let queue = DelayQueue::new(&driven.timer);
        let consumers =
            [queue.clone(), queue.clone()].map(|queue| thread::spawn(move || received(&queue)));
        queue.insert(1, Duration::ZERO).unwrap();
        queue.insert(2, Duration::ZERO).unwrap();
        let received = consumers.map(|consumer| consumer.join().unwrap());
        assert!(matches!(received, [1, 2] | [2, 1]), "{received:?}");
        assert!(queue.is_empty());
    });
}

#[test]
fn dropped_consumer_passes_its_wake_up_on() {
    explore(None, [mutant("LeaveWithoutNotify")], || {
        let driven = Driven::new();
        let queue = DelayQueue::new(&driven.timer);
        let [mut first, mut second] = [queue.clone(), queue.clone()];
        let pollers = [Poller::new(), Poller::new()];
        assert_eq!(pollers[0].receives(&mut first), None);
        assert_eq!(pollers[1].receives(&mut second), None);
        let leave = thread::spawn(move || drop(first));
        queue.insert(7, Duration::ZERO).unwrap();
        leave.join().unwrap();
        assert_eq!(pollers[1].receives_if_woken(&mut second), Some(7));
    });
}

// --- expiry --------------------------------------------------------------------------------------

#[test]
fn last_waker_is_woken_or_its_poll_is_ready() {
    explore(
        Some(3),
        [
            mutant("QueueRepollKeepsOldWaker"),
            mutant("EndedAlarmIsKept"),
        ],
        || {
            let clock = ModelClock::default();
            let (timer, mut driver) = small_wheel().clock(clock.clone()).build_driven().unwrap();
            let mut queue = DelayQueue::new(&timer);
            queue.insert(7, TICK).unwrap();
            assert_eq!(Poller::new().receives(&mut queue), None);
            driver.turn();
            let turn = thread::spawn(move || {
                clock.0.fetch_add(1, AcqRel);
                driver.turn();
                (clock, driver)
            });
            let last = Poller::new();
            let first = last.receives(&mut queue);
            let (clock, mut driver) = turn.join().unwrap();
            clock.0.fetch_add(1, AcqRel);
            driver.turn();
            assert_eq!(
                first.or_else(|| last.receives_if_woken(&mut queue)),
                Some(7)
            );
            assert_eq!(timer.pending_timeouts(), 0);
        },
    );
}

/// The due value is removed while its timeout expires. The consumer is woken for nothing, and then
/// waits for the next value.
#[test]
fn value_behind_a_removed_one_is_awaited() {
    explore(None, [mutant("EndedAlarmIsKept")], || {
        let mut driven = Driven::new();
        let mut queue = DelayQueue::new(&driven.timer);
        let key = queue.insert(1, TICK).unwrap();
        queue.insert(3, TICK * 3).unwrap();
        let poller = Poller::new();
        assert_eq!(poller.receives(&mut queue), None);
        driven.driver.turn();
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        assert_eq!(queue.remove(key), Some(1));
        let (_, mut driver) = turn.join().unwrap();
        assert_eq!(poller.receives_if_woken(&mut queue), None);
        driver.turn();
        driven.clock.advance(TICK * 2);
        driver.turn();
        assert_eq!(poller.receives_if_woken(&mut queue), Some(3));
    });
}

#[test]
fn value_is_received_or_removed() {
    explore(None, [mutant("TakeInTwoSteps")], || {
        let driven = Driven::new();
        let queue = DelayQueue::new(&driven.timer);
        let key = queue.insert(7, Duration::ZERO).unwrap();
        let other = queue.clone();
        let removes = thread::spawn(move || other.remove(key));
        let received = queue.try_recv().map(Expired::into_inner);
        let removed = removes.join().unwrap();
        assert!(matches!(
            (received, removed),
            (Some(7), None) | (None, Some(7))
        ));
    });
}

// --- stop ----------------------------------------------------------------------------------------

#[test]
fn stop_ends_the_wait_of_two_threads() {
    explore(Some(2), [mutant("AlarmIgnoresStop")], || {
        let Driven {
            timer,
            driver: _driver,
            ..
        } = Driven::new();
        let queue = DelayQueue::<u8>::new(&timer);
        let other = queue.clone();
        let waits = thread::spawn(move || other.recv().is_err());
        let stop = thread::spawn(move || _ = timer.stop());
        assert!(queue.recv().is_err());
        assert!(waits.join().unwrap());
        stop.join().unwrap();
    });
}
