//! Other processes: those that do not outlive who started them, and signals.

use std::io::{self, Read};
use std::ops::{Deref, DerefMut};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

/// A child that is killed when this is dropped, also one that is stopped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The shell that has stopped it last. It lets the child go on by its number, which is the child's until that is waited for:
    /// so [`kill`](Self::kill) ends the shell first. (Whoever else waits for a child that is stopped, waits until it has gone on;
    /// but if a third party has killed it, the number may be another's, to whom that means nothing, not being stopped.)
    shell: Option<Child>,
}

/// Its process goes on when this is dropped, or when we have ended, whichever way that comes about.
#[derive(Debug)]
#[must_use]
pub struct Stopped {
    _pipe: ChildStdin,
}

/// A shell that stops a process, says so, and lets it go on when there is nothing more to read.
const STOP_AND_GO_ON: &str =
    "trap '' INT TERM HUP QUIT PIPE; kill -STOP $0 || exit; echo; read -r line; kill -CONT $0";

impl Process {
    pub fn start(command: &mut Command) -> io::Result<Self> {
        Ok(Self { child: command.spawn()?, shell: None })
    }

    /// Kills it, as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        if let Some(mut shell) = self.shell.take() {
            shell.kill()?;
            shell.wait()?;
        }
        self.child.wait()
    }

    /// Waits until an earlier stop is over: so not while you hold that one.
    ///
    /// # Errors
    ///
    /// If the process has ended, or there is no shell.
    pub fn stop(&mut self) -> io::Result<Stopped> {
        if let Some(mut shell) = self.shell.take() {
            shell.wait()?;
        }
        let id = self.id();
        if let Some(status) = self.child.try_wait()? {
            return Err(io::Error::other(format!("process {id} cannot be stopped, it has ended: {status}")));
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", STOP_AND_GO_ON, &id.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let shell = self.shell.insert(shell.spawn()?);
        let stopped = Stopped { _pipe: shell.stdin.take().expect("it was asked for") };
        shell.stdout.take().expect("it was asked for").read_exact(&mut [0])?;
        Ok(stopped)
    }

    pub fn is_stopped(&mut self) -> bool {
        self.shell.as_mut().is_some_and(|shell| matches!(shell.try_wait(), Ok(None)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("process {} is perhaps still there: {error}", self.id());
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

/// By the shell's own `kill`, which is there wherever a shell is.
pub fn signal(process: u32, signal: &str) -> io::Result<()> {
    let status = Command::new("sh").args(["-c", &format!("kill -{signal} {process}")]).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("kill -{signal}: {status}"))) }
}
