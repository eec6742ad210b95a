//! The warning about too many timers is emitted once per process. So this is a separate test binary
//! with one test.

#![cfg(feature = "tracing")]

mod common;

use common::subscriber::Reports;
use hashed_wheel::HashedWheelTimer;

#[test]
fn the_sixty_fifth_live_timer_causes_the_warning() {
    let reports = Reports::new();
    tracing::subscriber::with_default(reports.clone(), || {
        let build = || HashedWheelTimer::builder().build().unwrap();
        build().stop();
        let _timers: Vec<_> = (0..64).map(|_| build()).collect();
        assert!(reports.take().is_empty(), "a stopped timer is not alive");
        let _one_more = build();
        let warnings = reports.take();
        let [warning] = warnings.as_slice() else { panic!("one warning: {warnings:?}") };
        assert!(warning.starts_with("WARN") && warning.ends_with(" live=65"), "{warning}");
        let _another = build();
        assert!(reports.take().is_empty(), "once per process");
    });
}
