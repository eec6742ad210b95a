//! Checks the settings of a job, and converts them to the units of the database.

use std::collections::BTreeMap;
use std::mem;
use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::{Timestamp, TimestampRound, Unit};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Kind, NewJob, Start};
use crate::cron::quartz;
use crate::error::{Error, ensure};
use crate::json::encode;
use crate::schedule::Schedule;
use crate::sql::Named;

/// The priorities that a job may have. There are few, because a node reads each of them on its own.
pub(crate) const PRIORITIES: RangeInclusive<i16> = -5..=5;

/// The longest name of a handler in bytes. It is part of an index and of notifications, which have
/// limits.
const MAX_HANDLER: usize = 1_000;

/// The longest key in bytes. It is part of an index, which has limits.
const MAX_KEY: usize = 1_000;

/// The largest number of runs of a limit. A node reads all of its places.
const MAX_RUNNING: u32 = 1_000;

/// The longest name of a limit in bytes. It is part of an index, which has limits.
const MAX_LIMIT_NAME: usize = 255;

/// The largest number of limits of a job.
const MAX_LIMITS: usize = 8;

/// A valid job.
pub(crate) struct Checked {
    /// Without its payload.
    pub(crate) job: NewJob,
    pub(crate) payload: Box<RawValue>,
    pub(crate) schedule: Schedule,
    /// Not earlier than this. `None`: the database's present, and the delay in microseconds.
    pub(crate) start: Option<Timestamp>,
    pub(crate) delay: Option<i64>,
    /// As the database reads it: an object with the columns of the table.
    pub(crate) columns: Value,
}

impl NewJob {
    pub(crate) fn check(mut self) -> Result<Checked, Error> {
        check_handler(&self.handler)?;
        check_key(self.key.as_deref())?;
        check_limits(&self.limits)?;
        ensure(PRIORITIES.contains(&self.priority), || {
            format!("priority {}: must be from -5 to 5", self.priority)
        })?;
        let schedule = match &self.kind {
            Kind::Once => Ok(Schedule::Once),
            Kind::Every(period) => Schedule::every(*period),
            Kind::Cron(pattern) => Schedule::cron(pattern, &self.time_zone),
            Kind::Quartz(pattern) => quartz::translate(pattern)
                .and_then(|pattern| Schedule::cron(&pattern, &self.time_zone)),
        };
        let (start, delay) = match self.start {
            Start::At(time) => (Some(whole_micros(time)?), None),
            Start::After(delay) => (None, Some(micros("a delay", delay)?)),
        };
        let is_short = |timeout| timeout < Duration::from_millis(1);
        ensure(!self.timeout.is_some_and(is_short), || {
            "a timeout must be at least 1ms".into()
        })?;
        let timeout = self.timeout.map(|timeout| micros("a timeout", timeout));
        let payload = mem::replace(&mut self.payload, Ok(Value::Null)).map_err(Error::Payload)?;
        let payload =
            encode(&payload).map_err(|why| Error::Invalid(format!("the payload {why}")))?;
        let schedule = schedule.map_err(Error::Invalid)?;
        let columns = json!({
            "key": self.key,
            "handler": self.handler,
            "schedule": schedule.to_string(),
            "time_zone": self.time_zone,
            "jitter_us": micros("a jitter", self.jitter)?,
            "misfire": self.misfire.name(),
            "overlap": self.overlap.name(),
            "retries": count("retries", self.retries)?,
            "retry_first_us": micros("a pause", self.backoff.0)?,
            "retry_max_us": micros("a pause", self.backoff.1)?,
            "timeout_us": timeout.transpose()?,
            "max_interruptions": count("interruptions", self.max_interruptions)?,
            "delay_us": delay,
            "given_start": start.map(|time| time.to_string()),
            "is_planned": true,
            "notifies": self.notifies,
            "limits": (!self.limits.is_empty()).then_some(&self.limits),
            "priority": self.priority,
            "replaces": self.replaces,
        });
        Ok(Checked {
            job: self,
            payload,
            schedule,
            start,
            delay,
            columns,
        })
    }
}

/// Whether a text has one of these lengths in bytes, and no NUL, which PostgreSQL does not store.
fn is_storable(text: &str, lengths: RangeInclusive<usize>) -> bool {
    lengths.contains(&text.len()) && !text.contains('\0')
}

pub(crate) fn check_handler(name: &str) -> Result<(), Error> {
    ensure(is_storable(name, 1..=MAX_HANDLER), || {
        format!("the name of a handler must have from 1 to {MAX_HANDLER} bytes, and no NUL")
    })
}

fn check_key(key: Option<&str>) -> Result<(), Error> {
    ensure(key.is_none_or(|key| is_storable(key, 0..=MAX_KEY)), || {
        format!("a key must have at most {MAX_KEY} bytes, and no NUL")
    })
}

/// Returns which of the limits of a job is invalid.
pub(crate) fn check_limits(limits: &BTreeMap<String, u32>) -> Result<(), Error> {
    ensure(limits.len() <= MAX_LIMITS, || {
        format!("{} limits: a job has at most {MAX_LIMITS}", limits.len())
    })?;
    for (name, &count) in limits {
        ensure(is_storable(name, 1..=MAX_LIMIT_NAME), || {
            format!("the name of a limit must have from 1 to {MAX_LIMIT_NAME} bytes, and no NUL")
        })?;
        check_count(&format!("limit '{name}'"), count)?;
    }
    Ok(())
}

pub(crate) fn check_count(what: &str, count: u32) -> Result<(), Error> {
    ensure((1..=MAX_RUNNING).contains(&count), || {
        format!("{what} of {count}: must be from 1 to {MAX_RUNNING}")
    })
}

/// The longest duration in the database, so that its sums with times stay in range.
pub(crate) const A_CENTURY: Duration = Duration::from_secs(100 * 366 * 86_400);

pub(crate) fn micros(what: &str, time: Duration) -> Result<i64, Error> {
    ensure(time <= A_CENTURY, || {
        format!("{what} of {time:?}: must be at most a century")
    })?;
    Ok(time.as_micros() as i64)
}

/// Without the nanoseconds, which the database does not store: so an execution without the database
/// has the same times as on a node.
pub(crate) fn truncated(time: Duration) -> Duration {
    time - Duration::from_nanos(u64::from(time.subsec_nanos() % 1_000))
}

fn count(what: &str, number: u32) -> Result<i32, Error> {
    i32::try_from(number)
        .map_err(|_| Error::Invalid(format!("the number of {what} must be at most {}", i32::MAX)))
}

/// The first second of the year 1, and of the year 6000. PostgreSQL writes earlier years in another
/// form, and sums of later ones with durations might not be in range.
const MIN_SECOND: i64 = -62_135_596_800;
const MAX_SECOND: i64 = 127_174_492_800;

/// Rounds down, because the database would round to the nearest microsecond, and the run would have
/// two due times.
fn whole_micros(time: Timestamp) -> Result<Timestamp, Error> {
    ensure((MIN_SECOND..MAX_SECOND).contains(&time.as_second()), || {
        format!("{time}: must be from the year 1 to the year 5999")
    })?;
    let round = TimestampRound::new()
        .smallest(Unit::Microsecond)
        .mode(jiff::RoundMode::Floor);
    time.round(round)
        .map_err(|error| Error::Invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> NewJob {
        NewJob::named("test", Value::Null)
    }

    #[test]
    fn invalid_jobs_say_what_is_wrong() {
        let ms = Duration::from_millis;
        for (job, reason) in [
            (NewJob::named("", Value::Null), "the name of a handler"),
            (
                NewJob::named("a".repeat(1_001), Value::Null),
                "the name of a handler",
            ),
            (
                job().every(Duration::ZERO),
                "a period of 0ns: must be at least 1ms",
            ),
            (
                job().every(Duration::from_nanos(1_000_001)),
                "multiple of 1us",
            ),
            (job().every(Duration::from_secs(u64::MAX)), "is too long"),
            (job().cron("61 * * * * *"), "cron pattern '61 * * * * *'"),
            (job().cron("* * * * *"), "cron pattern '* * * * *'"),
            (
                job().cron(format!("{} * * * * *", vec!["0"; 1_000].join(","))),
                "at most 1900 bytes",
            ),
            (
                job().quartz_cron("0 0 12 * * *"),
                "Quartz pattern '0 0 12 * * *': Quartz requires '?'",
            ),
            (job().cron("* * * * * *").time_zone("Nowhere"), "Nowhere"),
            (job().after(Duration::MAX), "a delay of"),
            (
                job().at(Timestamp::MAX),
                "9999-12-30T22:00:00.999999999Z: must be from the year 1",
            ),
            (job().jitter(Duration::MAX), "a jitter of"),
            (job().retries(1, ms(1), Duration::MAX), "a pause of"),
            (
                job().retries(u32::MAX, ms(1), ms(1)),
                "the number of retries",
            ),
            (
                job().max_interruptions(u32::MAX),
                "the number of interruptions",
            ),
            (
                job().timeout(Duration::ZERO),
                "a timeout must be at least 1ms",
            ),
            (job().priority(6), "priority 6: must be from -5 to 5"),
            (
                job().key("a".repeat(1_001)),
                "a key must have at most 1000 bytes",
            ),
            (
                job().key("a\0"),
                "a key must have at most 1000 bytes, and no NUL",
            ),
            (job().limit("", 1), "the name of a limit"),
            (job().limit("a".repeat(256), 1), "the name of a limit"),
            (job().limit("a\0", 1), "the name of a limit"),
            (
                job().limit("a", 0),
                "limit 'a' of 0: must be from 1 to 1000",
            ),
            (
                job().limit("a", 1_001),
                "limit 'a' of 1001: must be from 1 to 1000",
            ),
            (
                (0..9).fold(job(), |job, n| job.limit(n.to_string(), 1)),
                "9 limits: a job has at most 8",
            ),
        ] {
            let error = job.check().map(drop).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn times_are_rounded_down_to_microseconds() {
        for (nanos, micros) in [(1_999, 1), (2_000, 2), (-1, -1)] {
            let time = Timestamp::from_nanosecond(nanos).unwrap();
            assert_eq!(
                job()
                    .at(time)
                    .check()
                    .unwrap()
                    .start
                    .unwrap()
                    .as_microsecond(),
                micros
            );
        }
    }

    #[test]
    fn times_are_in_the_range_of_the_database() {
        for (second, text) in [
            (MIN_SECOND, "0001-01-01T00:00:00Z"),
            (MAX_SECOND - 1, "5999-12-31T23:59:59Z"),
        ] {
            let time: Timestamp = text.parse().unwrap();
            assert_eq!(time.as_second(), second);
            assert!(job().at(time).check().is_ok());
        }
        for second in [MIN_SECOND - 1, MAX_SECOND] {
            assert!(
                job()
                    .at(Timestamp::from_second(second).unwrap())
                    .check()
                    .is_err()
            );
        }
    }
}
