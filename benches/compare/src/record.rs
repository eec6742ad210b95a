//! All repetitions as JSON, warm-ups included.

use serde_json::{Value, json};

use crate::machine::Environment;
use crate::measure::Measurements;

pub(crate) fn json(measurements: &Measurements, environment: &Environment) -> String {
    let repetitions = measurements.repetitions.iter().map(|repetition| {
        json!({
            "workload": repetition.workload,
            "command": repetition.command,
            "peer": repetition.peer,
            "round": repetition.number,
            "answer": repetition.answer.to_json(),
            "seconds": rounded(repetition.seconds),
            "used_by_others": rounded(repetition.others),
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

fn rounded(value: f64) -> Value {
    json!((value * 1e4).round() / 1e4)
}
