//! Runs the program as a user would, on a PostgreSQL that it starts.

use hashed_wheel_examples::testing::{self, RunResult};

/// Few seconds: the program's own minute is a test by itself. (A misfire is what a machine that has
/// other things to do is not late by.)
const SHORT: &str = "--seconds 6 --jobs 60 --lead 2s --lease 1s --misfire-after 5s --max-late 10s";

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_job_scheduler"), options)
}

/// What comes after `name` on its line.
fn said<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(name)).expect(name).trim()
}

/// What it said. None: there is no server.
fn passes(options: &str) -> Option<String> {
    let ran = run(options);
    if ran.was_skipped() {
        return None;
    }
    let RunResult { status, text } = ran;
    assert_eq!(status, Some(0), "{text}");
    // (Behind it may be what a scheduler has complained of.)
    assert!(text.contains("\nPASS\n"), "{text}");
    assert_eq!(said(&text, "missing"), "0", "{text}");
    assert_eq!(said(&text, "doubled"), "0 without a mark", "{text}");
    Some(text)
}

/// What is sabotaged is found, and for this reason.
fn fails(sabotage: &str, reason: &str) {
    let ran = run(&format!("{SHORT} --sabotage {sabotage}"));
    if ran.was_skipped() {
        return;
    }
    let RunResult { status, text } = ran;
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("\nFAIL\n") && text.contains(reason), "{text}");
}

#[test]
fn a_minute_of_kills_loses_nothing_and_doubles_nothing_unmarked() {
    if let Some(text) = passes("--misfire-after 12s --max-late 10s") {
        // Some thirty are killed, and two or three things are being done at a time.
        assert!(!said(&text, "marked").starts_with("0 "), "{text}");
    }
}

#[test]
fn so_do_short_leases() {
    passes(&format!("{SHORT} --seed 2"));
}

#[test]
fn a_lease_may_be_half_a_second() {
    passes("--seconds 3 --jobs 60 --lead 1s --lease 500ms --misfire-after 5s --max-late 10s");
}

#[test]
fn who_begins_what_is_no_longer_his_is_found_out() {
    fails("no-check", "were done twice, and do not say so");
}

#[test]
fn what_nobody_takes_over_is_missed() {
    fails("no-takeover", "of what was due was not done");
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let RunResult { status, text } = run("--url postgresql://nobody@127.0.0.1:1/nothing");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("\nFAIL\n  error connecting"), "{text}");
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [
        ("--schedulers 0", "'--schedulers <N>'"),
        ("--lease 10ms", "--lease is at least 500ms"),
        ("--lead 1s --lease 2s", "--lead 1s is shorter than --lease 2s"),
        ("--misfire-after 1s", "--misfire-after 1s is shorter than --lease 3s"),
        ("--url nonsense://", "'--url <URL>'"),
    ] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
