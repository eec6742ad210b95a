//! `--test`: checks that all children answer all commands with plausible values.

use std::error::Error;
use std::thread;

use crate::command::Answer;
use crate::figure;
use crate::machine::Environment;
use crate::measure::{Measurements, Repetition, measure};
use crate::peers::Peer;
use crate::plan::Workload;
use crate::record;
use crate::report;

/// The competitor that loses timeouts which its worker receives a tick too late. That happens on a
/// busy machine and is no error of this package.
const LOSES_TIMEOUTS: &str = "hashed_wheel_timer";

/// Runs all competitors concurrently, because the values do not matter.
pub(crate) fn run(plan: &[Workload], peers: &[&'static Peer]) -> Result<(), Box<dyn Error>> {
    let mut all = Measurements::default();
    thread::scope(|scope| {
        let threads: Vec<_> = peers
            .iter()
            .map(|peer| scope.spawn(|| measure(plan, std::slice::from_ref(peer), |_| ())))
            .collect();
        for thread in threads {
            let one = thread.join().expect("the thread has not panicked");
            all.repetitions.extend(one.repetitions);
            all.missing.extend(one.missing);
            all.versions.extend(one.versions);
        }
    });

    let mut errors: Vec<_> = all.missing.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    errors.extend(all.repetitions.iter().filter(|repetition| !is_known_loss(repetition)).filter_map(check));
    let environment = Environment::new("test".into());
    report::full(&all, peers, &environment);
    report::compact(&all, peers, &environment);
    serde_json::from_str::<serde_json::Value>(&record::json(&all, &environment))?;
    figure::all(&all)?;
    if errors.is_empty() {
        println!("{} answers of {} competitors", all.repetitions.len(), peers.len());
        Ok(())
    } else {
        Err(errors.join("\n").into())
    }
}

/// The values in the answer to each workload, each with its largest plausible value.
const KEYS: [(&str, &[(&str, f64)]); 22] = [
    ("BURST", &[("percent", 1e6), ("peak_bytes", 1e6)]),
    ("FIRST", &[("ns", 1e8)]),
    ("FIRST2", &[("mops", 1e4)]),
    ("GROWTH", &[("few_ns", 1e8), ("many_ns", 1e8), ("ratio", 1e4)]),
    (
        "SCALE",
        &[("one", 1e4), ("shared", 1e4), ("own", 1e4), ("shared_per_own", 1e4), ("shared_per_one", 1e4)],
    ),
    ("THREADS", &[("without_ms", 1e5), ("ms", 1e5), ("ratio", 1e4)]),
    ("TIMERS", &[("one_ns", 1e8), ("ns", 1e8), ("ratio", 1e4), ("allocations", 1e4)]),
    ("WAKES", &[("wakeups", 1e6), ("cpu_ms", 1e5)]),
    ("W1", &[("ns", 1e8)]),
    ("W2", &[("ns", 1e8)]),
    ("W2s", &[("ns", 1e8), ("pairs", 1e10)]),
    ("W2b", &[("ns", 1e8), ("worker_ns", 1e8)]),
    ("W3", &[("mops", 1e4)]),
    ("W4", &[("ns", 1e8), ("life_ns", 1e8)]),
    ("W4p", &[("ns", 1e8), ("life_ns", 1e8)]),
    ("W5", &[("percent", 1e4)]),
    ("W6", &[("bytes", 1e6)]),
    ("W7", &[("p50", 1e4), ("p99", 1e4), ("p999", 1e4), ("max", 1e4)]),
    ("W8", &[("wakeups", 1e6), ("cpu_ms", 1e5)]),
    ("W9", &[("ns", 1e8), ("cpu_ns", 1e8)]),
    ("W10", &[("ns", 1e8)]),
    ("MIX", &[("mops", 1e4)]),
];

fn is_known_loss(repetition: &Repetition) -> bool {
    repetition.peer == LOSES_TIMEOUTS
        && matches!(&repetition.answer, Answer::Failed(error) if error.ends_with("never fired"))
}

/// Checks an answer and returns the error, if there is one.
fn check(repetition: &Repetition) -> Option<String> {
    let error = |what: &str| Some(format!("{}, {}: {what}", repetition.peer, repetition.command));
    let workload = repetition.workload.split(' ').next().unwrap_or_default();
    let figures = match &repetition.answer {
        Answer::Unsupported(_) => return None,
        Answer::Failed(reason) => return error(reason),
        Answer::Figures(figures) => figures,
    };
    let Some((_, keys)) = KEYS.iter().find(|(name, _)| *name == workload) else {
        return error("unknown workload");
    };
    // The lateness may be negative: some timers fire slightly early.
    let min = if workload == "W7" { -20.0 } else { 0.0 };
    for (key, max) in *keys {
        match figures.get(*key).and_then(serde_json::Value::as_f64) {
            None => return error(&format!("no {key}")),
            Some(value) if !(min..*max).contains(&value) => return error(&format!("{key} is {value}")),
            Some(_) => {}
        }
    }
    let lateness =
        ["p50", "p99", "p999", "max"].map(|key| figures.get(key).and_then(serde_json::Value::as_f64));
    if workload == "W7" && !lateness.is_sorted() {
        return error("the percentiles are not ascending");
    }
    let must_not_wake = ["ours", "hierarchical"].contains(&repetition.peer) && workload == "W8";
    if must_not_wake && figures.get("wakeups").and_then(serde_json::Value::as_f64) != Some(0.0) {
        return error("it wakes up with nothing pending");
    }
    None
}
