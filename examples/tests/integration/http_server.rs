//! Runs the program as a user would.

use hashed_wheel_trial::testing::{self, RunResult};

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_http_server"), options)
}

#[test]
fn slow_clients_are_disconnected_and_others_are_served() {
    let RunResult { status, text } =
        run("--clients 100 --header-timeout 400ms --answer-timeout 200ms --max-late 5s");
    assert_eq!(status, Some(0), "{text}");
    for line in ["100 clients", "served", "cut off", "given up", "0 left", "PASS"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// A client that sends its request after the time limit is disconnected, and that is no fault of
/// the server. (With this seed the first client is not one of the slow ones.) On a busy machine
/// there are more of them.
#[test]
fn client_that_sends_too_late_is_no_fault() {
    let RunResult { status, text } =
        run("--clients 20 --header-timeout 400ms --answer-timeout 200ms --max-late 5s --stall 1s --seed 2");
    assert_eq!(status, Some(0), "{text}");
    // The line is printed only if there is at least one.
    assert!(text.contains("starved ") && text.contains("PASS"), "{text}");
}

/// No machine is as punctual as that, and the program has to detect it.
#[test]
fn lateness_beyond_the_limit_fails() {
    let RunResult { status, text } =
        run("--clients 20 --header-timeout 100ms --answer-timeout 100ms --max-late 0s");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL") && text.contains("late"), "{text}");
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in
        [("--clients 9", "'--clients <N>'"), ("--header-timeout soon", "'--header-timeout <TIME>'")]
    {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
