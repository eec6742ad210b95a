//! The jobs of the trial and their due times. The computation is independent of that in the crate.

use std::collections::BTreeSet;

use std::time::Duration;

use fastrand::Rng;
use hashed_wheel_job_scheduler::{KindLimits, Misfire, NewJob, Overlap};
use jiff::Timestamp;
use serde_json::json;

/// The name of the handler of most jobs.
pub(crate) const HANDLER: &str = "effect";

/// The name of the handler of the jobs that one statement adds.
pub(crate) const BULK: &str = "bulk";

/// The name of the handler whose executions have a rate.
pub(crate) const RATED: &str = "rated effect";

/// How many runs of the rated handler may start at once.
pub(crate) const BURST: u32 = 3;

/// The task whose effect and result are written in one transaction.
pub(crate) const EXACT: &str = "exact";

/// The task whose handler postpones it once.
pub(crate) const SNOOZE: &str = "snooze";

/// A time of the database's clock in microseconds, in PostgreSQL's own unit.
pub(crate) type Time = i64;

const SECOND: Time = 1_000_000;

/// When a job is due.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Due {
    Once(Time),
    Every {
        first: Time,
        period: Time,
    },
    /// At each second of a minute that is a multiple of this number, from a time on.
    Seconds {
        from: Time,
        multiple: Time,
    },
}

/// How the executions of a job are limited, together with those of others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Limited {
    No,
    /// At most [`limit`] at a time.
    Number,
    /// By the rate of [`RATED`].
    Rate,
}

#[derive(Clone, Copy)]
pub(crate) struct Job {
    pub(crate) due: Due,
    pub(crate) task: &'static str,
    pub(crate) misfire: Misfire,
    pub(crate) overlap: Overlap,
    pub(crate) limited: Limited,
}

impl Job {
    /// `jobs`: how many jobs there are.
    pub(crate) fn to_new_job(self, jobs: usize) -> NewJob {
        let first = Timestamp::from_microsecond(self.due.first()).expect("a time of this century");
        let handler = if self.limited == Limited::Rate {
            RATED
        } else {
            HANDLER
        };
        let job = NewJob::named(handler, json!(self.task)).at(first);
        let job = if self.limited == Limited::Number {
            job.limit("limited", limit(jobs))
        } else {
            job
        };
        let job = match self.due {
            Due::Once(_) => job,
            Due::Every { period, .. } => job.every(Duration::from_micros(period as u64)),
            Due::Seconds { multiple, .. } => job.cron(format!("*/{multiple} * * * * *")),
        };
        let pause = Duration::from_millis(50);
        job.misfire(self.misfire)
            .overlap(self.overlap)
            .retries(self.retries(), pause, pause)
    }

    /// A flaky task fails once. The transaction of an exact one fails whenever the server does.
    pub(crate) fn retries(self) -> u32 {
        match self.task {
            "flaky" => 2,
            EXACT => 1_000,
            _ => 0,
        }
    }

    /// The number of executions of a run that is not interrupted.
    pub(crate) fn executions(self) -> i32 {
        if self.task == "flaky" { 2 } else { 1 }
    }
}

impl Due {
    pub(crate) fn schedule(self) -> String {
        match self {
            Self::Once(_) => "once".into(),
            Self::Every { period, .. } => format!("every {period}us"),
            Self::Seconds { multiple, .. } => format!("cron */{multiple} * * * * *"),
        }
    }

    pub(crate) fn first(self) -> Time {
        match self {
            Self::Once(first) | Self::Every { first, .. } | Self::Seconds { from: first, .. } => {
                first
            }
        }
    }

    /// Returns all due times until `end`.
    pub(crate) fn times(self, end: Time) -> BTreeSet<Time> {
        match self {
            Self::Once(time) => (time..=end).take(1).collect(),
            Self::Every { first, period } => (first..=end).step_by(period as usize).collect(),
            Self::Seconds { from, .. } => {
                let seconds = (from.div_euclid(SECOND)..=end.div_euclid(SECOND))
                    .map(|second| second * SECOND);
                seconds
                    .filter(|&time| self.is_at(time) && time <= end)
                    .collect()
            }
        }
    }

    pub(crate) fn is_at(self, time: Time) -> bool {
        time >= self.first()
            && match self {
                Self::Once(at) => time == at,
                Self::Every { first, period } => (time - first) % period == 0,
                Self::Seconds { multiple, .. } => {
                    time % SECOND == 0 && (time / SECOND) % 60 % multiple == 0
                }
            }
    }
}

/// How many executions of jobs with a limit may be running at a time.
pub(crate) fn limit(jobs: usize) -> u32 {
    (jobs as u32 / 75).max(2)
}

/// The interval of the rate of [`RATED`]: about eight times as many executions as there are due
/// times.
fn interval(jobs: usize) -> Duration {
    Duration::from_millis((3_000 / jobs as u64).max(1))
}

/// The limits of [`RATED`].
pub(crate) fn rate(jobs: usize) -> KindLimits {
    KindLimits::new().rate(1, interval(jobs)).burst(BURST)
}

/// Returns jobs of all kinds that are due from `start` on. Jobs that are due once are due before
/// `end`.
pub(crate) fn seeded(random: &mut Rng, count: u32, start: Time, end: Time) -> Vec<Job> {
    let mut job = |number| {
        let due = match number % 5 {
            0 => Due::Seconds {
                from: start,
                multiple: [1, 2, 3, 5, 10][random.usize(..5)],
            },
            1 | 2 => {
                let period = random.i64(300..2_000) * 1_000;
                Due::Every {
                    first: start + random.i64(0..period),
                    period,
                }
            }
            _ => Due::Once(random.i64(start..end)),
        };
        let tasks = [
            "slow", "slow", "fail", "panic", "flaky", SNOOZE, EXACT, "", "", "",
        ];
        let task = *random.choice(tasks.iter()).expect("some");
        let misfire = [Misfire::Skip, Misfire::RunOnce][random.usize(..2)];
        // Runs of a job that wait for each other must not take longer than its period.
        let is_seldom = !matches!(due, Due::Every { period, .. } if period < 700_000);
        let overlap = match random.u32(..4) {
            0 => Overlap::Skip,
            1 if is_seldom => Overlap::Wait,
            _ => Overlap::Allow,
        };
        // Jobs that are due at the same second; and others, also some that are due once: after the
        // downtime, many of them start at the same time.
        let limited = match number % 10 {
            0 => Limited::Rate,
            2 | 4 | 9 => Limited::Number,
            _ => Limited::No,
        };
        let overlap = if limited == Limited::No {
            overlap
        } else {
            Overlap::Allow
        };
        Job {
            due,
            task,
            misfire,
            overlap,
            limited,
        }
    };
    (0..count).map(&mut job).collect()
}

/// Returns the largest number of executions at a time.
pub(crate) fn most_at_a_time(executions: &[(Time, Time)]) -> usize {
    let is_running = |time: Time| {
        executions
            .iter()
            .filter(|(began, ended)| (*began..*ended).contains(&time))
            .count()
    };
    executions
        .iter()
        .map(|(began, _)| is_running(*began))
        .max()
        .unwrap_or(0)
}

/// Returns how many of these starts are too early: any `BURST + k` starts take at least `k`
/// intervals.
pub(crate) fn too_fast(starts: &[Time], jobs: usize) -> usize {
    let (interval, burst) = (interval(jobs).as_micros() as Time, BURST as usize);
    let is_early = |&last: &usize| {
        (0..=last - burst).any(|first| {
            starts[last] - starts[first] < interval * (last - first + 1 - burst) as Time
        })
    };
    (burst..starts.len()).filter(is_early).count()
}
