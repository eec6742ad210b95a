//! Runs the program as a user would, on a PostgreSQL that it starts.

use hashed_wheel_examples::testing::{self, RunResult};

/// A short run with a large misfire limit, because the machine may be busy. The program's default
/// of a minute is a separate test.
const SHORT: &str = "--seconds 6 --prefetch 2s --lease 1s --misfire-after 5s --max-late 10s";

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_job_scheduler"), options)
}

/// Returns the rest of the line that starts with `name`.
fn value<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(name)).expect(name).trim()
}

/// Returns the output. `None`: there is no server.
fn passes(options: &str) -> Option<String> {
    let ran = run(options);
    if ran.was_skipped() {
        return None;
    }
    let RunResult { status, text } = ran;
    assert_eq!(status, Some(0), "{text}");
    // (Error messages of a node may follow.)
    assert!(text.contains("\nPASS\n"), "{text}");
    assert_eq!(value(&text, "missing"), "0", "{text}");
    assert_eq!(value(&text, "repeated"), "0 without a mark", "{text}");
    Some(text)
}

/// Checks that the sabotage is detected, with this reason. Whether one execution detects it depends
/// on the moment at which a node is killed or stopped, so there are several. `promises/` has tests
/// of the same safeguards that do not depend on it.
fn fails(sabotage: &str, reason: &str) {
    let mut passed = String::new();
    for seed in 1..=20 {
        let ran = run(&format!("{SHORT} --jobs 150 --seed {seed} --sabotage {sabotage}"));
        if ran.was_skipped() {
            return;
        }
        let RunResult { status, text } = ran;
        if status != Some(0) {
            assert_eq!(status, Some(1), "{text}");
            assert!(text.contains("\nFAIL\n") && text.contains(reason), "{text}");
            return;
        }
        passed += &text;
    }
    panic!("no execution detected the sabotage:\n{passed}");
}

#[test]
fn kills_cause_no_missing_and_no_unmarked_repetitions() {
    if let Some(text) = passes("--misfire-after 12s --max-late 10s") {
        // Enough nodes are killed that some jobs are running at that time.
        assert!(!value(&text, "marked").starts_with("0 "), "{text}");
    }
}

#[test]
fn short_leases_pass() {
    passes(&format!("{SHORT} --jobs 60 --seed 2"));
}

#[test]
fn minimum_lease_passes() {
    passes("--seconds 3 --jobs 60 --prefetch 1s --lease 500ms --misfire-after 5s --max-late 10s");
}

#[test]
fn start_of_a_run_of_another_owner_is_detected() {
    fails("no-check", "without a mark");
}

#[test]
fn runs_without_takeover_are_missing() {
    fails("no-takeover", "due times were not done");
}

#[test]
fn interrupted_runs_without_a_mark_are_detected() {
    fails("no-mark", "without a mark");
}

#[test]
fn nodes_that_wait_for_a_locked_job_are_detected() {
    fails("no-skip", "no other job was claimed while one job was locked");
}

#[test]
fn overlapping_runs_are_detected() {
    fails("no-slot", "executions overlapped");
}

#[test]
fn runs_that_wait_for_ever_are_missing() {
    fails("no-heir", "due times were not done");
}

#[test]
fn missing_retries_are_detected() {
    fails("no-retry", "due times were not done");
}

#[test]
fn early_runs_are_detected() {
    fails("early", "runs started early");
}

#[test]
fn runs_that_were_given_back_and_not_claimed_are_missing() {
    fails("no-return", "due times were not done");
}

#[test]
fn unreachable_server_is_reported() {
    let RunResult { status, text } = run("--url postgresql://nobody@127.0.0.1:1/nothing");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("\nFAIL\n  error connecting"), "{text}");
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [
        ("--nodes 0", "'--nodes <N>'"),
        ("--lease 10ms", "lease of 10ms: must be from 500ms"),
        ("--prefetch 1s --lease 4s", "prefetch of 1s: must be from the heartbeat"),
        ("--misfire-after 1s", "misfire_after of 1s: must be at least the lease of 3s"),
        ("--url nonsense://", "'--url <URL>'"),
    ] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
