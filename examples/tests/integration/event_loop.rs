//! Runs the program as a user would.

use hashed_wheel_trial::testing::{self, RunResult};

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_event_loop"), options)
}

#[test]
fn only_earlier_timeouts_wake_the_loop() {
    let RunResult { status, text } = run("--timeouts 50 --clients 10 --max-late 2s");
    assert_eq!(status, Some(0), "{text}");
    for line in [
        "without a time limit; 0 wake-ups",
        "50 earlier       50 calls of the waker,",
        "100 later        0 calls of the waker, 0 wake-ups",
        "5 silent ones closed (expected 5), 5 busy ones kept (expected 5)",
        "returned 101 timeouts",
        "PASS",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [("--timeouts 0", "'--timeouts <N>'"), ("--clients 1", "'--clients <N>'")] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
