//! The child: reads one command per line from standard input and writes one answer per line to
//! standard output.

use std::any::Any;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;

use crate::command::{Answer, Command};
#[cfg(feature = "util")]
use crate::competitors::UtilQueue;
use crate::competitors::{DelayQueue, Ours, QuadWheel, Sleeps};
use crate::workloads::answer;
#[cfg(feature = "util")]
use crate::workloads::maps::Expiring;
use crate::workloads::maps::{self, DashMap, Moka, QuickCache};

type Error = Box<dyn std::error::Error>;

type Execute = fn(&Command) -> Answer;

/// The name of a competitor, the crate that contains it, and the function that executes a command.
const SERVERS: &[(&str, &str, Execute)] = &[
    ("ours", "hashed-wheel", answer::<Ours<false>>),
    ("hierarchical", "hashed-wheel", answer::<Ours<true>>),
    ("tokio-sleep", "tokio", answer::<Sleeps<false>>),
    #[cfg(tokio_unstable)]
    ("tokio-alt", "tokio", answer::<Sleeps<true>>),
    ("delay-queue", "tokio-util", answer::<DelayQueue>),
    ("hhwt", "hierarchical_hash_wheel_timer", answer::<QuadWheel>),
    #[cfg(feature = "util")]
    ("util-delay-queue", "hashed-wheel-util", answer::<UtilQueue>),
    #[cfg(feature = "util")]
    (
        "expiring-map",
        "hashed-wheel-util",
        maps::answer::<Expiring>,
    ),
    ("moka", "moka", maps::answer::<Moka>),
    ("quick-cache", "quick_cache", maps::answer::<QuickCache>),
    ("dashmap", "dashmap", maps::answer::<DashMap>),
];

pub(crate) fn run(name: &str) -> Result<(), Error> {
    let server = SERVERS.iter().find(|(other, ..)| *other == name);
    let (_, package, answer) = server.ok_or_else(|| format!("unknown competitor {name}"))?;
    let mut output = redirect_stdout()?;
    let mut write = |line: String| {
        writeln!(output, "{line}")?;
        output.flush()
    };
    write(json!({ "ready": true, "name": package, "version": version(package) }).to_string())?;
    for line in io::stdin().lock().lines() {
        let answer = match line?.parse::<Command>() {
            Ok(command) => {
                let answer = catch_unwind(AssertUnwindSafe(|| answer(&command)));
                answer.unwrap_or_else(|panic| Answer::failed(message(&*panic).into()))
            }
            Err(error) => Answer::failed(error),
        };
        write(serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

/// Returns the version of a package in this build.
fn version(package: &str) -> &'static str {
    const LOCK: &str = include_str!("../Cargo.lock");

    let rest = LOCK
        .split_once(&format!("name = \"{package}\"\nversion = \""))
        .map(|(_, rest)| rest);
    rest.and_then(|rest| rest.split('"').next())
        .unwrap_or("(unknown version)")
}

/// Returns the standard output and redirects all later output to standard error, because one of the
/// competitors prints to standard output.
fn redirect_stdout() -> io::Result<File> {
    let output = File::from(rustix::io::dup(io::stdout())?);
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(output)
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panicked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_competitor_has_a_version() {
        for (name, package, _) in SERVERS {
            assert!(version(package).contains('.'), "{name}");
        }
    }
}
