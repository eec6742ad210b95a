//! A new package with the dependency lines and the program of the README compiles and runs. It is a
//! build of its own, so only `.ci/deep` makes it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel_trial::new_project::{NewProject, block, replace_once};
use hashed_wheel_trial::process::{Process, signal};
use hashed_wheel_trial::testing::{is_deep, server_or_skip};
use job_scheduler_trial::Database;

/// The handler may be called before the program waits for Ctrl-C. Only Linux tells that.
fn wait_until_it_catches_sigint(process: u32) {
    let begin = Instant::now();
    while let Ok(status) = fs::read_to_string(format!("/proc/{process}/status")) {
        let caught = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:\t"))
            .unwrap();
        // The first bit is signal 1.
        if u64::from_str_radix(caught, 16).unwrap() & 0b10 != 0 {
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "it does not wait for Ctrl-C"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_quick_start_runs_as_printed() {
    if !is_deep() {
        return;
    }
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();

    // The repository is not next to this package.
    let here = root.to_str().unwrap().replace('\\', "/");
    let dependencies = replace_once(
        block(&readme, "toml"),
        "../hashed-wheel/crates/job-scheduler",
        &here,
    );
    let program = block(&readme, "rust,no_run");
    let program = replace_once(program, "postgresql://user@localhost/shop", &database.url);
    let temporary = env!("CARGO_TARGET_TMPDIR");
    let project = NewProject::new("scheduler-quick-start", temporary, &dependencies, &program);
    project.cargo("build --quiet");

    let mut program = Command::new(project.program());
    let mut process = Process::start(program.stdout(Stdio::piped())).unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    // The handler prints this. Without it, the program would not end.
    while line != "to you\n" {
        line.clear();
        assert!(
            output.read_line(&mut line).unwrap() > 0,
            "the program ends before it calls the handler"
        );
    }
    wait_until_it_catches_sigint(process.id());
    signal(process.id(), "INT").unwrap();
    output.read_to_string(&mut line).unwrap();
    assert!(process.wait().unwrap().success());
}
