//! Runs the program as a user would.

use hashed_wheel_examples::testing::{self, Ran};

fn run(options: &str) -> Ran {
    testing::run(env!("CARGO_BIN_EXE_http_server"), options)
}

#[test]
fn who_is_slow_is_cut_off_and_the_others_are_served() {
    let Ran { status, text } =
        run("--clients 100 --header-timeout 400ms --answer-timeout 200ms --max-late 5000");
    assert_eq!(status, Some(0), "{text}");
    for line in ["100 clients", "served", "cut off", "given up", "0 left", "PASS"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// Nobody is as punctual as that, and the program has to see it.
#[test]
fn who_is_late_is_told_so() {
    let Ran { status, text } = run("--clients 20 --header-timeout 100ms --answer-timeout 100ms --max-late 0");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL") && text.contains("late"), "{text}");
}

#[test]
fn bad_options_get_a_reason_and_status_2() {
    for (options, reason) in
        [("--clients 0", "'--clients <N>'"), ("--header-timeout soon", "'--header-timeout <TIME>'")]
    {
        let Ran { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
