//! Compares all runs and their effects with the due times.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hashed_wheel_trial::Lateness;
use jiff::Timestamp;
use postgres::{Client, Error};

use hashed_wheel_job_scheduler::{Misfire, Overlap};

use crate::accident::{Accident, STEP};
use crate::jobs::{BULK, Due, EXACT, Job, Limited, SNOOZE, Time, most_at_a_time, too_fast};
use crate::trial::{Outcome, micros};

/// The nodes' record of a run.
struct Run {
    state: String,
    attempt: i32,
    interrupted: i32,
    taken_over: i32,
    misses_until: Option<Time>,
    started: Option<Time>,
}

/// An effect of an execution.
struct Effect {
    attempt: i32,
    interrupted: i32,
    began: Time,
    ended: Time,
}

/// The results of the trial.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) due: u64,
    pub(crate) once: u64,
    /// Runs whose node was lost during the run; the number of such losses; and the runs that had
    /// more than one effect.
    pub(crate) marked: u64,
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
    pub(crate) taken_over: u64,
    pub(crate) missing: u64,
    pub(crate) doubled: u64,
    /// Runs whose effect is part of the transaction of their result, those of them whose node was
    /// lost during the run, and those that did not have exactly one effect.
    pub(crate) exact: u64,
    pub(crate) exact_lost: u64,
    pub(crate) inexact: u64,
    pub(crate) early: u64,
    /// After the server's clock was set back.
    pub(crate) early_by_clock: u64,
    /// The number of runs, and of due times that they stand for.
    pub(crate) skipped: [u64; 2],
    pub(crate) fired_once: [u64; 2],
    pub(crate) misfired_too_soon: u64,
    /// Runs that were skipped because another run of the job was running, runs of jobs that must
    /// not overlap, and how many pairs of them did.
    pub(crate) held_back: u64,
    pub(crate) exclusive: u64,
    pub(crate) overlaps: u64,
    /// The beginnings and ends of executions whose number is limited, and the largest number at a
    /// time.
    pub(crate) limited: Vec<(Time, Time)>,
    pub(crate) most_limited: usize,
    /// The last starts of runs that have a rate, and how many of them are too early.
    pub(crate) rated: Vec<Time>,
    pub(crate) too_fast: usize,
    pub(crate) retried: u64,
    pub(crate) snoozed: i64,
    /// The number of runs in `lateness`, and of other runs that started before the downtime.
    pub(crate) normal_runs: u64,
    pub(crate) other_runs: u64,
    pub(crate) lateness: Lateness,
    pub(crate) lateness_of_taken_over: Lateness,
    pub(crate) lateness_in_accidents: Lateness,
    pub(crate) in_accidents: u64,
    /// By how many hours the wall clocks of nodes differed from that of the server.
    pub(crate) clock_differences: BTreeSet<i64>,
    /// The lease in microseconds.
    pub(crate) lease: Time,
    pub(crate) nodes: u64,
    pub(crate) disabled: i64,
    pub(crate) errors: Vec<String>,
}

impl Tally {
    pub(crate) fn count(
        client: &mut Client,
        outcome: &Outcome,
        lease: Duration,
    ) -> Result<Self, Error> {
        let mut runs: BTreeMap<i64, BTreeMap<Time, Run>> = BTreeMap::new();
        let columns = "job, due, state, attempt, taken_over, misses_until, started, interrupted";
        for row in client.query(
            &format!("SELECT {columns} FROM run WHERE handler <> $1"),
            &[&BULK],
        )? {
            let time = |column| {
                row.get::<_, Option<Timestamp>>(column)
                    .map(Timestamp::as_microsecond)
            };
            let run = Run {
                state: row.get(2),
                attempt: row.get(3),
                interrupted: row.get(7),
                taken_over: row.get(4),
                misses_until: time(5),
                started: time(6),
            };
            runs.entry(row.get(0))
                .or_default()
                .insert(time(1).expect("part of the key"), run);
        }
        // By job and due time.
        let mut effects: BTreeMap<i64, BTreeMap<Time, Vec<Effect>>> = BTreeMap::new();
        let mut clock_differences = BTreeSet::new();
        for row in client.query(
            "SELECT job, due, attempt, interrupted, began, ended, wall FROM effect",
            &[],
        )? {
            let time = |column| row.get::<_, Timestamp>(column).as_microsecond();
            let effect = Effect {
                attempt: row.get(2),
                interrupted: row.get(3),
                began: time(4),
                ended: time(5),
            };
            clock_differences.insert(
                ((time(6) - effect.began) as f64 / (STEP * 1_000_000) as f64).round() as i64,
            );
            effects
                .entry(row.get(0))
                .or_default()
                .entry(time(1))
                .or_default()
                .push(effect);
        }

        let mut tally = Self {
            clock_differences,
            lease: micros(lease),
            nodes: client
                .query_one("SELECT last_value FROM node_id_seq", &[])?
                .get::<_, i64>(0) as u64,
            snoozed: client.query_one("SELECT count(*) FROM snooze", &[])?.get(0),
            disabled: client
                .query_one("SELECT count(disabled_reason) FROM job", &[])?
                .get(0),
            ..Self::default()
        };
        for (id, job) in &outcome.jobs {
            tally.job(
                job,
                &runs.remove(id).unwrap_or_default(),
                &effects.remove(id).unwrap_or_default(),
                outcome,
            );
        }
        tally.most_limited = most_at_a_time(&tally.limited);
        // Not if the clock was set.
        if !outcome.accidents.include(Accident::Clock) {
            tally.rated.sort_unstable();
            tally.too_fast = too_fast(&tally.rated, outcome.jobs.len());
        }
        let unknown = runs.len() + effects.len();
        tally.check(unknown == 0, || format!("{unknown} unknown jobs have runs"));
        Ok(tally)
    }

    fn job(
        &mut self,
        job: &Job,
        runs: &BTreeMap<Time, Run>,
        effects: &BTreeMap<Time, Vec<Effect>>,
        outcome: &Outcome,
    ) {
        if job.overlap != Overlap::Allow {
            self.overlaps(job, runs, effects);
        }
        if job.limited == Limited::Number {
            self.limited.extend(regular(runs, effects));
        }
        if job.limited == Limited::Rate {
            self.rated
                .extend(runs.values().filter_map(|run| run.started));
        }
        let mut times: BTreeSet<Time> = job.due.times(outcome.end);
        times.extend(runs.keys().chain(effects.keys()));
        for &due in &times {
            self.due += 1;
            let effects = effects.get(&due).map_or(&[][..], Vec::as_slice);
            // The last misfire before this due time, if it stands for it.
            let misfire = runs
                .range(..=due)
                .rev()
                .find(|(_, run)| run.misses_until.is_some());
            let misfire = misfire.filter(|(_, run)| run.misses_until > Some(due));
            if let Some((_, misfire)) = misfire {
                let [_, dues] = if misfire.state == "skipped" {
                    &mut self.skipped
                } else {
                    &mut self.fired_once
                };
                *dues += 1;
            }
            self.check(job.due.is_at(due), || {
                format!("{} ran although it was not due", name(job, due))
            });
            match runs.get(&due) {
                Some(run) => self.run(job, due, run, effects, outcome),
                None if !effects.is_empty() => {
                    self.doubled += 1;
                    self.errors
                        .push(format!("{} had an effect but has no run", name(job, due)));
                }
                None if misfire.is_some() => {}
                None => self.missing(job, due, "it has no run"),
            }
        }
    }

    /// Counts the executions of a job that overlap.
    fn overlaps(
        &mut self,
        job: &Job,
        runs: &BTreeMap<Time, Run>,
        effects: &BTreeMap<Time, Vec<Effect>>,
    ) {
        let mut regular = regular(runs, effects);
        regular.sort_unstable();
        self.exclusive += regular.len() as u64;
        let overlaps = regular
            .windows(2)
            .filter(|pair| pair[1].0 < pair[0].1)
            .count();
        self.overlaps += overlaps as u64;
        self.check(overlaps == 0, || {
            format!(
                "{overlaps} executions of '{}' overlapped, which must not",
                job.due.schedule()
            )
        });
    }

    fn run(&mut self, job: &Job, due: Time, run: &Run, effects: &[Effect], outcome: &Outcome) {
        let is_skipped = run.state == "skipped";
        let is_held_back = is_skipped && run.misses_until.is_none();
        if run.misses_until.is_some() {
            let [runs, _] = if is_skipped {
                &mut self.skipped
            } else {
                &mut self.fired_once
            };
            *runs += 1;
            let is_allowed = due >= outcome.down || outcome.accidents.concern(due, self.lease);
            self.misfired_too_soon += u64::from(!is_allowed);
            self.check(run.misses_until <= Some(outcome.last_misfire), || {
                format!(
                    "{} stands for due times that are not too old",
                    name(job, due)
                )
            });
        }
        if is_held_back {
            self.held_back += 1;
            self.check(job.overlap == Overlap::Skip, || {
                format!(
                    "{} was skipped although its runs may overlap",
                    name(job, due)
                )
            });
        } else if run.misses_until.is_some() {
            // A run for all misfires may be held back.
            let policy = if is_skipped {
                Misfire::Skip
            } else {
                Misfire::RunOnce
            };
            let is_held_back = is_skipped && job.overlap == Overlap::Skip;
            // A job that is due once is not skipped.
            let expected = if matches!(job.due, Due::Once(_)) {
                Misfire::RunOnce
            } else {
                job.misfire
            };
            self.check(policy == expected || is_held_back, || {
                format!("{} although the policy is {:?}", run.state, job.misfire)
            });
        }
        if is_skipped {
            // A repeated run may have had effects before it was skipped.
            self.doubled += u64::from(!effects.is_empty() && run.attempt == 1);
            return;
        }
        let should = if matches!(job.task, "fail" | "panic") {
            "failed"
        } else {
            "done"
        };
        if run.state != should || effects.is_empty() {
            self.missing(
                job,
                due,
                &format!(
                    "its state is {} and it has {} effects",
                    run.state,
                    effects.len()
                ),
            );
            return;
        }
        if job.task == EXACT {
            self.exact += 1;
            self.exact_lost += u64::from(run.interrupted > 0);
            if effects.len() != 1 || effects[0].attempt != run.attempt {
                self.inexact += 1;
                self.errors
                    .push(format!("{} had {} effects", name(job, due), effects.len()));
            }
            return;
        }
        // An attempt has at most one effect, and only a lost attempt has none.
        let attempts: Vec<_> = effects.iter().map(|effect| effect.attempt).collect();
        let distinct: BTreeSet<_> = attempts.iter().collect();
        let is_doubled = distinct.len() < effects.len() || !distinct.contains(&run.attempt);
        let executions = run.attempt - run.interrupted;
        if is_doubled || executions > job.executions() {
            self.doubled += 1;
            let name = name(job, due);
            self.errors.push(format!(
                "{name} had effects in the attempts {attempts:?} of {}",
                run.attempt
            ));
        } else if executions < job.executions() {
            self.missing(job, due, "it was not repeated after a failure");
        } else if run.interrupted == 0 {
            self.once += 1;
        } else {
            self.marked += 1;
            self.lost += run.interrupted as u64;
            self.repeated += u64::from(effects.len() as i32 > executions);
        }
        self.retried += u64::from(executions > 1);
        self.taken_over += u64::from(run.taken_over > 0);
        self.late(due, job, run, outcome);
    }

    fn late(&mut self, due: Time, job: &Job, run: &Run, outcome: &Outcome) {
        let started = run.started.unwrap_or(Time::MIN);
        if started < due {
            let is_allowed = outcome.accidents.have_set_back(started);
            *(if is_allowed {
                &mut self.early_by_clock
            } else {
                &mut self.early
            }) += 1;
        }
        // After that there was no node, and then many runs started at the same time. Runs that wait
        // for others, and repeated ones, are late on purpose.
        let is_regular = job.overlap == Overlap::Allow
            && job.limited == Limited::No
            && job.executions() == 1
            && job.task != SNOOZE;
        if started < outcome.down && is_regular {
            let late = Duration::from_micros(started.saturating_sub(due).max(0) as u64);
            let accidents = &outcome.accidents;
            let is_in_accident =
                accidents.concern(due, self.lease) || accidents.have_set_back(started);
            let (number, lateness) = match run.taken_over {
                _ if is_in_accident => (&mut self.in_accidents, &mut self.lateness_in_accidents),
                0 => (&mut self.normal_runs, &mut self.lateness),
                _ => (&mut self.other_runs, &mut self.lateness_of_taken_over),
            };
            *number += 1;
            lateness.record(late);
        }
    }

    fn missing(&mut self, job: &Job, due: Time, why: &str) {
        self.missing += 1;
        self.errors
            .push(format!("{} was not done: {why}", name(job, due)));
    }

    fn check(&mut self, holds: bool, failure: impl FnOnce() -> String) {
        if !holds {
            self.errors.push(failure());
        }
    }
}

/// Returns the beginnings and ends of the executions of a job. Executions that were interrupted, by
/// a loss of the node that may only have been stopped, are the documented exception.
fn regular(runs: &BTreeMap<Time, Run>, effects: &BTreeMap<Time, Vec<Effect>>) -> Vec<(Time, Time)> {
    let is_last = |due: &Time, effect: &&Effect| {
        runs.get(due)
            .is_some_and(|run| run.interrupted == effect.interrupted)
    };
    // The clock was set during the others.
    let is_short =
        |effect: &&Effect| (0..=STEP / 2 * 1_000_000).contains(&(effect.ended - effect.began));
    let regular = effects.iter().flat_map(|(due, effects)| {
        let regular = effects
            .iter()
            .filter(move |effect| is_last(due, effect) && is_short(effect));
        regular.map(|effect| (effect.began, effect.ended))
    });
    regular.collect()
}

fn name(job: &Job, due: Time) -> String {
    let due =
        Timestamp::from_microsecond(due).map_or_else(|_| due.to_string(), |due| due.to_string());
    format!("'{}' of {due}", job.due.schedule())
}
