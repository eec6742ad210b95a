//! A client with deadlines: retries with backoff, and hedged requests.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin deadlines
//! ```
//!
//! Each call has three or four timeouts: one for the whole of it, one for each attempt, one after which it asks a second time
//! (the hedge), and one for each pause before a retry. Nearly all of them are cancelled, for most requests are answered soon,
//! and that is what this timer is for. `client.rs` is the part to copy, and `client/tests.rs` shows how such code is
//! tested on a clock that stands still.
//!
//! The program starts a server on loopback, most of whose answers take a few milliseconds. Of a thousand requests 20 are
//! answered late, 5 never, and for 5 it drops the connection; which ones, the seed says. Some records are lost, and whoever
//! asks for one has to give up. One call in ten is a write, which must not be done twice: it is neither retried nor hedged.
//! The same calls are made twice, first without hedges, then with.
//!
//! Given up is for the reason that is told and never before the time is over; no write is done twice; retries and hedges stay
//! within their budget; and in the end the timer is empty. At the end it says PASS or FAIL and why. Exit status: 0 is
//! PASS, 1 is FAIL, 2 is bad options.

mod client;
mod server;
mod trial;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use hashed_wheel_examples::Verdict;
use hashed_wheel_examples::top::Top;
use indicatif::HumanCount;

use crate::client::{Budget, Policy};
use crate::trial::{Load, Outcome};

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_millis(250);

const A_DAY: Duration = Duration::from_secs(86_400);

/// A client with deadlines, retries and hedges, and a server that is slow, silent or gone at times.
#[derive(Debug, Parser)]
#[command(name = "deadlines", after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.")]
struct Options {
    /// How many calls are made, once without hedges and once with
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    calls: u32,

    /// How many callers there are, who call one time after the other
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    callers: u32,

    /// How long a call may take, with all its attempts. (One attempt may take 250 ms.)
    #[arg(long, value_name = "TIME", default_value = "600ms", value_parser = humantime::parse_duration)]
    deadline: Duration,

    /// How long to wait before asking a second time. Default: what 95 in 100 answers have taken without hedges
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    hedge_after: Option<Duration>,

    /// FAIL if 1 in 100 calls gives up so long behind its deadline: a tick, and what a busy machine takes
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = humantime::parse_duration)]
    max_late: Duration,

    #[command(flatten)]
    top: Top,

    /// Repeat writes as if they were reads, which is wrong and has to FAIL
    #[arg(long)]
    repeat_writes: bool,

    /// Which requests are answered late or not at all
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl Options {
    /// What is wrong with options that are right one by one.
    fn check(&self) -> Result<(), String> {
        if self.deadline > A_DAY {
            return Err("--deadline: a day is the longest".into());
        }
        if self.hedge_after.is_some_and(|after| after >= ATTEMPT) {
            return Err(format!(
                "--hedge-after has to be shorter than an attempt, which may take {ATTEMPT:?}"
            ));
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Err(wrong) = options.check() {
        Options::command().error(ErrorKind::ValueValidation, wrong).exit();
    }
    // As many as there may be; if these are too few, calls fail.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    match run(&options) {
        Ok(verdict) => verdict.pronounce(),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<Verdict> {
    let Options { calls, callers, deadline, seed, repeat_writes, .. } = *options;
    let load = Load { calls, callers, seed, repeat_writes };
    let policy = Policy {
        deadline,
        attempt: ATTEMPT,
        retries: 2,
        backoff: Duration::from_millis(20),
        hedge_after: None,
    };
    println!(
        "{} calls by {callers} callers, each with a deadline of {deadline:?}; twice (seed {seed}).",
        count(calls.into())
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    let plain = runtime.block_on(trial::run(load, policy, &options.top))?;
    let measured = plain.counts.quantile(0.95).min(policy.attempt / 2);
    let hedge_after = options.hedge_after.unwrap_or(measured);
    let hedged = runtime.block_on(trial::run(
        load,
        Policy { hedge_after: Some(hedge_after), ..policy },
        &options.top,
    ))?;

    println!("\n{:<24}{:>12}{:>12}", "hedges after", "never", millis(hedge_after));
    let row = |name, value: fn(&Outcome) -> String| {
        println!("{name:<24}{:>12}{:>12}", value(&plain), value(&hedged));
    };
    row("answered", |outcome| count(outcome.counts.answered));
    row("given up: deadline", |outcome| count(outcome.counts.deadlines));
    row("  last try unanswered", |outcome| count(outcome.counts.unanswered));
    row("  last try failed", |outcome| count(outcome.counts.failed));
    row("  (no budget to retry)", |outcome| count(outcome.counts.out_of_budget));
    row("retries", |outcome| count(outcome.counts.retries));
    row("hedges", |outcome| count(outcome.counts.hedges));
    row("  that won", |outcome| count(outcome.counts.hedges_that_won));
    row("answer to a read: p50", |outcome| millis(outcome.counts.quantile(0.5)));
    row("  p95", |outcome| millis(outcome.counts.quantile(0.95)));
    row("  p99", |outcome| millis(outcome.counts.quantile(0.99)));
    row("  p99.9", |outcome| millis(outcome.counts.quantile(0.999)));
    row("server: requests", |outcome| count(outcome.server.requests));
    row("  clients that left", |outcome| count(outcome.server.abandoned));
    row("  writes done twice", |outcome| count(outcome.server.repeated));
    row("timeouts scheduled", |outcome| count(outcome.stats.scheduled));
    row("  cancelled", |outcome| count(outcome.stats.cancelled));
    row("  expired", |outcome| count(outcome.stats.expired));
    row("  left", |outcome| count(outcome.left as u64));
    println!("\nhow far behind the deadline calls were given up");
    println!("  without hedges        {}", plain.counts.lateness);
    println!("  with hedges           {}", hedged.counts.lateness);

    let mut verdict = Verdict::default();
    judge(&mut verdict, "without hedges", &plain, options);
    judge(&mut verdict, "with hedges", &hedged, options);
    verdict.expect(plain.counts.hedges == 0, "there were hedges where there should be none");
    verdict.expect(hedged.counts.hedges_that_won > 0, "no hedge has won");
    Ok(verdict)
}

fn judge(verdict: &mut Verdict, round: &str, outcome: &Outcome, options: &Options) {
    let Outcome { counts, server, stats, left } = outcome;
    let mut expect = |holds, otherwise: String| verdict.expect(holds, format!("{round}: {otherwise}"));
    for wrong in counts.wrong.iter().take(5) {
        expect(false, wrong.clone());
    }
    let given_up = counts.deadlines + counts.unanswered + counts.failed;
    expect(counts.answered >= u64::from(options.calls) * 9 / 10, format!("{given_up} calls were given up"));
    expect(server.repeated == 0, format!("{} writes were done twice", server.repeated));
    let more = counts.retries + counts.hedges;
    let budget = u64::from(Budget::RESERVE) + counts.repeatable / u64::from(Budget::CALLS);
    expect(more <= budget, format!("{more} retries and hedges, more than the budget of {budget}"));
    // Half of it, for a retry that the deadline has cut off in its pause was paid for and not sent.
    expect(
        counts.out_of_budget == 0 || more >= u64::from(Budget::RESERVE / 2),
        "calls were not retried, though the budget was not used up".into(),
    );
    expect(*left == 0, format!("{left} timeouts are left"));
    expect(
        stats.scheduled == stats.expired + stats.cancelled && stats.rejected == 0,
        format!("the timer's counts do not add up: {stats:?}"),
    );
    expect(stats.cancelled > stats.expired, "most timeouts have expired".into());
    let late = counts.lateness.p99();
    expect(late <= options.max_late, format!("1 in 100 gave up {late:.1?} late"));
}

fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
