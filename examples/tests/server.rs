//! How examples start what they need beside themselves.

#![cfg(unix)]

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel_examples::process::{self, Process};
use hashed_wheel_examples::server::{self, Missing, NO_SERVER, Scratch, Server};
use hashed_wheel_examples::testing;

const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a process of that number is there.
fn lives(id: u32) -> bool {
    Command::new("kill").args(["-0", &id.to_string()]).output().unwrap().status.success()
}

#[test]
fn a_program_is_found_in_the_path_and_beside_it() {
    assert!(server::find("sh", []).is_some());
    assert_eq!(server::find("no-such-program", [PathBuf::from("/bin")]), None);
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(server::find("Cargo.toml", [here.clone()]), None, "it may not be run");
    assert_eq!(server::find("src", [here]), None, "a folder is no program");
    let examples = PathBuf::from(env!("CARGO_BIN_EXE_metrics"));
    assert_eq!(server::find("metrics", examples.parent().map(Into::into)), Some(examples));
}

#[test]
fn a_server_ends_when_it_is_dropped() {
    let mut asked = 0;
    let ready = || {
        asked += 1;
        asked == 3
    };
    let scratch = Scratch::new("dropped", "QUIT", &[]).unwrap();
    let server = Server::start(&scratch, scratch.command("sleep").arg("3600"), PATIENCE, ready).unwrap();
    assert_eq!(asked, 3);
    let id = server.id();
    assert!(lives(id));
    process::signal(id, "STOP").unwrap();
    drop(server);
    assert!(!lives(id));

    let folder = scratch.path().to_owned();
    assert!(folder.is_dir());
    drop(scratch);
    assert!(!folder.exists());
}

/// This runs itself once more for each way to end, with this set.
const IS_TO_END: &str = "SERVER_TEST_IS_TO_END";

#[test]
fn whoever_is_killed_leaves_neither_server_nor_folder() {
    if env::var_os(IS_TO_END).is_some() {
        let scratch = Scratch::new("killed", "KILL", &[]).unwrap();
        let mut sleep = scratch.command("sleep");
        let server =
            Server::start(&scratch, sleep.arg((PATIENCE * 2).as_secs().to_string()), PATIENCE, || true);
        println!("\nfolder {}", scratch.path().display());
        thread::sleep(PATIENCE);
        drop(server);
        return;
    }
    for signal in ["KILL", "TERM"] {
        let name = "whoever_is_killed_leaves_neither_server_nor_folder";
        let mut itself = Command::new(env::current_exe().unwrap());
        itself.args(["--exact", name, "--nocapture"]).env(IS_TO_END, "").stdout(Stdio::piped());
        let mut child = Process::start(&mut itself).unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        let folder = loop {
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0);
            if let Some(folder) = line.trim_end().strip_prefix("folder ") {
                break PathBuf::from(folder);
            }
        };
        assert!(folder.is_dir());
        let begin = Instant::now();
        process::signal(child.id(), signal).unwrap();
        child.wait().unwrap();
        // Both say it there: the end is when both are gone.
        said.read_to_string(&mut line).unwrap();
        while folder.exists() && begin.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(begin.elapsed() < PATIENCE, "{signal}: server or folder were left");
    }
}

#[test]
fn a_server_that_does_not_come_up_is_an_error_that_says_why() {
    let scratch = Scratch::new("not-ready", "KILL", &[]).unwrap();
    let start = |command: &mut Command, patience| {
        Server::start(&scratch, command, patience, || false).unwrap_err().to_string()
    };
    let error = start(&mut Command::new("no-such-program"), PATIENCE);
    assert!(error.starts_with("no-such-program does not start: "), "{error}");
    let error = start(Command::new("sh").args(["-c", "exit 5"]), PATIENCE);
    assert_eq!(error, "sh has ended before it was ready: exit status: 5");
    let error = start(Command::new("sleep").arg("3600"), Duration::from_millis(50));
    assert_eq!(error, "sleep was not ready within 50ms");
}

#[test]
fn what_is_missing_is_said_with_what_installs_it() {
    let missing = Missing { program: "redis-server", package: "redis", instead: "give --url" };
    let message = "SKIPPED: there is no redis-server here. Install redis (apt install redis), or give --url";
    assert_eq!(missing.to_string(), message);
}

#[test]
fn who_finds_no_server_has_not_passed() {
    let ended_with =
        |status: u8| testing::run_command(Command::new("sh").args(["-c", &format!("exit {status}")]));
    assert!([0, 1, 2].iter().all(|&status| !ended_with(status).was_skipped()));
    let may_skip = std::env::var_os("EXAMPLES_NEED_SERVERS").is_none();
    assert_eq!(
        std::panic::catch_unwind(|| ended_with(NO_SERVER).was_skipped()).ok(),
        may_skip.then_some(true)
    );
}
