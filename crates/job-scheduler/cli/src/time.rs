//! Times as users read them.

use std::fmt::{self, Display};
use std::time::Duration;

use hashed_wheel_job_scheduler::jiff::Timestamp;

/// A duration with the two digits that matter: 12ms, 3.4s, 5min, 7h, 2d.
pub(crate) struct Rounded(pub(crate) Duration);

impl Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        match seconds {
            0.0 => f.write_str("0s"),
            ..0.01 => write!(f, "{:.1}ms", seconds * 1e3),
            ..1.0 => write!(f, "{:.0}ms", seconds * 1e3),
            ..10.0 => write!(f, "{seconds:.1}s"),
            ..120.0 => write!(f, "{seconds:.0}s"),
            ..7_200.0 => write!(f, "{:.0}min", seconds / 60.0),
            ..172_800.0 => write!(f, "{:.0}h", seconds / 3_600.0),
            _ => write!(f, "{:.0}d", seconds / 86_400.0),
        }
    }
}

/// Returns the time between two times, and zero if they are in the other order because clocks
/// differ.
pub(crate) fn time_between(begin: Timestamp, end: Timestamp) -> Duration {
    Duration::try_from(end.duration_since(begin)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_digits() {
        for (micros, text) in [
            (0, "0s"),
            (1_234, "1.2ms"),
            (56_700, "57ms"),
            (3_456_000, "3.5s"),
            (119_000_000, "119s"),
            (300_000_000, "5min"),
            (7_200_000_000, "2h"),
            (172_800_000_000, "2d"),
        ] {
            assert_eq!(Rounded(Duration::from_micros(micros)).to_string(), text);
        }
    }

    #[test]
    fn time_between_reversed_times_is_zero() {
        let [begin, end] =
            [1_500, 3_000].map(|millis| Timestamp::from_millisecond(millis).unwrap());
        assert_eq!(time_between(begin, end), Duration::from_millis(1_500));
        assert_eq!(time_between(end, begin), Duration::ZERO);
    }
}
