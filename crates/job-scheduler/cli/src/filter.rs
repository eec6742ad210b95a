//! The filter of runs, on the command line and in the addresses of the page.

use std::collections::HashMap;

use hashed_wheel_job_scheduler::jiff::tz::TimeZone;
use hashed_wheel_job_scheduler::jiff::{Timestamp, civil};
use hashed_wheel_job_scheduler::{RunChange, RunFilter, RunState};

/// The names of the fields.
pub(crate) const NAMES: [&str; 8] = [
    "state", "kind", "node", "key", "limit", "since", "until", "error",
];

pub(crate) const STATES: [RunState; 9] = [
    RunState::Waiting,
    RunState::Claimed,
    RunState::Running,
    RunState::Blocked,
    RunState::Done,
    RunState::Failed,
    RunState::Skipped,
    RunState::Cancelled,
    RunState::Abandoned,
];

/// Reads the fields that are not empty.
pub(crate) fn filter(
    fields: &HashMap<String, String>,
    now: Timestamp,
) -> Result<RunFilter, String> {
    let mut filter = RunFilter::default();
    for (name, text) in fields.iter().filter(|(_, text)| !text.is_empty()) {
        match name.as_str() {
            "state" => filter.state = Some(state(text)?),
            "kind" => filter.handler = Some(text.clone()),
            "node" => {
                let number = |_| "'node' must be the number of a node".to_owned();
                filter.node = Some(text.parse().map_err(number)?);
            }
            "key" => filter.key = Some(text.clone()),
            "limit" => filter.limit = Some(text.clone()),
            "since" => filter.since = Some(time(text, now)?),
            "until" => filter.until = Some(time(text, now)?),
            "error" => filter.error = Some(text.clone()),
            _ => {}
        }
    }
    Ok(filter)
}

/// Reads a time, a date or a time of UTC, or how long ago it was.
fn time(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let utc = || {
        let time: civil::DateTime = text.parse().ok()?;
        Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
    };
    let ago = || now.checked_sub(humantime::parse_duration(text).ok()?).ok();
    let time = text.parse().ok().or_else(utc).or_else(ago);
    let time = time.ok_or_else(|| {
        format!("the time '{text}' must be like 2026-01-31, 2026-01-31T12:00+01:00, or 8h ('ago')")
    });
    time.and_then(in_range)
}

/// Refuses times that PostgreSQL does not have.
pub(crate) fn in_range(time: Timestamp) -> Result<Timestamp, String> {
    if time.to_zoned(TimeZone::UTC).year() < -4712 {
        return Err(format!("the time {time} must be from 4713 BC to 9999"));
    }
    Ok(time)
}

fn state(text: &str) -> Result<RunState, String> {
    let known = STATES.into_iter().find(|state| state.to_string() == text);
    known.ok_or_else(|| {
        let names = STATES.map(|state| state.to_string());
        format!("'state' must be one of {}", names.join(", "))
    })
}

/// The changes that the state of these runs allows.
pub(crate) fn changes(filter: &RunFilter) -> Vec<(&'static str, RunChange)> {
    use RunState::*;
    const RETRY: (&str, RunChange) = ("retry", RunChange::Retry);
    const DELETE: (&str, RunChange) = ("delete", RunChange::Delete);
    match filter.state {
        None | Some(Failed | Abandoned | Cancelled) => vec![RETRY, DELETE],
        Some(Done | Skipped) => vec![DELETE],
        state => vec![("cancel", RunChange::Cancel(state))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_utc_with_an_offset_or_as_ago() {
        let now = "2026-11-28T03:00:00Z".parse().unwrap();
        for (text, meant) in [
            ("2026-11-28", "2026-11-28T00:00:00Z"),
            ("2026-11-28T02:30", "2026-11-28T02:30:00Z"),
            ("2026-11-28T00:00+01:00", "2026-11-27T23:00:00Z"),
            ("3h", "2026-11-28T00:00:00Z"),
        ] {
            assert_eq!(time(text, now).unwrap().to_string(), meant, "{text}");
        }
        assert!(time("midnight", now).unwrap_err().contains("must be like"));
        for text in ["-009000-01-01T00:00Z", "-004713-12-31", "7000y"] {
            let error = time(text, now).unwrap_err();
            assert!(error.contains("must be from 4713 BC to 9999"), "{error}");
        }
        assert!(time("-004712-01-01", now).is_ok());
    }
}
