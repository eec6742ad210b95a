//! Runs the program as a user would.

use hashed_wheel_examples::testing::{self, RunResult};

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_request_cost"), options)
}

#[test]
fn each_timer_serves_and_each_request_takes_the_expected_timeouts() {
    let RunResult { status, text } = run("--connections 200 --rate 500 --rounds 2");
    assert_eq!(status, Some(0), "{text}");
    let counts = "| 2.00, 3.00 |";
    assert_eq!(text.matches(counts).count(), 2, "{text}");
    for line in ["| hashed-wheel | ", "| tokio::time | ", "PASS"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [("--connections 1", "'--connections <N>'"), ("--tick soon", "'--tick <TIME>'")]
    {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
