//! Sends the commands to all competitors, one competitor after the other in each repetition.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::child::{Child, START_TIMEOUT};
use crate::command::Answer;
use crate::peers::Peer;
use crate::plan::{TIMEOUT, Workload};

/// One answer of one competitor.
#[derive(Serialize, Deserialize)]
pub(crate) struct Repetition {
    pub(crate) workload: String,
    pub(crate) command: String,
    pub(crate) peer: String,
    /// `None` for a warm-up.
    #[serde(rename = "round")]
    pub(crate) number: Option<usize>,
    pub(crate) answer: Answer,
}

#[derive(Default)]
pub(crate) struct Measurements {
    pub(crate) repetitions: Vec<Repetition>,
    /// The competitors that could not be started, each with the reason.
    pub(crate) missing: BTreeMap<String, String>,
    pub(crate) versions: BTreeMap<String, String>,
}

/// Measures all workloads of the plan. Calls `on_start` with the name of each workload when it
/// starts.
pub(crate) fn measure(
    plan: &[Workload],
    peers: &[&'static Peer],
    warms_up: bool,
    on_start: impl Fn(&str),
) -> Measurements {
    let mut parent = Parent {
        measurements: Measurements::default(),
        children: BTreeMap::new(),
    };
    for workload in plan {
        on_start(&workload.name);
        parent.measure(workload, peers, warms_up);
    }
    parent.measurements
}

struct Parent {
    measurements: Measurements,
    children: BTreeMap<&'static str, Child>,
}

impl Parent {
    fn measure(&mut self, workload: &Workload, peers: &[&'static Peer], warms_up: bool) {
        /// A JVM compiles code only after it was executed often.
        const WARM_UPS: usize = 3;

        let mut peers = peers.to_vec();
        peers.retain(|peer| peer.is_primary() || !workload.is_primary_only);
        for number in
            (0..workload.repetitions + WARM_UPS).map(|number| number.checked_sub(WARM_UPS))
        {
            peers.retain(|peer| {
                let is_asked = number.is_some() || (warms_up && peer.is_netty());
                !is_asked || self.ask(workload, peer, number)
            });
        }
    }

    /// Sends one command and records the answer. Returns whether the peer should get further
    /// commands of this workload.
    fn ask(&mut self, workload: &Workload, peer: &'static Peer, number: Option<usize>) -> bool {
        let Some(child) = self.child(peer) else {
            return false;
        };
        let command = format!("{} seed={}", workload.command, 7 + number.unwrap_or(0));
        let answer = child.ask(&command, TIMEOUT);
        let is_answer = matches!(answer, Answer::Figures(_));
        if let Answer::Failed { error } = &answer {
            eprintln!("  {}: {error}", peer.name);
        }
        // A JVM must stay warm, and collects garbage between the commands. All others get a new
        // process for each command, whose memory was not used before.
        if !peer.is_netty() || !child.is_alive() {
            self.children.remove(peer.name);
        }
        let (workload, peer) = (workload.name.clone(), peer.name.into());
        self.measurements.repetitions.push(Repetition {
            workload,
            command,
            peer,
            number,
            answer,
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
                    self.measurements
                        .versions
                        .insert(peer.name.into(), child.version.clone());
                    self.children.insert(peer.name, child);
                }
                Err(error) => {
                    eprintln!("  {}: {error}", peer.name);
                    self.measurements.missing.insert(peer.name.into(), error);
                }
            }
        }
        self.children.get_mut(peer.name)
    }
}
