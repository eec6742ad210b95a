//! A process that is forked has a timer of its own.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "fork")]

use std::panic::catch_unwind;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use hashed_wheel_util::time::{self, Instant, Sleep};

fn is_ready(sleep: Pin<&mut Sleep>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    sleep.poll(&mut context).is_ready()
}

fn sleeps() {
    let begin = Instant::now();
    let mut sleep = pin!(time::sleep(Duration::from_millis(5)));
    while !is_ready(sleep.as_mut()) {
        thread::yield_now();
    }
    assert!(begin.elapsed() >= Duration::from_millis(5));
}

#[test]
fn sleeps_end_in_a_child_process_and_in_its_child() {
    sleeps();
    // It was polled in the parent, whose timer is the one that wakes it.
    let mut before = Box::pin(time::sleep(Duration::from_millis(5)));
    let mut unpolled = Box::pin(time::sleep(Duration::from_millis(5)));
    assert!(!is_ready(before.as_mut()));
    in_child(|| {
        sleeps();
        // Its timer is the parent's.
        assert!(!is_ready(before.as_mut()));
        while !is_ready(unpolled.as_mut()) {
            thread::yield_now();
        }
        in_child(sleeps);
    });
    sleeps();
    assert!(is_ready(before.as_mut()));
}

/// Runs `child` in a child process, which must end without a panic. Kills it if it hangs.
fn in_child(child: impl FnOnce()) {
    // SAFETY: the child has one thread. It uses the timer and the allocator, which works after a
    // fork on Linux, and ends without destructors and handlers.
    let process = unsafe { libc::fork() };
    assert_ne!(process, -1);
    if process == 0 {
        // SAFETY: `alarm` takes a number. The signal ends the process.
        unsafe { libc::alarm(20) };
        let result = catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: `_exit` takes a number.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the pointer is valid, and `process` is a child of this process.
    let waited = unsafe { libc::waitpid(process, &raw mut status, 0) };
    assert_eq!((waited, status), (process, 0), "the child hangs or panics");
}
