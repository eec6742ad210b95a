//! The process's own timer. It can be stopped once, so this is one test in a process of its own.

mod common;

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use common::{PATIENCE, ms};
use hashed_wheel::{HashedWheelTimer, NewTimeoutError};

#[test]
fn there_is_one_with_the_defaults_and_it_is_stopped_for_all() {
    // Of those who ask first, all get the same.
    let threads: Vec<_> = (0..8).map(|_| thread::spawn(HashedWheelTimer::global)).collect();
    let global = HashedWheelTimer::global();
    for thread in threads {
        assert!(std::ptr::eq(thread.join().unwrap(), global));
    }
    let default = HashedWheelTimer::default();
    assert_eq!(global.tick_duration(), default.tick_duration());
    assert_eq!(global.ticks_per_wheel(), default.ticks_per_wheel());

    // Handles come and go, it stays.
    drop(global.clone());
    let (fired, wait) = channel();
    let ring = move |_: &_| fired.send(thread::current().name().map(str::to_owned)).unwrap();
    global.new_timeout(ring, ms(1)).unwrap();
    assert_eq!(wait.recv_timeout(PATIENCE).unwrap().as_deref(), Some("hashed-wheel"));
    assert!(!global.is_stopped());

    let left = global.new_timeout(|_| (), Duration::from_secs(3_600)).unwrap();
    let stopped = thread::spawn(|| HashedWheelTimer::global().stop()).join().unwrap();
    assert_eq!(stopped, [left]);
    let refused = HashedWheelTimer::global().new_timeout(|_| (), ms(1)).unwrap_err();
    assert!(matches!(refused, NewTimeoutError::Stopped), "{refused}");
}
