//! Runs the program as a user would, on a PostgreSQL that it starts.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use hashed_wheel_examples::testing::{self, RunResult};
use job_scheduler_trial::Database;

/// Settings for a short run with a large misfire limit, because the machine may be busy.
const SHORT: &str = "--prefetch 2s --lease 1s --misfire-after 10s --max-late 10s";

/// The shortest lease, and therefore the most kills in the shortest time.
const SHORTEST: &str = "--duration 4s --prefetch 1s --lease 500ms --misfire-after 3s --max-late 10s";

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_job_scheduler"), options)
}

/// Returns the rest of the line that starts with `name`.
fn value<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(name)).expect(name).trim()
}

/// Returns the output. `None`: there is no server.
///
/// On a machine that is very busy, a bound on time may fail. Then it tries other seeds. What must
/// never happen, must not happen with any seed.
fn passes(options: &str) -> Option<String> {
    let mut seed = 1;
    let RunResult { status, text } = loop {
        let ran = run(&format!("{options} --seed {seed}"));
        if ran.was_skipped() {
            return None;
        }
        if seed == 3 || ran.status != Some(1) || is_wrong(&ran.text) {
            break ran;
        }
        seed += 1;
    };
    assert_eq!(status, Some(0), "{text}");
    // (Error messages of a node may follow.)
    assert!(text.contains("\nPASS\n"), "{text}");
    assert_eq!(value(&text, "missing"), "0", "{text}");
    assert_eq!(value(&text, "repeated"), "0 without a mark", "{text}");
    Some(text)
}

/// Whether the trial failed, not only by a bound on time.
fn is_wrong(text: &str) -> bool {
    // Without this line it has ended by an error.
    let has_ended = text.contains("\nmissing ");
    !has_ended
        || value(text, "missing") != "0"
        || value(text, "repeated") != "0 without a mark"
        || ["started early", "executions overlapped", "no other job was claimed"]
            .iter()
            .any(|failure| text.contains(failure))
}

#[test]
fn kills_and_accidents_cause_no_missing_and_no_unmarked_repetitions() {
    let duration = if testing::is_deep() { "20s" } else { "12s" };
    if let Some(text) = passes(&format!("{SHORT} --duration {duration}")) {
        // Enough nodes are killed that some jobs are running at that time.
        assert!(!value(&text, "marked").starts_with("0 "), "{text}");
        let accidents = value(&text, "accidents");
        for (accident, skipped) in [
            ("the server was killed", None),
            ("an immediate shutdown", None),
            ("a full disk", Some("the disk does not become full")),
            ("clocks set by an hour", Some("no clock is set")),
        ] {
            let was_skipped = skipped.is_some_and(|what| text.contains(&format!("SKIPPED: {what}")));
            assert_ne!(accidents.contains(accident), was_skipped, "{accident}: {text}");
        }
    }
}

#[test]
fn minimum_lease_passes() {
    passes(
        "--duration 4s --jobs 60 --prefetch 1s --lease 500ms --misfire-after 7s --max-late 10s --accidents immediate",
    );
}

/// The sabotages, and what the trial says about each.
const SABOTAGES: [(&str, &str); 9] = [
    // Starts of runs of another owner.
    ("no-check", "without a mark"),
    ("no-takeover", "due times were not done"),
    ("no-mark", "without a mark"),
    ("no-skip", "no other job was claimed while one job was locked"),
    ("no-slot", "executions overlapped"),
    // Runs that wait for ever.
    ("no-heir", "due times were not done"),
    ("no-retry", "due times were not done"),
    ("early", "runs started early"),
    // Runs that were given back and not claimed.
    ("no-return", "due times were not done"),
];

/// One of so many sabotages is tried. All are, in `.ci/deep`.
const SAMPLE: usize = 3;

/// The number of trials at a time. They share a server, and mostly wait.
const AT_A_TIME: usize = 4;

/// Checks that a sabotage is detected, with this reason. Whether one execution detects it depends
/// on the moment at which a node is killed or stopped, so there are several. `promises/` has tests
/// of the same safeguards that do not depend on it.
fn detect(sabotage: &str, reason: &str, url: &str) {
    let mut others = String::new();
    for seed in 1..=20 {
        let RunResult { status, text } =
            run(&format!("{SHORTEST} --jobs 150 --seed {seed} --sabotage {sabotage} --url {url}"));
        let failures = text.split_once("\nFAIL\n").map_or("", |(_, failures)| failures);
        if status == Some(1) && failures.contains(reason) {
            return;
        }
        // Passed, or failed by something else: the shortest settings are too short for a machine
        // that is very busy.
        others += &text;
    }
    panic!("no execution detected {sabotage}:\n{others}");
}

/// The harness starts tests in the order of their names. This one takes longest, so it starts first.
#[test]
fn all_sabotages_are_detected() {
    let Some(server) = testing::server_or_skip(Database::start()) else { return };
    let step = if testing::is_deep() { 1 } else { SAMPLE };
    let next = AtomicUsize::new(0);
    let detect_some = || {
        while let Some((sabotage, reason)) = SABOTAGES.get(next.fetch_add(step, Relaxed)) {
            detect(sabotage, reason, &server.url);
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(detect_some);
        }
    });
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
