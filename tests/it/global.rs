//! The global timer of the process. It can be stopped only once, so this is one test in a process
//! of its own.

use crate::common;

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

#[cfg(all(target_os = "linux", not(miri)))]
use crate::worker_thread::fork::in_child;
use common::{TEST_TIMEOUT, ms};
use hashed_wheel::{HashedWheelTimer, NewTimeoutError};

#[test]
fn the_global_timer_has_the_defaults_and_stops_for_every_user() {
    // All threads that ask at the same time get the same timer.
    let threads: Vec<_> = (0..8)
        .map(|_| thread::spawn(HashedWheelTimer::global))
        .collect();
    let global = HashedWheelTimer::global();
    for thread in threads {
        assert!(std::ptr::eq(thread.join().unwrap(), global));
    }
    let default = HashedWheelTimer::default();
    assert_eq!(global.tick_duration(), default.tick_duration());
    assert_eq!(global.ticks_per_wheel(), default.ticks_per_wheel());

    // Dropping a handle of the global timer does not end it.
    drop(global.clone());
    let (fired, wait) = channel();
    let send_thread_name = move |_: &_| {
        fired
            .send(thread::current().name().map(str::to_owned))
            .unwrap()
    };
    global.new_timeout(send_thread_name, ms(1)).unwrap();
    assert_eq!(
        wait.recv_timeout(TEST_TIMEOUT).unwrap().as_deref(),
        Some("hashed-wheel")
    );
    assert!(!global.is_stopped());

    let left = global
        .new_timeout(|_| (), Duration::from_secs(3_600))
        .unwrap();
    let stopped = thread::spawn(|| HashedWheelTimer::global().stop())
        .join()
        .unwrap();
    assert_eq!(stopped, [left]);
    let rejected = HashedWheelTimer::global()
        .new_timeout(|_| (), ms(1))
        .unwrap_err();
    assert!(matches!(rejected, NewTimeoutError::Stopped), "{rejected}");

    #[cfg(all(target_os = "linux", not(miri)))]
    in_child(|| {
        let (fired, wait) = channel();
        let anew = HashedWheelTimer::global();
        assert!(!std::ptr::eq(anew, global) && std::ptr::eq(anew, HashedWheelTimer::global()));
        anew.new_timeout(move |_| fired.send(()).unwrap(), ms(1))
            .unwrap();
        wait.recv_timeout(TEST_TIMEOUT).unwrap();
        in_child(|| {
            let (fired, wait) = channel();
            HashedWheelTimer::global()
                .new_timeout(move |_| fired.send(()).unwrap(), ms(1))
                .unwrap();
            wait.recv_timeout(TEST_TIMEOUT).unwrap();
        });
        assert!(!anew.is_stopped());
    });
    assert!(std::ptr::eq(HashedWheelTimer::global(), global));
}
