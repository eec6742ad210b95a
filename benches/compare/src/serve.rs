//! The child: a command a line on standard input, an answer a line on standard output.

use std::any::Any;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;

use crate::command::{Answer, Command};
use crate::competitors::{
    ByDeadline, Competitor, DelayQueue, Hashed, Heap, Hierarchical, Locked, Ours, Pingora, QuadWheel, Sleeps,
    Spawned, WithoutCancel,
};
use crate::session::Session;
use crate::workloads;

type Error = Box<dyn std::error::Error>;

type Server = fn(&str) -> Result<(), Error>;

/// What serves a competitor, by its name; and the crate that it is of.
const SERVERS: [(&str, &str, Server); 10] = [
    ("ours", "hashed-wheel", serve::<Ours<Hashed>>),
    ("hierarchical", "hashed-wheel", serve::<Ours<Hierarchical>>),
    ("tokio", "tokio", serve::<Spawned>),
    ("tokio-sleep", "tokio", serve::<Sleeps>),
    ("delay-queue", "tokio-util", serve::<DelayQueue>),
    ("hhwt", "hierarchical_hash_wheel_timer", serve::<QuadWheel>),
    ("hashed_wheel_timer", "hashed_wheel_timer", serve::<WithoutCancel>),
    ("pingora", "pingora-timeout", serve::<Pingora>),
    ("heap", "hashed-wheel-compare", serve::<Locked<Heap>>),
    ("btree", "hashed-wheel-compare", serve::<Locked<ByDeadline>>),
];

pub(crate) fn run(name: &str) -> Result<(), Error> {
    let server = SERVERS.iter().find(|(other, ..)| *other == name);
    let (_, from, serve) = server.ok_or_else(|| format!("no competitor {name}"))?;
    serve(from)
}

fn serve<C: Competitor>(from: &str) -> Result<(), Error> {
    let mut output = take_stdout()?;
    let mut say = |line: String| {
        writeln!(output, "{line}")?;
        output.flush()
    };
    let mut session = Session::<C>::new();
    say(json!({ "ready": true, "name": from, "version": version(from) }).to_string())?;
    for line in io::stdin().lock().lines() {
        let answer = match line?.parse::<Command>() {
            Ok(command) => {
                let answer = catch_unwind(AssertUnwindSafe(|| workloads::answer(&mut session, &command)));
                answer.unwrap_or_else(|panic| Answer::Failed(message(&*panic).into()))
            }
            Err(error) => Answer::Failed(error),
        };
        say(answer.to_json().to_string())?;
    }
    Ok(())
}

/// The one that it was built with.
fn version(from: &str) -> &'static str {
    const LOCK: &str = include_str!("../Cargo.lock");

    let behind = LOCK.split_once(&format!("name = \"{from}\"\nversion = \"")).map(|(_, behind)| behind);
    behind.and_then(|behind| behind.split('"').next()).unwrap_or("of an unknown version")
}

/// One of the competitors prints to it. Whoever does so now says it on standard error.
fn take_stdout() -> io::Result<File> {
    let output = File::from(rustix::io::dup(io::stdout())?);
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(output)
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_competitor_has_a_version() {
        for (name, from, _) in SERVERS {
            assert!(version(from).contains('.'), "{name}");
        }
    }
}
