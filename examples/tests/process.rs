//! How examples stop and kill processes.

#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use hashed_wheel_examples::process::{self, Process};

const PATIENCE: Duration = Duration::from_secs(60);

fn sleep() -> Process {
    Process::start(Command::new("sleep").arg("3600")).unwrap()
}

/// As Linux has it: `T` is stopped. None: it is not there.
fn state(process: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

#[track_caller]
fn wait_until(mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_is_stopped_goes_on() {
    let mut process = sleep();
    // Again at once: the second does not lose against the first.
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
fn none_is_left_when_it_is_dropped() {
    let mut processes = [sleep(), sleep(), sleep()];
    let ids = processes.each_ref().map(|process| process.id());
    let stopped = processes[0].stop().unwrap();
    drop(processes[1].stop().unwrap());
    // Without waiting for it.
    drop(processes);
    assert_eq!(ids.map(state), [None; 3]);
    drop(stopped);
}

#[test]
fn what_has_ended_cannot_be_stopped() {
    let mut process = sleep();
    assert!(!process.kill().unwrap().success());
    let error = process.stop().unwrap_err().to_string();
    assert!(error.contains("cannot be stopped, it has ended: signal: 9"), "{error}");
    assert!(!process.is_stopped());
}

/// This runs itself once more, with this set.
const STOPS: &str = "PROCESS_TEST_STOPS";

#[test]
fn what_is_stopped_goes_on_without_us() {
    if env::var_os(STOPS).is_some() {
        let mut process =
            Process::start(Command::new("sleep").arg((PATIENCE * 2).as_secs().to_string())).unwrap();
        let stopped = process.stop().unwrap();
        println!("\nstopped {}", process.id());
        thread::sleep(PATIENCE);
        drop(stopped);
        return;
    }
    for signal in ["KILL", "TERM"] {
        let mut itself = Command::new(env::current_exe().unwrap());
        itself.args(["--exact", "what_is_stopped_goes_on_without_us", "--nocapture"]).env(STOPS, "");
        let mut itself = Process::start(itself.stdout(Stdio::piped())).unwrap();
        let mut lines = BufReader::new(itself.stdout.take().unwrap()).lines().map_while(Result::ok);
        let stopped = lines.find_map(|line| Some(line.strip_prefix("stopped ")?.parse().unwrap())).unwrap();
        wait_until(|| state(stopped) == Some('T'));
        process::signal(itself.id(), signal).unwrap();
        itself.wait().unwrap();
        wait_until(|| state(stopped) == Some('S'));
        process::signal(stopped, "KILL").unwrap();
    }
}
