//! What has become of all that fell due.

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

/// How late half of what nobody had to take over may be: on a machine with far too much else to do. (It is some milliseconds
/// where nothing else runs.)
const MEDIAN: Duration = Duration::from_secs(1);

/// What the schedulers say of a run.
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
    /// Runs of which a runner was lost half way; how many were lost so; and how many runs had their effect more than once.
    marked: u64,
    lost: u64,
    repeated: u64,
    taken_over: u64,
    missing: u64,
    doubled: u64,
    early: u64,
    /// Runs, and the due times they stand for.
    skipped: [u64; 2],
    fired_once: [u64; 2],
    misfired_too_soon: u64,
    /// How many the lateness is of, and how many began beside these before all were gone.
    on_their_own: u64,
    second_hand: u64,
    lateness: Lateness,
    lateness_of_taken_over: Lateness,
    schedulers: u64,
    troubles: i64,
    wrong: Vec<String>,
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
        // The attempts that had an effect.
        let mut effects: BTreeMap<i64, BTreeMap<Time, Vec<i32>>> = BTreeMap::new();
        for row in client.query("SELECT job, due, attempt FROM effect", &[])? {
            let due: Timestamp = row.get(1);
            effects.entry(row.get(0)).or_default().entry(due.as_microsecond()).or_default().push(row.get(2));
        }

        let mut tally = Self {
            schedulers: client.query_one("SELECT last_value FROM scheduler_id_seq", &[])?.get::<_, i64>(0)
                as u64,
            troubles: client.query_one("SELECT count(trouble) FROM job", &[])?.get(0),
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
        let strays = runs.len() + effects.len();
        tally.check(strays == 0, || format!("{strays} jobs ran that are none"));
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
            // The last misfire until then, if it stands for this.
            let misfire = runs.range(..=due).rev().find(|(_, run)| run.misses_until.is_some());
            let misfire = misfire.filter(|(_, run)| run.misses_until > Some(due));
            if let Some((_, misfire)) = misfire {
                let [_, dues] =
                    if misfire.state == "skipped" { &mut self.skipped } else { &mut self.fired_once };
                *dues += 1;
            }
            self.check(job.due.is_at(due), || format!("{} ran, and was not due", name(job, due)));
            match runs.get(&due) {
                Some(run) => self.run(job, due, run, effects, outcome),
                None if !effects.is_empty() => {
                    self.doubled += 1;
                    self.wrong.push(format!("{} ran, and nothing is known of it", name(job, due)));
                }
                None if misfire.is_some() => {}
                None => self.missing(job, due, "and nothing is known of it"),
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
                format!("{} stands for what was not too old", name(job, due))
            });
            self.check(is_skipped == (job.misfire == "skip"), || {
                format!("{} was to {}", run.state, job.misfire)
            });
        }
        if is_skipped {
            self.check(run.misses_until.is_some(), || "what was no misfire was skipped".into());
            self.doubled += u64::from(!effects.is_empty());
            return;
        }
        let should = if matches!(job.task, "fail" | "panic") { "failed" } else { "done" };
        if run.state != should || effects.is_empty() {
            self.missing(job, due, &format!("{}, and had {} effects", run.state, effects.len()));
            return;
        }
        // An attempt has at most one effect, and only a lost one has none.
        let attempts: BTreeSet<_> = effects.iter().collect();
        let is_doubled = attempts.len() < effects.len() || !attempts.contains(&run.attempt);
        if is_doubled {
            self.doubled += 1;
            let name = name(job, due);
            self.wrong.push(format!("{name} did it in attempts {effects:?} of {}", run.attempt));
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
        // From then on there was nobody, and then all at once.
        if started < outcome.down {
            let late = Duration::from_micros(started.saturating_sub(due).max(0) as u64);
            let (number, lateness) = match run.taken_over {
                0 => (&mut self.on_their_own, &mut self.lateness),
                _ => (&mut self.second_hand, &mut self.lateness_of_taken_over),
            };
            *number += 1;
            lateness.record(late);
        }
    }

    fn missing(&mut self, job: &Job, due: Time, why: &str) {
        self.missing += 1;
        self.wrong.push(format!("{} was not done, {why}", name(job, due)));
    }

    fn check(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(otherwise());
        }
    }

    pub(crate) fn report(self, options: &Options, outcome: &Outcome) -> ExitCode {
        let count = HumanCount;
        let killed = count(outcome.killed);
        let gone = self.schedulers.saturating_sub(options.schedulers.into());
        let (stopped, down) = (count(outcome.stopped), downtime(&options.settings()));
        println!(
            "schedulers   {killed} killed, {stopped} stopped for longer than their lease; {} in all",
            count(self.schedulers)
        );
        println!("due          {} times, {} jobs", count(self.due), outcome.jobs.len());
        println!("once         {} exactly", count(self.once));
        println!(
            "marked       {} whose runner was lost half way; {} of them were done more than once",
            count(self.marked),
            count(self.repeated)
        );
        println!("missing      {}", count(self.missing));
        println!("doubled      {} without a mark", count(self.doubled));
        println!("lateness     {}", self.lateness);
        println!("taken over   {}: {}", count(self.taken_over), self.lateness_of_taken_over);
        let ([skips, skipped], [fires, fired]) = (self.skipped.map(count), self.fired_once.map(count));
        println!(
            "misfires     none was there for {down:.1?}: {skips} jobs skipped {skipped} due times, \
             {fires} ran once for {fired}"
        );

        let mut verdict = Verdict::default();
        for wrong in self.wrong.iter().take(5) {
            verdict.expect(false, wrong);
        }
        let n = self.wrong.len();
        verdict.expect(n <= 5, format!("… and {n} in all are as they should not be"));
        verdict.expect(self.missing == 0, format!("{} of what was due was not done", self.missing));
        verdict.expect(self.doubled == 0, format!("{} were done twice, and do not say so", self.doubled));
        verdict.expect(self.early == 0, format!("{} ran early", self.early));
        verdict.expect(
            self.lost <= gone * THREADS as u64,
            format!("{} marks, but {gone} schedulers with {THREADS} threads were lost", self.lost),
        );
        verdict.expect(
            self.taken_over > 0,
            "nothing was taken over: with more --jobs there would be something to see",
        );
        verdict.expect(outcome.went_on, "while one job was locked, no other was read ahead");
        verdict.expect(
            self.misfired_too_soon == 0,
            format!("{} misfired while there were schedulers", self.misfired_too_soon),
        );
        verdict.expect(
            self.skipped[0] > 0 && self.fired_once[0] > 0,
            "of the two ways to misfire one was not seen: there should be more --jobs",
        );
        verdict.expect(
            self.troubles == 1,
            format!("{} jobs are disabled, and one has a schedule that cannot be read", self.troubles),
        );
        verdict.expect(
            outcome.content == u64::from(options.schedulers),
            format!("{} of {} schedulers left in peace", outcome.content, options.schedulers),
        );
        let (own, others) = (self.on_their_own, self.second_hand);
        verdict.expect(
            own > others / 20,
            format!(
                "nobody took over {own} runs, and {others} were: that is too few to say how late they are"
            ),
        );
        let (p50, p99) = (self.lateness.p50(), self.lateness.p99());
        verdict.expect(
            p50 <= MEDIAN,
            format!("1 in 2 was more than {p50:.1?} late, of those that nobody took over"),
        );
        verdict.expect(
            p99 <= options.max_late,
            format!("1 in 100 was {p99:.1?} late, of those that nobody took over"),
        );
        verdict.print()
    }
}

fn name(job: &Job, due: Time) -> String {
    let due = Timestamp::from_microsecond(due).map_or_else(|_| due.to_string(), |due| due.to_string());
    format!("'{}' of {due}", job.due.schedule())
}
