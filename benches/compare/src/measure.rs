//! Sends the commands to all competitors, one competitor after the other in each repetition.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

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
    limit: Instant,
    on_start: impl Fn(&str),
) -> Measurements {
    let mut parent = Parent {
        measurements: Measurements::default(),
        children: BTreeMap::new(),
        silent: BTreeSet::new(),
        limit,
    };
    // One repetition of everything after the other: what a limit cuts off are repetitions.
    let repetitions = plan.iter().map(|workload| workload.repetitions).max();
    for number in 0..repetitions.unwrap_or(0) {
        for workload in plan.iter().take_while(|_| Instant::now() < limit) {
            on_start(&format!("{}, repetition {}", workload.name, number + 1));
            if warms_up && number == 0 {
                parent.warm_up(workload, peers);
            }
            parent.ask_all(workload, peers, Some(number));
        }
    }
    parent.measurements
}

struct Parent {
    measurements: Measurements,
    children: BTreeMap<&'static str, Child>,
    /// Each workload with a competitor that did not answer it. It is not asked again.
    silent: BTreeSet<(String, &'static str)>,
    /// When the measurement ends, with what it has.
    limit: Instant,
}

impl Parent {
    /// A JVM compiles code only after it was executed often.
    fn warm_up(&mut self, workload: &Workload, peers: &[&'static Peer]) {
        const WARM_UPS: usize = 3;

        let cold: Vec<_> = peers
            .iter()
            .filter(|peer| peer.is_netty())
            .copied()
            .collect();
        (0..WARM_UPS).for_each(|_| self.ask_all(workload, &cold, None));
    }

    fn ask_all(&mut self, workload: &Workload, peers: &[&'static Peer], number: Option<usize>) {
        for peer in peers.iter().filter(|peer| (workload.asks)(peer)) {
            let key = (workload.name.clone(), peer.name);
            // The first process that gets much memory waits for the host of a virtual machine.
            if workload.name == "first-million" && number.is_some() {
                self.ask(workload, peer, None);
            }
            if !self.silent.contains(&key) && !self.ask(workload, peer, number) {
                self.silent.insert(key);
            }
        }
    }

    /// Sends one command and records the answer. Returns whether the peer should get further
    /// commands of this workload.
    fn ask(&mut self, workload: &Workload, peer: &'static Peer, number: Option<usize>) -> bool {
        let limit = self.limit;
        let Some(child) = self.child(peer) else {
            return false;
        };
        let command = format!("{} seed={}", workload.command, 7 + number.unwrap_or(0));
        let answer = child.ask(&command, until(limit, TIMEOUT));
        if Instant::now() >= limit {
            // An error may be that of the limit.
            return false;
        }
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
            let timeout = until(self.limit, START_TIMEOUT);
            match started.and_then(|mut command| Child::start(&mut command, timeout)) {
                Ok(child) => {
                    self.measurements
                        .versions
                        .insert(peer.name.into(), child.version.clone());
                    self.children.insert(peer.name, child);
                }
                Err(_) if Instant::now() >= self.limit => (),
                Err(error) => {
                    eprintln!("  {}: {error}", peer.name);
                    self.measurements.missing.insert(peer.name.into(), error);
                }
            }
        }
        self.children.get_mut(peer.name)
    }
}

/// Returns the time until the limit, at most `most`.
fn until(limit: Instant, most: Duration) -> Duration {
    limit.saturating_duration_since(Instant::now()).min(most)
}
