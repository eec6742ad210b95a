//! Runs the program as a user would.

use hashed_wheel_examples::testing::{self, Ran};

fn run(options: &str) -> Ran {
    testing::run(env!("CARGO_BIN_EXE_deadlines"), options)
}

/// The deadline is several attempts long, for a machine that has other things to do.
#[test]
fn calls_are_answered_or_given_up_in_time_and_leave_nothing_behind() {
    let Ran { status, text } =
        run("--calls 1500 --callers 20 --deadline 2s --hedge-after 50ms --max-late 5s");
    assert_eq!(status, Some(0), "{text}");
    for line in ["1,500 calls", "hedges after                   never     50.0 ms", "PASS"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// A write whose connection was dropped may have been done.
#[test]
fn who_repeats_writes_is_told_that_some_were_done_twice() {
    let Ran { status, text } = run("--calls 1500 --callers 20 --max-late 5s --repeat-writes");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL") && text.contains("writes were done twice"), "{text}");
}

#[test]
fn bad_options_get_a_reason_and_status_2() {
    for (options, reason) in [
        ("--calls 10", "'--calls <N>'"),
        ("--deadline soon", "'--deadline <TIME>'"),
        ("--deadline 2days", "a day is the longest"),
        ("--hedge-after 250ms", "shorter than an attempt"),
        ("--max-late 5000", "'--max-late <TIME>'"),
    ] {
        let Ran { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
