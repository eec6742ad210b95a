//! All repetitions as JSON, warm-ups included: written, and read again for the page and figures.

use serde_json::{Value, json};

use crate::command::Answer;
use crate::machine::Environment;
use crate::measure::{Measurements, Repetition};
use crate::peers::{PEERS, Peer};

pub(crate) fn json(measurements: &Measurements, environment: &Environment) -> String {
    let repetitions = measurements.repetitions.iter().map(|repetition| {
        json!({
            "workload": repetition.workload,
            "command": repetition.command,
            "peer": repetition.peer,
            "round": repetition.number,
            "answer": repetition.answer.to_json(),
        })
    });
    // One repetition per line, so that two versions of the file can be compared with `diff`.
    let repetitions: Vec<_> = repetitions.map(|repetition| format!("  {repetition}")).collect();
    let head = json!({
        "circumstances": environment.to_json(),
        "versions": measurements.versions,
        "missing": measurements.missing,
    });
    let head = head.to_string();
    let head = head.strip_suffix('}').unwrap_or(&head);
    format!("{head},\n\"rounds\":[\n{}\n]}}\n", repetitions.join(",\n"))
}

/// Reads what [`json`] has written.
pub(crate) fn read(text: &str) -> Result<(Measurements, Environment), String> {
    let all: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let rounds = all["rounds"].as_array().ok_or("no rounds")?;
    // A peer that is not measured any more is left out.
    let repetitions = rounds.iter().filter_map(repetition).collect();
    let texts = |key: &str| {
        let text = |peer: &Peer| Some((peer.name, all[key][peer.name].as_str()?.to_owned()));
        PEERS.iter().filter_map(text).collect()
    };
    let measurements = Measurements { repetitions, missing: texts("missing"), versions: texts("versions") };
    Ok((measurements, Environment::from_json(&all["circumstances"])))
}

fn repetition(round: &Value) -> Option<Repetition> {
    let text = |key: &str| round[key].as_str().map(str::to_owned);
    let peer = PEERS.iter().find(|peer| round["peer"] == peer.name)?;
    Some(Repetition {
        workload: text("workload")?,
        command: text("command")?,
        peer: peer.name,
        number: round["round"].as_u64().map(|number| number as usize),
        answer: Answer::parse(&round["answer"].to_string()),
    })
}
