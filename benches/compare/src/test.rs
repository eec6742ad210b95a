//! `--test`: whether all children answer what they are asked, and whether that can be.

use std::error::Error;
use std::thread;

use crate::command::Answer;
use crate::figure;
use crate::machine::Circumstances;
use crate::measure::{Measured, Round, measure};
use crate::peers::Peer;
use crate::plan::Workload;
use crate::record;
use crate::report;

/// Loses what its worker takes in a tick too late, which on a busy machine is no fault of this package.
const LOSES: &str = "hashed_wheel_timer";

/// All at once: nothing is measured.
pub(crate) fn run(plan: &[Workload], peers: &[&'static Peer]) -> Result<(), Box<dyn Error>> {
    let mut all = Measured::default();
    thread::scope(|scope| {
        let threads: Vec<_> = peers
            .iter()
            .map(|peer| scope.spawn(|| measure(plan, std::slice::from_ref(peer), |_| ())))
            .collect();
        for thread in threads {
            let one = thread.join().expect("its panic has been reported");
            all.rounds.extend(one.rounds);
            all.missing.extend(one.missing);
            all.versions.extend(one.versions);
        }
    });

    let mut faults: Vec<_> = all.missing.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    faults.extend(all.rounds.iter().filter(|round| !is_lost(round)).filter_map(fault));
    let circumstances = Circumstances::new("test".into());
    report::full(&all, peers, &circumstances);
    report::compact(&all, peers, &circumstances);
    serde_json::from_str::<serde_json::Value>(&record::json(&all, &circumstances))?;
    figure::all(&all)?;
    if faults.is_empty() {
        println!("{} answers of {} competitors", all.rounds.len(), peers.len());
        Ok(())
    } else {
        Err(faults.join("\n").into())
    }
}

/// What the answer to a workload has, and the most that it can be.
const KEYS: [(&str, &[(&str, f64)]); 14] = [
    ("W1", &[("ns", 1e8)]),
    ("W2", &[("ns", 1e8)]),
    ("W2s", &[("ns", 1e8), ("pairs", 1e10)]),
    ("W2b", &[("ns", 1e8), ("worker_ns", 1e8)]),
    ("W3", &[("mops", 1e4)]),
    ("W4", &[("ns", 1e8)]),
    ("W4p", &[("ns", 1e8)]),
    ("W5", &[("percent", 1e4)]),
    ("W6", &[("bytes", 1e6)]),
    ("W7", &[("p50", 1e4), ("p99", 1e4), ("p999", 1e4), ("max", 1e4)]),
    ("W8", &[("wakeups", 1e6), ("cpu_ms", 1e5)]),
    ("W9", &[("ns", 1e8), ("cpu_ns", 1e8)]),
    ("W10", &[("ns", 1e8)]),
    ("MIX", &[("mops", 1e4)]),
];

fn is_lost(round: &Round) -> bool {
    round.peer == LOSES && matches!(&round.answer, Answer::Failed(error) if error.ends_with("never fired"))
}

/// What is wrong with an answer.
fn fault(round: &Round) -> Option<String> {
    let wrong = |what: &str| Some(format!("{}, {}: {what}", round.peer, round.command));
    let workload = round.workload.split(' ').next().unwrap_or_default();
    let figures = match &round.answer {
        Answer::Unsupported(_) => return None,
        Answer::Failed(error) => return wrong(error),
        Answer::Figures(figures) => figures,
    };
    let Some((_, keys)) = KEYS.iter().find(|(name, _)| *name == workload) else {
        return wrong("what is that?");
    };
    // A timer may be early, if by little.
    let least = if workload == "W7" { -20.0 } else { 0.0 };
    for (key, most) in *keys {
        match figures.get(*key).and_then(serde_json::Value::as_f64) {
            None => return wrong(&format!("no {key}")),
            Some(figure) if !(least..*most).contains(&figure) => return wrong(&format!("{key} is {figure}")),
            Some(_) => {}
        }
    }
    let lateness =
        ["p50", "p99", "p999", "max"].map(|key| figures.get(key).and_then(serde_json::Value::as_f64));
    if workload == "W7" && !lateness.is_sorted() {
        return wrong("its percentiles do not rise");
    }
    let never_sleeps = ["ours", "hierarchical"].contains(&round.peer) && workload == "W8";
    if never_sleeps && figures.get("wakeups").and_then(serde_json::Value::as_f64) != Some(0.0) {
        return wrong("it wakes up with nothing pending");
    }
    None
}
