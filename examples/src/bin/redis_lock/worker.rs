//! One of the three: takes the lock again and again, and counts.

use std::io::{self, Read, Write};
use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::HashedWheelTimer;
use redis::{Client, Commands};

use crate::counter::Counter;
use crate::lock::{self, Guard, LockError, LockManager, Lost};
use crate::{Options, Sabotage};

/// How long it waits for the lock before it says so.
const WAIT: Duration = Duration::from_secs(10);

/// What it tells of itself: a line each, with a reason where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Entered,
    /// It has had the lock to the end.
    Left,
    /// And that for longer than a lease.
    LeftLate,
    /// It has lost the lock, for that was not renewed in time. May happen to anybody.
    Lost,
    /// It has lost the lock, or was treated so, within its lease. Must not happen.
    Robbed,
    /// Redis could not be asked.
    Trouble,
}

impl Event {
    const ALL: [Self; 6] =
        [Self::Entered, Self::Left, Self::LeftLate, Self::Lost, Self::Robbed, Self::Trouble];

    fn say(self, why: &str) {
        let line = format!("{self:?} {}\n", why.replace('\n', " "));
        // In one piece. Without anybody who listens there is nothing more to do.
        if io::stdout().write_all(line.as_bytes()).and_then(|()| io::stdout().flush()).is_err() {
            process::exit(1);
        }
    }

    /// `None` if nothing was said.
    pub(crate) fn read(line: &str) -> Option<(Self, String)> {
        let (word, why) = line.split_once(' ')?;
        let event = Self::ALL.into_iter().find(|event| format!("{event:?}") == word)?;
        Some((event, why.to_owned()))
    }
}

/// Until its standard input is closed, as it is when whoever has started it ends.
pub(crate) fn run(url: &str, name: &str, options: &Options) -> ExitCode {
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        process::exit(0);
    });
    match work(url, name, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(url: &str, name: &str, options: &Options) -> Result<(), LockError> {
    let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
    options.top.watch_one_of_several("leases", &timer);
    let lock = LockManager::new(url, options.lease, &timer)?.get(name);
    let mut counter = Counter::new(url, name, options.lease / 3)?;
    let (mut random, mut entered) = (Rng::new(), 0_u64);
    loop {
        match lock.try_lock_for(WAIT) {
            Ok(Some(guard)) => {
                Event::Entered.say("");
                entered += 1;
                // Now and then for longer than a lease, which is what a watchdog is for.
                let is_long = entered % 20 == 0;
                let short = Duration::from_millis(random.u64(1..40));
                let time = if is_long { options.lease * 3 / 2 } else { short };
                match count(guard, &mut counter, time) {
                    Ok(()) if is_long => Event::LeftLate.say(""),
                    Ok(()) => Event::Left.say(""),
                    Err(error @ LockError::Lost(Lost::RanOut(_))) => {
                        if options.sabotage == Some(Sabotage::NoOwnerCheck) {
                            let mut redis = Client::open(url)?.get_connection()?;
                            while !redis.del::<_, bool>(lock::key(name))? {}
                        }
                        Event::Lost.say(&error.to_string());
                    }
                    Err(error @ LockError::Lost(Lost::Gone)) => Event::Robbed.say(&error.to_string()),
                    Err(error) => Event::Trouble.say(&error.to_string()),
                }
            }
            Ok(None) => Event::Trouble.say(&format!("no lock within {WAIT:?}")),
            Err(error) => Event::Trouble.say(&error.to_string()),
        }
        // So that others get a chance; and time passes where Redis is not there.
        thread::sleep(Duration::from_millis(random.u64(1..20)));
    }
}

/// Does not look whether the lock is held before it writes, as one does not that is stopped right after it has looked.
fn count(guard: Guard<'_>, counter: &mut Counter, time: Duration) -> Result<(), LockError> {
    let begin = Instant::now();
    loop {
        match counter.add_one(guard.token()) {
            Ok(true) if begin.elapsed() >= time => return guard.unlock(),
            Ok(true) => {}
            Ok(false) => {
                // Either it says how the lock was lost, or it should not have been.
                guard.check()?;
                Event::Robbed.say("an access was refused to who has the lock");
                return guard.unlock();
            }
            Err(error) => {
                Event::Trouble.say(&LockError::from(error).to_string());
                guard.check()?;
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
