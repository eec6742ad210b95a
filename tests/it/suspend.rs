//! A clock that counts suspend: it jumps ahead of the time by which the worker thread sleeps.

use crate::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use common::{TEST_TIMEOUT, ms};
use hashed_wheel::{Clock, HashedWheelTimer, MonotonicClock};

/// `CLOCK_BOOTTIME` on a machine that was suspended for some seconds.
struct BootClock(MonotonicClock, AtomicU64);

impl Clock for BootClock {
    fn now(&self) -> Duration {
        self.0.now() + Duration::from_secs(self.1.load(SeqCst))
    }
}

/// The remedy that the documentation of `Clock` names.
#[test]
#[cfg_attr(miri, ignore = "real time")]
fn periodic_task_ends_the_sleep_of_the_worker_after_a_suspend() {
    let clock = Arc::new(BootClock(MonotonicClock::new(), AtomicU64::new(0)));
    let timer = HashedWheelTimer::builder()
        .clock(Arc::clone(&clock))
        .build()
        .unwrap();
    timer
        .schedule_with_fixed_delay(|| (), Duration::ZERO, ms(200))
        .unwrap();
    let (fired, fires) = channel();
    timer
        .new_timeout(move |_| fired.send(()).unwrap(), Duration::from_secs(3_600))
        .unwrap();
    assert_eq!(
        fires.recv_timeout(ms(300)),
        Err(RecvTimeoutError::Timeout),
        "not before the suspend"
    );
    clock.1.store(3_600, SeqCst);
    assert_eq!(fires.recv_timeout(TEST_TIMEOUT), Ok(()));
}
