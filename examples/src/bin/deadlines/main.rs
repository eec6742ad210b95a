//! A client with deadlines, retries with backoff, and hedged requests.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin deadlines
//! ```
//!
//! Each call has three or four timeouts. One is for the whole call, one for each attempt, one for
//! the second request (the hedge), and one for each pause before a retry. Nearly all of them are
//! cancelled, because most requests are answered soon. This timer is designed for that. The client
//! is that of hashed-wheel-util (feature `client`). Its test `client.rs` shows how to test such
//! code with a manual clock.
//!
//! The program starts a server on the loopback interface. Most of its answers take a few
//! milliseconds. It answers 20 of a thousand requests late, and 5 not at all. It drops the
//! connection of another 5. The seed determines which ones. Some records are lost, and calls that
//! read them must fail. One call in ten is a write, which must not be repeated: it is neither
//! retried nor hedged. The same calls are made twice, first without hedges and then with hedges.
//!
//! The program checks that each failed call reports the right reason and does not fail before its
//! time; that no write is done twice; that retries and hedges stay within their budget; and that no
//! timeout is left at the end. It then prints PASS, or FAIL and the reasons. Exit status: 0 is
//! PASS, 1 is FAIL, 2 is bad options.

mod server;
mod trial;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use hashed_wheel_examples::top::Top;
use hashed_wheel_trial::options::{duration, positive_duration};
use hashed_wheel_trial::{Verdict, rounded};
use indicatif::HumanCount;

use crate::trial::{CALLS_PER_RETRY, Limits, Load, Outcome, RESERVE};

/// The limit for one attempt.
const ATTEMPT: Duration = Duration::from_millis(250);

/// A client with deadlines, retries and hedges, and a server that is sometimes slow, silent or
/// unreachable
#[derive(Debug, Parser)]
#[command(name = "deadlines", after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.")]
struct Options {
    /// How many calls are made, once without hedges and once with hedges
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    calls: u32,

    /// How many callers there are; each one makes one call at a time
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    callers: u32,

    /// The time limit of a call with all its attempts (an attempt has a limit of 250 ms)
    #[arg(long, value_name = "TIME", default_value = "600ms", value_parser = positive_duration)]
    deadline: Duration,

    /// The time until a second request is sent; default: the 95th percentile of the answers without
    /// hedges
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    hedge_after: Option<Duration>,

    /// FAIL if the 99th percentile of the lateness of failed calls is higher: a tick, and what a
    /// busy machine needs
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    max_late: Duration,

    #[command(flatten)]
    top: Top,

    /// Repeat writes like reads, which is wrong and has to FAIL
    #[arg(long)]
    repeat_writes: bool,

    /// Determines which requests are answered late or never
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl Options {
    /// Returns what is wrong with a combination of valid options.
    fn check(&self) -> Result<(), String> {
        if self.deadline < ATTEMPT {
            return Err(format!("--deadline has to be at least the limit of an attempt, {ATTEMPT:?}"));
        }
        if self.hedge_after.is_some_and(|after| after >= ATTEMPT) {
            return Err(format!("--hedge-after has to be shorter than the limit of an attempt, {ATTEMPT:?}"));
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Err(wrong) = options.check() {
        Options::command().error(ErrorKind::ValueValidation, wrong).exit();
    }
    // Raises the limit as far as possible. If it is still too low, calls fail.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    match run(&options) {
        Ok(verdict) => verdict.print(),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<Verdict> {
    let Options { calls, callers, deadline, seed, repeat_writes, .. } = *options;
    let load = Load { calls, callers, seed, repeat_writes };
    let limits = Limits { deadline, attempt: ATTEMPT, retries: 2, hedge_after: None };
    println!(
        "{} calls by {callers} callers, each with a deadline of {deadline:?}; twice (seed {seed}).",
        count(calls.into())
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    let plain = runtime.block_on(trial::run(load, limits, &options.top))?;
    let measured = plain.counts.quantile(0.95).min(ATTEMPT / 2);
    let hedge_after = options.hedge_after.unwrap_or(measured);
    let limits = Limits { hedge_after: Some(hedge_after), ..limits };
    let hedged = runtime.block_on(trial::run(load, limits, &options.top))?;

    println!("\n{:<24}{:>12}{:>12}", "hedges after", "never", rounded(hedge_after, 1));
    let row = |name, value: fn(&Outcome) -> String| {
        println!("{name:<24}{:>12}{:>12}", value(&plain), value(&hedged));
    };
    row("answered", |outcome| count(outcome.counts.answered));
    row("failed: deadline", |outcome| count(outcome.counts.deadlines));
    row("  last attempt timed out", |outcome| count(outcome.counts.unanswered));
    row("  last attempt failed", |outcome| count(outcome.counts.failed));
    row("  (no budget to retry)", |outcome| count(outcome.counts.out_of_budget));
    row("retries", |outcome| count(outcome.counts.retries));
    row("hedges", |outcome| count(outcome.counts.hedges));
    row("  answered first", |outcome| count(outcome.counts.hedges_that_won));
    row("answer to a read: p50", |outcome| rounded(outcome.counts.quantile(0.5), 1));
    row("  p95", |outcome| rounded(outcome.counts.quantile(0.95), 1));
    row("  p99", |outcome| rounded(outcome.counts.quantile(0.99), 1));
    row("  p99.9", |outcome| rounded(outcome.counts.quantile(0.999), 1));
    row("server: requests", |outcome| count(outcome.server.requests));
    row("  abandoned by clients", |outcome| count(outcome.server.abandoned));
    row("  writes done twice", |outcome| count(outcome.server.repeated));
    row("timeouts scheduled", |outcome| count(outcome.stats.scheduled));
    row("  cancelled", |outcome| count(outcome.stats.cancelled));
    row("  expired", |outcome| count(outcome.stats.expired));
    row("  left", |outcome| count(outcome.left as u64));
    println!("\nlateness of calls that failed at the deadline");
    println!("  without hedges        {}", plain.counts.lateness);
    println!("  with hedges           {}", hedged.counts.lateness);

    let mut verdict = Verdict::default();
    check(&mut verdict, "without hedges", &plain, options);
    check(&mut verdict, "with hedges", &hedged, options);
    verdict.expect(plain.counts.hedges == 0, "there were hedges although they were disabled");
    verdict.expect(hedged.counts.hedges_that_won > 0, "no hedge was answered first");
    Ok(verdict)
}

fn check(verdict: &mut Verdict, trial_name: &str, outcome: &Outcome, options: &Options) {
    let Outcome { counts, server, stats, left } = outcome;
    let mut expect = |holds, failure: String| verdict.expect(holds, format!("{trial_name}: {failure}"));
    for wrong in counts.wrong.iter().take(5) {
        expect(false, wrong.clone());
    }
    let failed = counts.deadlines + counts.unanswered + counts.failed;
    expect(counts.answered >= u64::from(options.calls) * 9 / 10, format!("{failed} calls have failed"));
    expect(server.repeated == 0, format!("{} writes were done twice", server.repeated));
    let more = counts.retries + counts.hedges;
    let budget = u64::from(RESERVE) + counts.repeatable / u64::from(CALLS_PER_RETRY);
    expect(more <= budget, format!("{more} retries and hedges, more than the budget of {budget}"));
    // Half of the budget, because a retry that the deadline cancels during its pause is paid for
    // but not sent.
    expect(
        counts.out_of_budget == 0 || more >= u64::from(RESERVE / 2),
        "calls were not retried although the budget was not exhausted".into(),
    );
    expect(*left == 0, format!("{left} timeouts are left"));
    expect(
        stats.scheduled == stats.expired + stats.cancelled && stats.rejected == 0,
        format!("the timer's counts do not add up: {stats:?}"),
    );
    expect(stats.cancelled > stats.expired, "most timeouts have expired".into());
    let late = counts.lateness.p99();
    expect(late <= options.max_late, format!("the 99th percentile of the lateness is {late:.1?}"));
}

fn count(number: u64) -> String {
    HumanCount(number).to_string()
}
