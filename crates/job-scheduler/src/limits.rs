//! Limits on how many runs are running: of jobs that share a name, and of a handler.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_postgres::{GenericClient, Row};

use crate::error::{Error, ensure};
use crate::job::{A_CENTURY, check_count, check_handler, check_limits, micros};
use crate::jobs::{Jobs, ignore};
use crate::sql::Parameter;

/// Without limits, the row is removed.
const SET_KIND: &str = "
    WITH removed AS (DELETE FROM @kind WHERE handler = $1 AND $2::integer IS NULL AND $3::bigint IS NULL)
    INSERT INTO @kind (handler, running, interval_us, burst)
    SELECT $1, $2, $3, $4 WHERE $2 IS NOT NULL OR $3 IS NOT NULL
    ON CONFLICT (handler) DO UPDATE SET running = excluded.running, interval_us = excluded.interval_us,
        burst = excluded.burst";

const SET_LIMIT: &str = "
    WITH removed AS (DELETE FROM @named_limit WHERE name = $1 AND $2::integer IS NULL)
    INSERT INTO @named_limit (name, running) SELECT $1, $2 WHERE $2 IS NOT NULL
    ON CONFLICT (name) DO UPDATE SET running = excluded.running";

const LIMITS: &str =
    "SELECT name, running FROM @named_limit WHERE name > $1 ORDER BY name LIMIT $2";

const KINDS: &str = "SELECT handler, running, interval_us, burst FROM @kind WHERE handler > $1 ORDER BY handler LIMIT $2";

/// The largest burst of a rate.
const MAX_BURST: u32 = 100_000;

/// The limits of all jobs of a handler. See [`Jobs::set_kind`].
///
/// # Examples
///
/// ```
/// use hashed_wheel_job_scheduler::KindLimits;
///
/// use std::time::Duration;
///
/// let five_at_a_time = KindLimits::new().running(5);
/// // After a pause ten at once, and 100 per second in the long run.
/// let hundred_per_second = KindLimits::new().rate(100, Duration::from_secs(1)).burst(10);
/// # let _ = (five_at_a_time, hundred_per_second);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use = "limits are stored by `Jobs::set_kind`"]
#[non_exhaustive]
pub struct KindLimits {
    /// How many runs are running at a time, on all nodes together. `None`: no limit.
    pub running: Option<u32>,
    /// In each of these intervals a run starts, on all nodes together. `None`: no limit.
    pub interval: Option<Duration>,
    /// How many runs start at once, if fewer than the interval allows have started before. `None`:
    /// one.
    pub burst: Option<u32>,
}

impl KindLimits {
    /// No limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// At most this many runs are running at a time, on all nodes together: from 1 to 1 000. It
    /// holds as strictly as [`NewJob::limit`](crate::NewJob::limit).
    pub fn running(mut self, count: u32) -> Self {
        self.running = Some(count);
        self
    }

    /// At most `count` runs start per `period`, on all nodes together, evenly spaced: one in each
    /// `interval` of `period / count`, rounded up to whole microseconds. The interval is from 1 µs
    /// to a century. With a [`burst`](Self::burst) of `b`, any `b + k` runs that start one after
    /// the other take at least `k` intervals.
    ///
    /// Each execution counts, also retries and repetitions after an interruption. A run that waits
    /// is [`Blocked`](crate::RunState::Blocked), or waits for its turn within the next
    /// [`prefetch`](crate::SchedulerBuilder::prefetch). Turns are given in the order of priorities
    /// and due times. Times are those at which the starts are written, by the clock of the
    /// database: the handlers begin some milliseconds later, and these milliseconds vary.
    ///
    /// A turn that is late is not made up for, because the spacing is strict. A backlog therefore
    /// reaches less than the rate, if the burst is 1 and the interval is not much longer than these
    /// milliseconds. A burst makes up for late turns. At most 2 000 runs of a backlog get their
    /// turn per [`heartbeat`](crate::SchedulerBuilder::heartbeat).
    pub fn rate(mut self, count: u32, period: Duration) -> Self {
        let nanos = period.as_nanos().div_ceil(u128::from(count.max(1)));
        let micros = u64::try_from(nanos.div_ceil(1_000)).unwrap_or(u64::MAX);
        self.interval = Some(if count == 0 {
            Duration::MAX
        } else {
            Duration::from_micros(micros)
        });
        self
    }

    /// How many runs may start at once, after a time without starts: from 1 to 100 000. The default
    /// is 1. This many intervals of the rate must be at most a century. Without a rate there is none.
    pub fn burst(mut self, count: u32) -> Self {
        self.burst = Some(count);
        self
    }

    fn check(self) -> Result<Self, Error> {
        if let Some(count) = self.running {
            check_count("running runs", count)?;
        }
        let burst = self.burst.unwrap_or(1);
        ensure((1..=MAX_BURST).contains(&burst), || {
            format!("a burst of {burst}: must be from 1 to {MAX_BURST}")
        })?;
        ensure(self.burst.is_none() || self.interval.is_some(), || {
            format!("a burst of {burst} without a rate: set both, or none of them")
        })?;
        if let Some(interval) = self.interval {
            ensure(micros("an interval", interval)? > 0, || {
                "an interval of a rate must be at least 1us".into()
            })?;
            ensure(interval <= A_CENTURY / burst, || {
                format!("a burst of {burst}: its intervals must be at most a century")
            })?;
        }
        Ok(self)
    }
}

impl Jobs {
    /// Sets the limits of all jobs of a handler, and replaces those that it had. The handler need
    /// not exist yet.
    ///
    /// They hold for runs that start after the commit. Runs that are executing continue, and count.
    /// Runs that wait for a limit that has grown or was removed start within a
    /// [`heartbeat`](crate::SchedulerBuilder::heartbeat) and some milliseconds: about 1 000 per
    /// heartbeat.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] says which name or number is invalid, and what is valid.
    /// [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::{Jobs, KindLimits};
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = Jobs::new("jobs")?;
    /// jobs.set_kind(&client, "call-api", KindLimits::new().running(5)).await?;
    /// // No limit any more:
    /// jobs.set_kind(&client, "call-api", KindLimits::new()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_kind(
        &self,
        client: &impl GenericClient,
        handler: &str,
        limits: KindLimits,
    ) -> Result<(), Error> {
        check_handler(handler)?;
        let limits = limits.check()?;
        let running = limits.running.map(|count| count as i32);
        let interval = limits.interval.map(|interval| interval.as_micros() as i64);
        let burst = limits.burst.unwrap_or(1) as i32;
        let parameters: [Parameter<'_>; 4] = [&handler, &running, &interval, &burst];
        self.row(client, SET_KIND, parameters, ignore).await?;
        Ok(())
    }

    /// Sets how many runs with a [`limit`](crate::NewJob::limit) of this name may be running, for
    /// all jobs, also those that are stored already: from 1 to 1 000. `None`: the numbers of the
    /// jobs hold again.
    ///
    /// It takes effect as [`set_kind`](Self::set_kind) does. A job without a limit of this name is
    /// not affected.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] says whether the name or the number is invalid, and what is valid.
    /// [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::Jobs;
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = Jobs::new("jobs")?;
    /// // The bank allows more calls. The jobs that wait for it say 5.
    /// jobs.set_limit(&client, "bank", Some(10)).await?;
    /// assert_eq!(jobs.limits(&client, "", 100).await?, [("bank".to_owned(), 10)]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_limit(
        &self,
        client: &impl GenericClient,
        name: &str,
        running: Option<u32>,
    ) -> Result<(), Error> {
        check_limits(&BTreeMap::from([(name.to_owned(), running.unwrap_or(1))]))?;
        let running = running.map(|count| count as i32);
        let parameters: [Parameter<'_>; 2] = [&name, &running];
        self.row(client, SET_LIMIT, parameters, ignore).await?;
        Ok(())
    }

    /// Returns at most `limit` limits that were set by [`set_limit`](Self::set_limit), in the order
    /// of names, as the database sorts them: those whose names follow `after`. The first names
    /// follow an empty one. The limits of a job are in [`Job::limits`](crate::Job::limits).
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::Jobs;
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = Jobs::new("jobs")?;
    /// let first = jobs.limits(&client, "", 100).await?;
    /// if let Some((last, _)) = first.last() {
    ///     let second = jobs.limits(&client, last, 100).await?;
    ///     # let _ = second;
    /// }
    /// let all = jobs.limits(&client, "", u32::MAX).await?;
    /// # let _ = all;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn limits(
        &self,
        client: &impl GenericClient,
        after: &str,
        limit: u32,
    ) -> Result<Vec<(String, u32)>, Error> {
        let read = |row: &Row| Ok((row.try_get(0)?, row.try_get::<_, i32>(1)?.unsigned_abs()));
        let parameters: [Parameter<'_>; 2] = [&after, &i64::from(limit)];
        self.rows(client, LIMITS, parameters, read).await
    }

    /// Returns at most `limit` handlers with the limits that were set by
    /// [`set_kind`](Self::set_kind), as [`limits`](Self::limits) returns names.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::Jobs;
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// for (handler, limits) in Jobs::new("jobs")?.kinds(&client, "", 100).await? {
    ///     println!("{handler}: {limits:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn kinds(
        &self,
        client: &impl GenericClient,
        after: &str,
        limit: u32,
    ) -> Result<Vec<(String, KindLimits)>, Error> {
        let parameters: [Parameter<'_>; 2] = [&after, &i64::from(limit)];
        self.rows(client, KINDS, parameters, kind).await
    }
}

fn kind(row: &Row) -> Result<(String, KindLimits), tokio_postgres::Error> {
    let (running, interval): (Option<i32>, Option<i64>) = (row.try_get(1)?, row.try_get(2)?);
    let limits = KindLimits {
        running: running.map(i32::unsigned_abs),
        interval: interval.map(|micros| Duration::from_micros(micros.unsigned_abs())),
        burst: interval.and(Some(row.try_get::<_, i32>(3)?.unsigned_abs())),
    };
    Ok((row.try_get(0)?, limits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_rounded_up() {
        let interval = |count, period| KindLimits::new().rate(count, period).interval.unwrap();
        assert_eq!(
            interval(3, Duration::from_secs(1)),
            Duration::from_micros(333_334)
        );
        assert_eq!(
            interval(1_000_000, Duration::from_millis(1)),
            Duration::from_micros(1)
        );
    }

    #[test]
    fn invalid_limits_of_a_kind_say_what_is_wrong() {
        assert_eq!(
            KindLimits::new().running(1_000).check().unwrap().running,
            Some(1_000)
        );
        for (limits, reason) in [
            (
                KindLimits::new().running(0),
                "running runs of 0: must be from 1 to 1000",
            ),
            (
                KindLimits::new().rate(0, Duration::from_secs(1)),
                "an interval of",
            ),
            (KindLimits::new().rate(1, Duration::MAX), "an interval of"),
            (
                KindLimits::new().rate(1, Duration::ZERO),
                "must be at least 1us",
            ),
            (
                KindLimits::new().rate(1, A_CENTURY / 9).burst(10),
                "its intervals must be at most a century",
            ),
            (
                KindLimits::new().burst(0),
                "a burst of 0: must be from 1 to 100000",
            ),
            (
                KindLimits::new().running(5).burst(1),
                "a burst of 1 without a rate",
            ),
            (
                KindLimits::new().running(1_001),
                "running runs of 1001: must be from 1 to 1000",
            ),
        ] {
            let error = limits.check().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
