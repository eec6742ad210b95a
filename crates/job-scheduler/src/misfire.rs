//! Due times that had no node for too long, and the runs that they get. Only arithmetic.

use jiff::Timestamp;

use crate::schedule::Schedule;
use crate::sql::named;

/// The treatment of due times that no node could read for longer than
/// [`misfire_after`](crate::SchedulerBuilder::misfire_after).
///
/// Due times that are late by less than that run as usual, whatever the policy. The names in Quartz
/// are in parentheses. (Its other policies concern repeat counts, which do not exist here.)
///
/// A job that is due every minute, with the default of one minute for `misfire_after`. There was no
/// node from 12:01:30 to 12:05:30:
///
/// ```text
/// due       12:01  12:02  12:03  12:04  12:05  12:06
/// Skip      run    -------skipped-----  run    run     one record for the three; 12:05 runs at 12:05:30
/// RunOnce   run    ------one run------  run    run     it and 12:05 run at 12:05:30
/// RunAll    run    run    run    run    run    run     four of them at 12:05:30
/// ```
///
/// # Examples
///
/// ```
/// use hashed_wheel_job_scheduler::{Misfire, NewJob};
/// use serde_json::Value;
///
/// // A report of last night is wanted once, even if it is late.
/// let report = NewJob::named("report", Value::Null).cron("0 30 3 * * *").misfire(Misfire::RunOnce);
/// // A sample that is late has no value.
/// let sample = NewJob::named("sample", Value::Null).cron("0 * * * * *").misfire(Misfire::Skip);
/// # let _ = (report, sample);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Misfire {
    /// Skips the missed due times, and continues with the first one that is not too old
    /// (`DO_NOTHING`). The first of them is recorded, with the state
    /// [`Skipped`](crate::RunState::Skipped), and stands for all of them.
    ///
    /// A job that is due once has no later due time. It runs late, as with `RunOnce`: it may have
    /// been enqueued in a transaction that took longer. If a late run has no value, its handler
    /// compares [`Context::due`](crate::Context::due) with the time.
    Skip,
    /// Runs once, immediately, for all missed due times (`FIRE_ONCE_NOW`).
    #[default]
    RunOnce,
    /// Runs once for each missed due time, as fast as the nodes can (`IGNORE_MISFIRE_POLICY`).
    RunAll,
}

/// The period that a node reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Earlier due times are misfires.
    pub(crate) oldest: Timestamp,
    /// Later due times are not read yet.
    pub(crate) horizon: Timestamp,
}

/// A planned run.
#[derive(Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) due: Timestamp,
    /// Whether the run is skipped.
    pub(crate) is_skipped: bool,
    /// For a misfire: it stands for all due times before this one.
    pub(crate) misses_until: Option<Timestamp>,
}

impl Schedule {
    /// Returns the run of a due time, and the next due time after it.
    pub(crate) fn plan(
        &self,
        misfire: Misfire,
        due: Timestamp,
        first: Timestamp,
        window: Window,
    ) -> (Planned, Option<Timestamp>) {
        let is_missed = due < window.oldest && misfire != Misfire::RunAll;
        let planned = Planned {
            due,
            is_skipped: is_missed && misfire == Misfire::Skip && *self != Self::Once,
            misses_until: is_missed.then_some(window.oldest),
        };
        (
            planned,
            self.next(due, first, if is_missed { window.oldest } else { due }),
        )
    }
}

named!(Misfire, "misfire": Skip = "skip", RunOnce = "run once", RunAll = "run all");

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Schedule {
        Schedule::parse(text, "UTC").unwrap()
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    fn window(oldest: i64, horizon: i64) -> Window {
        Window {
            oldest: at(oldest),
            horizon: at(horizon),
        }
    }

    /// Returns the runs up to the horizon, at most `room`, and the next due time.
    fn plan_all(
        schedule: &Schedule,
        misfire: Misfire,
        next_run: Timestamp,
        window: Window,
        room: usize,
    ) -> (Vec<Planned>, Option<Timestamp>) {
        let mut runs = Vec::new();
        let mut next_run = Some(next_run);
        while let Some(due) = next_run.filter(|&due| due <= window.horizon && runs.len() < room) {
            let (planned, next) = schedule.plan(misfire, due, Timestamp::MIN, window);
            runs.push(planned);
            next_run = next;
        }
        (runs, next_run)
    }

    /// Returns the due times of the runs, and the next due time.
    fn plan(schedule: &str, next_run: i64, window: Window, room: usize) -> (Vec<i64>, Option<i64>) {
        let schedule = parse(schedule);
        let (runs, next_run) = plan_all(&schedule, Misfire::RunOnce, at(next_run), window, room);
        let due = runs.iter().map(|run| run.due.as_millisecond());
        (due.collect(), next_run.map(Timestamp::as_millisecond))
    }

    #[test]
    fn all_due_times_up_to_the_horizon_are_planned() {
        assert_eq!(plan("once", 700, window(0, 700), 9), (vec![700], None));
        assert_eq!(plan("once", 700, window(0, 699), 9), (vec![], Some(700)));
        assert_eq!(
            plan("every 300ms", 700, window(0, 1_300), 9),
            (vec![700, 1_000, 1_300], Some(1_600))
        );
        let (runs, next) = plan("cron */2 * * * * *", 4_000, window(0, 8_500), 9);
        assert_eq!((runs, next), (vec![4_000, 6_000, 8_000], Some(10_000)));
    }

    #[test]
    fn runs_beyond_the_room_are_planned_later() {
        assert_eq!(
            plan("every 300ms", 700, window(0, 1_300), 2),
            (vec![700, 1_000], Some(1_300))
        );
        assert_eq!(
            plan("every 300ms", 700, window(0, 1_300), 0),
            (vec![], Some(700))
        );
    }

    #[test]
    fn misfires_become_one_run_or_one_skipped_run() {
        for (misfire, skips) in [(Misfire::Skip, true), (Misfire::RunOnce, false)] {
            for (schedule, dues, next) in [
                ("once", vec![1_000], None),
                ("every 1500ms", vec![1_000, 5_500, 7_000], Some(8_500)),
                (
                    "cron * * * * * *",
                    vec![1_000, 5_000, 6_000, 7_000],
                    Some(8_000),
                ),
            ] {
                let schedule = parse(schedule);
                let (runs, next_run) =
                    plan_all(&schedule, misfire, at(1_000), window(4_200, 7_900), 9);
                // A job that is due once is never skipped.
                let is_skipped = skips && schedule != Schedule::Once;
                let first = Planned {
                    due: at(1_000),
                    is_skipped,
                    misses_until: Some(at(4_200)),
                };
                assert_eq!(runs[0], first);
                let due: Vec<_> = runs.iter().map(|run| run.due.as_millisecond()).collect();
                assert_eq!((due, next_run), (dues, next.map(at)));
                assert!(
                    runs[1..]
                        .iter()
                        .all(|run| !run.is_skipped && run.misses_until.is_none())
                );
            }
        }
    }

    #[test]
    fn due_time_at_the_limit_is_no_misfire() {
        assert_eq!(
            plan("every 1s", 1_000, window(1_000, 2_500), 9),
            (vec![1_000, 2_000], Some(3_000))
        );
        assert_eq!(
            plan("every 1s", 999, window(1_000, 2_500), 9),
            (vec![999, 1_999], Some(2_999))
        );
    }

    #[test]
    fn all_missed_due_times_run_if_the_policy_says_so() {
        let schedule = parse("every 1s");
        let (runs, next) = plan_all(
            &schedule,
            Misfire::RunAll,
            at(1_000),
            window(4_200, 5_500),
            9,
        );
        let due: Vec<_> = runs.iter().map(|run| run.due.as_millisecond()).collect();
        assert_eq!(
            (due, next),
            (vec![1_000, 2_000, 3_000, 4_000, 5_000], Some(at(6_000)))
        );
        assert!(
            runs.iter()
                .all(|run| !run.is_skipped && run.misses_until.is_none())
        );
    }
}
