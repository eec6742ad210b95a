//! Makes all calls and collects the results.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, Stats};
use hashed_wheel_examples::top::Top;
use hashed_wheel_trial::Lateness;
use hashed_wheel_util::client::{Budget, CallError, Client, Policy, Reason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::server::{self, Request, Server};

/// The number of retries and hedges: this many, and one per so many calls.
pub(crate) const RESERVE: u32 = 100;
pub(crate) const CALLS_PER_RETRY: u32 = 10;

/// The pause of a caller before each call, in microseconds.
const PAUSE_MICROS: Range<u64> = 5_000..25_000;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) calls: u32,
    pub(crate) callers: u32,
    pub(crate) seed: u64,
    pub(crate) repeat_writes: bool,
}

/// The results of all calls.
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    pub(crate) server: server::Counts,
    /// The statistics of the client's timer after all calls have ended, and the number of timeouts
    /// that were pending then.
    pub(crate) stats: Stats,
    pub(crate) left: usize,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) answered: u64,
    pub(crate) deadlines: u64,
    /// Calls whose last attempt timed out.
    pub(crate) unanswered: u64,
    pub(crate) failed: u64,
    /// Of these two, the calls that had retries left when the budget was exhausted.
    pub(crate) out_of_budget: u64,
    /// Calls that may be sent more than once.
    pub(crate) repeatable: u64,
    pub(crate) retries: u64,
    pub(crate) hedges: u64,
    pub(crate) hedges_that_won: u64,
    /// Descriptions of events that must not happen.
    pub(crate) wrong: Vec<String>,
    /// The durations of answered calls that may be repeated. Sorted at the end.
    pub(crate) times: Vec<Duration>,
    /// The lateness of calls that failed at the deadline.
    pub(crate) lateness: Lateness,
}

impl Counts {
    /// Returns a quantile of the durations.
    pub(crate) fn quantile(&self, part: f64) -> Duration {
        let last = self.times.len().saturating_sub(1);
        self.times.get((part * last as f64) as usize).copied().unwrap_or_default()
    }
}

/// The policy of the calls, which the checks of their results know too.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) deadline: Duration,
    pub(crate) attempt: Duration,
    pub(crate) retries: u32,
    pub(crate) hedge_after: Option<Duration>,
}

impl Limits {
    fn policy(self) -> Policy {
        let Self { deadline, attempt, retries, hedge_after } = self;
        Policy::new(deadline)
            .attempt_timeout(attempt)
            .retries(retries)
            .backoff(Duration::from_millis(20))
            .hedge_after(hedge_after)
    }
}

struct Trial {
    load: Load,
    limits: Limits,
    client: Client,
    address: SocketAddr,
    next: AtomicU32,
    counts: Mutex<Counts>,
}

/// Makes all calls over real sockets.
pub(crate) async fn run(load: Load, limits: Limits, top: &Top) -> io::Result<Outcome> {
    let (server, address) = Server::start(load.seed).await?;
    let [timer, pausing] = [(); 2].map(|()| HashedWheelTimer::new(Duration::from_millis(1), 512));
    top.watch("calls", &timer);
    let client = Client::with_budget(&timer, limits.policy(), Budget::new(RESERVE, CALLS_PER_RETRY));
    let trial =
        Arc::new(Trial { load, limits, client, address, next: AtomicU32::new(0), counts: Mutex::default() });
    let callers: Vec<_> = (0..load.callers)
        .map(|caller| {
            let (trial, pausing) = (Arc::clone(&trial), pausing.clone());
            let mut random = Rng::with_seed(load.seed.wrapping_add(caller.into()));
            tokio::spawn(async move {
                loop {
                    let pause = Duration::from_micros(random.u64(PAUSE_MICROS));
                    pausing.sleep(pause).await.map_err(io::Error::other)?;
                    let id = trial.next.fetch_add(1, Ordering::Relaxed);
                    if id >= load.calls {
                        return io::Result::Ok(());
                    }
                    trial.call(id).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await??;
    }
    let mut counts = std::mem::take(&mut *trial.counts.lock().unwrap_or_else(PoisonError::into_inner));
    counts.times.sort_unstable();
    // Stops the timer before the statistics are read, so that the worker has finished all work.
    let left = timer.stop().len();
    Ok(Outcome { counts, server: server.counts(), stats: timer.stats(), left })
}

impl Trial {
    /// Makes one call and checks it.
    async fn call(&self, id: u32) {
        let (limits, address) = (self.limits, self.address);
        let is_write = id % 10 == 0;
        let is_repeatable = !is_write || self.load.repeat_writes;
        let mut sent = Vec::new();
        let began = Instant::now();
        let mut send = |reason| {
            sent.push((reason, Instant::now()));
            let request = Request { id, number: sent.len() as u32, is_write };
            async move { io::Result::Ok((reason, ask(address, request).await?)) }
        };
        let end = if is_repeatable {
            self.client.call(send).await
        } else {
            self.client.call_once(send(Reason::First)).await
        };
        let took = began.elapsed();

        let count = |kind| sent.iter().filter(|(reason, _)| *reason == kind).count() as u64;
        let (retries, hedges) = (count(Reason::Retry), count(Reason::Hedge));
        let was_last = !is_repeatable || retries == u64::from(limits.retries);
        let counts = &mut *self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.repeatable += u64::from(is_repeatable);
        counts.retries += retries;
        counts.hedges += hedges;
        let mut expect = |holds: bool, failure: &str| {
            if !holds {
                counts.wrong.push(format!("call {id}, after {took:.1?}: {failure}"));
            }
        };
        let after = limits.hedge_after.unwrap_or(Duration::MAX);
        expect(
            sent.windows(2).all(|pair| pair[1].0 != Reason::Hedge || pair[1].1 - pair[0].1 >= after),
            "a hedge came early",
        );
        match end {
            Ok((reason, answer)) => {
                expect(
                    answer == Request { id, number: 0, is_write }.answer(),
                    "the answer belongs to another call",
                );
                counts.answered += 1;
                counts.hedges_that_won += u64::from(reason == Reason::Hedge);
                if is_repeatable {
                    counts.times.push(took);
                }
            }
            Err(CallError::Deadline) => {
                expect(took >= limits.deadline, "failed before the deadline");
                counts.deadlines += 1;
                counts.lateness.record(took.saturating_sub(limits.deadline));
            }
            Err(CallError::AttemptTimeout) => {
                let last = sent.iter().rfind(|(reason, _)| *reason != Reason::Hedge);
                expect(
                    last.is_some_and(|(_, sent)| began + took >= *sent + limits.attempt),
                    "an attempt timed out too early",
                );
                counts.unanswered += 1;
                counts.out_of_budget += u64::from(!was_last);
            }
            Err(CallError::Failed(_)) => {
                counts.failed += 1;
                counts.out_of_budget += u64::from(!was_last);
            }
            Err(error) => expect(false, &format!("{error:?}")),
        }
    }
}

/// Sends a request and reads the answer until the server closes the connection. Dropping the future
/// closes it as well.
async fn ask(server: SocketAddr, request: Request) -> io::Result<String> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(request.line().as_bytes()).await?;
    let mut answer = String::new();
    match stream.read_to_string(&mut answer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(answer),
    }
}
