//! Asks all of them, in turn, round by round.

use std::collections::BTreeMap;

use crate::child::{Child, TO_BEGIN};
use crate::command::Answer;
use crate::machine::Watch;
use crate::peers::{Kind, Lives, PEERS, Peer};
use crate::plan::{Rounds, Workload};

/// What one of them answered once.
pub(crate) struct Round {
    pub(crate) workload: String,
    pub(crate) command: String,
    pub(crate) peer: &'static str,
    /// None for a warm-up.
    pub(crate) number: Option<usize>,
    pub(crate) answer: Answer,
    pub(crate) seconds: f64,
    /// What others used of the machine.
    pub(crate) others: f64,
}

/// Who used more than that of the machine has disturbed a round.
const DISTURBED: f64 = 0.05;

impl Round {
    pub(crate) fn is_disturbed(&self) -> bool {
        self.others > DISTURBED
    }
}

#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) rounds: Vec<Round>,
    /// Why they could not be asked at all.
    pub(crate) missing: BTreeMap<&'static str, String>,
    pub(crate) versions: BTreeMap<&'static str, String>,
}

/// Says each workload's name when it begins.
pub(crate) fn measure(plan: &[Workload], peers: &[&'static Peer], begins: impl Fn(&str)) -> Measured {
    let mut run = Run { measured: Measured::default(), children: BTreeMap::new() };
    for workload in plan {
        begins(&workload.name);
        run.carry_out(workload, peers);
    }
    run.measured
}

struct Run {
    measured: Measured,
    children: BTreeMap<&'static str, Child>,
}

impl Run {
    fn carry_out(&mut self, workload: &Workload, peers: &[&'static Peer]) {
        let Rounds { core, others, warm_up } = workload.rounds;
        let mut peers: Vec<_> =
            peers.iter().copied().filter(|peer| peer.is_core() || !workload.is_for_core).collect();
        peers.retain(|peer| {
            let rounds = match peer {
                Peer { kind: Kind::Netty, .. } => warm_up.jvm,
                peer if peer.is_core() => warm_up.core,
                _ => warm_up.others,
            };
            (0..rounds).all(|_| self.ask(workload, peer, None))
        });
        for number in 0..core.max(others) {
            peers.retain(|peer| {
                let rounds = if peer.is_core() { core } else { others };
                number >= rounds || self.ask(workload, peer, Some(number))
            });
        }
        let stays = |name: &str| PEERS.iter().any(|peer| peer.name == name && peer.lives == Lives::Run);
        self.children.retain(|name, _| stays(name));
    }

    /// Whether it is worth asking again.
    fn ask(&mut self, workload: &Workload, peer: &'static Peer, number: Option<usize>) -> bool {
        let Some(child) = self.child(peer) else { return false };
        let command = format!("{} seed={}", workload.command, 7 + number.unwrap_or(0));
        let watch = Watch::start(child.id());
        let answer = child.ask(&command, workload.patience);
        let (seconds, others) = (watch.seconds(), watch.others());
        let is_answer = matches!(answer, Answer::Figures(_));
        if let Answer::Failed(error) = &answer {
            eprintln!("  {}: {error}", peer.name);
        }
        let is_over = match peer.lives {
            Lives::Run => false,
            Lives::Workload => workload.is_fresh,
            Lives::Round => true,
        };
        if is_over || !child.is_alive() {
            self.children.remove(peer.name);
        }
        let (workload, peer) = (workload.name.clone(), peer.name);
        self.measured.rounds.push(Round { workload, command, peer, number, answer, seconds, others });
        is_answer
    }

    /// Its child, if it can have one. Whoever could not be started once is not tried again.
    fn child(&mut self, peer: &'static Peer) -> Option<&mut Child> {
        if self.measured.missing.contains_key(peer.name) {
            return None;
        }
        if !self.children.contains_key(peer.name) {
            let started = peer.command().map_err(|error| error.to_string());
            match started.and_then(|mut command| Child::start(&mut command, TO_BEGIN)) {
                Ok(child) => {
                    self.measured.versions.insert(peer.name, child.version.clone());
                    self.children.insert(peer.name, child);
                }
                Err(error) => {
                    eprintln!("  {}: {error}", peer.name);
                    self.measured.missing.insert(peer.name, error);
                }
            }
        }
        self.children.get_mut(peer.name)
    }
}
