//! Compares all runs and their effects with the due times.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use hashed_wheel_examples::{Lateness, Verdict};
use indicatif::HumanCount;
use jiff::Timestamp;
use postgres::{Client, Error};

use crate::Options;
use crate::jobs::{Job, Time};
use crate::process::THREADS;
use crate::trial::{Outcome, downtime};

/// The limit for the median lateness of runs that were not taken over, on a heavily loaded machine.
/// (On an idle machine it is a few milliseconds.)
const MEDIAN: Duration = Duration::from_secs(1);

/// The schedulers' record of a run.
struct Run {
    state: String,
    attempt: i32,
    taken_over: i32,
    misses_until: Option<Time>,
    started: Option<Time>,
}

#[derive(Default)]
pub(crate) struct Tally {
    due: u64,
    once: u64,
    /// Runs whose scheduler was lost during the run; the number of such losses; and the runs that
    /// had more than one effect.
    marked: u64,
    lost: u64,
    repeated: u64,
    taken_over: u64,
    missing: u64,
    doubled: u64,
    early: u64,
    /// The number of runs, and of due times that they stand for.
    skipped: [u64; 2],
    fired_once: [u64; 2],
    misfired_too_soon: u64,
    /// The number of runs in `lateness`, and of other runs that started before the downtime.
    normal_runs: u64,
    other_runs: u64,
    lateness: Lateness,
    lateness_of_taken_over: Lateness,
    schedulers: u64,
    disabled: i64,
    errors: Vec<String>,
}

impl Tally {
    pub(crate) fn count(client: &mut Client, outcome: &Outcome) -> Result<Self, Error> {
        let mut runs: BTreeMap<i64, BTreeMap<Time, Run>> = BTreeMap::new();
        let columns = "job, due, state, attempt, taken_over, misses_until, started";
        for row in client.query(&format!("SELECT {columns} FROM run"), &[])? {
            let time = |column| row.get::<_, Option<Timestamp>>(column).map(Timestamp::as_microsecond);
            let run = Run {
                state: row.get(2),
                attempt: row.get(3),
                taken_over: row.get(4),
                misses_until: time(5),
                started: time(6),
            };
            runs.entry(row.get(0)).or_default().insert(time(1).expect("part of the key"), run);
        }
        // The attempts that had an effect, by job and due time.
        let mut effects: BTreeMap<i64, BTreeMap<Time, Vec<i32>>> = BTreeMap::new();
        for row in client.query("SELECT job, due, attempt FROM effect", &[])? {
            let due: Timestamp = row.get(1);
            effects.entry(row.get(0)).or_default().entry(due.as_microsecond()).or_default().push(row.get(2));
        }

        let mut tally = Self {
            schedulers: client.query_one("SELECT last_value FROM scheduler_id_seq", &[])?.get::<_, i64>(0)
                as u64,
            disabled: client.query_one("SELECT count(trouble) FROM job", &[])?.get(0),
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
        let unknown = runs.len() + effects.len();
        tally.check(unknown == 0, || format!("{unknown} unknown jobs have runs"));
        Ok(tally)
    }

    fn job(
        &mut self,
        job: &Job,
        runs: &BTreeMap<Time, Run>,
        effects: &BTreeMap<Time, Vec<i32>>,
        outcome: &Outcome,
    ) {
        let mut times: BTreeSet<Time> = job.due.times(outcome.end);
        times.extend(runs.keys().chain(effects.keys()));
        for &due in &times {
            self.due += 1;
            let effects = effects.get(&due).map_or(&[][..], Vec::as_slice);
            // The last misfire before this due time, if it stands for it.
            let misfire = runs.range(..=due).rev().find(|(_, run)| run.misses_until.is_some());
            let misfire = misfire.filter(|(_, run)| run.misses_until > Some(due));
            if let Some((_, misfire)) = misfire {
                let [_, dues] =
                    if misfire.state == "skipped" { &mut self.skipped } else { &mut self.fired_once };
                *dues += 1;
            }
            self.check(job.due.is_at(due), || format!("{} ran although it was not due", name(job, due)));
            match runs.get(&due) {
                Some(run) => self.run(job, due, run, effects, outcome),
                None if !effects.is_empty() => {
                    self.doubled += 1;
                    self.errors.push(format!("{} had an effect but has no run", name(job, due)));
                }
                None if misfire.is_some() => {}
                None => self.missing(job, due, "it has no run"),
            }
        }
    }

    fn run(&mut self, job: &Job, due: Time, run: &Run, effects: &[i32], outcome: &Outcome) {
        let is_skipped = run.state == "skipped";
        if run.misses_until.is_some() {
            let [runs, _] = if is_skipped { &mut self.skipped } else { &mut self.fired_once };
            *runs += 1;
            self.misfired_too_soon += u64::from(due < outcome.down);
            self.check(run.misses_until <= Some(outcome.last_misfire), || {
                format!("{} stands for due times that are not too old", name(job, due))
            });
            self.check(is_skipped == (job.misfire == "skip"), || {
                format!("{} although the policy is {}", run.state, job.misfire)
            });
        }
        if is_skipped {
            self.check(run.misses_until.is_some(), || "a run that is no misfire was skipped".into());
            self.doubled += u64::from(!effects.is_empty());
            return;
        }
        let should = if matches!(job.task, "fail" | "panic") { "failed" } else { "done" };
        if run.state != should || effects.is_empty() {
            self.missing(
                job,
                due,
                &format!("its state is {} and it has {} effects", run.state, effects.len()),
            );
            return;
        }
        // An attempt has at most one effect, and only a lost attempt has none.
        let attempts: BTreeSet<_> = effects.iter().collect();
        let is_doubled = attempts.len() < effects.len() || !attempts.contains(&run.attempt);
        if is_doubled {
            self.doubled += 1;
            let name = name(job, due);
            self.errors.push(format!("{name} had effects in the attempts {effects:?} of {}", run.attempt));
        } else if run.attempt == 1 {
            self.once += 1;
        } else {
            self.marked += 1;
            self.lost += run.attempt as u64 - 1;
            self.repeated += u64::from(effects.len() > 1);
        }
        self.taken_over += u64::from(run.taken_over > 0);
        self.late(due, run, outcome);
    }

    fn late(&mut self, due: Time, run: &Run, outcome: &Outcome) {
        let started = run.started.unwrap_or(Time::MIN);
        self.early += u64::from(started < due);
        // After that there was no scheduler, and then many runs started at the same time.
        if started < outcome.down {
            let late = Duration::from_micros(started.saturating_sub(due).max(0) as u64);
            let (number, lateness) = match run.taken_over {
                0 => (&mut self.normal_runs, &mut self.lateness),
                _ => (&mut self.other_runs, &mut self.lateness_of_taken_over),
            };
            *number += 1;
            lateness.record(late);
        }
    }

    fn missing(&mut self, job: &Job, due: Time, why: &str) {
        self.missing += 1;
        self.errors.push(format!("{} was not done: {why}", name(job, due)));
    }

    fn check(&mut self, holds: bool, failure: impl FnOnce() -> String) {
        if !holds {
            self.errors.push(failure());
        }
    }

    pub(crate) fn report(self, options: &Options, outcome: &Outcome) -> ExitCode {
        let count = HumanCount;
        let killed = count(outcome.killed);
        let lost_schedulers = self.schedulers.saturating_sub(options.schedulers.into());
        let (stopped, down) = (count(outcome.stopped), downtime(&options.settings()));
        println!(
            "schedulers   {killed} killed, {stopped} stopped for longer than their lease; {} in all",
            count(self.schedulers)
        );
        println!("due          {} times, {} jobs", count(self.due), outcome.jobs.len());
        println!("once         {} exactly", count(self.once));
        println!(
            "marked       {} whose scheduler was lost during the run; {} of them were done more than once",
            count(self.marked),
            count(self.repeated)
        );
        println!("missing      {}", count(self.missing));
        println!("repeated     {} without a mark", count(self.doubled));
        println!("lateness     {}", self.lateness);
        println!("taken over   {}: {}", count(self.taken_over), self.lateness_of_taken_over);
        let ([skips, skipped], [fires, fired]) = (self.skipped.map(count), self.fired_once.map(count));
        println!(
            "misfires     no scheduler for {down:.1?}: {skips} jobs skipped {skipped} due times, \
             {fires} ran once for {fired}"
        );

        let mut verdict = Verdict::default();
        for errors in self.errors.iter().take(5) {
            verdict.expect(false, errors);
        }
        let n = self.errors.len();
        verdict.expect(n <= 5, format!("… and {n} errors in total"));
        verdict.expect(self.missing == 0, format!("{} due times were not done", self.missing));
        verdict.expect(self.doubled == 0, format!("{} runs were done twice without a mark", self.doubled));
        verdict.expect(self.early == 0, format!("{} runs started early", self.early));
        verdict.expect(
            self.lost <= lost_schedulers * THREADS as u64,
            format!(
                "{} marks although {lost_schedulers} schedulers with {THREADS} threads were lost",
                self.lost
            ),
        );
        verdict.expect(self.taken_over > 0, "nothing was taken over: use more --jobs");
        verdict.expect(outcome.claimed_others, "no other job was claimed while one job was locked");
        verdict.expect(
            self.misfired_too_soon == 0,
            format!("{} misfires happened while there were schedulers", self.misfired_too_soon),
        );
        verdict.expect(
            self.skipped[0] > 0 && self.fired_once[0] > 0,
            "one of the two misfire policies was not used: use more --jobs",
        );
        verdict.expect(
            self.disabled == 1,
            format!("{} jobs are disabled instead of the one with an invalid schedule", self.disabled),
        );
        verdict.expect(
            outcome.ended_regularly == u64::from(options.schedulers),
            format!("{} of {} schedulers ended regularly", outcome.ended_regularly, options.schedulers),
        );
        let (own, others) = (self.normal_runs, self.other_runs);
        verdict.expect(
            own > others / 20,
            format!(
                "{own} runs were not taken over, and {others} were: these are too few to check the lateness"
            ),
        );
        let (p50, p99) = (self.lateness.p50(), self.lateness.p99());
        verdict.expect(
            p50 <= MEDIAN,
            format!("the median lateness is {p50:.1?}, without runs that were taken over"),
        );
        verdict.expect(
            p99 <= options.max_late,
            format!("the 99th percentile of the lateness is {p99:.1?}, without runs that were taken over"),
        );
        verdict.print()
    }
}

fn name(job: &Job, due: Time) -> String {
    let due = Timestamp::from_microsecond(due).map_or_else(|_| due.to_string(), |due| due.to_string());
    format!("'{}' of {due}", job.due.schedule())
}
