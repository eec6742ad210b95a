//! The clients' process, seen from the server's.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;
use std::{env, io, thread};

/// Killed when dropped.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Starts this program again, with the same options, for the clients of this server.
    pub(crate) fn start(server: SocketAddr) -> io::Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(env::args_os().skip(1))
            .arg("--clients-of")
            .arg(server.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().expect("it was asked for");
        let (sender, lines) = mpsc::channel();
        // Ends with the process.
        thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { child, lines })
    }

    /// What it has said, if it has. `Disconnected` when it can say no more.
    pub(crate) fn line(&self) -> Result<String, TryRecvError> {
        self.lines.try_recv()
    }

    /// How it ended, which should be about now.
    pub(crate) fn status(&mut self) -> String {
        for _ in 0..100 {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.to_string();
            }
            thread::sleep(Duration::from_millis(10));
        }
        "but goes on running".into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
