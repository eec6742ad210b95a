//! Runs an example as a user would, for its test.

use std::env;
use std::io::{self, Write};
use std::process::{Command, Output};

use crate::server::NO_SERVER;

/// Where this variable is set, as in CI, a test fails when the server it needs is not there.
const NEED_SERVERS: &str = "EXAMPLES_NEED_SERVERS";

/// What a program said, and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub status: Option<i32>,
    /// Both what it printed and what it complained of.
    pub text: String,
}

/// Runs `program` with `options`, which are apart by white space, to its end.
pub fn run(program: &str, options: &str) -> Ran {
    run_command(Command::new(program).args(options.split_whitespace()))
}

/// Runs `command` to its end.
pub fn run_command(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().expect("it is there");
    let [said, complained] = [&stdout, &stderr].map(|bytes| String::from_utf8_lossy(bytes));
    Ran { status: status.code(), text: format!("{said}{complained}") }
}

impl Ran {
    /// Says so, also in a test that passes, if the program has not found its server.
    ///
    /// # Panics
    ///
    /// If it has not, and where `EXAMPLES_NEED_SERVERS` is set.
    pub fn was_skipped(&self) -> bool {
        let was_skipped = self.status == Some(NO_SERVER.into());
        if was_skipped {
            assert!(env::var_os(NEED_SERVERS).is_none(), "{NEED_SERVERS} is set: {}", self.text);
            // Not by `eprintln!`: that is kept from who looks at tests that pass.
            let _ = writeln!(io::stderr(), "\n{}", self.text.trim_end());
        }
        was_skipped
    }
}
