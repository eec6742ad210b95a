//! Runs the program as a user would, with few timeouts.

use hashed_wheel_trial::testing::{self, RunResult};

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_many_pending"), options)
}

#[test]
fn all_timeouts_are_pending_and_returned_by_stop() {
    for wheel in ["", "--hierarchical"] {
        let RunResult { status, text } = run(&format!("--pending 200000 {wheel}"));
        assert_eq!(status, Some(0), "{text}");
        let passes = text.contains("PASS") && text.contains("bytes each");
        assert!(passes, "{text}");
    }
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [
        ("--pending 0", "'--pending <N>'"),
        ("--tick 0s", "tick is zero"),
        ("--slots 0", "'--slots <N>'"),
        ("--tick 1day --slots 4000000000", "error: --tick, --slots: "),
    ] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
