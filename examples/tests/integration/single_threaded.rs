//! Runs the program as a user would.

use hashed_wheel_trial::testing::{self, RunResult};

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_single_threaded"), options)
}

#[test]
fn every_request_ends_exactly_once() {
    let RunResult { status, text } = run("--requests 2000 --max-late 2s");
    assert_eq!(status, Some(0), "{text}");
    for line in ["of 2,000 in", "0 left", "PASS"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn requests_fail_if_the_server_never_answers() {
    let RunResult { status, text } = run("--requests 150 --drop 1 --max-late 2s");
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("answered     0 of 150") && text.contains("150 failed"), "{text}");
}

/// The answers are not all meant to be lost, so that there are none is a failure.
#[test]
fn run_without_answers_does_not_pass() {
    let RunResult { status, text } = run("--requests 1 --drop 0.999 --max-late 2s");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL") && text.contains("no request was answered"), "{text}");
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [("--requests 0", "'--requests <N>'"), ("--drop 1.1", "from 0 to 1")] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
