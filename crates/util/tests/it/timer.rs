//! The timer of a map or a queue: how it takes their deadlines, what it shows of their timeouts,
//! and how it ends them.

use crate::common;

use std::cell::RefCell;
use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::{Driven, TICK, ms};
use hashed_wheel::{Builder, Clock, HashedWheelTimer, NewTimeoutError};
use hashed_wheel_util::delay_queue::DelayQueue;
use hashed_wheel_util::{ExpiringMap, InsertError, Removed};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Both wheels.
const WHEELS: [fn(Builder) -> Builder; 2] =
    [|builder| builder, |builder| builder.hierarchical(true)];

/// A method that was given a deadline, and whether that has been due since.
type Method = (&'static str, Box<dyn FnMut() -> bool>);

/// Schedules something at `deadline` by each method that takes an `Instant`.
fn by_each_method(timer: &HashedWheelTimer, deadline: Instant) -> Vec<Method> {
    fn is_gone(entries: ExpiringMap<u8, ()>) -> Box<dyn FnMut() -> bool> {
        Box::new(move || entries.is_empty())
    }

    fn has_come(queue: DelayQueue<()>) -> Box<dyn FnMut() -> bool> {
        Box::new(move || queue.try_recv().is_some())
    }

    let [inserted, touched] = [(); 2].map(|()| ExpiringMap::new(timer));
    inserted.insert_at(1, (), deadline).unwrap();
    touched.insert(1, (), Duration::MAX).unwrap();
    assert!(touched.touch_at(&1, deadline));

    let [queue, queue_reset] = [(); 2].map(|()| DelayQueue::new(timer));
    queue.insert_at((), deadline).unwrap();
    let key = queue_reset.insert((), Duration::MAX).unwrap();
    assert!(queue_reset.reset_at(key, deadline));

    vec![
        ("ExpiringMap::insert_at", is_gone(inserted)),
        ("ExpiringMap::touch_at", is_gone(touched)),
        ("DelayQueue::insert_at", has_come(queue)),
        ("DelayQueue::reset_at", has_come(queue_reset)),
    ]
}

/// Returns the methods whose deadlines have come, or those whose have not.
fn which(methods: &mut [Method], due: bool) -> Vec<&'static str> {
    methods
        .iter_mut()
        .filter_map(|(name, is_due)| (is_due() == due).then_some(*name))
        .collect()
}

#[test]
fn a_deadline_in_the_past_is_due_at_once() {
    for wheel in WHEELS {
        let mut t = Driven::with(wheel);
        t.pass(HOUR);
        let begin = t.timer.now();
        for deadline in [
            Some(begin),
            begin.checked_sub(HOUR * 2),
            begin.checked_sub(YEAR),
        ]
        .into_iter()
        .flatten()
        {
            let mut methods = by_each_method(&t.timer, deadline);
            t.pass(TICK);
            assert_eq!(which(&mut methods, false), [""; 0]);
        }
    }
}

#[test]
fn a_deadline_is_due_when_it_has_come_by_the_clock() {
    for wheel in WHEELS {
        for distance in [HOUR * 2, YEAR * 30, YEAR * 100] {
            let mut t = Driven::with(wheel);
            t.pass(HOUR);
            let Some(deadline) = t.timer.now().checked_add(distance) else {
                continue;
            };
            let mut methods = by_each_method(&t.timer, deadline);
            t.pass(distance - ms(1));
            assert_eq!(which(&mut methods, true), [""; 0]);
            t.pass(TICK * 2);
            assert_eq!(which(&mut methods, false), [""; 0]);
        }
    }
}

#[test]
fn a_deadline_too_far_away_never_comes() {
    for wheel in WHEELS {
        let mut t = Driven::with(wheel);
        let far = [YEAR * 147, YEAR * 10_000].map(|distance| t.timer.now().checked_add(distance));
        let mut methods: Vec<_> = far
            .into_iter()
            .flatten()
            .flat_map(|deadline| by_each_method(&t.timer, deadline))
            .collect();
        for _ in 0..2 {
            assert_eq!(
                (which(&mut methods, true), t.driver.next_turn()),
                (Vec::new(), None)
            );
            t.pass(YEAR * 72);
        }
    }
}

/// Caffeine: `ExpirationTest.schedule`, `schedule_delay`, `setExpiresAfter_reschedules`: one
/// wake-up for each deadline, none to move an entry down a level.
#[test]
fn an_entry_of_a_cache_expires_in_one_wake_up() {
    for wheel in WHEELS {
        let mut t = Driven::with(|builder| wheel(builder.tick(ms(1))));
        let (log, expired) = channel();
        let clock = t.clock.clone();
        let handler = move |entry: Removed<_, ()>| {
            log.send((entry.key, clock.now().as_millis())).unwrap();
        };
        let cache = ExpiringMap::with_handler(&t.timer, handler);
        cache.insert(1, (), MINUTE).unwrap();
        t.pass(ms(10));
        cache.insert(2, (), MINUTE).unwrap();
        cache.insert(3, (), MINUTE).unwrap();
        assert!(cache.touch(&3, Duration::from_secs(1)));
        let mut turns = 0;
        while let Some(wait) = t.driver.next_turn() {
            t.pass(wait);
            turns += 1;
        }
        assert_eq!(
            expired.try_iter().collect::<Vec<_>>(),
            [(3, 1_010), (1, 60_000), (2, 60_010)]
        );
        // The first turn only reads the queue.
        assert!(cache.is_empty() && turns <= 4, "{turns}");
    }
}

#[test]
fn cancel_all_cancels_entries() {
    let t = Driven::new();
    let map = ExpiringMap::new(&t.timer);
    map.insert("a", (), TICK).unwrap();
    map.insert("b", (), HOUR).unwrap();
    assert_eq!(t.timer.cancel_all(), 2);
    assert!(map.is_empty());
}

#[test]
fn an_error_that_returns_the_entry_names_its_reason() {
    let error = InsertError {
        key: 1,
        value: 2,
        error: NewTimeoutError::Stopped,
    };
    assert!(
        error.to_string().contains("the timer is stopped") && error.source().is_none(),
        "{error}"
    );
}

/// A panic in a destructor of a thread-local ends the process.
///
/// On Windows the thread would wait forever: no other thread can begin before the destructor has
/// returned.
#[test]
#[cfg(not(windows))]
fn a_thread_can_use_a_map_and_a_queue_while_it_ends() {
    struct AtTheEnd(Sender<usize>);

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            let timer = HashedWheelTimer::new(ms(1), 8);
            let queue = DelayQueue::new(&timer);
            queue.insert((), ms(1)).unwrap();
            queue.recv().unwrap();
            let sessions = ExpiringMap::<u8, ()>::new(&timer);
            sessions.insert(1, (), HOUR).unwrap();
            self.0.send(timer.stop().len()).unwrap();
        }
    }

    thread_local!(static LAST: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) });

    for uses_a_timer_before in [false, true] {
        let use_timer = || {
            HashedWheelTimer::default()
                .new_timeout(|_| (), HOUR)
                .unwrap()
        };
        let (send, receive) = channel();
        let thread = thread::spawn(move || {
            if uses_a_timer_before {
                use_timer();
            }
            LAST.set(Some(AtTheEnd(send)));
            if !uses_a_timer_before {
                use_timer();
            }
        });
        thread.join().unwrap();
        assert_eq!(receive.recv(), Ok(1));
    }
}
