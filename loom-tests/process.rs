//! Runs a test with a mutant in a process of its own, because the mutant may abort or never end.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The variable that is set in `.ci/deep`.
pub const DEEP: &str = "HASHED_WHEEL_DEEP";

/// Returns whether tests that take long run in full. Otherwise they run a smaller form.
pub fn is_deep() -> bool {
    std::env::var_os(DEEP).is_some()
}

/// The limits of a process.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub time: Duration,
    /// The limit of the address space. (It needs a shell with `ulimit`.)
    pub mebibytes: u64,
}

/// How a process ended.
pub struct Ended {
    /// `None`: it was killed because its time was over.
    pub status: Option<ExitStatus>,
    /// The first mebibyte of its standard error output.
    pub errors: String,
}

/// Runs one test of this test program, with changes to the environment.
pub fn run(test: &str, environment: &[(&str, &str)], bounds: Bounds) -> Ended {
    let program = std::env::current_exe().unwrap();
    let mut command = if cfg!(unix) {
        let limited = format!(
            "ulimit -v {} 2>/dev/null; exec \"$@\"",
            bounds.mebibytes << 10
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &limited, "sh"]).arg(program);
        shell
    } else {
        Command::new(program)
    };
    // Each mutant panics, and the symbols of a backtrace take longer than most models.
    command.env("RUST_BACKTRACE", "0");
    command
        .args([test, "--exact", "--nocapture"])
        .envs(environment.iter().copied());
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let errors = thread::spawn(move || {
        let mut errors = Vec::new();
        let _ = stderr.by_ref().take(1 << 20).read_to_end(&mut errors);
        let _ = std::io::copy(&mut stderr, &mut std::io::sink());
        String::from_utf8_lossy(&errors).into_owned()
    });
    let status = wait(&mut child, Instant::now() + bounds.time);
    Ended {
        status,
        errors: errors.join().unwrap(),
    }
}

fn wait(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > until {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
