//! What the examples have in common: how they report, how they start a process or a server, how they are tested, and how they
//! show their timers to `wheel-top`.

pub mod process;
pub mod server;
pub mod testing;
pub mod top;

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use hdrhistogram::Histogram;

/// In nanoseconds: no lateness is longer.
const A_DAY: u64 = 86_400_000_000_000;

/// How late things were. Shows p50, p99 and the greatest.
#[derive(Debug, Clone)]
pub struct Lateness(Histogram<u64>);

impl Lateness {
    pub fn record(&mut self, late: Duration) {
        self.0.saturating_record(late.as_nanos() as u64);
    }

    pub fn add(&mut self, other: &Self) {
        self.0 += &other.0;
    }

    /// Zero if nothing was recorded.
    pub fn p50(&self) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(0.5))
    }

    /// Zero if nothing was recorded.
    pub fn p99(&self) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(0.99))
    }
}

impl Default for Lateness {
    fn default() -> Self {
        Self(Histogram::new_with_max(A_DAY, 3).expect("3 digits can be had"))
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |nanos| nanos as f64 / 1e6;
        let [p50, p99] = [0.5, 0.99].map(|quantile| millis(self.0.value_at_quantile(quantile)));
        write!(f, "p50 {p50:.2} ms, p99 {p99:.2} ms, max {:.2} ms", millis(self.0.max()))
    }
}

/// What has to be true for a PASS, and what was not.
#[derive(Debug, Default)]
pub struct Verdict {
    failures: Vec<String>,
}

impl Verdict {
    pub fn expect(&mut self, holds: bool, otherwise: impl Into<String>) {
        if !holds {
            self.failures.push(otherwise.into());
        }
    }

    /// Says PASS, or FAIL and why.
    pub fn pronounce(self) -> ExitCode {
        if self.failures.is_empty() {
            println!("\nPASS");
            return ExitCode::SUCCESS;
        }
        println!("\nFAIL");
        self.failures.iter().for_each(|why| println!("  {why}"));
        ExitCode::FAILURE
    }
}

/// The Rust in it is run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-netty.md")]
struct FromNetty;
