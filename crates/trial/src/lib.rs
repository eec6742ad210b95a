//! The harness of the trials, the tests and the examples: servers and processes that they start,
//! run as a user would, kill and stop; what was late; and the verdict.

pub mod new_project;
pub mod options;
pub mod process;
pub mod redis_server;
pub mod server;
pub mod testing;

use std::error::Error;
use std::fmt;
use std::io::{self, Read};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::server::{Missing, NO_SERVER};

/// The largest lateness that the histogram records, in nanoseconds.
const A_DAY: u64 = 86_400_000_000_000;

/// A distribution of lateness. `Display` shows p50, p99 and the maximum.
#[derive(Debug, Clone)]
pub struct Lateness(Histogram<u64>);

impl Lateness {
    pub fn record(&mut self, late: Duration) {
        self.0.saturating_record(late.as_nanos() as u64);
    }

    pub fn add(&mut self, other: &Self) {
        self.0 += &other.0;
    }

    /// Returns zero if nothing was recorded.
    pub fn p50(&self) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(0.5))
    }

    /// Returns zero if nothing was recorded.
    pub fn p99(&self) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(0.99))
    }
}

impl Default for Lateness {
    fn default() -> Self {
        Self(Histogram::new_with_max(A_DAY, 3).expect("3 significant digits are supported"))
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = Duration::from_nanos(self.0.max());
        let [p50, p99, max] = [self.p50(), self.p99(), max].map(|late| rounded(late, 2));
        write!(f, "p50 {p50}, p99 {p99}, max {max}")
    }
}

/// Formats a duration with this number of decimals. `Debug` alone would format zero as `0.00ns`.
pub fn rounded(time: Duration, decimals: usize) -> String {
    if time.is_zero() {
        "0s".into()
    } else {
        format!("{time:.decimals$?}")
    }
}

/// Collects the failed expectations of an example. It has passed if there are none.
#[derive(Debug, Default)]
pub struct Verdict {
    failures: Vec<String>,
}

impl Verdict {
    pub fn expect(&mut self, holds: bool, failure: impl Into<String>) {
        if !holds {
            self.failures.push(failure.into());
        }
    }

    /// Prints PASS, or FAIL and the reasons.
    pub fn print(self) -> ExitCode {
        if self.failures.is_empty() {
            println!("\nPASS");
            return ExitCode::SUCCESS;
        }
        println!("\nFAIL");
        self.failures.iter().for_each(|why| println!("  {why}"));
        ExitCode::FAILURE
    }
}

/// Returns the exit status of a program that needs a server. Prints why it has none, or why it
/// could not be completed.
pub fn exit_code(result: Result<ExitCode, Box<dyn Error>>) -> ExitCode {
    result.unwrap_or_else(|error| match error.downcast::<Missing>() {
        Ok(missing) => {
            eprintln!("{missing}");
            ExitCode::from(NO_SERVER)
        }
        Err(error) => {
            println!("\nFAIL\n  {}", chain(&*error));
            ExitCode::FAILURE
        }
    })
}

/// Formats an error and its sources: the error of a database call contains only its kind.
pub fn chain(error: &dyn Error) -> String {
    error.source().map_or_else(
        || error.to_string(),
        |source| format!("{error}: {}", chain(source)),
    )
}

/// Calls `then` when the standard input ends, because the parent process has closed it or has
/// ended.
pub fn when_parent_ends(then: impl FnOnce() + Send + 'static) {
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        then();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_of_nothing_is_0s() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.to_string(), "p50 0s, p99 0s, max 0s");
        lateness.record(Duration::from_micros(1_500));
        assert_eq!(lateness.to_string(), "p50 1.50ms, p99 1.50ms, max 1.50ms");
    }
}
