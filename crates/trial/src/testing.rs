//! Runs an example as a user would, for its test.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::process::{Command, Output};

use crate::server::{Missing, NO_SERVER};

/// If this variable is set, as in CI, a test fails when the server that it needs is not installed.
const NEED_SERVERS: &str = "EXAMPLES_NEED_SERVERS";

/// If this variable is set, as in `.ci/deep`, tests that take long run in full.
const DEEP: &str = "HASHED_WHEEL_DEEP";

/// Returns whether tests that take long run in full. Otherwise they run a smaller form.
pub fn is_deep() -> bool {
    env::var_os(DEEP).is_some()
}

/// The output and the exit status of a program.
#[derive(Debug)]
pub struct RunResult {
    pub status: Option<i32>,
    /// Standard output followed by standard error.
    pub text: String,
}

/// Runs `program` with `options`, which are separated by white space, until it ends.
pub fn run(program: &str, options: &str) -> RunResult {
    run_command(Command::new(program).args(options.split_whitespace()))
}

/// Runs `command` until it ends.
pub fn run_command(command: &mut Command) -> RunResult {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the program can be started");
    let [output, errors] = [&stdout, &stderr].map(|bytes| String::from_utf8_lossy(bytes));
    RunResult {
        status: status.code(),
        text: format!("{output}{errors}"),
    }
}

impl RunResult {
    /// Returns whether the program did not find its server. Prints its message, even if the test
    /// passes.
    ///
    /// # Panics
    ///
    /// If the program did not find its server and `EXAMPLES_NEED_SERVERS` is set.
    pub fn was_skipped(&self) -> bool {
        let was_skipped = self.status == Some(NO_SERVER.into());
        if was_skipped {
            assert!(
                env::var_os(NEED_SERVERS).is_none(),
                "{NEED_SERVERS} is set: {}",
                self.text
            );
            // Not with `eprintln!`: the test harness hides its output in tests that pass.
            let _ = writeln!(io::stderr(), "\n{}", self.text.trim_end());
        }
        was_skipped
    }
}

/// Returns the server that a test has started, or `None` if it is not installed. Prints the
/// message about that, even if the test passes.
///
/// # Panics
///
/// If the server cannot be started, or it is not installed and `EXAMPLES_NEED_SERVERS` is set.
pub fn server_or_skip<T>(started: Result<T, Box<dyn Error>>) -> Option<T> {
    match started {
        Ok(server) => Some(server),
        Err(error) if error.is::<Missing>() => {
            assert!(
                env::var_os(NEED_SERVERS).is_none(),
                "{NEED_SERVERS} is set: {error}"
            );
            // Not with `eprintln!`: the test harness hides its output in tests that pass.
            let _ = writeln!(io::stderr(), "\n{error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
