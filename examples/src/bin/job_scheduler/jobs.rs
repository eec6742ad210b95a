//! The jobs of the trial and their due times. The computation is independent of that in the
//! schedulers.

use std::collections::BTreeSet;

use fastrand::Rng;

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

pub(crate) struct Job {
    pub(crate) due: Due,
    pub(crate) task: &'static str,
    pub(crate) misfire: &'static str,
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
            Self::Once(first) | Self::Every { first, .. } | Self::Seconds { from: first, .. } => first,
        }
    }

    /// Returns all due times until `end`.
    pub(crate) fn times(self, end: Time) -> BTreeSet<Time> {
        match self {
            Self::Once(time) => (time..=end).take(1).collect(),
            Self::Every { first, period } => (first..=end).step_by(period as usize).collect(),
            Self::Seconds { from, .. } => {
                let seconds =
                    (from.div_euclid(SECOND)..=end.div_euclid(SECOND)).map(|second| second * SECOND);
                seconds.filter(|&time| self.is_at(time) && time <= end).collect()
            }
        }
    }

    pub(crate) fn is_at(self, time: Time) -> bool {
        time >= self.first()
            && match self {
                Self::Once(at) => time == at,
                Self::Every { first, period } => (time - first) % period == 0,
                Self::Seconds { multiple, .. } => time % SECOND == 0 && (time / SECOND) % 60 % multiple == 0,
            }
    }
}

/// Returns jobs of all kinds that are due from `start` on. Jobs that are due once are due before
/// `end`.
pub(crate) fn seeded(random: &mut Rng, count: u32, start: Time, end: Time) -> Vec<Job> {
    let mut job = |number| {
        let due = match number % 5 {
            0 => Due::Seconds { from: start, multiple: [1, 2, 3, 5, 10][random.usize(..5)] },
            1 | 2 => {
                let period = random.i64(300..2_000) * 1_000;
                Due::Every { first: start + random.i64(0..period), period }
            }
            _ => Due::Once(random.i64(start..end)),
        };
        let task = *random.choice(["slow", "slow", "fail", "panic", "", "", "", ""].iter()).expect("some");
        Job { due, task, misfire: if random.bool() { "skip" } else { "fire once" } }
    };
    (0..count).map(&mut job).collect()
}
