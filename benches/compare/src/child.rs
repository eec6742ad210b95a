//! A child: a process that answers each command with one line, or is killed.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::Answer;

/// How long it may take to begin: a JVM is compiled for, touches its heap and warms up.
pub(crate) const TO_BEGIN: Duration = Duration::from_secs(180);

const TO_END: Duration = Duration::from_secs(3);

/// The last lines of its standard error, kept for when it fails.
const LINES: usize = 3;

pub(crate) struct Child {
    process: process::Child,
    /// None when no more commands will come.
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    errors: Arc<Mutex<VecDeque<String>>>,
    reader_of_errors: Option<JoinHandle<()>>,
    /// What it says of itself.
    pub(crate) version: String,
}

impl Child {
    pub(crate) fn start(command: &mut Command, patience: Duration) -> Result<Self, String> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
        let (say, answers) = channel();
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(output) = process.stdout.take() {
            thread::spawn(move || each_line(output, |line| drop(say.send(line))));
        }
        let reader_of_errors = process.stderr.take().map(|output| {
            let errors = Arc::clone(&errors);
            thread::spawn(move || {
                each_line(output, |line| {
                    let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
                    errors.push_back(line);
                    if errors.len() > LINES {
                        errors.pop_front();
                    }
                });
            })
        });
        let input = process.stdin.take();
        let mut child = Self { process, input, answers, errors, reader_of_errors, version: String::new() };
        let first = child.hear(patience)?;
        let first: Value = serde_json::from_str(&first).map_err(|_| format!("not ready: {first}"))?;
        if first["ready"] != true {
            return Err(format!("not ready: {first}"));
        }
        let text = |key: &str| first[key].as_str().unwrap_or_default().to_owned();
        child.version = format!("{} {}", text("name"), text("version"));
        Ok(child)
    }

    /// Whatever comes of it: an answer, or why there is none.
    pub(crate) fn ask(&mut self, command: &str, patience: Duration) -> Answer {
        let line = format!("{command}\n");
        let said =
            self.input.as_mut().map(|input| input.write_all(line.as_bytes()).and_then(|()| input.flush()));
        // Where nobody reads any more it is dead, which `hear` finds out.
        drop(said);
        match self.hear(patience) {
            Ok(line) => Answer::parse(&line),
            Err(error) => Answer::Failed(error),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether it can be asked again.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    fn hear(&mut self, patience: Duration) -> Result<String, String> {
        match self.answers.recv_timeout(patience) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                self.kill();
                Err(format!("killed after {} s without an answer", patience.as_secs()))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.process.wait().map_err(|error| error.to_string())?;
                // What it had to say is all there then, unless a process of its own holds the pipe.
                let start = Instant::now();
                while self.reader_of_errors.as_ref().is_some_and(|reader| !reader.is_finished())
                    && start.elapsed() < TO_END
                {
                    thread::sleep(Duration::from_millis(1));
                }
                let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
                let errors: Vec<_> = errors.iter().map(String::as_str).collect();
                Err(format!("ended with {status}: {}", errors.join("; ")))
            }
        }
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// It ends when its input does.
impl Drop for Child {
    fn drop(&mut self) {
        drop(self.input.take());
        let start = Instant::now();
        while start.elapsed() < TO_END {
            if !self.is_alive() {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.kill();
    }
}

fn each_line(from: impl Read, mut line: impl FnMut(String)) {
    BufReader::new(from).lines().map_while(Result::ok).for_each(&mut line);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(300);

    fn start(script: &str) -> Result<Child, String> {
        Child::start(Command::new("bash").args(["-c", script]), Duration::from_secs(20))
    }

    const READY: &str = r#"echo '{"ready":true,"name":"fake","version":"1"}';"#;

    #[test]
    fn it_answers_one_by_one_and_ends_with_its_input() {
        let script = format!(r#"{READY} while read -r name rest; do echo "{{\"ns\":${{#name}}}}"; done"#);
        let mut child = start(&script).unwrap();
        assert_eq!(child.version, "fake 1");
        for (command, figure) in [("W1 count=7", 2), ("W10", 3)] {
            let Answer::Figures(figures) = child.ask(command, TO_BEGIN) else { panic!("no figures") };
            assert_eq!(figures["ns"], figure);
        }
        assert!(child.is_alive());
        let start = Instant::now();
        drop(child);
        assert!(start.elapsed() < TO_END);
    }

    #[test]
    fn one_that_is_silent_is_killed() {
        let mut child = start(&format!("{READY} exec sleep 1000")).unwrap();
        assert!(matches!(child.ask("W1", SHORT), Answer::Failed(why) if why.starts_with("killed")));
        assert!(!child.is_alive());
        assert!(matches!(child.ask("W1", SHORT), Answer::Failed(_)));
    }

    #[test]
    fn one_that_cannot_begin_says_why() {
        let error = start("echo 'no java here' >&2; exit 3").err().unwrap();
        assert!(error.contains("no java here") && error.contains('3'), "{error}");
        assert!(start("echo what").err().unwrap().starts_with("not ready"));
        assert!(Child::start(&mut Command::new("/nowhere"), SHORT).is_err());
    }

    #[test]
    fn one_that_dies_at_work_has_failed() {
        let mut child = start(&format!("{READY} read -r; echo 'out of memory' >&2; exit 1")).unwrap();
        assert!(matches!(child.ask("W1", TO_BEGIN), Answer::Failed(why) if why.contains("out of memory")));
    }
}
