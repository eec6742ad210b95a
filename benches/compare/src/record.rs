//! All rounds as JSON, warm-ups included.

use serde_json::{Value, json};

use crate::machine::Circumstances;
use crate::measure::Measured;

pub(crate) fn json(measured: &Measured, circumstances: &Circumstances) -> String {
    let rounds = measured.rounds.iter().map(|round| {
        json!({
            "workload": round.workload,
            "command": round.command,
            "peer": round.peer,
            "round": round.number,
            "answer": round.answer.to_json(),
            "seconds": rounded(round.seconds),
            "used_by_others": rounded(round.others),
        })
    });
    // One round a line: a file that can be compared with the last one.
    let rounds: Vec<_> = rounds.map(|round| format!("  {round}")).collect();
    let head = json!({
        "circumstances": circumstances.to_json(),
        "versions": measured.versions,
        "missing": measured.missing,
    });
    let head = head.to_string();
    let head = head.strip_suffix('}').unwrap_or(&head);
    format!("{head},\n\"rounds\":[\n{}\n]}}\n", rounds.join(",\n"))
}

fn rounded(figure: f64) -> Value {
    json!((figure * 1e4).round() / 1e4)
}
