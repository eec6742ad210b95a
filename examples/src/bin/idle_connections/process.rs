//! The clients' process, from the point of view of the server.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;
use std::{env, io, thread};

use hashed_wheel_trial::process::Process;

/// The process. It is killed when this value is dropped.
pub(crate) struct Clients {
    process: Process,
    lines: Receiver<String>,
}

impl Clients {
    /// Starts this program again with the same options. It runs the clients of this server.
    pub(crate) fn start(server: SocketAddr) -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(env::args_os().skip(1)).arg("--clients-of").arg(server.to_string());
        let mut process = Process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let output = process.stdout.take().expect("it was piped");
        let (sender, lines) = mpsc::channel();
        // Ends with the process.
        thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { process, lines })
    }

    /// Returns the next line of its output, if there is one. `Disconnected` if its output has
    /// ended.
    pub(crate) fn line(&self) -> Result<String, TryRecvError> {
        self.lines.try_recv()
    }

    /// Returns how the process has ended. It is expected to end about now.
    pub(crate) fn status(&mut self) -> String {
        for _ in 0..100 {
            if let Ok(Some(status)) = self.process.try_wait() {
                return status.to_string();
            }
            thread::sleep(Duration::from_millis(10));
        }
        "still running".into()
    }
}
