//! An event loop that drives a timer, and other threads that use the timer.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin event_loop
//! ```
//!
//! The loop is an echo server that closes idle connections. It owns a
//! [`Driver`](hashed_wheel::Driver), so there is no timer thread. It sleeps in epoll exactly as
//! long as `next_turn` returns, without a time limit if nothing is pending, and calls `turn` when
//! it wakes up. Other threads have handles of the same timer. If one of them needs the loop earlier
//! than announced, the timer calls the waker that was passed to `Builder::waker`: a [`mio::Waker`].
//!
//! At the end the program prints PASS, or FAIL and the reasons. Exit status: 0 is PASS, 1 is FAIL,
//! 2 is bad options. `server.rs` is the part to copy.

mod clients;
mod server;
mod trial;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use hashed_wheel_examples::top::Top;
use hashed_wheel_trial::options::duration;

/// How long to wait for an expected event.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An event loop that drives a timer, and is woken when another thread needs it earlier
#[derive(Debug, Parser)]
#[command(name = "event_loop", after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.")]
struct Options {
    /// How many timeouts another thread schedules one after the other while the loop sleeps
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    timeouts: u32,

    /// How many clients connect; every other one falls silent
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(2..=500))]
    clients: u32,

    /// FAIL if the 99th percentile of the lateness is higher: what the machine needs to wake a
    /// thread
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    max_late: Duration,

    #[command(flatten)]
    top: Top,
}

impl Options {
    fn silent(&self) -> u64 {
        u64::from(self.clients / 2)
    }

    fn busy(&self) -> u64 {
        u64::from(self.clients) - self.silent()
    }
}

fn main() -> ExitCode {
    match trial::run(&Options::parse()) {
        Ok(verdict) => verdict.print(),
        Err(error) => {
            println!("\nFAIL\n  {error}");
            ExitCode::FAILURE
        }
    }
}
