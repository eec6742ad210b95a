//! Tests of stopping and killing child processes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use hashed_wheel_trial::process::{self, Process};

const TIMEOUT: Duration = Duration::from_secs(60);

fn sleep() -> Process {
    Process::start(Command::new("sleep").arg("3600")).unwrap()
}

/// Returns the process state as in /proc: `T` is stopped. `None`: the process does not exist.
fn state(process: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

#[track_caller]
fn wait_until(mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < TIMEOUT);
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn stopped_process_continues() {
    let mut process = sleep();
    // Stops it repeatedly without a pause. A later stop must not fail because of an earlier one.
    for _ in 0..10 {
        let stopped = process.stop().unwrap();
        wait_until(|| state(process.id()) == Some('T'));
        assert!(process.is_stopped());
        drop(stopped);
    }
    wait_until(|| !process.is_stopped());
    wait_until(|| state(process.id()) == Some('S'));
}

#[test]
fn drop_kills_the_process() {
    let mut processes = [sleep(), sleep(), sleep()];
    let ids = processes.each_ref().map(|process| process.id());
    let stopped = processes[0].stop().unwrap();
    drop(processes[1].stop().unwrap());
    // Drops the process without waiting for it first.
    drop(processes);
    assert_eq!(ids.map(state), [None; 3]);
    drop(stopped);
}

#[test]
fn ended_process_cannot_be_stopped() {
    let mut process = sleep();
    assert!(!process.kill().unwrap().success());
    let error = process.stop().unwrap_err().to_string();
    assert!(
        error.contains("cannot be stopped because it has ended: signal: 9"),
        "{error}"
    );
    assert!(!process.is_stopped());
}

/// Set in a child process that runs this test again.
const STOP_AND_EXIT: &str = "PROCESS_TEST_STOPS";

#[test]
fn stopped_process_continues_after_its_parent_has_ended() {
    if env::var_os(STOP_AND_EXIT).is_some() {
        let mut process =
            Process::start(Command::new("sleep").arg((TIMEOUT * 2).as_secs().to_string())).unwrap();
        let stopped = process.stop().unwrap();
        println!("\nstopped {}", process.id());
        thread::sleep(TIMEOUT);
        drop(stopped);
        return;
    }
    for signal in ["KILL", "TERM"] {
        let mut child = Command::new(env::current_exe().unwrap());
        child
            .args([
                "--exact",
                "process::stopped_process_continues_after_its_parent_has_ended",
                "--nocapture",
            ])
            .env(STOP_AND_EXIT, "");
        let mut child = Process::start(child.stdout(Stdio::piped())).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let stopped = lines
            .find_map(|line| Some(line.strip_prefix("stopped ")?.parse().unwrap()))
            .unwrap();
        wait_until(|| state(stopped) == Some('T'));
        process::signal(child.id(), signal).unwrap();
        child.wait().unwrap();
        wait_until(|| state(stopped) == Some('S'));
        process::signal(stopped, "KILL").unwrap();
    }
}
