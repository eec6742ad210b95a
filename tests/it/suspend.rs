//! A clock that counts suspend: it jumps ahead of the time by which the worker thread sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::common::{Schedules, TEST_TIMEOUT, built, ms};
use hashed_wheel::{Clock, MonotonicClock};

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
    let timer = built(|builder| builder.clock(Arc::clone(&clock)));
    timer.fixed_delay(|| (), Duration::ZERO, ms(200));
    let (fired, fires) = channel();
    timer.schedule(move |_| fired.send(()).unwrap(), Duration::from_secs(3_600));
    assert_eq!(
        fires.recv_timeout(ms(300)),
        Err(RecvTimeoutError::Timeout),
        "not before the suspend"
    );
    clock.1.store(3_600, SeqCst);
    assert_eq!(fires.recv_timeout(TEST_TIMEOUT), Ok(()));
}
