//! The jobs that users enqueue.

mod check;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::misfire::Misfire;
use crate::sql::named;

pub(crate) use check::{
    A_CENTURY, Checked, PRIORITIES, check_count, check_handler, check_limits, micros, truncated,
};

/// A payload: the data of a job, and thereby what it does.
///
/// The type connects jobs with their handler: [`NewJob::new`] stores the name and the data, and
/// [`SchedulerBuilder::handler`](crate::SchedulerBuilder::handler) registers the handler for that
/// name.
///
/// The data are stored as JSON, of at most 4 MiB and 127 levels. A newer program must be able to
/// read what an older one has stored, so give new fields `#[serde(default)]`.
///
/// # Examples
///
/// ```
/// use hashed_wheel_job_scheduler::Payload;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail {
///     to: String,
/// }
///
/// impl Payload for SendMail {
///     const HANDLER: &'static str = "send-mail";
/// }
/// ```
pub trait Payload: Serialize + DeserializeOwned + Send + 'static {
    /// The name under which the job is stored. It should never change.
    const HANDLER: &'static str;
}

/// The treatment of a run that is due while another run of the same job is running, on any node.
///
/// A job that is due every second, and whose runs take 1.5 s:
///
/// ```text
/// due       1 s     2 s     3 s     4 s
/// Allow     1-2.5   2-3.5   3-4.5   4-5.5
/// Skip      1-2.5   -       3-4.5   -
/// Wait      1-2.5   2.5-4   4-5.5   5.5-7
/// ```
///
/// # Examples
///
/// ```
/// use hashed_wheel_job_scheduler::{NewJob, Overlap};
/// use serde_json::Value;
/// use std::time::Duration;
///
/// let job = NewJob::named("sync", Value::Null).every(Duration::from_secs(1)).overlap(Overlap::Skip);
/// # let _ = job;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overlap {
    /// Both run.
    #[default]
    Allow,
    /// The later one is recorded as [`Skipped`](crate::RunState::Skipped). It may be a retry.
    /// A run that was interrupted waits instead.
    Skip,
    /// The later one starts when the earlier one has ended. Several of them start in the order in
    /// which they are due.
    ///
    /// About 1 000 runs of a job wait at most; further ones are recorded as
    /// [`Skipped`](crate::RunState::Skipped). A run that never ends would otherwise fill the table:
    /// give such a job a [`timeout`](NewJob::timeout).
    Wait,
}

named!(Overlap, "overlap": Allow = "allow", Skip = "skip", Wait = "wait");

/// A job to be enqueued.
///
/// Without more settings it is due once, immediately. Invalid settings are reported by
/// [`Jobs::enqueue`](crate::Jobs::enqueue).
///
/// # Examples
///
/// ```
/// use hashed_wheel_job_scheduler::{Misfire, NewJob, Overlap, Payload};
/// use serde::{Deserialize, Serialize};
/// use std::time::Duration;
///
/// #[derive(Serialize, Deserialize)]
/// struct Report {
///     department: u32,
/// }
///
/// impl Payload for Report {
///     const HANDLER: &'static str = "report";
/// }
///
/// let job = NewJob::new(&Report { department: 7 })
///     .cron("0 30 3 * * MON-FRI")
///     .time_zone("Europe/Berlin")
///     .key("report-7")
///     .misfire(Misfire::RunOnce)
///     .overlap(Overlap::Skip)
///     .retries(3, Duration::from_secs(10), Duration::from_secs(60))
///     .timeout(Duration::from_secs(600));
/// # let _ = job;
/// ```
#[derive(Debug)]
#[must_use = "a job is stored by `Jobs::enqueue`"]
pub struct NewJob {
    pub(crate) handler: String,
    payload: Result<Value, serde_json::Error>,
    kind: Kind,
    start: Start,
    time_zone: String,
    key: Option<String>,
    replaces: bool,
    jitter: Duration,
    misfire: Misfire,
    overlap: Overlap,
    pub(crate) retries: u32,
    pub(crate) backoff: (Duration, Duration),
    pub(crate) timeout: Option<Duration>,
    max_interruptions: u32,
    notifies: bool,
    limits: BTreeMap<String, u32>,
    pub(crate) priority: i16,
}

/// The default of [`NewJob::max_interruptions`].
const MAX_INTERRUPTIONS: u32 = 10;

#[derive(Debug)]
enum Kind {
    Once,
    Every(Duration),
    Cron(String),
    Quartz(String),
}

#[derive(Debug, Clone, Copy)]
enum Start {
    After(Duration),
    At(Timestamp),
}

impl NewJob {
    /// Creates a job with this payload for the handler of its type.
    pub fn new<P: Payload>(payload: &P) -> Self {
        Self::with_value(P::HANDLER, serde_json::to_value(payload))
    }

    /// Creates a job for a handler that this program does not know as a type.
    pub fn named(handler: impl Into<String>, payload: Value) -> Self {
        Self::with_value(handler, Ok(payload))
    }

    fn with_value(handler: impl Into<String>, payload: Result<Value, serde_json::Error>) -> Self {
        Self {
            handler: handler.into(),
            payload,
            kind: Kind::Once,
            start: Start::After(Duration::ZERO),
            time_zone: "UTC".into(),
            key: None,
            replaces: false,
            jitter: Duration::ZERO,
            misfire: Misfire::default(),
            overlap: Overlap::default(),
            retries: 0,
            backoff: (Duration::ZERO, Duration::ZERO),
            timeout: None,
            max_interruptions: MAX_INTERRUPTIONS,
            notifies: true,
            limits: BTreeMap::new(),
            priority: 0,
        }
    }

    /// The time of the first run, by the clock of the database, in whole microseconds (rounded
    /// down). A time in the past is due immediately, or a misfire. The first run of a cron job is
    /// when its pattern first matches at or after this time.
    pub fn at(mut self, time: Timestamp) -> Self {
        self.start = Start::At(time);
        self
    }

    /// The time until the first run, like [`at`](Self::at). The default is zero.
    pub fn after(mut self, delay: Duration) -> Self {
        self.start = Start::After(delay);
        self
    }

    /// Runs at a fixed rate, without drift: each due time is a multiple of `period` after the first
    /// one. At least a millisecond, and whole microseconds.
    pub fn every(mut self, period: Duration) -> Self {
        self.kind = Kind::Every(period);
        self
    }

    /// Runs when the pattern matches. It has six fields: second, minute, hour, day of the month,
    /// month, day of the week, and optionally the year. The syntax is that of the crate
    /// [croner](https://docs.rs/croner), with lists, ranges, steps, names, `L`, `W` and `#`, and
    /// with `L-3` (the third day before the last one) and `L-3W` as the day of the month. There are
    /// no due times after the year 5000.
    ///
    /// If both fields of days are restricted, one of them must match: `13 * FRI` is each 13th and
    /// each Friday. Both must match if one of them begins with `*`, as in Vixie cron (`*/2 * FRI`),
    /// or if the weekday begins with `+`: `13 * +FRI` is each Friday the 13th.
    ///
    /// Weekdays are `SUN` to `SAT`, or 0 to 6; 7 is `SUN` too. **Quartz, and therefore xxl-job,
    /// numbers them from 1 for `SUN` to 7 for `SAT`:** see [`quartz_cron`](Self::quartz_cron). A
    /// pattern with a `?`, which only Quartz needs, and with a number of a weekday is rejected, and
    /// so is Quartz's `0/5` (here `*/5`). The error says which pattern means the same here.
    ///
    /// A fixed time of day (one second, one minute and one hour) that a change to daylight saving
    /// time omits runs immediately after the gap, and one that is repeated runs once, as in Vixie
    /// cron. A pattern with a wildcard, a list, a range or a step in its time runs at each time
    /// that it matches: not in a gap, and in both hours that have the same name.
    pub fn cron(mut self, pattern: impl Into<String>) -> Self {
        self.kind = Kind::Cron(pattern.into());
        self
    }

    /// Runs when a pattern of Quartz or xxl-job matches. Like [`cron`](Self::cron), but in the
    /// syntax of Quartz: weekdays are numbered from 1 for `SUN` to 7 for `SAT`, one of the two
    /// fields for days is `?`, `0/5` is "from 0 in steps of 5", and ranges such as `FRI-MON` and
    /// `22-2` go beyond the last value.
    ///
    /// The job stores the pattern of `cron` that means the same. A pattern that has none is an
    /// error that says what to write. That also holds for patterns that Quartz accepts and reads in
    /// an unexpected way, such as `MON/2`. Due times in a change of the clock are those of `cron`.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel_job_scheduler::NewJob;
    /// use serde_json::Value;
    ///
    /// // Stored as `0 */5 8-18 * * MON-FRI`.
    /// let job = NewJob::named("poll", Value::Null).quartz_cron("0 0/5 8-18 ? * 2-6");
    /// # let _ = job;
    /// ```
    pub fn quartz_cron(mut self, pattern: impl Into<String>) -> Self {
        self.kind = Kind::Quartz(pattern.into());
        self
    }

    /// The time zone of a cron pattern, in the names of the IANA database, such as `Asia/Tokyo`.
    /// The default is `UTC`.
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.time_zone = name.into();
        self
    }

    /// Starts each run at a random time within this duration after it is due.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// At most one unfinished job has this key. A job is finished when it has no more due time, and
    /// its runs have ended. The key has at most 1 000 bytes.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// If there is an unfinished job with the same [`key`](Self::key), changes it to this one.
    /// Without this, the new job is not stored.
    ///
    /// A program can register its jobs at each start by this. The number of the job remains. What
    /// happens depends on what differs:
    ///
    /// - **Nothing.** Then nothing changes, and the result is [`Found`](crate::Outcome::Found).
    /// - **The data, the handler, or an option.** Due times and retries remain, also those that
    ///   were missed. Their runs start as the job is now.
    /// - **The schedule or its start**: [`cron`](Self::cron), [`time_zone`](Self::time_zone),
    ///   [`every`](Self::every), [`at`](Self::at), [`after`](Self::after). The job gets the due
    ///   times of the new schedule. Runs and retries that have not started do not start. If the old
    ///   schedule has missed due times, the first of them stands for all of them, and follows the
    ///   [`misfire`](Self::misfire) policy. A one-off job is the exception: its only run is at the
    ///   new time.
    ///
    /// A run that is executing continues. If it fails or is interrupted, it is repeated as it was.
    /// If a one-off job is changed during its only run, it runs again. A paused job stays paused.
    /// A job that a node has disabled is enabled, even if nothing differs.
    ///
    /// The start is compared as it was given: the same delay of `after` is no change, whenever it
    /// is given. To postpone a job at each call, use `at`.
    pub fn replace_existing(mut self) -> Self {
        self.replaces = true;
        self
    }

    /// Sets the treatment of due times that had no node for too long. The default is
    /// [`Misfire::RunOnce`].
    pub fn misfire(mut self, misfire: Misfire) -> Self {
        self.misfire = misfire;
        self
    }

    /// Sets the treatment of a run that is due while another one is running. The default is
    /// [`Overlap::Allow`].
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Among the runs that are due, those with a higher priority start first, on all nodes,
    /// whatever their due times: from -5 to 5. The default is 0. With the same priority, a
    /// node first starts a run of the handler with the fewest executions, and then the one that is
    /// due first. A backlog with a higher priority delays lower ones as long as it lasts.
    ///
    /// It decides which due jobs a node reads first, which of its runs get a runner, and which of
    /// the runs that wait for a [`limit`](Self::limit) or because of [`Overlap::Wait`] are next. A
    /// node that has read as many runs as its [`capacity`](crate::SchedulerBuilder::capacity) still
    /// reads more urgent ones. Runs that are executing are not interrupted. Between nodes the order
    /// is not exact: each takes the first runs for itself.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel_job_scheduler::NewJob;
    /// use serde_json::Value;
    ///
    /// let urgent = NewJob::named("reset-password", Value::Null).priority(5);
    /// let whenever = NewJob::named("rebuild-index", Value::Null).priority(-5);
    /// # let _ = (urgent, whenever);
    /// ```
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// At most `count` runs with this name are running at a time, of all jobs and on all nodes. The
    /// others wait, and start in the order of their priorities and due times. It may be called with
    /// several names, at most 8: then a run starts when there is room under each of them. The
    /// default is no limit.
    ///
    /// The name has from 1 to 255 bytes, and is created by its first use. `count` is from 1 to
    /// 1 000. Calling this again with the same name replaces the number. If jobs with a name have
    /// different numbers, each run starts while fewer runs with the name are running than its own
    /// number. Then a run with a small number can wait without an end. To change the number of all
    /// jobs, also of those that are stored, use [`Jobs::set_limit`](crate::Jobs::set_limit).
    ///
    /// A place that becomes free goes to the first waiting run of the name whose handler a live
    /// node has. If the last node with a handler shuts down or is lost, runs that wait for it, and
    /// those that were lost with it, lose their places at the next
    /// [`heartbeat`](crate::SchedulerBuilder::heartbeat) of another node, and take new ones when
    /// they are started again.
    ///
    /// The limit holds as strictly as [`Overlap::Wait`], with the same exceptions: see [what cannot
    /// be promised](crate#what-cannot-be-promised). A run that waits is
    /// [`Blocked`](crate::RunState::Blocked). It does not delay runs with other names. A run with
    /// several names may be overtaken by runs with only one of them. About 1 000 runs of a
    /// recurring job wait at most, as with [`Overlap::Wait`].
    ///
    /// For a limit of all jobs of a handler, see [`Jobs::set_kind`](crate::Jobs::set_kind).
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel_job_scheduler::NewJob;
    /// use serde_json::json;
    ///
    /// // One at a time per tenant, and at most five calls of the bank.
    /// let tenant = 7;
    /// let job = NewJob::named("invoice", json!({ "tenant": tenant }))
    ///     .limit(format!("tenant-{tenant}"), 1)
    ///     .limit("bank", 5);
    /// # let _ = job;
    /// ```
    pub fn limit(mut self, name: impl Into<String>, count: u32) -> Self {
        self.limits.insert(name.into(), count);
        self
    }

    /// Repeats a failed run at most `limit` times. The first pause is `first`, each further one is
    /// twice as long, and none is longer than `max`. The default is no retry. Fractions of a
    /// microsecond are dropped, here and of a [`timeout`](Self::timeout).
    ///
    /// Errors, panics, and timeouts are failures. A loss of the node is not: such a run is repeated
    /// up to [`max_interruptions`](Self::max_interruptions), and that does not count here.
    pub fn retries(mut self, limit: u32, first: Duration, max: Duration) -> Self {
        self.retries = limit;
        self.backoff = (truncated(first), truncated(max));
        self
    }

    /// Ends each execution that takes longer than this, as a failure. The future of the handler is
    /// dropped at its next `.await`. The default is no limit.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(truncated(timeout));
        self
    }

    /// How often a run is repeated because its node was lost during the run. After more
    /// interruptions than this, it is not repeated and ends as
    /// [`Abandoned`](crate::RunState::Abandoned). The default is 10, so that a run is abandoned
    /// half an hour after its first interruption at the earliest.
    ///
    /// The first interruption has no pause. After the second one the run starts after 4 to 6
    /// seconds, and each further pause is twice as long, up to an hour. The run is then a suspect:
    /// its node starts it alone, and starts no other run for as long as the pause (at most a
    /// minute), or until it has ended. If the process dies in this time, the interruption counts
    /// for this run only. So a run that ends its process is found, and the runs beside it are not
    /// abandoned.
    ///
    /// An interruption by [`shutdown`](crate::Scheduler::shutdown) does not count, nor one by a
    /// node that could not reach the database until its lease ended. An error of the database that
    /// ends before interrupts nothing. A run whose payload has more than 64 KiB and is not read
    /// within a lease counts as interrupted.
    ///
    /// Without a limit, a run that ends its process (by a stack overflow, or by lack of memory)
    /// would end one node after the other forever.
    pub fn max_interruptions(mut self, limit: u32) -> Self {
        self.max_interruptions = limit;
        self
    }

    /// Does not notify the nodes. A run that is due soon starts when one of them reads the next
    /// time: after at most a [`heartbeat`](crate::SchedulerBuilder::heartbeat), instead of some
    /// milliseconds.
    ///
    /// PostgreSQL lets transactions that notify commit only one after the other, in all databases
    /// of a server. This crate limits that: a job is not notified if it is due after the next read
    /// of all nodes, or while another transaction notifies the same handler. Without notifications,
    /// transactions that enqueue never wait for each other. If no node of the schema uses
    /// notifications, none are sent: see
    /// [`without_notifications`](crate::SchedulerBuilder::without_notifications).
    pub fn without_notification(mut self) -> Self {
        self.notifies = false;
        self
    }
}
