//! A child process. It answers each command with one line. The parent kills it if it does not
//! answer in time.

use std::io::{BufRead, BufReader, Write};
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::Answer;

/// How long a child may take until it is ready. Netty's child compiles Java, touches its heap and
/// warms up.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(180);

const STOP_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) struct Child {
    process: process::Child,
    /// `None` after the parent has sent its last command.
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    /// The name and version that the child reported.
    pub(crate) version: String,
}

impl Child {
    pub(crate) fn start(command: &mut Command, timeout: Duration) -> Result<Self, String> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command
            .spawn()
            .map_err(|error| format!("cannot be started: {error}"))?;
        let (sender, answers) = channel();
        if let Some(output) = process.stdout.take() {
            // The receiver is dropped with the child.
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            thread::spawn(move || lines.for_each(|line| drop(sender.send(line))));
        }
        let input = process.stdin.take();
        let mut child = Self {
            process,
            input,
            answers,
            version: String::new(),
        };
        let first = child.receive(timeout)?;
        let first: Value =
            serde_json::from_str(&first).map_err(|_| format!("not ready: {first}"))?;
        if first["ready"] != true {
            return Err(format!("not ready: {first}"));
        }
        let text = |key: &str| first[key].as_str().unwrap_or_default().to_owned();
        child.version = format!("{} {}", text("name"), text("version"));
        Ok(child)
    }

    /// Sends a command and returns the answer, or an answer that says why there is none.
    pub(crate) fn ask(&mut self, command: &str, timeout: Duration) -> Answer {
        let line = format!("{command}\n");
        let sent = self.input.as_mut().map(|input| {
            input
                .write_all(line.as_bytes())
                .and_then(|()| input.flush())
        });
        // An error means that the child has ended. `receive` reports that.
        drop(sent);
        match self.receive(timeout) {
            Ok(line) => Answer::parse(&line),
            Err(error) => Answer::failed(error),
        }
    }

    /// Whether the child can receive another command.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Returns the next line from the child, or why there is none.
    fn receive(&mut self, timeout: Duration) -> Result<String, String> {
        match self.answers.recv_timeout(timeout) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                self.kill();
                Err(format!(
                    "killed after {} s without an answer",
                    timeout.as_secs()
                ))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.process.wait().map_err(|error| error.to_string())?;
                Err(format!("ended with {status}"))
            }
        }
    }

    fn kill(&mut self) {
        // Errors are ignored: the child may have ended already.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// Closes the child's input, which makes the child end.
impl Drop for Child {
    fn drop(&mut self) {
        drop(self.input.take());
        let start = Instant::now();
        while start.elapsed() < STOP_TIMEOUT {
            if !self.is_alive() {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Result<Child, String> {
        Child::start(
            Command::new("bash").args(["-c", script]),
            Duration::from_secs(20),
        )
    }

    const READY: &str = r#"echo '{"ready":true,"name":"fake","version":"1"}';"#;

    #[test]
    fn child_answers_each_command() {
        let script =
            format!(r#"{READY} while read -r name rest; do echo "{{\"ns\":${{#name}}}}"; done"#);
        let mut child = start(&script).unwrap();
        assert_eq!(child.version, "fake 1");
        for (command, value) in [("memory count=7", 6), ("idle", 4)] {
            let Answer::Figures(figures) = child.ask(command, START_TIMEOUT) else {
                panic!("no figures")
            };
            assert_eq!(figures["ns"], value);
        }
    }

    #[test]
    fn child_that_is_silent_or_dies_has_failed() {
        let mut child = start(&format!("{READY} exec sleep 1000")).unwrap();
        let answer = child.ask("schedule", Duration::from_millis(300));
        assert!(matches!(answer, Answer::Failed { error } if error.starts_with("killed")));
        assert!(!child.is_alive());
        let mut child = start(&format!("{READY} read -r; exit 4")).unwrap();
        let answer = child.ask("schedule", START_TIMEOUT);
        assert!(matches!(answer, Answer::Failed { error } if error.contains('4')));
        assert!(start("exit 3").err().unwrap().contains('3'));
        assert!(start("echo what").err().unwrap().starts_with("not ready"));
    }
}
