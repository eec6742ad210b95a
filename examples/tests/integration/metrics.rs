//! Runs the program as a user would.

use hashed_wheel_trial::testing::{self, RunResult};

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_metrics"), options)
}

#[test]
fn page_agrees_with_the_timer() {
    let RunResult { status, text } = run("--requests 12000 --connections 3 --page");
    assert_eq!(status, Some(0), "{text}");
    for line in [
        "# TYPE hashed_wheel_pending gauge",
        "# TYPE hashed_wheel_scheduled_total counter",
        "hashed_wheel_lateness_seconds_bucket{timer=\"requests\",le=\"+Inf\"}",
        "PASS",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in
        [("--requests 0", "'--requests <N>'"), ("--connections 65", "'--connections <N>'")]
    {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
