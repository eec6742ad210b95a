//! Runs the program as a user would, and as one who breaks something.

use std::process::Command;

use hashed_wheel_examples::testing::{self, RunResult};

const PROGRAM: &str = env!("CARGO_BIN_EXE_redis_lock");

fn run(options: &str) -> RunResult {
    testing::run(PROGRAM, options)
}

#[test]
fn nobody_is_let_in_while_somebody_is_in() {
    let ran = run("--seconds 3");
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
        "kill -9",
        "stopped",
        "Redis does not answer",
        "Redis could not be asked: ",
        "0 holders were robbed",
        "lost data    Redis came back with none; the holder of a lock knew ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Which is not what it says where only the lease was over.
    let mut taken_away = text.lines().filter(|line| line.starts_with("taken away"));
    assert!(taken_away.any(|line| line.contains("Redis has it for somebody else")), "{text}");
}

#[test]
fn to_unlock_what_is_somebody_elses_is_noticed() {
    let ran = run("--seconds 1 --sabotage no-owner-check");
    if ran.was_skipped() {
        return;
    }
    let RunResult { status, text } = ran;
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("\nFAIL\n") && text.contains("robbed of the lock: "), "{text}");
}

#[test]
fn without_redis_it_has_not_passed() {
    let RunResult { status, text } = testing::run_command(Command::new(PROGRAM).env("PATH", ""));
    assert_eq!(status, Some(77), "{text}");
    assert!(text.starts_with("SKIPPED: ") && text.contains("apt install redis-server"), "{text}");
}

/// Port 1 is nobody's.
#[test]
fn a_redis_that_does_not_answer_is_a_failure() {
    let RunResult { status, text } = run("--url redis://127.0.0.1:1/");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL\n  ") && text.contains("Connection refused"), "{text}");
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [
        ("--lease 299ms", "'--lease <TIME>': it is between 300ms and 10s"),
        ("--seconds 0", "'--seconds <S>'"),
        ("--url http://127.0.0.1/", "'--url <URL>'"),
        ("--sabotage all", "'--sabotage <SABOTAGE>'"),
    ] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
