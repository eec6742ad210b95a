//! Runs the program as a user would.

use std::process::Command;

use hashed_wheel_trial::testing::{self, RunResult};

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_idle_connections"), options)
}

/// The idle time is many packets long, because the machine may be busy.
#[test]
fn only_silent_connections_are_closed() {
    let RunResult { status, text } =
        run("--connections 200 --duration 4s --idle 2s --packet-every 100ms --max-late 2s");
    assert_eq!(status, Some(0), "{text}");
    for line in [
        "60 because of silence (expected 60)",
        "140 until they disconnected (expected 140)",
        "0 timeouts at the end",
        "PASS",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

fn share_of_silent_clients_may_be(share: u32, line: &str) {
    let RunResult { status, text } = run(&format!(
        "--connections 50 --duration 3s --packet-every 100ms --max-late 2s --silent-share {share}"
    ));
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains(line), "{line}: {text}");
}

#[test]
fn share_of_silent_clients_may_be_0() {
    share_of_silent_clients_may_be(0, "0 because of silence (expected 0)");
}

#[test]
fn share_of_silent_clients_may_be_1() {
    share_of_silent_clients_may_be(1, "50 because of silence (expected 50)");
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [
        ("--connections 0", "'--connections <N>'"),
        ("--idle 300ms --packet-every 200ms", "less than twice --packet-every"),
        ("--tick 0s", "tick is zero"),
    ] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}

#[cfg(unix)]
#[test]
fn low_limit_on_open_files_is_reported_immediately() {
    let program = env!("CARGO_BIN_EXE_idle_connections");
    let command = format!("ulimit -n 100 && exec '{program}'");
    let RunResult { status, text } = testing::run_command(Command::new("sh").arg("-c").arg(command));
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("need 2040") && text.contains("--connections 60"), "{text}");
}
