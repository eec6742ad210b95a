//! Runs the program as a user would.

use hashed_wheel_examples::testing::{self, Ran};

fn run(options: &str) -> Ran {
    testing::run(env!("CARGO_BIN_EXE_event_loop"), options)
}

#[test]
fn the_loop_is_woken_for_earlier_timeouts_alone() {
    let Ran { status, text } = run("--timeouts 50 --clients 10 --max-late 2000");
    assert_eq!(status, Some(0), "{text}");
    for line in [
        "with no end; 0 wake-ups",
        "50 earlier       50 calls of the waker,",
        "100 later        0 calls of the waker, 0 wake-ups",
        "5 silent ones closed (should be 5), 5 busy ones kept (should be 5)",
        "returned 101 timeouts",
        "PASS",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn bad_options_get_a_reason_and_status_2() {
    for (options, reason) in [("--timeouts 0", "'--timeouts <N>'"), ("--clients 1", "'--clients <N>'")] {
        let Ran { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
