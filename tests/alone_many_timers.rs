//! The warning about too many timers is emitted once per process, and counts the timers of the
//! process. So this is a separate program with one test.

#![cfg(feature = "tracing")]

#[path = "it/common/mod.rs"]
mod common;

use common::subscriber::Reports;
use hashed_wheel::HashedWheelTimer;

#[test]
fn the_sixty_fifth_live_timer_causes_one_warning() {
    let reports = Reports::new();
    tracing::subscriber::with_default(reports.clone(), || {
        let build = || HashedWheelTimer::builder().build().unwrap();
        // However many there were before.
        for _ in 0..if cfg!(miri) { 1 } else { 10 } {
            let timers: Vec<_> = (0..50).map(|_| build()).collect();
            timers[0].stop();
        }
        build().stop();
        let _timers: Vec<_> = (0..64).map(|_| build()).collect();
        assert!(reports.take().is_empty(), "a stopped timer is not alive");
        let _one_more = build();
        let warnings = reports.take();
        let [warning] = warnings.as_slice() else {
            panic!("one warning: {warnings:?}")
        };
        assert!(
            warning.starts_with("WARN") && warning.ends_with(" live=65"),
            "{warning}"
        );
        let _more: Vec<_> = (0..if cfg!(miri) { 5 } else { 150 })
            .map(|_| build())
            .collect();
        assert!(reports.take().is_empty(), "once per process");
    });
}
