//! The trial: runs the server and the clients, and limits how long it waits for either.

use std::error::Error;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, Stats};
use indicatif::HumanCount;
use mio::Events;

use crate::clients::Seen;
use crate::options::Options;
use crate::process::Clients;
use crate::progress::Progress;
use crate::server::{Counts, Server};
use crate::worker;

/// How long to wait for an expected event. It is longer than the timeout of the clients, whose
/// error messages are more precise.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How long the server waits for its sockets before it does all other work.
const REFRESH: Duration = Duration::from_millis(50);

/// The result of the trial.
pub(crate) struct Outcome {
    /// Why the trial could not be completed, if so.
    pub(crate) error: Option<String>,
    pub(crate) server: Counts,
    pub(crate) clients: Option<Seen>,
    /// The time until all clients were connected.
    pub(crate) connecting: Duration,
    /// The time from then until the clients reported, and the resets in that time.
    pub(crate) running: Duration,
    pub(crate) rearms: u64,
    /// The time from the start to the end, which is the lifetime of the timer's worker.
    pub(crate) life: Duration,
    pub(crate) worker_cpu: Option<Duration>,
    pub(crate) timer: Stats,
}

/// Returns an error if the trial could not start.
pub(crate) fn run(options: &Options, timer: &HashedWheelTimer) -> Result<Outcome, Box<dyn Error>> {
    let server = Server::new(timer.clone(), options.idle)?;
    let clients = Clients::start(server.address()?)?;
    let mut trial = Trial { options, server, events: Events::with_capacity(1024), clients, seen: None };

    let began = Instant::now();
    let mut outcome = Outcome {
        error: None,
        server: Counts::default(),
        clients: None,
        connecting: Duration::ZERO,
        running: Duration::ZERO,
        rearms: 0,
        life: Duration::ZERO,
        worker_cpu: None,
        timer: Stats::default(),
    };
    outcome.error = trial.run(&mut outcome).err().map(|error| error.to_string());
    outcome.life = began.elapsed();
    outcome.worker_cpu = worker::cpu_time();
    outcome.timer = timer.stats();
    outcome.clients = trial.seen;
    outcome.server = trial.server.counts;
    Ok(outcome)
}

struct Trial<'a> {
    options: &'a Options,
    server: Server,
    events: Events,
    clients: Clients,
    seen: Option<Seen>,
}

impl Trial<'_> {
    fn run(&mut self, outcome: &mut Outcome) -> Result<(), Box<dyn Error>> {
        let began = Instant::now();
        let connected = self.connect();
        let start = Instant::now();
        outcome.connecting = start - began;
        connected?;
        let rearms = self.server.counts.rearms;
        let ended = self.watch(start, rearms);
        outcome.running = start.elapsed();
        outcome.rearms = self.server.counts.rearms - rearms;
        ended?;
        self.wind_up()
    }

    /// Runs until all clients are connected.
    fn connect(&mut self) -> Result<(), Box<dyn Error>> {
        let wanted = u64::from(self.options.connections);
        let mut progress = Progress::new("connecting", wanted);
        let (mut accepted, mut last) = (0, Instant::now());
        while accepted < wanted {
            self.turn()?;
            if self.server.counts.accepted > accepted {
                (accepted, last) = (self.server.counts.accepted, Instant::now());
            } else if last.elapsed() > TIMEOUT {
                return Err(format!(
                    "{accepted} of {wanted} clients have connected, then none for {TIMEOUT:?}"
                )
                .into());
            }
            progress.show(accepted, || format!("{} of {}", HumanCount(accepted), HumanCount(wanted)));
        }
        Ok(())
    }

    /// Runs until the clients report.
    fn watch(&mut self, start: Instant, rearms: u64) -> Result<(), Box<dyn Error>> {
        let length = self.options.duration;
        let longest = length + self.options.allowed() + TIMEOUT;
        let mut progress = Progress::new("running", length.as_millis() as u64);
        while self.seen.is_none() {
            self.turn()?;
            let time = start.elapsed();
            if time > longest {
                return Err(format!("the clients have not reported after {time:.1?}").into());
            }
            let Counts { closed, rearms: now, .. } = self.server.counts;
            progress.show(time.as_millis() as u64, || {
                format!(
                    "{time:.1?} of {length:?}, {} open, {} of {} closed, {} resets/s",
                    HumanCount(self.server.open()),
                    HumanCount(closed),
                    HumanCount(self.options.silent().into()),
                    HumanCount(((now - rearms) as f64 / time.as_secs_f64()) as u64),
                )
            });
        }
        Ok(())
    }

    /// Runs until the server has noticed that the remaining clients have disconnected.
    fn wind_up(&mut self) -> Result<(), Box<dyn Error>> {
        let since = Instant::now();
        while self.server.open() > 0 {
            self.turn()?;
            if since.elapsed() > TIMEOUT {
                let open = self.server.open();
                return Err(format!(
                    "{open} connections are still open {TIMEOUT:?} after the clients disconnected"
                )
                .into());
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<(), Box<dyn Error>> {
        self.server.turn(&mut self.events, REFRESH)?;
        match self.clients.line() {
            Ok(line) => self.seen = Some(Seen::parse(&line)?),
            Err(TryRecvError::Disconnected) if self.seen.is_none() => {
                return Err(
                    format!("the clients' process ended too early ({})", self.clients.status()).into()
                );
            }
            Err(_) => {}
        }
        Ok(())
    }
}
