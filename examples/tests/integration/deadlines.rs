//! Runs the program as a user would.

use hashed_wheel_trial::testing::{self, RunResult};

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_deadlines"), options)
}

/// The deadline is several attempts long, because the machine may be busy.
#[test]
fn calls_end_in_time_and_leave_no_timeouts() {
    let RunResult { status, text } =
        run("--calls 1500 --callers 20 --deadline 2s --hedge-after 50ms --max-late 5s");
    assert_eq!(status, Some(0), "{text}");
    for line in ["1,500 calls", "hedges after                   never      50.0ms", "PASS"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// A write whose connection was dropped may have been done.
#[test]
fn repeated_writes_are_detected() {
    let RunResult { status, text } = run("--calls 1500 --callers 20 --max-late 5s --repeat-writes");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL") && text.contains("writes were done twice"), "{text}");
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [
        ("--calls 10", "'--calls <N>'"),
        ("--deadline soon", "'--deadline <TIME>'"),
        ("--deadline 2days", "the maximum is one day"),
        ("--deadline 0s", "longer than zero"),
        ("--deadline 100ms", "at least the limit of an attempt"),
        ("--hedge-after 250ms", "shorter than the limit of an attempt"),
        ("--max-late 5000", "'--max-late <TIME>'"),
    ] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
