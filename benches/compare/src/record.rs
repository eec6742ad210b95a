//! All repetitions as JSON, warm-ups included: written, and read again for the page and figures.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::machine::Environment;
use crate::measure::{Measurements, Repetition};
use crate::peers::PEERS;

pub(crate) fn json(measurements: &Measurements, environment: &Environment) -> String {
    // One repetition per line, so that two versions of the file can be compared with `diff`.
    let line = |repetition: &Repetition| format!("  {}", json!(repetition));
    let repetitions: Vec<_> = measurements.repetitions.iter().map(line).collect();
    let head = json!({
        "circumstances": environment.0,
        "versions": measurements.versions,
        "missing": measurements.missing,
    });
    let head = head.to_string();
    let head = head.strip_suffix('}').unwrap_or(&head);
    format!("{head},\n\"rounds\":[\n{}\n]}}\n", repetitions.join(",\n"))
}

#[derive(Deserialize)]
struct File {
    circumstances: Value,
    versions: BTreeMap<String, String>,
    missing: BTreeMap<String, String>,
    rounds: Vec<Repetition>,
}

/// Reads what [`json`] has written. A peer that is not measured any more is left out.
pub(crate) fn read(text: &str) -> Result<(Measurements, Environment), serde_json::Error> {
    let File {
        circumstances,
        mut versions,
        mut missing,
        rounds: mut repetitions,
    } = serde_json::from_str(text)?;
    let is_known = |name: &str| PEERS.iter().any(|peer| peer.name == name);
    versions.retain(|peer, _| is_known(peer));
    missing.retain(|peer, _| is_known(peer));
    repetitions.retain(|repetition| is_known(&repetition.peer));
    Ok((
        Measurements {
            repetitions,
            missing,
            versions,
        },
        Environment(circumstances),
    ))
}

/// Adds the workloads and peers that only an earlier part of the measurement contains. The file of
/// another source or machine is no such part.
pub(crate) fn add_other_parts(
    text: &str,
    measurements: &mut Measurements,
    environment: &mut Environment,
) -> Result<(), serde_json::Error> {
    let (mut earlier, parts) = read(text)?;
    if ["cores", "cpu", "kernel", "rustc", "java", "source"]
        .iter()
        .any(|key| parts.0[key] != environment.0[key])
    {
        eprintln!("docs/benchmarks.json is of another source or machine, and is replaced");
        return Ok(());
    }
    let is_again = |old: &Repetition| {
        measurements
            .repetitions
            .iter()
            .any(|new| new.workload == old.workload && new.peer == old.peer)
    };
    earlier.repetitions.retain(|old| !is_again(old));
    measurements.repetitions.splice(0..0, earlier.repetitions);
    measurements.missing.extend(earlier.missing);
    measurements.versions.extend(earlier.versions);
    // The parts before have changed the pages, but nothing that is measured.
    for key in ["load_before", "commit"] {
        environment.0[key] = parts.0[key].clone();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let again = |text: &str| {
            read(text).map(|(measurements, environment)| json(&measurements, &environment))
        };
        let written = again(include_str!("../../../docs/benchmarks.json")).unwrap();
        assert_eq!(again(&written).unwrap(), written);
    }
}
