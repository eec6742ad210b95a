//! The command line.

use crate::peers::{self, Kind, PEERS, Peer};
use crate::plan::{FULL, QUICK, Size, TEST, Workload};

const COMMAND: &str = "cargo run --release --manifest-path benches/compare/Cargo.toml";

const USAGE: &str = "usage: compare [--quick] [--write] [--draw] [--test] [--repetitions 5] [--only W1,W2] [--peers ours,netty] | --serve NAME";

pub(crate) enum Action {
    /// Run as the child for the competitor with this name.
    Serve(String),
    Test(Options),
    /// Draw the figures from the repetitions in docs/, without a measurement.
    Draw,
    Measure(Options),
}

pub(crate) struct Options {
    size: Size,
    /// The arguments, unchanged.
    words: Vec<String>,
    only: Option<Vec<String>>,
    pub(crate) peers: Vec<&'static Peer>,
    pub(crate) writes: bool,
}

impl Options {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Action, String> {
        let words: Vec<_> = words.collect();
        let mut options = Self {
            size: FULL,
            words: words.clone(),
            only: None,
            peers: peers::available().collect(),
            writes: false,
        };
        let (mut is_test, mut names, mut repetitions) = (false, None, None);
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let mut next = || words.next().ok_or_else(|| format!("{word} needs a value; {USAGE}"));
            match &*word {
                "--serve" => return Ok(Action::Serve(next()?)),
                "--draw" => return Ok(Action::Draw),
                "--quick" => {
                    options.size = QUICK;
                    options.peers.retain(|peer| peer.is_primary() || peer.name == "tokio");
                }
                "--test" => {
                    (is_test, options.size) = (true, TEST);
                    // CI does not have Java.
                    options.peers.retain(|peer| peer.kind != Kind::Netty);
                }
                "--write" => options.writes = true,
                "--repetitions" => {
                    let number = next()?;
                    repetitions =
                        Some(number.parse().map_err(|error| format!("{number}: {error}; {USAGE}"))?);
                }
                "--only" => options.only = Some(list(&next()?)),
                "--peers" => names = Some(list(&next()?)),
                _ => return Err(format!("unknown option {word}; {USAGE}")),
            }
        }
        options.size.repetitions = repetitions.unwrap_or(options.size.repetitions);
        if let Some(names) = &names {
            options.peers = choose(names)?;
        }
        if options.plan().is_empty() {
            return Err(format!("unknown workload; {USAGE}"));
        }
        Ok(if is_test { Action::Test(options) } else { Action::Measure(options) })
    }

    pub(crate) fn plan(&self) -> Vec<Workload> {
        let mut plan = self.size.plan();
        if let Some(only) = &self.only {
            plan.retain(|workload| only.iter().any(|name| workload.name.split(' ').next() == Some(&**name)));
        }
        plan
    }

    /// Returns the command that repeats this measurement.
    pub(crate) fn command(&self) -> String {
        if self.words.is_empty() { COMMAND.into() } else { format!("{COMMAND} -- {}", self.words.join(" ")) }
    }
}

/// Returns the peers with these names, in the order of the tables.
fn choose(names: &[String]) -> Result<Vec<&'static Peer>, String> {
    let all = PEERS.each_ref().map(|peer| peer.name);
    if let Some(name) = names.iter().find(|name| *name != "all" && !all.contains(&&***name)) {
        return Err(format!("unknown peer {name}; known peers: {}", all.join(",")));
    }
    let is_available = |peer: &Peer| peers::available().any(|other| other.name == peer.name);
    let is_chosen =
        |peer: &&Peer| names.iter().any(|name| name == peer.name || (name == "all" && is_available(peer)));
    Ok(PEERS.iter().filter(is_chosen).collect())
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}
