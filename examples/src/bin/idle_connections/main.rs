//! A server that closes idle connections: the typical use of a hashed wheel timer.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin idle_connections -- --connections 10000
//! ```
//!
//! A TCP server on the loopback interface has an idle timeout for each connection, like Netty's
//! `IdleStateHandler`. It calls [`new_timeout`](hashed_wheel::HashedWheelTimer::new_timeout) when
//! it accepts a connection, [`reset`](hashed_wheel::Timeout::reset) for each packet, and
//! [`cancel`](hashed_wheel::Timeout::cancel) when the peer disconnects first. The clients are in a
//! separate process: this program starts itself again, so that each side has its own limit on open
//! files. They send small packets until some of them, chosen by a seed, fall silent. The server has
//! to close exactly these connections, neither early nor late. Both sides count, and their counts
//! must agree.
//!
//! At the end the program prints PASS, or FAIL and the reasons. Exit status: 0 is PASS, 1 is FAIL,
//! 2 means that the test could not run: bad options, or a limit on open files that is too low.
//! `server.rs` is the part to copy.

mod clients;
mod files;
mod options;
mod process;
mod progress;
mod report;
mod server;
mod trial;
mod worker;

use std::process::ExitCode;

use clap::Parser;

use crate::options::{Options, refuse};
use crate::report::Report;

fn main() -> ExitCode {
    let options = Options::parse();
    if let Err(wrong) = options.check() {
        refuse(&wrong);
    }
    match options.clients_of {
        Some(server) => clients::main(&options, server),
        None => serve(&options),
    }
}

fn serve(options: &Options) -> ExitCode {
    let timer = match options.timer() {
        Ok(timer) => timer,
        Err(wrong) => refuse(&format!("--tick or --ticks-per-wheel: {wrong}")),
    };
    // The clients' process inherits the limit.
    if let Err(too_low) = files::allow(options.connections.into()) {
        eprintln!("error: {too_low}");
        return ExitCode::from(2);
    }
    options.top.watch("connections", &timer);
    println!("{options}");
    let outcome = match trial::run(options, &timer) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("error: the server cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let report = Report { options, outcome: &outcome };
    println!("\n{report}");
    match report.failures().is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
