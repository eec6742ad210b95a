//! One measurement: a proxy, its clients and its load, from start to end.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel_services::On;
use hashed_wheel_trial::{Lateness, Verdict};
use indicatif::HumanCount;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Options;
use crate::clients::Client;
use crate::load::{self, Load};
use crate::process::{Counters, Process};

/// How many clients connect at the same time.
const MAX_CONNECTING: usize = 200;

/// How long to wait for an expected event.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The result of a measurement.
pub(crate) struct Measurement {
    pub(crate) on: On,
    pub(crate) load: Load,
    /// The CPU time of the proxy during the load.
    pub(crate) cpu: Option<Duration>,
    pub(crate) memory: Option<u64>,
    pub(crate) counters: Counters,
    /// The expected number of timeouts by kind.
    pub(crate) expected: [u64; 4],
    pub(crate) lateness: Lateness,
    errors: Vec<String>,
}

pub(crate) async fn run(
    options: &Options,
    wrk: &Path,
    on: On,
    upstreams: [SocketAddr; 2],
) -> io::Result<Measurement> {
    let mut proxy = Process::start(on, upstreams).await?;
    let mut clients = Clients::new(options, proxy.address);

    // These clients connect before the load starts.
    for n in 0..options.idle {
        clients.add(if n % 2 == 0 {
            Client::Silent
        } else {
            Client::NoRequest
        });
    }
    clients.all_connected().await;
    let before = proxy.cpu_time();
    for client in [
        Client::Slow,
        Client::Stuck,
        Client::Endless,
        Client::Unreachable,
    ] {
        (0..options.offenders).for_each(|_| clients.add(client));
    }
    let time = options.duration;
    let load = timeout(
        time + TIMEOUT,
        load::run(wrk, proxy.address, options.connections, time),
    )
    .await;
    let load = load.unwrap_or_else(|_| Err(io::Error::other("wrk has not ended in time")))?;
    let cpu = proxy
        .cpu_time()
        .zip(before)
        .and_then(|(after, before)| after.checked_sub(before));

    let (expected, lateness, errors) = clients.watch().await?;
    let since = Instant::now();
    let mut counters = proxy.ask().await?;
    while counters.ended < counters.accepted && since.elapsed() < options.total_timeout + TIMEOUT {
        sleep(Duration::from_millis(50)).await;
        counters = proxy.ask().await?;
    }
    let memory = proxy.peak_memory();
    proxy.end().await?;
    Ok(Measurement {
        on,
        load,
        cpu,
        memory,
        counters,
        expected,
        lateness,
        errors,
    })
}

struct Clients<'a> {
    options: &'a Options,
    proxy: SocketAddr,
    semaphore: Arc<Semaphore>,
    /// Each client holds a clone until it is connected.
    connecting: mpsc::Sender<()>,
    connected: mpsc::Receiver<()>,
    running: JoinSet<Result<Duration, String>>,
    expected: [u64; 4],
}

impl<'a> Clients<'a> {
    fn new(options: &'a Options, proxy: SocketAddr) -> Self {
        let (connecting, connected) = mpsc::channel(1);
        let (semaphore, running) = (Arc::new(Semaphore::new(MAX_CONNECTING)), JoinSet::new());
        Self {
            options,
            proxy,
            semaphore,
            connecting,
            connected,
            running,
            expected: [0; 4],
        }
    }

    fn add(&mut self, client: Client) {
        self.expected[client.timeout() as usize] += 1;
        let (semaphore, connecting, proxy) = (
            Arc::clone(&self.semaphore),
            self.connecting.clone(),
            self.proxy,
        );
        let (limits, max_late) = (self.options.limits(), self.options.max_late);
        self.running.spawn(async move {
            let connected = {
                let _permit = semaphore.acquire().await;
                timeout(TIMEOUT, client.connect(proxy)).await
            };
            drop(connecting);
            let connected = connected.unwrap_or_else(|never| Err(never.into()));
            let connected =
                connected.map_err(|error| format!("{client:?} cannot connect: {error}"))?;
            connected.watch(limits, max_late).await
        });
    }

    /// Waits until all clients so far are connected or have failed.
    async fn all_connected(&mut self) {
        let (connecting, connected) = mpsc::channel(1);
        drop(std::mem::replace(&mut self.connecting, connecting));
        // No message is ever sent. The receiver returns when all senders are dropped.
        std::mem::replace(&mut self.connected, connected)
            .recv()
            .await;
    }

    /// Waits until all clients have ended.
    async fn watch(mut self) -> io::Result<([u64; 4], Lateness, Vec<String>)> {
        let (mut lateness, mut errors) = (Lateness::default(), Vec::new());
        while let Some(end) = self.running.join_next().await {
            match end? {
                Ok(late) => lateness.record(late),
                Err(why) => errors.push(why),
            }
        }
        Ok((self.expected, lateness, errors))
    }
}

impl Measurement {
    pub(crate) fn check(&self, options: &Options, round: u32, verdict: &mut Verdict) {
        let Self {
            on,
            load,
            counters,
            expected,
            errors,
            ..
        } = self;
        let mut expect = |holds, failure: String| {
            verdict.expect(holds, format!("{on}, round {round}: {failure}"))
        };
        errors
            .iter()
            .take(3)
            .for_each(|errors| expect(false, errors.clone()));
        expect(
            errors.is_empty(),
            format!(
                "{} clients got a wrong result",
                HumanCount(errors.len() as u64)
            ),
        );
        expect(
            counters.timed_out == *expected,
            format!(
                "{:?} timeouts have fired instead of {expected:?}",
                counters.timed_out
            ),
        );
        expect(
            load.errors == [0; 5],
            format!("wrk saw errors: {:?}", load.errors),
        );
        expect(load.requests > 0, "wrk received no answers".into());
        expect(
            counters.answered >= load.requests,
            format!(
                "wrk received {} of {} answers",
                load.requests, counters.answered
            ),
        );
        let clients = u64::from(options.connections) + expected.iter().sum::<u64>();
        expect(
            counters.accepted >= clients,
            format!(
                "{} of {clients} connections were accepted",
                counters.accepted
            ),
        );
        expect(
            counters.ended == counters.accepted,
            format!(
                "{} of {} connections have ended",
                counters.ended, counters.accepted
            ),
        );
        expect(
            counters.pending == 0,
            format!("{} timeouts are still pending", counters.pending),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use clap::Parser;

    use super::*;

    #[test]
    fn load_without_answers_does_not_pass() {
        let options = Options::parse_from(["proxy", "--connections", "1"]);
        let check = |requests| {
            let [time, p50, p99] = [Duration::from_secs(1); 3];
            let load = Load {
                requests,
                time,
                p50,
                p99,
                errors: [0; 5],
            };
            let counters = Counters {
                accepted: 1,
                ended: 1,
                answered: requests,
                ..Counters::default()
            };
            let measurement = Measurement {
                on: On::Wheel,
                load,
                cpu: None,
                memory: None,
                counters,
                expected: [0; 4],
                lateness: Lateness::default(),
                errors: Vec::new(),
            };
            let mut verdict = Verdict::default();
            measurement.check(&options, 1, &mut verdict);
            verdict.print()
        };
        assert_eq!(check(1), ExitCode::SUCCESS);
        assert_eq!(check(0), ExitCode::FAILURE);
    }
}
