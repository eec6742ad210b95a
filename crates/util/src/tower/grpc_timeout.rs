//! The value of the header `grpc-timeout`: at most eight digits and a unit. See "Timeout" in
//! <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>.

use std::time::Duration;

const MAX_DIGITS: usize = 8;
const MAX_NUMBER: u128 = 99_999_999;

/// The units, and how many nanoseconds each has.
const UNITS: [(u8, u128); 6] = [
    (b'n', 1),
    (b'u', 1_000),
    (b'm', 1_000_000),
    (b'S', 1_000_000_000),
    (b'M', 60 * 1_000_000_000),
    (b'H', 60 * 60 * 1_000_000_000),
];

/// Returns the time that a value stands for; `None` if it is not one.
pub(super) fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > MAX_DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let (_, nanos) = UNITS.into_iter().find(|(name, _)| name == unit)?;
    let number = digits
        .iter()
        .fold(0, |number, digit| 10 * number + u128::from(digit - b'0'));
    let nanos = number * nanos;
    let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
    Some(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
}

/// Returns the value for a time, in the finest unit that has room for it. It is rounded down, so
/// the server does not work for longer than the client waits; but at least to a nanosecond, because
/// zero is no valid value. It is at most 11 415 years.
pub(super) fn format(time: Duration) -> String {
    let nanos = time.as_nanos().max(1);
    let fits = |(_, unit): &(u8, u128)| nanos / unit <= MAX_NUMBER;
    let (name, unit) = UNITS
        .into_iter()
        .find(fits)
        .unwrap_or(UNITS[UNITS.len() - 1]);
    std::format!("{}{}", (nanos / unit).min(MAX_NUMBER), char::from(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed() {
        let seconds = Duration::from_secs;
        let values: [(&[u8], _); 8] = [
            (b"1H", seconds(3_600)),
            (b"2M", seconds(120)),
            (b"00000003S", seconds(3)),
            (b"4m", Duration::from_millis(4)),
            (b"5u", Duration::from_micros(5)),
            (b"6n", Duration::from_nanos(6)),
            (b"0n", Duration::ZERO),
            (b"99999999H", seconds(99_999_999 * 3_600)),
        ];
        for (value, time) in values {
            assert_eq!(parse(value), Some(time), "{value:?}");
        }
    }

    #[test]
    fn what_is_no_value_is_none() {
        for value in [
            "",
            "1",
            "S",
            "123456789S",
            "-1S",
            "+1S",
            "1.5S",
            "1 S",
            " 1S",
            "1s",
            "1h",
            "1Sn",
            "\u{664}S",
        ] {
            assert_eq!(parse(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn a_time_is_written_in_the_finest_unit_with_room() {
        let times = [
            (Duration::ZERO, "1n"),
            (Duration::from_nanos(99_999_999), "99999999n"),
            (Duration::from_nanos(100_000_999), "100000u"),
            (Duration::from_micros(99_999_999), "99999999u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::from_secs(100_000), "100000S"),
            (Duration::from_secs(100_000_059), "1666667M"),
            (Duration::from_secs(60 * 100_000_000), "1666666H"),
            (Duration::MAX, "99999999H"),
        ];
        for (time, value) in times {
            assert_eq!(format(time), value);
            assert!(parse(value.as_bytes()).unwrap() <= time.max(Duration::from_nanos(1)));
        }
    }
}
