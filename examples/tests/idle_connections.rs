//! Runs the program as a user would.

use std::process::Command;

use hashed_wheel_examples::testing::{self, Ran};

fn run(options: &str) -> Ran {
    testing::run(env!("CARGO_BIN_EXE_idle_connections"), options)
}

/// The idle time is many packets long, for a machine that has other things to do.
#[test]
fn closes_the_silent_ones_and_no_others() {
    let Ran { status, text } =
        run("--connections 200 --seconds 4 --idle 2s --packet-every 100ms --max-late 2s");
    assert_eq!(status, Some(0), "{text}");
    for line in [
        "60 for silence (should be 60)",
        "140 until they left (should be 140)",
        "0 timeouts at the end",
        "PASS",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn all_or_none_may_fall_silent() {
    for (share, line) in [(0, "0 for silence (should be 0)"), (1, "50 for silence (should be 50)")] {
        let Ran { status, text } = run(&format!(
            "--connections 50 --seconds 3 --packet-every 100ms --max-late 2s --silent-share {share}"
        ));
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn bad_options_get_a_reason_and_status_2() {
    for (options, reason) in [
        ("--connections 0", "'--connections <N>'"),
        ("--idle 300ms --packet-every 200ms", "less than twice --packet-every"),
        ("--tick 0", "tick is zero"),
    ] {
        let Ran { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}

#[cfg(unix)]
#[test]
fn too_low_a_limit_on_open_files_is_said_at_once() {
    let program = env!("CARGO_BIN_EXE_idle_connections");
    let command = format!("ulimit -n 100 && exec '{program}'");
    let Ran { status, text } = testing::run_command(Command::new("sh").arg("-c").arg(command));
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("need 2040") && text.contains("--connections 60"), "{text}");
}
