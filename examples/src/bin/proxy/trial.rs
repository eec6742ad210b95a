//! One turn: a proxy, its clients and its load, from beginning to end.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel_examples::{Lateness, Verdict};
use indicatif::HumanCount;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Options;
use crate::clients::Client;
use crate::load::{self, Load};
use crate::process::{On, Process, Said};

/// How many clients connect at a time.
const AT_A_TIME: usize = 200;

/// How long to wait for what should have happened.
const PATIENCE: Duration = Duration::from_secs(30);

/// What came of it.
pub(crate) struct Turn {
    pub(crate) on: On,
    pub(crate) load: Load,
    /// Of the proxy, while the load was on.
    pub(crate) cpu: Option<Duration>,
    pub(crate) memory: Option<u64>,
    pub(crate) said: Said,
    /// By the kind of timeout.
    pub(crate) expected: [u64; 4],
    pub(crate) lateness: Lateness,
    wrong: Vec<String>,
}

pub(crate) async fn run(
    options: &Options,
    wrk: &Path,
    on: On,
    upstreams: [SocketAddr; 2],
) -> io::Result<Turn> {
    let mut proxy = Process::start(on, upstreams).await?;
    let mut clients = Clients::new(options, proxy.address);

    // They are there before the load comes.
    for n in 0..options.idle {
        clients.add(if n % 2 == 0 { Client::Silent } else { Client::Mute });
    }
    clients.all_connected().await;
    let before = proxy.cpu_time();
    for client in [Client::Slow, Client::Stuck, Client::Endless, Client::Unreachable] {
        (0..options.offenders).for_each(|_| clients.add(client));
    }
    let time = Duration::from_secs(options.seconds);
    let load = timeout(time + PATIENCE, load::run(wrk, proxy.address, options.connections, time)).await;
    let load = load.unwrap_or_else(|_| Err(io::Error::other("wrk does not end")))?;
    let cpu = proxy.cpu_time().zip(before).and_then(|(after, before)| after.checked_sub(before));

    let (expected, lateness, wrong) = clients.watch().await?;
    let since = Instant::now();
    let mut said = proxy.ask().await?;
    while said.ended < said.accepted && since.elapsed() < options.total_timeout + PATIENCE {
        sleep(Duration::from_millis(50)).await;
        said = proxy.ask().await?;
    }
    let memory = proxy.peak_memory();
    proxy.end().await?;
    Ok(Turn { on, load, cpu, memory, said, expected, lateness, wrong })
}

struct Clients<'a> {
    options: &'a Options,
    proxy: SocketAddr,
    turn: Arc<Semaphore>,
    /// Each has a clone of it until it is connected.
    connecting: mpsc::Sender<()>,
    connected: mpsc::Receiver<()>,
    running: JoinSet<Result<Duration, String>>,
    expected: [u64; 4],
}

impl<'a> Clients<'a> {
    fn new(options: &'a Options, proxy: SocketAddr) -> Self {
        let (connecting, connected) = mpsc::channel(1);
        let (turn, running) = (Arc::new(Semaphore::new(AT_A_TIME)), JoinSet::new());
        Self { options, proxy, turn, connecting, connected, running, expected: [0; 4] }
    }

    fn add(&mut self, client: Client) {
        self.expected[client.timeout() as usize] += 1;
        let (turn, connecting, proxy) = (Arc::clone(&self.turn), self.connecting.clone(), self.proxy);
        let (limits, max_late) = (self.options.limits(), self.options.max_late);
        self.running.spawn(async move {
            let connected = {
                let _turn = turn.acquire().await;
                timeout(PATIENCE, client.connect(proxy)).await
            };
            drop(connecting);
            let connected = connected.unwrap_or_else(|never| Err(never.into()));
            let connected = connected.map_err(|error| format!("{client:?} cannot connect: {error}"))?;
            connected.watch(limits, max_late).await
        });
    }

    /// Until each of those so far is connected, or has failed.
    async fn all_connected(&mut self) {
        let (connecting, connected) = mpsc::channel(1);
        drop(std::mem::replace(&mut self.connecting, connecting));
        // Nobody sends anything.
        std::mem::replace(&mut self.connected, connected).recv().await;
    }

    /// To their ends.
    async fn watch(mut self) -> io::Result<([u64; 4], Lateness, Vec<String>)> {
        let (mut lateness, mut wrong) = (Lateness::default(), Vec::new());
        while let Some(end) = self.running.join_next().await {
            match end? {
                Ok(late) => lateness.record(late),
                Err(why) => wrong.push(why),
            }
        }
        Ok((self.expected, lateness, wrong))
    }
}

impl Turn {
    pub(crate) fn judge(&self, options: &Options, round: u32, verdict: &mut Verdict) {
        let Self { on, load, said, expected, wrong, .. } = self;
        let mut expect =
            |holds, otherwise: String| verdict.expect(holds, format!("{on}, round {round}: {otherwise}"));
        wrong.iter().take(3).for_each(|wrong| expect(false, wrong.clone()));
        expect(
            wrong.is_empty(),
            format!("{} clients were not treated as they should be", HumanCount(wrong.len() as u64)),
        );
        expect(
            said.timed_out == *expected,
            format!("{:?} timeouts have fired, not {expected:?}", said.timed_out),
        );
        expect(load.errors == [0; 5], format!("wrk saw errors: {:?}", load.errors));
        expect(load.requests > 0, "wrk was not answered".into());
        expect(
            said.answered >= load.requests,
            format!("wrk saw {} answers, of {}", load.requests, said.answered),
        );
        let clients = u64::from(options.connections) + expected.iter().sum::<u64>();
        expect(said.accepted >= clients, format!("{} of {clients} connections came", said.accepted));
        expect(
            said.ended == said.accepted,
            format!("{} of {} connections have ended", said.ended, said.accepted),
        );
        expect(said.pending == 0, format!("{} timeouts are left", said.pending));
    }
}
