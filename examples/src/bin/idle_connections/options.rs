//! The command line.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use hashed_wheel::{BuildError, HashedWheelTimer};
use hashed_wheel_examples::top::Top;
use hashed_wheel_trial::options::{duration, positive_duration};
use indicatif::HumanCount;

use crate::worker;

/// A TCP server that closes the connections that have fallen silent, and only those, on time
#[derive(Debug, Clone, Parser)]
#[command(
    name = "idle_connections",
    after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options or too low a limit on open files."
)]
pub(crate) struct Options {
    /// How many clients connect
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,

    /// The server closes a connection without input for this time
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = positive_duration)]
    pub(crate) idle: Duration,

    /// The interval between the packets of a client
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = positive_duration)]
    pub(crate) packet_every: Duration,

    /// The share of the clients that fall silent, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.3, value_parser = share)]
    pub(crate) silent_share: f64,

    /// The running time after all clients have connected; the last client falls silent early enough
    /// to be disconnected
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    pub(crate) duration: Duration,

    /// The timer's tick: the maximum lateness of the timer itself
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = duration)]
    pub(crate) tick: Duration,

    /// The number of slots of the timer's wheel
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) ticks_per_wheel: usize,

    /// FAIL if the 99th percentile of the lateness of disconnections exceeds a tick and this: what
    /// the machine needs to wake threads
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    pub(crate) max_late: Duration,

    /// Determines which clients fall silent, and when
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) top: Top,

    /// Run the clients of the server at this address
    #[arg(long, hide = true)]
    pub(crate) clients_of: Option<SocketAddr>,
}

impl Options {
    /// Returns what is wrong with a combination of valid options.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { idle, packet_every, tick, duration, .. } = *self;
        if idle < packet_every * 2 {
            return Err(format!(
                "--idle {idle:?} is less than twice --packet-every {packet_every:?}: the server would close clients \
                 that are not silent"
            ));
        }
        if idle >= duration {
            return Err(format!(
                "--duration {duration:?} is not longer than --idle {idle:?}: no client could be closed in that time"
            ));
        }
        if tick > idle {
            return Err(format!(
                "--tick {tick:?} is longer than --idle {idle:?}: connections would be closed too late by a whole idle time"
            ));
        }
        Ok(())
    }

    /// Returns the timer with these options.
    pub(crate) fn timer(&self) -> Result<HashedWheelTimer, BuildError> {
        HashedWheelTimer::builder()
            .tick(self.tick)
            .ticks_per_wheel(self.ticks_per_wheel)
            .thread_name(worker::NAME)
            .build()
    }

    /// Returns how many clients fall silent.
    pub(crate) fn silent(&self) -> u32 {
        (f64::from(self.connections) * self.silent_share).round() as u32
    }

    /// Returns when each client falls silent, if it does.
    pub(crate) fn silences(&self) -> Vec<Option<Duration>> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let latest = self.duration - self.idle;
        let mut silences: Vec<_> = (0..self.connections)
            .map(|client| (client < self.silent()).then(|| latest.mul_f64(random.f64())))
            .collect();
        random.shuffle(&mut silences);
        silences
    }

    /// Returns the permitted 99th percentile of the lateness of disconnections.
    pub(crate) fn allowed(&self) -> Duration {
        self.tick.saturating_add(self.max_late)
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = HumanCount(self.connections.into());
        let silent = HumanCount(self.silent().into());
        let Self { idle, packet_every, tick, ticks_per_wheel, duration, seed, .. } = self;
        write!(
            f,
            "{connections} connections, each closed after {idle:?} without a packet. \
             Clients send one every {packet_every:?};\n\
             {silent} of them fall silent in the course of {duration:?} (seed {seed}). \
             Timer: a tick of {tick:?}, {ticks_per_wheel} slots."
        )
    }
}

/// Ends the process like clap for an invalid option: prints the reason and exits with status 2.
pub(crate) fn refuse(wrong: &str) -> ! {
    Options::command().error(ErrorKind::ValueValidation, wrong).exit()
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a command line, or returns the error message.
    fn parse(line: &str) -> Result<Options, String> {
        let words = std::iter::once("idle_connections").chain(line.split_whitespace());
        let options = Options::try_parse_from(words).map_err(|error| error.to_string())?;
        options.check()?;
        options.timer().map_err(|error| error.to_string())?;
        Ok(options)
    }

    #[test]
    fn defaults_are_valid() {
        let options = parse("").unwrap();
        assert_eq!((options.connections, options.silent()), (2_000, 600));
    }

    #[test]
    fn invalid_options_are_rejected_with_a_reason() {
        for (line, reason) in [
            ("--connections 0", "0 is not in 1.."),
            ("--connections many", "invalid digit"),
            ("--idle 3000", "2s or 500ms"),
            ("--idle 900ms", "less than twice --packet-every"),
            ("--packet-every 0s", "longer than zero"),
            ("--duration 2s", "not longer than --idle"),
            ("--silent-share 1.01", "from 0 to 1"),
            ("--silent-share NaN", "from 0 to 1"),
            ("--tick 0s", "tick is zero"),
            ("--tick 3s", "longer than --idle"),
            ("--ticks-per-wheel 0", "ticks_per_wheel is zero"),
            ("--ticks-per-wheel 1073741825", "at most 1073741824"),
            ("--speed 3", "unexpected argument"),
        ] {
            let message = parse(line).expect_err(line);
            assert!(message.contains(reason), "{line}: {message}");
        }
    }

    #[test]
    fn share_and_seed_determine_the_silent_clients() {
        let options = parse("--connections 1000 --silent-share 0.25 --seed 7").unwrap();
        let silences = options.silences();
        assert_eq!(silences, options.silences());
        assert_eq!(silences.iter().flatten().count(), 250);
        assert!(silences.iter().flatten().all(|&at| at <= Duration::from_secs(8)));
        assert_ne!(silences, Options { seed: 8, ..options }.silences());
    }
}
