//! Sends the commands to all competitors, one competitor after the other in each repetition.

use std::collections::BTreeMap;

use crate::child::{Child, START_TIMEOUT};
use crate::command::Answer;
use crate::machine::LoadMonitor;
use crate::peers::{Kind, Lifetime, PEERS, Peer};
use crate::plan::{Repetitions, Workload};

/// One answer of one competitor.
pub(crate) struct Repetition {
    pub(crate) workload: String,
    pub(crate) command: String,
    pub(crate) peer: &'static str,
    /// `None` for a warm-up.
    pub(crate) number: Option<usize>,
    pub(crate) answer: Answer,
    pub(crate) seconds: f64,
    /// The share of the machine that other processes used.
    pub(crate) others: f64,
}

/// A repetition is disturbed if other processes used more than this share of the machine.
const DISTURBED: f64 = 0.05;

impl Repetition {
    pub(crate) fn is_disturbed(&self) -> bool {
        self.others > DISTURBED
    }
}

#[derive(Default)]
pub(crate) struct Measurements {
    pub(crate) repetitions: Vec<Repetition>,
    /// The competitors that could not be started, each with the reason.
    pub(crate) missing: BTreeMap<&'static str, String>,
    pub(crate) versions: BTreeMap<&'static str, String>,
}

/// Measures all workloads of the plan. Calls `on_start` with the name of each workload when it
/// starts.
pub(crate) fn measure(plan: &[Workload], peers: &[&'static Peer], on_start: impl Fn(&str)) -> Measurements {
    let mut parent = Parent { measurements: Measurements::default(), children: BTreeMap::new() };
    for workload in plan {
        on_start(&workload.name);
        parent.measure(workload, peers);
    }
    parent.measurements
}

struct Parent {
    measurements: Measurements,
    children: BTreeMap<&'static str, Child>,
}

impl Parent {
    fn measure(&mut self, workload: &Workload, peers: &[&'static Peer]) {
        let Repetitions { primary, others, warm_up } = workload.repetitions;
        let mut peers: Vec<_> =
            peers.iter().copied().filter(|peer| peer.is_primary() || !workload.is_primary_only).collect();
        peers.retain(|peer| {
            let repetitions = match peer {
                Peer { kind: Kind::Netty, .. } => warm_up.jvm,
                peer if peer.is_primary() => warm_up.primary,
                _ => warm_up.others,
            };
            (0..repetitions).all(|_| self.ask(workload, peer, None))
        });
        for number in 0..primary.max(others) {
            peers.retain(|peer| {
                let repetitions = if peer.is_primary() { primary } else { others };
                number >= repetitions || self.ask(workload, peer, Some(number))
            });
        }
        let is_kept =
            |name: &str| PEERS.iter().any(|peer| peer.name == name && peer.lifetime == Lifetime::Program);
        self.children.retain(|name, _| is_kept(name));
    }

    /// Sends one command and records the answer. Returns whether the peer should get further
    /// commands of this workload.
    fn ask(&mut self, workload: &Workload, peer: &'static Peer, number: Option<usize>) -> bool {
        let Some(child) = self.child(peer) else { return false };
        let command = format!("{} seed={}", workload.command, 7 + number.unwrap_or(0));
        let monitor = LoadMonitor::start(child.id());
        let answer = child.ask(&command, workload.timeout);
        let (seconds, others) = (monitor.seconds(), monitor.others());
        let is_answer = matches!(answer, Answer::Figures(_));
        if let Answer::Failed(error) = &answer {
            eprintln!("  {}: {error}", peer.name);
        }
        let is_last_command = match peer.lifetime {
            Lifetime::Program => false,
            Lifetime::Workload => workload.needs_new_child,
            Lifetime::Command => true,
        };
        if is_last_command || !child.is_alive() {
            self.children.remove(peer.name);
        }
        let (workload, peer) = (workload.name.clone(), peer.name);
        self.measurements.repetitions.push(Repetition {
            workload,
            command,
            peer,
            number,
            answer,
            seconds,
            others,
        });
        is_answer
    }

    /// Returns the child of a peer, and starts it if necessary. A peer that could not be started is
    /// not tried again.
    fn child(&mut self, peer: &'static Peer) -> Option<&mut Child> {
        if self.measurements.missing.contains_key(peer.name) {
            return None;
        }
        if !self.children.contains_key(peer.name) {
            let started = peer.command().map_err(|error| error.to_string());
            match started.and_then(|mut command| Child::start(&mut command, START_TIMEOUT)) {
                Ok(child) => {
                    self.measurements.versions.insert(peer.name, child.version.clone());
                    self.children.insert(peer.name, child);
                }
                Err(error) => {
                    eprintln!("  {}: {error}", peer.name);
                    self.measurements.missing.insert(peer.name, error);
                }
            }
        }
        self.children.get_mut(peer.name)
    }
}
