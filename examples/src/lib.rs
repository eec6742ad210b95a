//! The code that the examples share: reporting, starting processes and servers, testing, and
//! showing timers to `wheel-top`.

pub mod options;
pub mod process;
pub mod redis_server;
pub mod server;
pub mod testing;
pub mod top;

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use hdrhistogram::Histogram;

/// The timer on which an example runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum On {
    /// A wheel with its own thread
    Wheel,
    /// A wheel that a task of the runtime drives
    Task,
    /// The timer of the runtime
    Tokio,
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Wheel => "hashed-wheel",
            Self::Task => "hashed-wheel, driven by a task",
            Self::Tokio => "tokio::time",
        })
    }
}

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
    if time.is_zero() { "0s".into() } else { format!("{time:.decimals$?}") }
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

/// The Rust code in this page is compiled and run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-netty.md")]
struct FromNetty;
