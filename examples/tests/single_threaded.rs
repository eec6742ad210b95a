//! Runs the program as a user would.

use std::process::{Command, Output};

fn run(options: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_single_threaded")).args(options.split_whitespace()).output().unwrap()
}

fn text(output: &Output) -> String {
    let [said, complained] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{said}{complained}")
}

#[test]
fn every_request_ends_once() {
    let output = run("--requests 2000 --max-late 2000");
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for line in ["of 2,000 in", "0 left", "PASS"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn gives_up_on_a_server_that_never_answers() {
    let output = run("--requests 150 --drop 1 --max-late 2000");
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("answered     0 of 150") && text.contains("gave up on 150"), "{text}");
}

#[test]
fn bad_options_get_a_reason_and_status_2() {
    for (options, reason) in [("--requests 0", "'--requests <N>'"), ("--drop 1.1", "from 0 to 1")] {
        let output = run(options);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
