//! Runs the program as a user would.

use std::process::{Command, Output};

fn run(options: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deadlines")).args(options.split_whitespace()).output().unwrap()
}

fn text(output: &Output) -> String {
    let [said, complained] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{said}{complained}")
}

/// The deadline is several attempts long, for a machine that has other things to do.
#[test]
fn calls_are_answered_or_given_up_in_time_and_leave_nothing_behind() {
    let output = run("--calls 1500 --callers 20 --deadline 2s --hedge-after 50ms --max-late 5000");
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for line in ["1,500 calls", "hedges after                   never     50.0 ms", "PASS"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// A write whose connection was dropped may have been done.
#[test]
fn who_repeats_writes_is_told_that_some_were_done_twice() {
    let output = run("--calls 1500 --callers 20 --max-late 5000 --repeat-writes");
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("FAIL") && text.contains("writes were done twice"), "{text}");
}

#[test]
fn bad_options_get_a_reason_and_status_2() {
    for (options, reason) in [("--calls 10", "'--calls <N>'"), ("--deadline soon", "'--deadline <TIME>'")] {
        let output = run(options);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
