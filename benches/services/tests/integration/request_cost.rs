//! Runs the program as a user would.

use hashed_wheel_trial::testing::{self, RunResult};

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_request_cost"), options)
}

#[test]
fn each_timer_serves_and_each_request_takes_the_expected_timeouts() {
    let RunResult { status, text } = run("--connections 200 --rate 500 --rounds 2 --threads 2");
    assert_eq!(status, Some(0), "{text}");
    // A request at the end of a round may be counted without its second one.
    let counts = text
        .lines()
        .filter_map(|line| line.split('|').nth(6)?.trim().parse::<f64>().ok());
    let expected = counts.filter(|count| (1.9..=2.1).contains(count));
    assert_eq!(expected.count(), 2, "{text}");
    for line in [
        "| hashed-wheel | ",
        "| hashed_wheel_util::time | ",
        "| tokio::time | ",
        "PASS",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [
        ("--connections 1", "'--connections <N>'"),
        ("--tick soon", "'--tick <TIME>'"),
    ] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn killed_service_is_reported() {
    use std::fs;
    use std::io::Read;
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use hashed_wheel_trial::process::{Process, signal};

    let mut command = Command::new(env!("CARGO_BIN_EXE_request_cost"));
    command
        .args(["--connections=200", "--rate=500", "--timers=wheel,task"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut program = Process::start(&mut command).unwrap();
    // When the program starts its second service, the first one runs.
    let children = format!("/proc/{id}/task/{id}/children", id = program.id());
    let begin = Instant::now();
    let service = loop {
        let services = fs::read_to_string(&children).unwrap();
        if let [first, _] = services.split_whitespace().collect::<Vec<_>>()[..] {
            break first.parse().unwrap();
        }
        let is_soon = begin.elapsed() < Duration::from_secs(60);
        assert!(is_soon, "the services are {services:?}");
        thread::sleep(Duration::from_millis(10));
    };
    signal(service, "KILL").unwrap();
    let status = program.wait().unwrap();
    let mut errors = String::new();
    program
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert_eq!(
        errors,
        "error: the service's process has ended: signal: 9 (SIGKILL)\n"
    );
}
