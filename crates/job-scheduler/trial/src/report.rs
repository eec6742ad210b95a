//! Prints the results of a trial, and whether it has passed.

use std::process::ExitCode;

use hashed_wheel_trial::Verdict;
use indicatif::HumanCount;

use crate::accident::Accident;
use crate::jobs::limit;
use crate::tally::Tally;
use crate::trial::{Outcome, downtime};
use crate::{Options, RUNNERS};

/// How much lower than `--max-late` the limit for the median lateness is. (On an idle machine the
/// median is a few milliseconds.)
const MEDIAN_PART: u32 = 3;

impl Tally {
    pub(crate) fn report(self, options: &Options, outcome: &Outcome) -> ExitCode {
        let count = HumanCount;
        let killed = count(outcome.killed);
        let lost_nodes = self.nodes.saturating_sub(options.nodes.into());
        let (stopped, down) = (count(outcome.stopped), downtime(options));
        let replaced = count(outcome.replaced);
        println!(
            "nodes        {killed} killed, {stopped} stopped for longer than their lease, {replaced} replaced; {} in all",
            count(self.nodes)
        );
        let accidents = &outcome.accidents;
        println!("accidents    {}", self.describe(outcome));
        let [delays, statements, limits] = outcome.strained.map(count);
        if options.strain {
            println!(
                "strain       {delays} changes of the network, {statements} times 2,000 cron jobs, {limits} changes of a limit"
            );
        }
        println!(
            "due          {} times, {} jobs",
            count(self.due),
            outcome.jobs.len()
        );
        println!("once         {} exactly", count(self.once));
        println!(
            "marked       {} whose node was lost during the run; {} of them were done more than once",
            count(self.marked),
            count(self.repeated)
        );
        println!(
            "exact        {}, of which {} lost their node",
            count(self.exact),
            count(self.exact_lost)
        );
        println!("missing      {}", count(self.missing));
        println!("repeated     {} without a mark", count(self.doubled));
        println!(
            "overlaps     {} pairs of {} executions that must not; {} were skipped for that",
            self.overlaps,
            count(self.exclusive),
            count(self.held_back)
        );
        println!(
            "limited      {} executions, at most {} at a time; {} starts with a rate, of which {} are too early",
            count(self.limited.len() as u64),
            self.most_limited,
            count(self.rated.len() as u64),
            self.too_fast
        );
        println!(
            "retried      {}; {} postponed by their handler",
            count(self.retried),
            self.snoozed
        );
        println!("lateness     {}", self.lateness);
        println!(
            "taken over   {}: {}",
            count(self.taken_over),
            self.lateness_of_taken_over
        );
        if self.in_accidents > 0 {
            println!(
                "in accidents {}: {}",
                count(self.in_accidents),
                self.lateness_in_accidents
            );
        }
        let ([skips, skipped], [fires, fired]) =
            (self.skipped.map(count), self.fired_once.map(count));
        println!(
            "misfires     no node for {down:.1?}: {skips} jobs skipped {skipped} due times, \
             {fires} ran once for {fired}"
        );

        let mut verdict = Verdict::default();
        for errors in self.errors.iter().take(5) {
            verdict.expect(false, errors);
        }
        let n = self.errors.len();
        verdict.expect(n <= 5, format!("… and {n} errors in total"));
        verdict.expect(
            self.missing == 0,
            format!("{} due times were not done", self.missing),
        );
        verdict.expect(
            self.doubled == 0,
            format!("{} runs were done twice without a mark", self.doubled),
        );
        verdict.expect(
            self.inexact == 0,
            format!(
                "{} runs did not do the work of their transaction exactly once",
                self.inexact
            ),
        );
        verdict.expect(
            self.exact > 0,
            "no run did its work in a transaction: use more --jobs",
        );
        verdict.expect(
            self.early == 0,
            format!("{} runs started early", self.early),
        );
        verdict.expect(
            !accidents.include(Accident::Disk) || accidents.disk_errors > 0,
            "the disk was full, and no statement failed by that: use more --jobs",
        );
        // Of nodes while the server's clock was right, and after it was set forward.
        let is_set = [1, -1, -2]
            .iter()
            .all(|hours| self.clock_differences.contains(hours));
        verdict.expect(
            !accidents.include(Accident::Clock) || is_set,
            format!(
                "the clocks differed only by {:?} hours: use more --jobs",
                self.clock_differences
            ),
        );
        verdict.expect(
            self.lost <= lost_nodes * RUNNERS as u64,
            format!(
                "{} marks although {lost_nodes} nodes with {RUNNERS} runners were lost",
                self.lost
            ),
        );
        // All of them end once, and there are new ones. After an error a node has another number.
        verdict.expect(
            !options.strain || self.nodes == 2 * u64::from(options.nodes),
            format!("a node has lost its lease: {} nodes in all", self.nodes),
        );
        verdict.expect(
            self.overlaps == 0,
            format!("{} executions overlapped", self.overlaps),
        );
        verdict.expect(
            self.most_limited <= limit(outcome.jobs.len()) as usize,
            format!(
                "{} executions at a time exceed their limit",
                self.most_limited
            ),
        );
        verdict.expect(
            self.too_fast == 0,
            format!("{} starts exceed their rate", self.too_fast),
        );
        verdict.expect(
            !self.limited.is_empty() && !self.rated.is_empty(),
            "no run was limited: use more --jobs",
        );
        verdict.expect(
            self.held_back > 0 && self.exclusive > 0,
            "no run was held back by another run of its job: use more --jobs",
        );
        verdict.expect(
            self.retried > 0,
            "no run was repeated after a failure: use more --jobs",
        );
        verdict.expect(
            self.snoozed > 0,
            "no run was postponed by its handler: use more --jobs",
        );
        verdict.expect(
            outcome.replaced_regularly == outcome.replaced,
            format!(
                "{} of {} replaced nodes ended regularly",
                outcome.replaced_regularly, outcome.replaced
            ),
        );
        verdict.expect(
            self.taken_over > 0,
            "nothing was taken over: use more --jobs",
        );
        verdict.expect(
            outcome.claimed_others,
            "no other job was claimed while one job was locked",
        );
        verdict.expect(
            self.misfired_too_soon == 0,
            format!(
                "{} misfires happened while there were nodes",
                self.misfired_too_soon
            ),
        );
        verdict.expect(
            self.skipped[0] > 0 && self.fired_once[0] > 0,
            "one of the two misfire policies was not used: use more --jobs",
        );
        verdict.expect(
            self.disabled == 1,
            format!(
                "{} jobs are disabled instead of the one with an invalid schedule",
                self.disabled
            ),
        );
        verdict.expect(
            outcome.ended_regularly == u64::from(options.nodes),
            format!(
                "{} of {} nodes ended regularly",
                outcome.ended_regularly, options.nodes
            ),
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
            p50 <= options.max_late / MEDIAN_PART,
            format!("the median lateness is {p50:.1?}, without runs that were taken over"),
        );
        verdict.expect(
            p99 <= options.max_late,
            format!("the 99th percentile of the lateness is {p99:.1?}, without runs that were taken over"),
        );
        verdict.print()
    }
}

impl Tally {
    /// Describes the accidents.
    fn describe(&self, outcome: &Outcome) -> String {
        let accidents = &outcome.accidents;
        let describe = |&accident: &Accident| match accident {
            Accident::Kill => "the server was killed".into(),
            Accident::Immediate => "an immediate shutdown".into(),
            Accident::Disk => {
                format!(
                    "a full disk, by which {} statements failed",
                    HumanCount(accidents.disk_errors as u64)
                )
            }
            Accident::Clock => format!(
                "clocks set by an hour: {} runs were early after the server's was set back",
                HumanCount(self.early_by_clock)
            ),
        };
        let all: Vec<_> = accidents.happened.iter().map(describe).collect();
        if all.is_empty() {
            "none".into()
        } else {
            all.join("; ")
        }
    }
}
