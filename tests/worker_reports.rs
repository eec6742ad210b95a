//! What a worker thread reports of itself: to the subscriber of the whole process, for it has no other. So this is a test
//! binary of its own, with one test.

#![cfg(feature = "tracing")]

mod common;

use std::time::Duration;

use common::subscriber::Reports;
use hashed_wheel::HashedWheelTimer;

#[test]
fn a_worker_says_that_it_started_and_that_it_ended() {
    let reports = Reports::new();
    tracing::subscriber::set_global_default(reports.clone()).unwrap();

    let timer = HashedWheelTimer::builder().thread_name("hw-seen").build().unwrap();
    assert!(reports.take().is_empty(), "it is not started");
    timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap();
    timer.stop();
    assert_eq!(
        reports.take(),
        [
            "DEBUG message=a timer's worker started thread=\"hw-seen\"",
            "DEBUG message=a timer's worker ended thread=\"hw-seen\"",
        ]
    );
}
