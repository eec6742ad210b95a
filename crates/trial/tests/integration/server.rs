//! Tests of starting and removing servers.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel_trial::process::{self, Process};
use hashed_wheel_trial::server::{self, Missing, NO_SERVER, Scratch, Server};
use hashed_wheel_trial::testing::{self, RunResult};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether a process with this id exists.
fn exists(id: u32) -> bool {
    Command::new("kill")
        .args(["-0", &id.to_string()])
        .output()
        .unwrap()
        .status
        .success()
}

#[test]
fn programs_are_found_in_the_path_and_in_extra_folders() {
    assert!(server::find("sh", []).is_some());
    assert_eq!(
        server::find("no-such-program", [PathBuf::from("/bin")]),
        None
    );
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(
        server::find("Cargo.toml", [here.clone()]),
        None,
        "it is not executable"
    );
    assert_eq!(
        server::find("src", [here]),
        None,
        "a folder is not a program"
    );
    let this = env::current_exe().unwrap();
    let name = this.file_name().unwrap().to_str().unwrap();
    assert_eq!(
        server::find(name, this.parent().map(Into::into)),
        Some(this.clone())
    );
}

#[test]
fn dropped_server_ends() {
    let mut asked = 0;
    let ready = || {
        asked += 1;
        asked == 3
    };
    let scratch = Scratch::new("dropped", "QUIT", &[]).unwrap();
    let server = Server::start(
        &scratch,
        scratch.command("sleep").arg("3600"),
        TIMEOUT,
        ready,
    )
    .unwrap();
    assert_eq!(asked, 3);
    let id = server.id();
    assert!(exists(id));
    process::signal(id, "STOP").unwrap();
    drop(server);
    assert!(!exists(id));

    let folder = scratch.path().to_owned();
    assert!(folder.is_dir());
    drop(scratch);
    assert!(!folder.exists());
}

/// Set in a child process that runs this test again.
const RUN_UNTIL_KILLED: &str = "SERVER_TEST_IS_TO_END";

#[test]
fn killed_process_leaves_neither_server_nor_folder() {
    if env::var_os(RUN_UNTIL_KILLED).is_some() {
        let scratch = Scratch::new("killed", "KILL", &[]).unwrap();
        let mut sleep = scratch.command("sleep");
        let server = Server::start(
            &scratch,
            sleep.arg((TIMEOUT * 2).as_secs().to_string()),
            TIMEOUT,
            || true,
        );
        println!("\nfolder {}", scratch.path().display());
        thread::sleep(TIMEOUT);
        drop(server);
        return;
    }
    for signal in ["KILL", "TERM"] {
        let name = "server::killed_process_leaves_neither_server_nor_folder";
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", name, "--nocapture"])
            .env(RUN_UNTIL_KILLED, "")
            .stdout(Stdio::piped());
        let mut child = Process::start(&mut command).unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        let folder = loop {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0);
            if let Some(folder) = line.trim_end().strip_prefix("folder ") {
                break PathBuf::from(folder);
            }
        };
        assert!(folder.is_dir());
        let begin = Instant::now();
        process::signal(child.id(), signal).unwrap();
        child.wait().unwrap();
        // Both hold the pipe open. It reaches its end when both have ended.
        output.read_to_string(&mut line).unwrap();
        while folder.exists() && begin.elapsed() < TIMEOUT {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(
            begin.elapsed() < TIMEOUT,
            "{signal}: the server or the folder still exists"
        );
    }
}

/// Set in a child process that runs this test again.
const NEEDS_FOLDER: &str = "SERVER_TEST_NEEDS_FOLDER";

#[test]
fn missing_folder_for_temporary_files_is_named() {
    if env::var_os(NEEDS_FOLDER).is_some() {
        println!("{}", Scratch::new("no-folder", "KILL", &[]).err().unwrap());
        return;
    }
    let name = "server::missing_folder_for_temporary_files_is_named";
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture"])
        .env(NEEDS_FOLDER, "")
        .env("TMPDIR", "/no/such/folder");
    let RunResult { text, .. } = testing::run_command(&mut command);
    let error =
        "the folder for temporary files, /no/such/folder (TMPDIR): No such file or directory";
    assert!(text.contains(error), "{text}");
}

#[test]
fn failed_start_returns_the_reason() {
    let scratch = Scratch::new("not-ready", "KILL", &[]).unwrap();
    let start = |command: &mut Command, timeout| {
        Server::start(&scratch, command, timeout, || false)
            .unwrap_err()
            .to_string()
    };
    let error = start(&mut Command::new("no-such-program"), TIMEOUT);
    assert!(
        error.starts_with("no-such-program cannot be started: "),
        "{error}"
    );
    let error = start(Command::new("sh").args(["-c", "exit 5"]), TIMEOUT);
    assert_eq!(error, "sh ended before it was ready: exit status: 5");
    let error = start(Command::new("sleep").arg("3600"), Duration::from_millis(50));
    assert_eq!(error, "sleep was not ready within 50ms");
}

#[test]
fn missing_program_is_reported_with_its_package() {
    let missing = Missing {
        program: "redis-server",
        package: "redis",
        instead: "give --url",
    };
    let message =
        "SKIPPED: redis-server is not installed. Install redis (apt install redis), or give --url";
    assert_eq!(missing.to_string(), message);
}

#[test]
fn missing_server_is_not_a_pass() {
    let ended_with = |status: u8| {
        testing::run_command(Command::new("sh").args(["-c", &format!("exit {status}")]))
    };
    assert!(
        [0, 1, 2]
            .iter()
            .all(|&status| !ended_with(status).was_skipped())
    );
    let may_skip = std::env::var_os("EXAMPLES_NEED_SERVERS").is_none();
    assert_eq!(
        std::panic::catch_unwind(|| ended_with(NO_SERVER).was_skipped()).ok(),
        may_skip.then_some(true)
    );
}
