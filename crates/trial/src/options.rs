//! Durations on the command line.

use std::time::Duration;

pub const A_DAY: Duration = Duration::from_secs(86_400);

/// Parses a duration with its unit, such as `500ms` or `1m 30s`, up to a day.
///
/// # Errors
///
/// The reason, for the user.
pub fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write it as 2s or 500ms"))?;
    if duration > A_DAY {
        Err("the maximum is one day".into())
    } else {
        Ok(duration)
    }
}

/// Parses a [`duration`] that is not zero.
///
/// # Errors
///
/// The reason, for the user.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("the duration has to be longer than zero".into()),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_a_maximum() {
        for text in ["3s", "3000ms", "2s 1s"] {
            assert_eq!(positive_duration(text), Ok(Duration::from_secs(3)));
        }
        for (text, reason) in [
            ("3000", "2s or 500ms"),
            ("soon", "2s or 500ms"),
            ("3parsecs", "2s or 500ms"),
            ("-1s", "2s or 500ms"),
            ("2days", "the maximum is one day"),
            ("0s", "longer than zero"),
        ] {
            let message = positive_duration(text).expect_err(text);
            assert!(message.contains(reason), "{text}: {message}");
        }
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
    }
}
