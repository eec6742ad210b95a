//! Measures the job scheduler next to others on the same PostgreSQL server, which it starts, with
//! fsync.
//!
//! ```sh
//! cargo run --release --manifest-path crates/job-scheduler/trial/compare/Cargo.toml
//! # Only some of them.
//! cargo run --release --manifest-path crates/job-scheduler/trial/compare/Cargo.toml -- own graphile-tuned
//! ```
//!
//! Each scheduler has a database of its own. Nodes, server and this program share the machine. What
//! is measured is the same for all:
//!
//! - **Runs per second**: one-off jobs that are all due when a node starts, until the last handler
//!   has been called, for at most 5 s.
//! - **Lateness**: the time between the due time and the call of the handler, for one-off jobs that
//!   were enqueued in advance, and are due at 100 per second. (Due times of apalis are whole
//!   seconds, so 100 of its jobs are due at once.)
//! - **Due when enqueued**: the time between the call that enqueues and the call of the handler,
//!   one job at a time.
//! - **Enqueued per second**: by 32 clients with a connection each, one job per transaction, due at
//!   once, while a node executes them.
//! - **Idle commits**: of a node without jobs, in its database. All schedulers idle at the same
//!   time.
//! - **Takeover**: the time between `kill -9` of a node that executes a job and the call of the
//!   handler in another process.

mod peers;
mod work;

use std::error::Error;
use std::process::{ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use hashed_wheel_trial::{Lateness, exit_code};
use job_scheduler_trial::Database;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use crate::peers::{Fallible, Peer, Queue};
use crate::work::{Work, count, now, take_lateness};

/// Measures schedulers that store their jobs in PostgreSQL
#[derive(Debug, Clone, Parser)]
struct Options {
    /// The schedulers to measure: by default, all of them
    peers: Vec<Peer>,

    /// Only check that everything works
    #[arg(long)]
    test: bool,

    /// Run as a node
    #[arg(long, hide = true, requires = "url")]
    node: Option<Peer>,

    /// The database of the node
    #[arg(long, hide = true)]
    url: Option<String>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Scale {
    runs: u64,
    /// For how many seconds jobs are due, and the number of jobs per second.
    seconds: u64,
    rate: u64,
    enqueued: u32,
    /// How long several clients enqueue.
    clients: Duration,
    /// Until the statistics of the server are up to date, and then.
    idle: [Duration; 2],
    /// One takeover instead of three.
    is_test: bool,
}

const SECOND: Duration = Duration::from_secs(1);

/// The number of clients that enqueue at the same time.
const CLIENTS: usize = 32;

/// The time limit for everything that should happen within some seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Options {
    fn peers(&self) -> Vec<Peer> {
        if self.peers.is_empty() {
            Peer::value_variants().to_vec()
        } else {
            self.peers.clone()
        }
    }

    fn scale(&self) -> Scale {
        if self.test {
            let idle = [Duration::ZERO, SECOND];
            let clients = SECOND / 2;
            return Scale {
                runs: 200,
                seconds: 1,
                rate: 20,
                enqueued: 3,
                clients,
                idle,
                is_test: true,
            };
        }
        let idle = [SECOND * 11, SECOND * 10];
        Scale {
            runs: 5_000,
            seconds: 4,
            rate: 100,
            enqueued: 40,
            clients: SECOND * 5,
            idle,
            is_test: false,
        }
    }
}

/// The results of one scheduler.
#[derive(Debug, Default)]
struct Row {
    runs_per_second: f64,
    lateness: Lateness,
    /// The number of jobs that were not executed soon after they were due. The lateness is a lower
    /// bound then.
    missing: usize,
    enqueued: Lateness,
    enqueued_per_second: f64,
    commits: f64,
    takeovers: Vec<Duration>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let run = || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let done = match (options.node, options.url.clone()) {
            (Some(peer), Some(url)) => runtime.block_on(peer.run(url)),
            _ => {
                let database = Database::start_durable()?;
                runtime.block_on(compare(&database.url, &options.peers(), options.scale()))
            }
        };
        done.map(|()| ExitCode::SUCCESS)
            .map_err(|error| -> Box<dyn Error> { error })
    };
    exit_code(run())
}

async fn compare(url: &str, peers: &[Peer], scale: Scale) -> Fallible<()> {
    let (server, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let version: String = server.query_one("SHOW server_version", &[]).await?.get(0);
    println!(
        "PostgreSQL {version}, with fsync; {} one-off jobs for the runs per second\n",
        scale.runs
    );
    let databases = Databases {
        server,
        url: url.to_owned(),
    };
    let mut rows: Vec<Row> = peers.iter().map(|_| Row::default()).collect();
    // First, because autovacuum commits too after the others.
    for (row, commits) in rows.iter_mut().zip(idle(peers, &databases, scale).await?) {
        row.commits = commits;
    }
    for (row, &peer) in rows.iter_mut().zip(peers) {
        row.enqueued = due_when_enqueued(peer, &databases, scale).await?;
        (row.lateness, row.missing) = lateness(peer, &databases, scale).await?;
        row.runs_per_second = throughput(peer, &databases, scale).await?;
        row.enqueued_per_second = clients(peer, &databases, scale).await?;
        if peer.no_takeover().is_none() {
            // Most of the time, all of them wait.
            let takeover = |number| takeover(peer, number, &databases);
            row.takeovers = match scale.is_test {
                true => vec![takeover(0).await?],
                false => tokio::try_join!(takeover(0), takeover(1), takeover(2))
                    .map(|(a, b, c)| vec![a, b, c])?,
            };
        }
        row.takeovers.sort();
    }
    print(&rows, peers);
    Ok(())
}

fn print(rows: &[Row], peers: &[Peer]) {
    println!(
        "| | settings | runs per second | lateness p50 / p99, ms | due when enqueued p50 / p99, ms | enqueued per second \
         by {CLIENTS} clients | idle commits per second | takeover, median / max |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|--:|");
    for (row, peer) in rows.iter().zip(peers) {
        let [late, enqueued] = [&row.lateness, &row.enqueued].map(|late| {
            let [p50, p99] = [late.p50(), late.p99()].map(|late| late.as_secs_f64() * 1e3);
            format!("{p50:.1} / {p99:.1}")
        });
        let bound = if row.missing > 0 { "≥ " } else { "" };
        let takeover = peer.no_takeover().map_or_else(
            || {
                let [median, max] = [row.takeovers.len() / 2, row.takeovers.len() - 1]
                    .map(|rank| row.takeovers[rank]);
                format!("{median:.1?} / {max:.1?}")
            },
            Into::into,
        );
        println!(
            "| {} | {} | {:.0} | {bound}{late} | {enqueued} | {:.0} | {:.1} | {takeover} |",
            peer.name(),
            peer.settings(),
            row.runs_per_second,
            row.enqueued_per_second,
            row.commits
        );
    }
    println!("{NOTES}");
}

/// The settings, and what the others do not promise. Looked up in their sources and documents.
const NOTES: &str = "
apalis-postgres, as in its README: notifications, and a poll every 5 s, in batches of 10 jobs. Runs of a lost worker are repeated
after 10 missed heartbeats of 30 s. Tuned: a poll every 10 ms, in batches of 100 jobs, on all threads of the runtime; 3 heartbeats of 1 s.
Due times are whole seconds, and are found by polls.

graphile_worker, defaults: notifications, and a poll every second. Each of them lets each of the workers (one per core)
execute one job. Jobs of a lost worker stay locked; recovery must be enabled, and is after 300 to 360 s then, plus a delay of
30 s. Tuned: a poll every 10 ms, 16 workers, a local queue of 100 jobs, completions in batches of 5 ms; recovery after 3 s
without a heartbeat, which is sent each second, without a delay. Its documentation says that recovered jobs may still be
running. Due times are found by polls.

riverqueue, as in its README: 10 workers, notifications, a fetch at most every 100 ms, and a poll every second; the leader looks for
scheduled jobs every 5 s. Tuned: 100 workers, a fetch at most each millisecond, polls every 10 ms, by the leader too. A client has no
heartbeat: any job that has run for longer than an hour is repeated. (A shorter time would also repeat jobs that are still running.)

fang 0.11 is not measured: two statements of its asynchronous queue, without a transaction, select a job and mark it, so that
two workers may execute the same job. It does not repeat the jobs of a lost worker.";

/// Creates databases on the server.
struct Databases {
    server: Client,
    url: String,
}

impl Databases {
    /// Returns the URL of a new database.
    async fn create(&self, peer: Peer, what: &str) -> Fallible<String> {
        let name = format!("{peer:?}_{what}").to_lowercase();
        self.server
            .batch_execute(&format!("CREATE DATABASE {name}"))
            .await?;
        let (server, _) = self.url.rsplit_once('/').ok_or("a URL of a database")?;
        Ok(format!("{server}/{name}"))
    }

    async fn commits(&self, peer: Peer) -> Fallible<i64> {
        let name = format!("{peer:?}_idle").to_lowercase();
        let text = "SELECT xact_commit FROM pg_stat_database WHERE datname = $1";
        Ok(self.server.query_one(text, &[&name]).await?.get(0))
    }
}

/// Returns the commits per second of one idle node of each scheduler.
async fn idle(peers: &[Peer], databases: &Databases, scale: Scale) -> Fallible<Vec<f64>> {
    let mut nodes = Vec::new();
    let mut queues = Vec::new();
    for &peer in peers {
        let url = databases.create(peer, "idle").await?;
        queues.push(Queue::open(peer, &url).await?);
        nodes.push(Running::start(peer, url));
    }
    // Connections that do nothing publish their statistics within ten seconds.
    tokio::time::sleep(scale.idle[0]).await;
    let mut before = Vec::new();
    for &peer in peers {
        before.push(databases.commits(peer).await?);
    }
    tokio::time::sleep(scale.idle[1]).await;
    let mut rates = Vec::new();
    for (&peer, before) in peers.iter().zip(before) {
        let commits = databases.commits(peer).await? - before;
        rates.push(commits as f64 / scale.idle[1].as_secs_f64());
    }
    nodes.iter_mut().try_for_each(Running::check)?;
    Ok(rates)
}

async fn due_when_enqueued(peer: Peer, databases: &Databases, scale: Scale) -> Fallible<Lateness> {
    let url = databases.create(peer, "enqueued").await?;
    let mut queue = Queue::open(peer, &url).await?;
    let mut node = Running::start(peer, url);
    tokio::time::sleep(SECOND).await;
    take_lateness();
    for _ in 0..scale.enqueued {
        let before = count();
        queue
            .push(
                &[Work {
                    due: now(),
                    hangs: false,
                }],
                true,
            )
            .await?;
        wait_for(before + 1, &mut node).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(take_lateness())
}

/// Returns the lateness, and how many jobs were not executed soon.
async fn lateness(peer: Peer, databases: &Databases, scale: Scale) -> Fallible<(Lateness, usize)> {
    let url = databases.create(peer, "lateness").await?;
    let mut queue = Queue::open(peer, &url).await?;
    // At a whole second.
    let start = (now() / 1_000_000 + 3) * 1_000_000;
    let due = |number: u64| match peer.has_whole_seconds() {
        true => start + number / scale.rate * 1_000_000,
        false => start + number * 1_000_000 / scale.rate,
    };
    let works: Vec<_> = (0..scale.seconds * scale.rate)
        .map(|number| Work {
            due: due(number),
            hangs: false,
        })
        .collect();
    queue.push(&works, false).await?;
    take_lateness();
    let before = count();
    let mut node = Running::start(peer, url);
    let limit = SECOND * (scale.seconds as u32 + 9);
    wait_at_most(limit, before + works.len() as u64, &mut node).await?;
    let missing = works.len() - (count() - before) as usize;
    let mut lateness = take_lateness();
    // Those that were not executed are at least this late.
    for work in &works[works.len() - missing..] {
        lateness.record(Duration::from_micros(now() - work.due));
    }
    Ok((lateness, missing))
}

async fn throughput(peer: Peer, databases: &Databases, scale: Scale) -> Fallible<f64> {
    let url = databases.create(peer, "throughput").await?;
    let mut queue = Queue::open(peer, &url).await?;
    let works: Vec<_> = (0..scale.runs)
        .map(|_| Work {
            due: now(),
            hangs: false,
        })
        .collect();
    for works in works.chunks(1_000) {
        queue.push(works, true).await?;
    }
    // Removes what the inserts have left, which autovacuum would do at some time.
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute("VACUUM ANALYZE").await?;
    client.batch_execute("CHECKPOINT").await?;
    // apalis reads jobs that were due before this second.
    tokio::time::sleep(SECOND).await;
    let (before, begin) = (count(), Instant::now());
    let mut node = Running::start(peer, url);
    wait_at_most(SECOND * 5, before + scale.runs, &mut node).await?;
    Ok((count() - before) as f64 / begin.elapsed().as_secs_f64())
}

/// Returns the number of jobs per second that several clients enqueue while a node executes them.
async fn clients(peer: Peer, databases: &Databases, scale: Scale) -> Fallible<f64> {
    let url = databases.create(peer, "clients").await?;
    let mut queues = Vec::new();
    for _ in 0..CLIENTS {
        queues.push(Queue::open(peer, &url).await?);
    }
    let mut node = Running::start(peer, url);
    tokio::time::sleep(SECOND).await;
    let (begin, before) = (Instant::now(), count());
    let mut clients = JoinSet::new();
    for mut queue in queues {
        clients.spawn(async move {
            let mut added = 0_u32;
            while begin.elapsed() < scale.clients {
                queue
                    .push(
                        &[Work {
                            due: now(),
                            hangs: false,
                        }],
                        true,
                    )
                    .await?;
                added += 1;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(added)
        });
    }
    let mut added = 0;
    while let Some(client) = clients.join_next().await {
        added += client??;
    }
    let rate = f64::from(added) / begin.elapsed().as_secs_f64();
    // The node has worked meanwhile.
    wait_for(before + 1, &mut node).await?;
    Ok(rate)
}

/// Waits for a number of executions.
async fn wait_for(number: u64, node: &mut Running) -> Fallible<()> {
    wait_at_most(TIMEOUT, number, node).await?;
    let missing = number.saturating_sub(count());
    if missing == 0 {
        Ok(())
    } else {
        Err(format!("{missing} jobs were not executed within {TIMEOUT:?}").into())
    }
}

/// Waits for a number of executions, or until the end of a time limit.
async fn wait_at_most(limit: Duration, number: u64, node: &mut Running) -> Fallible<()> {
    let begin = Instant::now();
    while count() < number && begin.elapsed() < limit {
        node.check()?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// A node in this process. It ends when this value is dropped.
///
/// It has a thread of its own, because the compiler cannot prove that the future of apalis may move
/// between threads. Its tasks are in the runtime.
struct Running {
    peer: Peer,
    _stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<Fallible<()>>,
}

impl Running {
    fn start(peer: Peer, url: String) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let runtime = Handle::current();
        thread::spawn(move || {
            let result = runtime.block_on(async {
                tokio::select! {
                    result = peer.run(url) => result,
                    _ = stopped => Ok(()),
                }
            });
            // Nothing listens any more if it was stopped.
            let _ = end.send(result);
        });
        Self {
            peer,
            _stop: stop,
            ended,
        }
    }

    /// Returns the error of a node that has ended.
    fn check(&mut self) -> Fallible<()> {
        match self.ended.try_recv() {
            Err(TryRecvError::Empty) => Ok(()),
            Ok(Err(error)) => Err(error),
            _ => Err(format!("the node of {:?} has ended", self.peer).into()),
        }
    }
}

/// A node in a process of its own. It is killed when this value is dropped.
struct Node {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Node {
    fn start(peer: Peer, url: &str) -> Fallible<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let peer = peer.to_possible_value().ok_or("no peer is hidden")?;
        command.args(["--node", peer.get_name(), "--url", url]);
        let mut process = command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let output = process.stdout.take().ok_or("it was piped")?;
        Ok(Self {
            process,
            lines: BufReader::new(output).lines(),
        })
    }

    /// Waits until it executes a job that hangs.
    async fn wait_for_start(&mut self) -> Fallible<()> {
        match tokio::time::timeout(TIMEOUT, self.lines.next_line()).await? {
            Ok(Some(_)) => Ok(()),
            ended => Err(format!("a node has ended: {ended:?}").into()),
        }
    }
}

async fn takeover(peer: Peer, number: u32, databases: &Databases) -> Fallible<Duration> {
    let url = databases
        .create(peer, &format!("takeover_{number}"))
        .await?;
    let mut queue = Queue::open(peer, &url).await?;
    let mut lost = Node::start(peer, &url)?;
    queue
        .push(
            &[Work {
                due: now(),
                hangs: true,
            }],
            true,
        )
        .await?;
    lost.wait_for_start().await?;
    let mut other = Node::start(peer, &url)?;
    // At different times between two heartbeats.
    tokio::time::sleep(SECOND * 2 + SECOND * number / 3).await;
    let begin = Instant::now();
    lost.process.kill().await?;
    other.wait_for_start().await?;
    let time = begin.elapsed();
    other.process.kill().await?;
    Ok(time)
}
