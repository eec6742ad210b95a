//! Runs the program as a user would.

use hashed_wheel_examples::testing::{self, Ran};

fn run(options: &str) -> Ran {
    testing::run(env!("CARGO_BIN_EXE_single_threaded"), options)
}

#[test]
fn every_request_ends_once() {
    let Ran { status, text } = run("--requests 2000 --max-late 2000");
    assert_eq!(status, Some(0), "{text}");
    for line in ["of 2,000 in", "0 left", "PASS"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn gives_up_on_a_server_that_never_answers() {
    let Ran { status, text } = run("--requests 150 --drop 1 --max-late 2000");
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("answered     0 of 150") && text.contains("gave up on 150"), "{text}");
}

#[test]
fn bad_options_get_a_reason_and_status_2() {
    for (options, reason) in [("--requests 0", "'--requests <N>'"), ("--drop 1.1", "from 0 to 1")] {
        let Ran { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
