//! Runs the program as a user would, on a PostgreSQL that it starts.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use hashed_wheel_trial::testing::{self, RunResult};
use job_scheduler_trial::Database;
use job_scheduler_trial::rewrite::Relay;
use tokio_postgres::Config;

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
fn strained_nodes_keep_their_leases() {
    let options = "--strain --duration 10s --misfire-after 7s --max-late 10s";
    let Some(text) = passes(options) else { return };
    assert!(value(&text, "nodes").ends_with("; 8 in all"), "{text}");
    assert!(!value(&text, "strain").contains("0 times"), "{text}");
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

/// What the trial says about a missing safeguard, and the statements that leave it out. Only the
/// first one is always tried, because it makes a difference whenever a node is killed. `.ci/deep`
/// tries all.
#[rustfmt::skip]
const SABOTAGES: [(&str, &[(&str, &str)]); 12] = [
    // The runs of a lost node are not taken over.
    ("due times were not done", &[("AND run.state IN ('claimed', 'running') OFFSET 0", "AND false OFFSET 0")]),
    // A node does not check whether it still owns a run before it starts it.
    ("without a mark", &[
        ("AND (run.owner, run.state) IS NOT DISTINCT FROM (the_node, 'claimed')", ""),
        ("WHERE node.id = the_node AND node.alive_until > clock_timestamp())", ")"),
    ]),
    // An interrupted run is not marked.
    ("without a mark", &[("WHEN 'running' THEN 1 ELSE 0", "WHEN 'running' THEN 0 ELSE 0")]),
    // A node waits for a job that another client has locked.
    ("no other job was claimed while one job was locked",
        &[("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE")]),
    // A run starts although no place is free.
    ("executions overlapped", &NO_SLOT),
    ("exceed their limit", &NO_SLOT),
    // The end of a run does not start the run that waits for it.
    ("due times were not done", &[("run.state = 'blocked' AND run.blocked_on = the_name", "false")]),
    // Runs start although their handler has a rate.
    ("exceed their rate", &[
        ("IF has_blocked OR GREATEST(may_start, next_planned - slack) > the_time THEN", "IF false THEN"),
        ("IF may_start > the_time THEN", "IF false THEN"),
    ]),
    // A failed run is not repeated.
    ("due times were not done",
        &[("WHEN result.retry <= the_prefetch THEN 'claimed' ELSE 'waiting'", "ELSE result.state")]),
    // A run that its handler postpones counts as failed.
    ("without a mark", &[("OR result.state = 'snoozed' THEN 0 ELSE 1", "THEN 0 ELSE 1")]),
    // Runs start 50 ms before they are due.
    ("runs started early", &[
        ("due, start_at, CASE WHEN is_skipped", "due, start_at - interval '50 ms', CASE WHEN is_skipped"),
    ]),
    // A run that a node has given back is not claimed by another one.
    ("due times were not done",
        &[("WHERE run.state = 'waiting' AND", "WHERE false AND run.state = 'waiting' AND")]),
];

#[rustfmt::skip]
const NO_SLOT: [(&str, &str); 2] = [
    ("candidate.free[n] <= COALESCE((used ->> candidate.names[n])::integer, 0)", "false"),
    ("AND slot.place BETWEEN 1 AND needed.places", ""),
];

/// The number of trials at a time. They share a server, and mostly wait.
const AT_A_TIME: usize = 4;

/// Checks that a sabotage is detected, with this reason. Whether one execution detects it depends
/// on the moment at which a node is killed or stopped, so there are several. `promises/` has tests
/// of the same safeguards that do not depend on it.
fn detect(reason: &str, changes: &[(&str, &str)], server: &Config) {
    let relay = Relay::start(server, changes.iter().copied()).expect("a relay");
    let mut others = String::new();
    for seed in 1..=20 {
        let RunResult { status, text } = run(&format!(
            "{SHORTEST} --jobs 150 --seed {seed} --patience 1ms --url {}",
            relay.url
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
    panic!("no execution detected {changes:?}:\n{others}");
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
    let config = server.url.parse().expect("a valid URL");
    let next = AtomicUsize::new(0);
    let detect_some = || {
        while let Some((reason, changes)) = tried.get(next.fetch_add(1, Relaxed)) {
            detect(reason, changes, &config);
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
