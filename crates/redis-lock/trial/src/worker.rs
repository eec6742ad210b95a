//! One of the three processes: takes the lock repeatedly and increments the counter.

use std::io::{self, Write};
use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::when_parent_ends;
use redis_lock::blocking::Guard;
use redis_lock::{LockError, Loss};

use crate::Options;
use crate::counter::Counter;
use crate::trial::{self, Servers};

/// How long it waits for the lock before it reports trouble.
pub(crate) const WAIT: Duration = Duration::from_secs(10);

/// The events that it reports: one line each, with a reason if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// It has the lock. The reason is the token.
    Entered,
    /// It held the lock to the end.
    Released,
    /// It held the lock to the end, for longer than a lease.
    ReleasedLate,
    /// It lost the lock because the lease was not renewed in time. This may happen.
    Lost,
    /// It lost the lock, or an access was rejected, during its lease. This must not happen.
    LostEarly,
    /// A call to Redis failed.
    Trouble,
}

impl Event {
    const ALL: [Self; 6] = [
        Self::Entered,
        Self::Released,
        Self::ReleasedLate,
        Self::Lost,
        Self::LostEarly,
        Self::Trouble,
    ];

    pub(crate) fn print(self, why: &str) {
        let line = format!("{self:?} {}\n", why.replace('\n', " "));
        // Writes the line in one piece. If no process reads it, there is nothing left to do.
        if io::stdout()
            .write_all(line.as_bytes())
            .and_then(|()| io::stdout().flush())
            .is_err()
        {
            process::exit(1);
        }
    }

    /// Returns `None` if the line is not an event.
    pub(crate) fn read(line: &str) -> Option<(Self, String)> {
        let (word, why) = line.split_once(' ')?;
        let event = Self::ALL
            .into_iter()
            .find(|event| format!("{event:?}") == word)?;
        Some((event, why.to_owned()))
    }
}

/// Runs until its standard input is closed. That happens when the parent process ends.
pub(crate) fn run(servers: &Servers, name: &str, options: &Options) -> ExitCode {
    when_parent_ends(|| process::exit(0));
    match work(servers, name, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(servers: &Servers, name: &str, options: &Options) -> Result<(), LockError> {
    let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
    let locks = servers.locks(&timer)?;
    let mut lock = locks.lock_with(name, trial::options(options.lease));
    let mut counter = Counter::new(&servers.resource, name, options.lease / 3)?;
    let (mut random, mut entered) = (Rng::new(), 0_u64);
    loop {
        match lock.lock_timeout(WAIT) {
            Ok(Some(guard)) => {
                Event::Entered.print(&guard.token().to_string());
                entered += 1;
                // Sometimes for longer than a lease, because that requires renewals.
                let is_long = entered % 20 == 0;
                let short = Duration::from_millis(random.u64(1..40));
                let time = if is_long {
                    options.lease * 3 / 2
                } else {
                    short
                };
                match count(guard, &mut counter, time) {
                    Ok(()) if is_long => Event::ReleasedLate.print(""),
                    Ok(()) => Event::Released.print(""),
                    Err(error @ LockError::Lost(Loss::LeaseEnded(_))) => {
                        Event::Lost.print(&error.to_string());
                    }
                    Err(error @ LockError::Lost(_)) => Event::LostEarly.print(&error.to_string()),
                    Err(error) => Event::Trouble.print(&error.to_string()),
                }
            }
            Ok(None) => Event::Trouble.print(&format!("no lock within {WAIT:?}")),
            Err(error) => Event::Trouble.print(&error.to_string()),
        }
        // Gives other processes a chance, and limits the rate of attempts without Redis.
        thread::sleep(Duration::from_millis(random.u64(1..20)));
    }
}

/// Writes without checking the lock first, like a process that is stopped immediately after its
/// check.
fn count(guard: Guard, counter: &mut Counter, time: Duration) -> Result<(), LockError> {
    let begin = Instant::now();
    loop {
        match counter.add_one(guard.token()) {
            Ok(true) if begin.elapsed() >= time => return guard.unlock(),
            Ok(true) => {}
            Ok(false) => {
                // Either `check` returns how the lock was lost, or the rejection was wrong.
                guard.check()?;
                Event::LostEarly.print("an access of the holder was rejected");
                return guard.unlock();
            }
            Err(error) => {
                Event::Trouble.print(&LockError::from(error).to_string());
                guard.check()?;
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
