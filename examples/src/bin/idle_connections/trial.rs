//! The trial: server and clients together, and how long to wait for either.

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

/// How long to wait for what should have happened. Longer than the clients wait, who know better what is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the server may wait for its sockets between two looks at everything else.
const REFRESH: Duration = Duration::from_millis(50);

/// What came of it.
pub(crate) struct Outcome {
    /// Why it did not come to its end, if it did not.
    pub(crate) trouble: Option<String>,
    pub(crate) server: Counts,
    pub(crate) clients: Option<Seen>,
    /// Until all were connected.
    pub(crate) connecting: Duration,
    /// From then until the clients had said what they saw, and the re-arms of that time.
    pub(crate) running: Duration,
    pub(crate) rearms: u64,
    /// From the beginning to the end, which is the life of the timer's worker.
    pub(crate) life: Duration,
    pub(crate) worker_cpu: Option<Duration>,
    pub(crate) timer: Stats,
}

/// An error here means that it could not begin.
pub(crate) fn run(options: &Options, timer: &HashedWheelTimer) -> Result<Outcome, Box<dyn Error>> {
    let server = Server::new(timer.clone(), options.idle)?;
    let clients = Clients::start(server.address()?)?;
    let mut trial = Trial { options, server, events: Events::with_capacity(1024), clients, seen: None };

    let began = Instant::now();
    let mut outcome = Outcome {
        trouble: None,
        server: Counts::default(),
        clients: None,
        connecting: Duration::ZERO,
        running: Duration::ZERO,
        rearms: 0,
        life: Duration::ZERO,
        worker_cpu: None,
        timer: Stats::default(),
    };
    outcome.trouble = trial.run(&mut outcome).err().map(|trouble| trouble.to_string());
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

    /// Until all are connected.
    fn connect(&mut self) -> Result<(), Box<dyn Error>> {
        let wanted = u64::from(self.options.connections);
        let mut progress = Progress::new("connecting", wanted);
        let (mut accepted, mut last) = (0, Instant::now());
        while accepted < wanted {
            self.turn()?;
            if self.server.counts.accepted > accepted {
                (accepted, last) = (self.server.counts.accepted, Instant::now());
            } else if last.elapsed() > PATIENCE {
                return Err(
                    format!("{accepted} of {wanted} connections came, then none for {PATIENCE:?}").into()
                );
            }
            progress.show(accepted, || format!("{} of {}", HumanCount(accepted), HumanCount(wanted)));
        }
        Ok(())
    }

    /// Until the clients say what they saw.
    fn watch(&mut self, start: Instant, rearms: u64) -> Result<(), Box<dyn Error>> {
        let length = self.options.length();
        let longest = length + self.options.allowed() + PATIENCE;
        let mut progress = Progress::new("running", length.as_millis() as u64);
        while self.seen.is_none() {
            self.turn()?;
            let time = start.elapsed();
            if time > longest {
                return Err(format!("the clients have not said what they saw after {time:.0?}").into());
            }
            let Counts { closed, rearms: now, .. } = self.server.counts;
            progress.show(time.as_millis() as u64, || {
                format!(
                    "{:.0} of {} s, {} open, {} of {} closed, {} re-arms/s",
                    time.as_secs_f64(),
                    length.as_secs(),
                    HumanCount(self.server.open()),
                    HumanCount(closed),
                    HumanCount(self.options.silent().into()),
                    HumanCount(((now - rearms) as f64 / time.as_secs_f64()) as u64),
                )
            });
        }
        Ok(())
    }

    /// Until the server has noticed that the rest of the clients are gone.
    fn wind_up(&mut self) -> Result<(), Box<dyn Error>> {
        let since = Instant::now();
        while self.server.open() > 0 {
            self.turn()?;
            if since.elapsed() > PATIENCE {
                let open = self.server.open();
                return Err(format!("{open} connections are open {PATIENCE:?} after the clients left").into());
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<(), Box<dyn Error>> {
        self.server.turn(&mut self.events, REFRESH)?;
        match self.clients.line() {
            Ok(line) => self.seen = Some(Seen::parse(&line)?),
            Err(TryRecvError::Disconnected) if self.seen.is_none() => {
                return Err(format!("the clients' process ended too soon ({})", self.clients.status()).into());
            }
            Err(_) => {}
        }
        Ok(())
    }
}
