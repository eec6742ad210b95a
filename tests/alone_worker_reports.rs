//! The events that a worker thread emits about itself. They go to the global subscriber of the
//! process, because the thread has no other. So this is a separate test binary with one test.

#![cfg(feature = "tracing")]

#[path = "it/common/mod.rs"]
mod common;

use std::thread;
use std::time::Duration;

use common::eventually;
use common::subscriber::Reports;
use hashed_wheel::{Clock, HashedWheelTimer};

#[test]
fn a_worker_reports_its_start_and_its_end() {
    let reports = Reports::new();
    tracing::subscriber::set_global_default(reports.clone()).unwrap();

    let timer = HashedWheelTimer::builder()
        .tick(TICK)
        .thread_name("hw-seen")
        .build()
        .unwrap();
    assert!(reports.take().is_empty(), "the worker has not started");
    timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap();
    timer.stop();
    assert_eq!(
        reports.take(),
        [
            "DEBUG message=a timer's worker started thread=\"hw-seen\"",
            "DEBUG message=a timer's worker ended thread=\"hw-seen\"",
        ]
    );

    let builder = HashedWheelTimer::builder()
        .tick(TICK)
        .thread_name("hw-broken")
        .clock(BrokenClock);
    let timer = builder.build().unwrap();
    // Starts the worker, which stops the timer, maybe before the timeout is scheduled.
    _ = timer.new_timeout(|_| (), Duration::from_secs(60));
    // No call joins a worker that has stopped its timer.
    eventually("the worker ends", || {
        reports
            .0
            .lock()
            .unwrap()
            .iter()
            .any(|report| report.contains("ended"))
    });
    assert_eq!(
        reports.take(),
        [
            "DEBUG message=a timer's worker started thread=\"hw-broken\"",
            "ERROR message=the clock panicked on a timer's worker; the timer is stopped panic=\"no time\"",
            "DEBUG message=a timer's worker ended thread=\"hw-broken\"",
        ]
    );
}

/// A worker also reports a turn that takes longer than a tick. On a slow machine, that would be
/// another report if the tick were the default one.
const TICK: Duration = Duration::from_secs(60);

/// Panics on the worker.
struct BrokenClock;

impl Clock for BrokenClock {
    fn now(&self) -> Duration {
        if thread::current().name() == Some("hw-broken") {
            panic!("no time");
        }
        Duration::ZERO
    }
}
