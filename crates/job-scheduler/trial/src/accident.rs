//! Accidents of the server and of the clocks during the trial.

use std::error::Error;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use job_scheduler_trial::{Database, End};
use postgres::Client;
use tokio_postgres::Config;

use crate::connection::{connect, now};
use crate::jobs::Time;

/// By how much the clocks are set, in seconds.
pub(crate) const STEP: i64 = 3_600;

/// The time until all nodes have noticed that the server is back.
const RECONNECT_TIME: Duration = Duration::from_secs(3);

/// How long the nodes have a wrong clock, each time.
const WRONG_TIME: Duration = Duration::from_millis(1_500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Accident {
    /// The server is killed, as by `kill -9`
    Kill,
    /// An immediate shutdown of the server
    Immediate,
    /// The disk of the server is full for some time
    Disk,
    /// The clocks of half of the nodes, and then that of the server, are set by an hour
    Clock,
}

/// The period of an accident, by the clock of the server, with the time that the nodes need after
/// it. Due times in it may be late, and may be misfires.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Period {
    pub(crate) begin: Time,
    pub(crate) end: Time,
    /// The server's clock was set back. Runs that were read ahead may start early.
    pub(crate) is_set_back: bool,
}

impl Period {
    pub(crate) fn contains(&self, time: Time) -> bool {
        (self.begin..=self.end).contains(&time)
    }
}

/// The accidents that have happened.
#[derive(Debug, Default)]
pub(crate) struct Accidents {
    pub(crate) happened: Vec<Accident>,
    pub(crate) periods: Vec<Period>,
    /// The number of errors of the server because its disk was full.
    pub(crate) disk_errors: usize,
}

impl Accidents {
    /// Makes it happen, and waits until the nodes work again. `outage` is how long the disk is
    /// full.
    pub(crate) fn happen(
        &mut self,
        accident: Accident,
        own: &mut Database,
        config: &Config,
        outage: Duration,
    ) -> Result<(), Box<dyn Error>> {
        self.happened.push(accident);
        let mut begin = now(&mut connect(config)?)?;
        match accident {
            Accident::Kill => own.restart(End::Kill)?,
            Accident::Immediate => own.restart(End::Immediate)?,
            Accident::Disk => self.disk_errors += own.fill_disk(outage)?,
            Accident::Clock => begin = self.set_clocks(own, &mut connect(config)?)?,
        }
        thread::sleep(RECONNECT_TIME);
        self.add(begin, now(&mut connect(config)?)?, false);
        Ok(())
    }

    /// Sets the clocks of nodes forward and back. Then sets the clock of the server back, to where
    /// it was, and forward. Returns its time after the last but one of these steps.
    fn set_clocks(
        &mut self,
        own: &mut Database,
        client: &mut Client,
    ) -> Result<Time, Box<dyn Error>> {
        let clocks = own.clocks().ok_or("the server has no clock of its own")?;
        for offset in [STEP, -STEP] {
            clocks.nodes.set(offset)?;
            thread::sleep(WRONG_TIME);
        }
        let before = now(client)?;
        clocks.server.set(-STEP)?;
        thread::sleep(WRONG_TIME);
        clocks.server.set(0)?;
        self.add(
            before - STEP * 1_000_000,
            now(client)? - STEP * 1_000_000,
            true,
        );
        thread::sleep(RECONNECT_TIME);
        self.add(before, now(client)?, false);
        let before = now(client)?;
        clocks.server.set(STEP)?;
        Ok(before)
    }

    fn add(&mut self, begin: Time, end: Time, is_set_back: bool) {
        self.periods.push(Period {
            begin,
            end,
            is_set_back,
        });
    }

    /// Returns whether a due time may be late or a misfire.
    pub(crate) fn concern(&self, due: Time, lease: Time) -> bool {
        self.periods
            .iter()
            .any(|period| (period.begin - lease..=period.end + lease).contains(&due))
    }

    /// Returns whether runs may start early.
    pub(crate) fn have_set_back(&self, started: Time) -> bool {
        self.periods
            .iter()
            .any(|period| period.is_set_back && period.contains(started))
    }

    pub(crate) fn include(&self, accident: Accident) -> bool {
        self.happened.contains(&accident)
    }
}
