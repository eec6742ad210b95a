//! The global timer of the process, which cannot be ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::common::{Schedules, TEST_TIMEOUT, ms, quietly};
#[cfg(all(target_os = "linux", not(miri)))]
use crate::worker_thread::fork::in_child;
use hashed_wheel::HashedWheelTimer;

/// A call, and the start of its name.
type End = (&'static str, fn(&HashedWheelTimer));

/// Every call that would end the timer, or all of its timeouts.
const ENDS: [End; 5] = [
    ("::stop", |timer| drop(timer.stop())),
    ("::shutdown", |timer| drop(timer.shutdown(ms(0)))),
    ("::begin_stop", |timer| drop(timer.begin_stop())),
    ("::begin_shutdown", |timer| {
        drop(timer.begin_shutdown(ms(0)));
    }),
    ("::cancel_all", |timer| _ = timer.cancel_all()),
];

#[test]
#[cfg_attr(
    miri,
    ignore = "Miri demands that every thread ends, and its worker does not"
)]
fn the_global_timer_has_the_defaults_and_cannot_be_ended() {
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
            .unwrap();
    };
    global.schedule(send_thread_name, ms(1));
    assert_eq!(
        wait.recv_timeout(TEST_TIMEOUT).unwrap().as_deref(),
        Some("hashed-wheel")
    );
    assert!(!global.is_stopped());

    let left = global.schedule(|_| (), Duration::from_secs(3_600));
    for (name, end) in ENDS {
        for timer in [
            global,
            &left.timer(),
            &global.downgrade().upgrade().unwrap(),
        ] {
            let panic = quietly(|| catch_unwind(AssertUnwindSafe(|| end(timer)))).unwrap_err();
            let text = panic.downcast_ref::<String>().unwrap();
            assert!(text.contains(name) && text.contains("global"), "{text}");
            assert!(!global.is_stopped());
            assert!(global.schedule(|_| (), TEST_TIMEOUT).cancel());
        }
    }
    assert!(!left.is_cancelled() && left.cancel());

    #[cfg(all(target_os = "linux", not(miri)))]
    in_child(|| {
        let (fired, wait) = channel();
        let anew = HashedWheelTimer::global();
        assert!(!std::ptr::eq(anew, global) && std::ptr::eq(anew, HashedWheelTimer::global()));
        anew.schedule(move |_| fired.send(()).unwrap(), ms(1));
        wait.recv_timeout(TEST_TIMEOUT).unwrap();
        in_child(|| {
            let (fired, wait) = channel();
            HashedWheelTimer::global().schedule(move |_| fired.send(()).unwrap(), ms(1));
            wait.recv_timeout(TEST_TIMEOUT).unwrap();
        });
        assert!(!anew.is_stopped());
    });
    assert!(std::ptr::eq(HashedWheelTimer::global(), global));
}
