//! One of the four processes of the crowd: takes a read-write lock, a permit of a semaphore, and
//! one or two locks, repeatedly and at the same time.

use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::when_parent_ends;
use redis_lock::blocking::{Guard, LockClient};
use redis_lock::{LockError, Loss};
use tokio::runtime::Builder;

use crate::Options;
use crate::register::{Kind, Register};
use crate::trial::{self, Servers};
use crate::worker::{Event, WAIT};

pub(crate) const PERMITS: u32 = 2;

/// The pause between two accesses of a hold.
const WORK: Duration = Duration::from_millis(3);

/// Runs until its standard input is closed. That happens when the parent process ends.
pub(crate) fn run(servers: &Servers, name: &str, options: &Options) -> ExitCode {
    when_parent_ends(|| process::exit(0));
    let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
    let locks = match servers.locks(&timer) {
        Ok(locks) => locks,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            contend(servers, &locks, name, options, |random| {
                if random.u8(..4) == 0 {
                    Kind::Write
                } else {
                    Kind::Read
                }
            })
        });
        scope.spawn(|| contend(servers, &locks, name, options, |_| Kind::Permit));
        scope.spawn(|| contend_for_locks(servers, name, options));
    });
    ExitCode::FAILURE
}

fn contend(
    servers: &Servers,
    locks: &LockClient,
    name: &str,
    options: &Options,
    choose: impl Fn(&mut Rng) -> Kind,
) {
    let settings = trial::options(options.lease);
    let lock = locks.rw_lock_with(name, settings.clone());
    let semaphore = locks.semaphore_with(name, PERMITS, settings);
    let mut register = register(servers, name);
    let (mut random, mut times) = (Rng::new(), Times::new(options));
    loop {
        let kind = choose(&mut random);
        let taken = match kind {
            Kind::Read => lock.read().lock_timeout(WAIT),
            Kind::Write => lock.write().lock_timeout(WAIT),
            Kind::Permit | Kind::Lock => semaphore.acquire_timeout(WAIT),
        };
        let held = taken.map(|guard| {
            let guard = guard?;
            Event::Entered.print(&format!("{kind:?}"));
            Some(hold(guard, kind, &mut register, times.next()))
        });
        report(held, kind);
        thread::sleep(Duration::from_millis(random.u64(1..20)));
    }
}

/// Makes accesses, each of which is confirmed by the next one.
fn hold(
    guard: Guard,
    kind: Kind,
    register: &mut Register,
    time: Duration,
) -> Result<(), LockError> {
    let begin = Instant::now();
    let mut accesses = register.hold(kind, guard.token());
    while begin.elapsed() < time {
        accesses.access(|| guard.check())?;
        thread::sleep(WORK);
    }
    accesses.access(|| guard.check())?;
    guard.unlock()
}

/// Takes a lock alone, or with another one, and works in the closure form.
fn contend_for_locks(servers: &Servers, name: &str, options: &Options) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.expect("a thread can be started").block_on(async {
        let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
        let client = servers.builder(&timer).and_then(|builder| builder.build());
        let locks = client.expect("the URLs are valid");
        let names = ["one", "two"].map(|part| format!("{name}-{part}"));
        let settings = trial::options(options.lease);
        let mut one = locks.lock_with(&names[0], settings.clone());
        let mut both = locks.multi_lock_with(&names, settings);
        let mut register = register(servers, name);
        let (mut random, mut times) = (Rng::new(), Times::new(options));
        loop {
            let (time, register) = (times.next(), &mut register);
            let held = if random.bool() {
                match one.lock_timeout(WAIT).await {
                    Ok(Some(guard)) => {
                        let work = async |guard: &redis_lock::Guard| {
                            work(register, guard.token(), time, || guard.check()).await
                        };
                        Ok(Some(guard.run(work).await))
                    }
                    taken => taken.map(|_| None),
                }
            } else {
                match both.lock_timeout(WAIT).await {
                    Ok(Some(guard)) => {
                        let work = async |guard: &redis_lock::MultiGuard| {
                            let (_, token) = guard.tokens().next().expect("there are two");
                            work(register, token, time, || guard.check()).await
                        };
                        Ok(Some(guard.run(work).await))
                    }
                    taken => taken.map(|_| None),
                }
            };
            report(
                held.map(|held| held.map(|ended| ended.and_then(|worked| worked))),
                Kind::Lock,
            );
            tokio::time::sleep(Duration::from_millis(random.u64(1..20))).await;
        }
    })
}

/// The same as [`hold`], but it can be cancelled.
async fn work(
    register: &mut Register,
    token: u64,
    time: Duration,
    check: impl Fn() -> Result<(), LockError>,
) -> Result<(), LockError> {
    Event::Entered.print(&format!("{:?}", Kind::Lock));
    let begin = Instant::now();
    let mut accesses = register.hold(Kind::Lock, token);
    while begin.elapsed() < time {
        accesses.access(&check)?;
        tokio::time::sleep(WORK).await;
    }
    accesses.access(&check)
}

/// Reports how a hold has ended, or why there was none.
fn report(held: Result<Option<Result<(), LockError>>, LockError>, kind: Kind) {
    match held {
        Ok(Some(Ok(()))) => {}
        Ok(Some(Err(error @ LockError::Lost(Loss::LeaseEnded(_))))) => {
            Event::Lost.print(&error.to_string())
        }
        Ok(Some(Err(error @ LockError::Lost(_)))) => Event::LostEarly.print(&error.to_string()),
        Ok(None) => Event::Trouble.print(&format!("no {kind:?} within {WAIT:?}")),
        Ok(Some(Err(error))) | Err(error) => Event::Trouble.print(&error.to_string()),
    }
}

fn register(servers: &Servers, name: &str) -> Register {
    Register::new(&servers.resource, name).expect("the resource is never stopped")
}

/// For how long something is held: sometimes for longer than a lease, because that requires
/// renewals.
struct Times {
    random: Rng,
    lease: Duration,
    count: u64,
}

impl Times {
    fn new(options: &Options) -> Self {
        Self {
            random: Rng::new(),
            lease: options.lease,
            count: 0,
        }
    }

    fn next(&mut self) -> Duration {
        self.count += 1;
        let short = Duration::from_millis(self.random.u64(1..40));
        if self.count % 20 == 0 {
            self.lease * 3 / 2
        } else {
            short
        }
    }
}
