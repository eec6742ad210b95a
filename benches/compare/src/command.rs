//! The protocol: a command of the parent, such as `schedule count=1000000 seed=7`, and the answer
//! of a child.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::competitors::Setup;
use crate::random::Random;

pub(crate) struct Command {
    pub(crate) workload: String,
    keys: Vec<(String, u64)>,
}

impl FromStr for Command {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let workload = words.next().ok_or("empty command")?.to_owned();
        let pair = |word: &str| {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| format!("expected key=value, found: {word}"))?;
            let value = value.parse().map_err(|error| format!("{word}: {error}"))?;
            Ok((key.to_owned(), value))
        };
        let keys = words.map(pair).collect::<Result<_, String>>()?;
        Ok(Self { workload, keys })
    }
}

impl Command {
    fn find(&self, key: &str) -> Option<u64> {
        self.keys
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| *value)
    }

    pub(crate) fn get(&self, key: &str) -> Result<usize, String> {
        self.find(key)
            .map(|value| value as usize)
            .ok_or_else(|| format!("{}: no argument {key}=", self.workload))
    }

    pub(crate) fn seconds(&self) -> Result<Duration, String> {
        self.get("seconds")
            .map(|seconds| Duration::from_secs(seconds as u64))
    }

    pub(crate) fn setup(&self) -> Setup {
        let tick = Duration::from_micros(self.find("tick_us").unwrap_or(10_000));
        Setup {
            tick,
            slots: self.find("slots").unwrap_or(512) as usize,
            threads: self.find("threads").unwrap_or(1) as usize,
        }
    }

    pub(crate) fn random(&self) -> Random {
        Random::new(self.find("seed").unwrap_or(7))
    }
}

/// One line of JSON.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    Failed { error: String },
    Unsupported { unsupported: String },
    Figures(Map<String, Value>),
}

impl Answer {
    pub(crate) fn new<const N: usize>(figures: [(&str, f64); N]) -> Self {
        Self::Figures(
            figures
                .into_iter()
                .map(|(key, figure)| (key.to_owned(), json!(figure)))
                .collect(),
        )
    }

    /// Adds a figure.
    pub(crate) fn with(mut self, key: &str, figure: f64) -> Self {
        if let Self::Figures(figures) = &mut self {
            figures.insert(key.into(), json!(figure));
        }
        self
    }

    pub(crate) fn unsupported(why: &str) -> Self {
        Self::Unsupported {
            unsupported: why.into(),
        }
    }

    pub(crate) fn failed(error: String) -> Self {
        Self::Failed { error }
    }

    /// Parses an answer. Any other line is a failure.
    pub(crate) fn parse(line: &str) -> Self {
        serde_json::from_str(line)
            .unwrap_or_else(|_| Self::failed(format!("not an answer: {line}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_has_a_name_and_numbers() {
        let command: Command = "schedule count=1000 tick_us=1000".parse().unwrap();
        let parsed = (&*command.workload, command.get("count"));
        assert_eq!(parsed, ("schedule", Ok(1_000)));
        assert_eq!(command.setup().tick, Duration::from_millis(1));
        assert!(command.get("threads").is_err());
        for invalid in ["", "schedule count", "schedule count=many"] {
            assert!(invalid.parse::<Command>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn answer_is_figures_unsupported_or_failed() {
        assert!(matches!(
            Answer::parse(r#"{"ns":31.2}"#),
            Answer::Figures(_)
        ));
        assert!(
            matches!(Answer::parse(r#"{"unsupported":"why"}"#), Answer::Unsupported { unsupported } if unsupported == "why")
        );
        for failed in [r#"{"error":"out of memory"}"#, "", "Worker shutdown", "7"] {
            let answer = Answer::parse(failed);
            assert!(matches!(answer, Answer::Failed { .. }), "{failed}");
        }
    }
}
