use std::sync::mpsc;
use std::thread;

use super::*;
use crate::driven::{Driven, SECOND};

#[test]
fn values_come_out_in_the_order_of_their_deadlines() {
    let mut t = Driven::new();
    let queue = Queue::new(&t.timer);
    for (value, seconds) in [('c', 3), ('a', 1), ('b', 2)] {
        queue.insert(value, SECOND * seconds).unwrap();
    }
    assert_eq!(queue.try_recv(), None);
    t.pass(SECOND * 2);
    let received = (queue.recv(), queue.recv(), queue.try_recv());
    assert_eq!(received, (Some('a'), Some('b'), None));
    t.pass(SECOND);
    assert_eq!(queue.recv(), Some('c'));
    assert_eq!(t.timer.pending_timeouts(), 0);
}

#[test]
fn value_can_be_removed_or_moved_until_it_is_due() {
    let mut t = Driven::new();
    let queue = Queue::new(&t.timer);
    let [removed, moved] = ["removed", "moved"].map(|value| queue.insert(value, SECOND).unwrap());
    let taken = (queue.remove(removed), queue.remove(removed));
    assert_eq!(taken, (Some("removed"), None));
    assert!(queue.reset(moved, SECOND * 5) && !queue.reset(removed, SECOND));
    t.pass(SECOND * 4);
    assert_eq!(queue.try_recv(), None);
    t.pass(SECOND);
    assert_eq!(queue.try_recv(), Some("moved"));
    assert!(!queue.reset(moved, SECOND) && queue.remove(moved).is_none());
}

#[test]
fn values_go_with_their_timeouts() {
    let t = Driven::new();
    let (queue, value) = (Queue::new(&t.timer), Arc::new(()));
    queue.insert(Arc::clone(&value), SECOND).unwrap();
    assert_eq!((t.timer.cancel_all(), Arc::strong_count(&value)), (1, 1));
    queue.insert(Arc::clone(&value), SECOND).unwrap();
    assert_eq!((t.timer.stop().len(), Arc::strong_count(&value)), (1, 1));
}

#[test]
fn consumer_waits_for_a_value_or_the_end_of_the_timer() {
    let timer = HashedWheelTimer::new(Duration::from_millis(1), 64);
    let queue = Queue::new(&timer);
    let (send, received) = mpsc::channel();
    let consumer = queue.clone();
    let thread = thread::spawn(move || {
        while let Some(value) = consumer.recv() {
            send.send(value).unwrap();
        }
    });
    queue.insert(7, Duration::from_millis(2)).unwrap();
    assert_eq!(received.recv().unwrap(), 7);
    // It cancels the values of others, and not the wait of the consumer.
    while timer.pending_timeouts() == 0 {
        thread::yield_now();
    }
    timer.cancel_all();
    queue.insert(8, Duration::ZERO).unwrap();
    assert_eq!(received.recv().unwrap(), 8);
    timer.stop();
    thread.join().unwrap();
    assert_eq!(queue.recv(), None);
    assert!(matches!(
        queue.insert(9, SECOND),
        Err((9, NewTimeoutError::Stopped))
    ));
}

#[test]
fn recv_on_the_worker_panics_instead_of_waiting_for_itself() {
    let mut t = Driven::new();
    let queue = Queue::<u8>::new(&t.timer);
    t.timer
        .new_timeout(move |_| _ = queue.recv(), SECOND)
        .unwrap();
    t.pass(SECOND);
    assert_eq!(t.timer.stats().panics, 1);
}
