//! Runs the program as a user would, on a PostgreSQL that it starts.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use hashed_wheel_trial::testing::{self, RunResult};
use job_scheduler_trial::Database;

/// Settings for a short run with a large misfire limit, because the machine may be busy.
const SHORT: &str = "--prefetch 2s --lease 1s --misfire-after 7s --max-late 10s";

/// The shortest lease, and therefore the most kills in the shortest time.
const SHORTEST: &str =
    "--duration 4s --prefetch 1s --lease 500ms --misfire-after 3s --max-late 10s";

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_job_scheduler"), options)
}

/// Returns the rest of the line that starts with `name`.
fn value<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .expect(name)
        .trim()
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
        || [
            "started early",
            "exactly once",
            "executions overlapped",
            "exceed their",
            "no other job was claimed",
        ]
        .iter()
        .any(|failure| text.contains(failure))
}

/// Runs a trial with these accidents, and checks that they happened, and that nodes were killed
/// while they ran jobs.
fn survives(accidents: &str, duration: &str) {
    let options = format!("{SHORT} --duration {duration} --accidents {accidents}");
    let Some(text) = passes(&options) else { return };
    assert!(!value(&text, "marked").starts_with("0 "), "{text}");
    let happened = value(&text, "accidents");
    for (accident, message, skipped) in [
        ("kill", "the server was killed", None),
        ("immediate", "an immediate shutdown", None),
        ("disk", "a full disk", Some("the disk does not become full")),
        ("clock", "clocks set by an hour", Some("no clock is set")),
    ] {
        let was_skipped = skipped.is_some_and(|what| text.contains(&format!("SKIPPED: {what}")));
        let should_happen = accidents.contains(accident) && !was_skipped;
        assert_eq!(
            happened.contains(message),
            should_happen,
            "{accident}: {text}"
        );
    }
}

/// Each accident takes several seconds. So `.ci/deep` has all of them in one trial, and otherwise
/// the tests below have the others, at the same time.
#[test]
fn kills_and_accidents_cause_no_missing_and_no_unmarked_repetitions() {
    if testing::is_deep() {
        survives("kill,immediate,disk,clock", "20s");
    } else {
        survives("kill,disk", "8s");
    }
}

#[test]
fn clocks_that_are_set_cause_no_missing_and_no_unmarked_repetitions() {
    survives("clock", "8s");
}

#[test]
fn minimum_lease_passes() {
    let text = passes(
        "--duration 4s --jobs 60 --prefetch 1s --lease 500ms --misfire-after 7s --max-late 10s --accidents immediate",
    );
    let Some(text) = text else { return };
    assert!(
        value(&text, "accidents").contains("an immediate shutdown"),
        "{text}"
    );
}

/// The sabotages, and what the trial says about each. Only the first one is always tried, because
/// it makes a difference whenever a node is killed. `.ci/deep` tries all.
const SABOTAGES: [(&str, &str); 12] = [
    ("no-takeover", "due times were not done"),
    // Starts of runs of another owner.
    ("no-check", "without a mark"),
    ("no-mark", "without a mark"),
    (
        "no-skip",
        "no other job was claimed while one job was locked",
    ),
    ("no-slot", "executions overlapped"),
    ("no-slot", "exceed their limit"),
    // Runs that wait forever.
    ("no-heir", "due times were not done"),
    ("no-rate", "exceed their rate"),
    ("no-retry", "due times were not done"),
    ("no-snooze", "without a mark"),
    ("early", "runs started early"),
    // Runs that were given back and not claimed.
    ("no-return", "due times were not done"),
];

/// The number of trials at a time. They share a server, and mostly wait.
const AT_A_TIME: usize = 4;

/// Checks that a sabotage is detected, with this reason. Whether one execution detects it depends
/// on the moment at which a node is killed or stopped, so there are several. `promises/` has tests
/// of the same safeguards that do not depend on it.
fn detect(sabotage: &str, reason: &str, url: &str) {
    let mut others = String::new();
    for seed in 1..=20 {
        let RunResult { status, text } = run(&format!(
            "{SHORTEST} --jobs 150 --seed {seed} --sabotage {sabotage} --url {url}"
        ));
        let failures = text
            .split_once("\nFAIL\n")
            .map_or("", |(_, failures)| failures);
        if status == Some(1) && failures.contains(reason) {
            return;
        }
        // Passed, or failed by something else: the shortest settings are too short for a machine
        // that is very busy.
        others += &text;
    }
    panic!("no execution detected {sabotage}:\n{others}");
}

#[test]
fn sabotages_are_detected() {
    let Some(server) = testing::server_or_skip(Database::start()) else {
        return;
    };
    let tried = if testing::is_deep() {
        &SABOTAGES[..]
    } else {
        &SABOTAGES[..1]
    };
    let next = AtomicUsize::new(0);
    let detect_some = || {
        while let Some((sabotage, reason)) = tried.get(next.fetch_add(1, Relaxed)) {
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
        (
            "--prefetch 1s --lease 4s",
            "prefetch of 1s: must be from the heartbeat",
        ),
        (
            "--misfire-after 1s",
            "misfire_after of 1s: must be at least the lease of 3s",
        ),
        ("--url nonsense://", "'--url <URL>'"),
    ] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
