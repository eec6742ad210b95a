//! Runs the program as a user would, with a real wrk.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use hashed_wheel_trial::process::{Process, signal};
use hashed_wheel_trial::testing::{self, RunResult};

/// Long timeouts for a small test, because the machine may be busy.
const TIMEOUTS: &str =
    "--connect-timeout 2s --header-timeout 2s --idle-timeout 5s --total-timeout 6s --max-late 20s";

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_proxy"), options)
}

/// The program measures one timer after the other. So the timers are divided between two tests,
/// which run at the same time.
fn every_timeout_fires_on(timers: &[&str]) {
    let trial = "--connections 100 --idle 200 --offenders 20 --duration 6s --rounds 1";
    let ran = run(&format!("{trial} {TIMEOUTS} --timers {}", timers.join(",")));
    if ran.was_skipped() {
        return;
    }
    let RunResult { status, text } = ran;
    assert_eq!(status, Some(0), "{text}");
    let fired = "fired: connect 20, header 20, idle 220, total 20;";
    assert_eq!(text.matches(fired).count(), timers.len(), "{text}");
    assert!(
        text.contains("| requests per second |") && text.contains("PASS"),
        "{text}"
    );
}

#[test]
fn every_timeout_fires_on_the_wheel_and_on_tokios_timer() {
    every_timeout_fires_on(&["wheel", "tokio"]);
}

#[test]
fn every_timeout_fires_on_a_wheel_that_a_task_turns() {
    every_timeout_fires_on(&["task"]);
}

fn is_detected(sabotage: &str, why: &str) {
    let trial = "--timers wheel --connections 2 --idle 2 --offenders 2 --duration 6s --rounds 1";
    let ran = run(&format!(
        "{trial} {} --sabotage {sabotage}",
        TIMEOUTS.replace("--max-late 20s", "")
    ));
    if ran.was_skipped() {
        return;
    }
    let RunResult { status, text } = ran;
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL") && text.contains(why), "{why}: {text}");
}

#[test]
fn early_timeouts_are_detected() {
    is_detected("early", "clients got a wrong result");
}

#[test]
fn missing_timeouts_are_detected() {
    is_detected(
        "never-idle --max-late 2s",
        "timeouts have fired instead of [2, 2, 4, 2]",
    );
}

#[test]
fn missing_wrk_is_reported() {
    let program = env!("CARGO_BIN_EXE_proxy");
    let RunResult { status, text } = testing::run_command(Command::new(program).env("PATH", ""));
    assert_eq!(status, Some(77), "{text}");
    assert!(text.contains("apt install wrk"), "{text}");
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [
        ("--connections 0", "'--connections <N>'"),
        ("--idle-timeout 1s", "shorter than --idle-timeout"),
        ("--total-timeout 5s", "shorter than --total-timeout"),
        ("--total-timeout 13s", "would not fire under load"),
        ("--duration 12500ms", "whole seconds"),
        ("--tick 0s", "longer than zero"),
        ("--timers none", "'--timers <WHOSE>'"),
    ] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}

/// Ctrl-C is no failure of the proxy.
#[cfg(unix)]
#[test]
fn interruption_is_reported() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proxy"));
    command
        .args(["--connections=10", "--idle=10", "--offenders=1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut program = Process::start(&mut command).expect("the program can be started");
    let mut output = BufReader::new(program.stdout.take().expect("it was piped"));
    let mut text = String::new();
    output.read_line(&mut text).expect("it prints its options");
    if text.contains("SKIPPED") {
        return;
    }
    // The program catches signals before it prints its options.
    signal(program.id(), "INT").expect("it runs");
    let status = program.wait().expect("it ends");
    let mut errors = String::new();
    program
        .stderr
        .take()
        .expect("it was piped")
        .read_to_string(&mut errors)
        .expect("it is text");
    assert_eq!(
        (status.code(), errors.trim_end()),
        (Some(130), "interrupted")
    );
}
