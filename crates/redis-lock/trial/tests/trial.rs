//! Runs the program as a user would, also with an intentional error.

use std::process::Command;

use hashed_wheel_trial::testing::{self, RunResult};

const PROGRAM: &str = env!("CARGO_BIN_EXE_redis-lock-trial");

fn run(options: &str) -> RunResult {
    testing::run(PROGRAM, options)
}

#[test]
fn only_one_process_has_the_lock() {
    // `cluster.rs` of the lock always covers a failover.
    let ran = run(if testing::is_deep() {
        "--duration 3s"
    } else {
        "--duration 3s --no-cluster"
    });
    if ran.was_skipped() {
        return;
    }
    let RunResult { status, text } = ran;
    assert_eq!(status, Some(0), "{text}");
    assert!(text.ends_with("\nPASS\n"), "{text}");
    for part in [
        "re-entrant",
        "quick pairs",
        "0 timeouts pending, 0 calls",
        "batches",
        "taken away",
        "crowd        4 processes read ",
        "Redis was killed twice. ",
        "kill -9",
        "killed both  the holder and the first waiting process, together; the third one had the lock ",
        "stopped",
        "Redis does not answer",
        "the call to Redis failed: ",
        "0 holders lost the lock during their lease",
        "killed       Redis, and restarted it without its data. ",
        "lost data    Redis restarted without data; the holder of a lock detected it ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for part in [
        "killed       a master. ",
        "stopped      a master. ",
        "killed       a master without the last locks. ",
        " others kept theirs",
    ] {
        assert_eq!(text.contains(part), testing::is_deep(), "{part}: {text}");
    }
    // The message differs from that for a lease that has only ended.
    let mut taken_away = text.lines().filter(|line| line.starts_with("taken away"));
    assert!(
        taken_away.any(|line| line.contains("Redis has another owner for it")),
        "{text}"
    );
}

/// The program uses the copy of the lock in which each safeguard can be omitted.
fn fails_with(mutant: &str, options: &str, failure: &str) {
    let mut command = Command::new(PROGRAM);
    command.args(options.split(' ')).env("MUTANT", mutant);
    let ran = testing::run_command(&mut command);
    if ran.was_skipped() {
        return;
    }
    let RunResult { status, text } = ran;
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("\nFAIL\n") && text.contains(failure),
        "{text}"
    );
}

#[test]
fn unlock_by_a_former_owner_is_detected() {
    let failure = "lost the lock during their lease: ";
    fails_with("AnyoneUnlocks", "--duration 1s --no-cluster", failure);
}

#[test]
fn readers_with_a_writer_too_many_permits_and_two_owners_are_detected() {
    for (mutant, failure) in [
        ("WriterIsNotAlone", " holds overlapped a write"),
        ("PermitsAreNotCounted", " permits of 2 were held"),
        ("GrantsAHeldLock", " owners held one lock"),
    ] {
        fails_with(mutant, "--only-crowd --duration 500ms", failure);
    }
}

#[test]
fn missing_redis_is_not_a_pass() {
    let RunResult { status, text } = testing::run_command(Command::new(PROGRAM).env("PATH", ""));
    assert_eq!(status, Some(77), "{text}");
    assert!(
        text.starts_with("SKIPPED: ") && text.contains("apt install redis-server"),
        "{text}"
    );
}

/// No process listens on port 1.
#[test]
fn unreachable_redis_is_a_failure() {
    let RunResult { status, text } = run("--url redis://127.0.0.1:1/");
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("FAIL\n  ") && text.contains("Connection refused"),
        "{text}"
    );
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [
        (
            "--lease 299ms",
            "'--lease <TIME>': the lease must be between 300ms and 10s",
        ),
        ("--duration 0s", "'--duration <TIME>'"),
        ("--url http://127.0.0.1/", "'--url <URL>'"),
    ] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
