//! Runs programs that contain mutants. A mutant may abort, never end, or use all memory.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

/// The variable that selects a mutant by its name.
pub const VARIABLE: &str = "MUTANT";

/// The mutant that the environment selects, or another request to the copy.
pub fn requested() -> Option<&'static str> {
    static REQUESTED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(VARIABLE).ok());
    REQUESTED.as_deref()
}

/// Returns whether the environment selects this mutant.
pub fn is_on(name: &str) -> bool {
    requested() == Some(name)
}

/// The variable that is set in `.ci/deep`.
pub const DEEP: &str = "HASHED_WHEEL_DEEP";

/// Returns whether tests that take long run in full. Otherwise they run a smaller form.
pub fn is_deep() -> bool {
    std::env::var_os(DEEP).is_some()
}

/// How much of the output is kept.
const MAX_OUTPUT: usize = 1 << 20;

/// Returns a command that runs a program with a limit on its address space. (It needs a shell with
/// `ulimit`.)
pub fn command(program: &Path, mebibytes: u64) -> Command {
    let mut command = if cfg!(unix) {
        let limited = format!("ulimit -v {} 2>/dev/null; exec \"$@\"", mebibytes << 10);
        let mut shell = Command::new("sh");
        shell.args(["-c", &limited, "sh"]).arg(program);
        shell
    } else {
        Command::new(program)
    };
    // Most mutants panic, and the symbols of a backtrace take longer than most tests.
    command.env("RUST_BACKTRACE", "0");
    command
}

/// Returns a command that runs a test of this test program, in a process with this mutant.
pub fn test(name: &str, mutant: &str, mebibytes: u64) -> Command {
    let program = std::env::current_exe().expect("the path of this program");
    let mut command = command(&program, mebibytes);
    command
        .args([name, "--exact", "--nocapture"])
        .env(VARIABLE, mutant);
    command
}

/// How a program ended.
pub struct Ended {
    /// `None`: it was killed because its time was over, or after a line of its output.
    pub status: Option<ExitStatus>,
    /// The line after which it was killed.
    pub line: Option<String>,
    /// What it has printed, up to a mebibyte.
    pub output: String,
}

/// Runs a program until it ends, but not longer than this time. Kills it after a line of its output
/// for which `is_last` returns true.
pub fn run(command: &mut Command, time: Duration, is_last: fn(&str) -> bool) -> Ended {
    let command = command.stdin(Stdio::null());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let output = Arc::new(Mutex::new(String::new()));
    let (sender, receiver) = mpsc::channel();
    let pipes: [Box<dyn Read + Send>; 2] = [
        Box::new(child.stdout.take().expect("a pipe")),
        Box::new(child.stderr.take().expect("a pipe")),
    ];
    for pipe in pipes {
        let (sender, output) = (sender.clone(), output.clone());
        thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                {
                    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
                    if output.len() < MAX_OUTPUT {
                        output.push_str(&line);
                        output.push('\n');
                    }
                }
                if is_last(&line) {
                    let _ = sender.send(line);
                }
            }
        });
    }
    drop(sender);
    // Without a line: both pipes are closed.
    let line = receiver.recv_timeout(time);
    let status = match line {
        Err(mpsc::RecvTimeoutError::Disconnected) => child.wait().ok(),
        _ => kill(&mut child),
    };
    let output = output
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    Ended {
        status,
        line: line.ok(),
        output,
    }
}

/// Kills the process, and, if it has a process group of its own, those that it has started.
fn kill(child: &mut Child) -> Option<ExitStatus> {
    if cfg!(unix) {
        let group = format!("-{}", child.id());
        let mut kill = Command::new("kill");
        let _ = kill
            .args(["-KILL", "--", &group])
            .stderr(Stdio::null())
            .status();
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// Calls a function for each number below `count`, on so many threads, and returns the results.
pub fn in_parallel<R: Send>(
    count: usize,
    threads: usize,
    function: impl Fn(usize) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new((0..count).map(|_| None).collect::<Vec<_>>());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    if index >= count {
                        return;
                    }
                    let result = function(index);
                    results.lock().expect("no panic")[index] = Some(result);
                }
            });
        }
    });
    let results = results.into_inner().expect("no panic");
    results
        .into_iter()
        .map(|result| result.expect("a result"))
        .collect()
}
