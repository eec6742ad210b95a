//! Child processes that do not outlive their parent, and signals.

use std::fs;
use std::io::{self, Read};
use std::ops::{Deref, DerefMut};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A child process. It is killed when this value is dropped, even if it is stopped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The shell that stopped the child last. It continues the child by process id.
    ///
    /// The id belongs to the child only until the child is waited for, so [`kill`](Self::kill) ends
    /// the shell first. Another wait for a stopped child returns only after the child has
    /// continued. If a third process killed the child, the id may belong to another process.
    /// Continuing that process has no effect, because it is not stopped.
    shell: Option<Child>,
}

/// A stopped process. It continues when this value is dropped, or when this process has ended for
/// any reason.
#[derive(Debug)]
#[must_use]
pub struct Stopped {
    _pipe: ChildStdin,
}

/// A shell script that stops a process, reports that, and continues the process at the end of its
/// own input.
const STOP_AND_CONTINUE: &str =
    "trap '' INT TERM HUP QUIT PIPE; kill -STOP $0 || exit; echo; read -r line; kill -CONT $0";

impl Process {
    pub fn start(command: &mut Command) -> io::Result<Self> {
        Ok(Self {
            child: command.spawn()?,
            shell: None,
        })
    }

    /// Kills the process, as `kill -9` does, and waits until it has ended.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        if let Some(mut shell) = self.shell.take() {
            shell.kill()?;
            shell.wait()?;
        }
        self.child.wait()
    }

    /// Stops the process. Waits until an earlier stop is over, so the caller must not hold the
    /// result of that one.
    ///
    /// # Errors
    ///
    /// If the process has ended, or the shell cannot be started.
    pub fn stop(&mut self) -> io::Result<Stopped> {
        if let Some(mut shell) = self.shell.take() {
            shell.wait()?;
        }
        let id = self.id();
        if let Some(status) = self.child.try_wait()? {
            return Err(io::Error::other(format!(
                "process {id} cannot be stopped because it has ended: {status}"
            )));
        }
        let mut shell = Command::new("sh");
        shell
            .args(["-c", STOP_AND_CONTINUE, &id.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let shell = self.shell.insert(shell.spawn()?);
        let stopped = Stopped {
            _pipe: shell.stdin.take().expect("it was piped"),
        };
        shell
            .stdout
            .take()
            .expect("it was piped")
            .read_exact(&mut [0])?;
        Ok(stopped)
    }

    pub fn is_stopped(&mut self) -> bool {
        self.shell
            .as_mut()
            .is_some_and(|shell| matches!(shell.try_wait(), Ok(None)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("process {} may still be running: {error}", self.id());
        }
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

/// Sends a signal with the shell's built-in `kill`, which exists in every shell.
pub fn signal(process: u32, signal: &str) -> io::Result<()> {
    let status = Command::new("sh")
        .args(["-c", &format!("kill -{signal} {process}")])
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("kill -{signal}: {status}")))
    }
}

/// Returns the CPU time of all threads of a process that run now. `None` if the system does not
/// provide it.
pub fn cpu_time(process: u32) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    threads
        .map(|thread| {
            // The fields: nanoseconds on a CPU, nanoseconds of waiting for one, number of time
            // slices.
            let schedstat = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            Some(Duration::from_nanos(
                schedstat.split_whitespace().next()?.parse().ok()?,
            ))
        })
        .sum()
}
