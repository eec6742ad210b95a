//! Networks that fail: between the node and the server is a relay that can be cut or frozen, or is
//! slow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel_job_scheduler::{NewJob, RunState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, watch};
use tokio_postgres::{Config, NoTls};

use crate::fixture::{Fixture, MS, Task, eventually, shut_down};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Link {
    Passes,
    /// Nothing arrives, and no end is noticed.
    Frozen,
    /// Connections are closed, and no new ones are accepted.
    Cut,
}

pub(crate) struct Relay {
    link: Arc<watch::Sender<Link>>,
    /// For nodes that connect through it.
    pub(crate) config: Config,
}

impl Relay {
    pub(crate) async fn new(server: &Config) -> Self {
        Self::with_delay(server, Duration::ZERO).await
    }

    /// Each byte of a connection takes this long, and the sender waits meanwhile.
    pub(crate) async fn with_pace(server: &Config, pace: Duration) -> Self {
        Self::start(server, Duration::ZERO, pace).await
    }

    /// What is sent arrives this much later, in each direction.
    pub(crate) async fn with_delay(server: &Config, delay: Duration) -> Self {
        Self::start(server, delay, Duration::ZERO).await
    }

    async fn start(server: &Config, delay: Duration, pace: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], server.get_ports()[0]));
        let mut config = Config::new();
        config
            .host("127.0.0.1")
            .port(listener.local_addr().unwrap().port());
        config.user("postgres").dbname("postgres");
        let link = Arc::new(watch::Sender::new(Link::Passes));
        let links = link.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let mut link = links.subscribe();
                // If it is cut, the connection is closed.
                if *link.borrow_and_update() == Link::Cut {
                    continue;
                }
                let far = TcpSocket::new_v4().unwrap();
                if !pace.is_zero() {
                    // The network holds little.
                    far.set_recv_buffer_size(16 << 10).unwrap();
                }
                let far = far.connect(to).await.unwrap();
                let ((near_read, near_write), (far_read, far_write)) =
                    (near.into_split(), far.into_split());
                tokio::spawn(relay(near_read, far_write, link.clone(), (delay, pace)));
                tokio::spawn(relay(far_read, near_write, link, (delay, pace)));
            }
        });
        Self { link, config }
    }

    pub(crate) fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

async fn relay(
    mut from: OwnedReadHalf,
    to: OwnedWriteHalf,
    mut link: watch::Receiver<Link>,
    (delay, pace): (Duration, Duration),
) {
    let _ = to.as_ref().set_nodelay(true);
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(deliver(receiver, to));
    let mut bytes = [0; 4_096];
    let is_cut = |link: &Link| *link == Link::Cut;
    loop {
        let mut cut = link.clone();
        let count = tokio::select! {
            read = from.read(&mut bytes) => read.unwrap_or(0),
            _ = cut.wait_for(is_cut) => return,
        };
        if count == 0 {
            return;
        }
        if !pace.is_zero() {
            tokio::time::sleep(pace * count as u32).await;
        }
        let arrives = Instant::now() + delay;
        let Ok(now) = link
            .wait_for(|link| *link != Link::Frozen)
            .await
            .map(|now| *now)
        else {
            return;
        };
        if now == Link::Cut || sender.send((arrives, bytes[..count].to_vec())).is_err() {
            return;
        }
    }
}

/// What is on the way does not delay what follows it.
async fn deliver(mut sent: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>, mut to: OwnedWriteHalf) {
    while let Some((arrives, bytes)) = sent.recv().await {
        tokio::time::sleep_until(arrives.into()).await;
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn run_of_a_node_without_a_network_is_repeated_once_and_its_late_result_is_not_written() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let relay = Relay::new(&fixture.config).await;
    let isolated = fixture
        .mortal()
        .name("isolated")
        .start(relay.config.clone(), NoTls)
        .await
        .unwrap();
    let job = fixture.enqueue(NewJob::new(&Task::Sleep(1_500))).await;
    fixture.until_state(job, RunState::Running).await;
    relay.set(Link::Frozen);
    let other = fixture.start(fixture.builder().name("other")).await;
    let run = fixture.until_done(job, 1).await.remove(0);
    // (If the isolated node lost its lease before, because the machine was busy, it is not node 1.)
    assert!(run.interrupted >= 1 && run.taken_over >= 1, "{run:?}");
    let nodes = fixture.jobs.nodes(&fixture.client).await.unwrap();
    assert!(
        nodes
            .iter()
            .any(|node| Some(node.id) == run.node && node.name == "other"),
        "{nodes:?}"
    );
    // The statements that the isolated node has sent arrive now.
    relay.set(Link::Passes);
    eventually(async || {
        let nodes = fixture.jobs.nodes(&fixture.client).await.unwrap();
        nodes
            .iter()
            .any(|node| node.name == "isolated" && node.is_alive && Some(node.id) > run.node)
    })
    .await;
    let after = fixture.history(job).await.remove(0);
    assert_eq!(
        (after.finished, after.node, after.interrupted),
        (run.finished, run.node, run.interrupted)
    );
    shut_down(isolated).await;
    shut_down(other).await;
}

#[tokio::test]
async fn node_whose_connections_are_cut_reads_and_listens_again() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let relay = Relay::new(&fixture.config).await;
    // Without a notification, it would read after 15 seconds.
    let builder = fixture
        .builder()
        .lease(MS * 60_000)
        .heartbeat(MS * 30_000)
        .prefetch(MS * 30_000);
    let node = builder.start(relay.config.clone(), NoTls).await.unwrap();
    for round in 1..=3 {
        relay.set(Link::Cut);
        let missed = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
        tokio::time::sleep(MS * 200).await;
        relay.set(Link::Passes);
        // It was enqueued while no node listened.
        fixture.until_done(missed, 1).await;
        let begin = Instant::now();
        let heard = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
        fixture.until_done(heard, 1).await;
        assert!(begin.elapsed() < Duration::from_secs(10), "round {round}");
    }
    shut_down(node).await;
}

#[tokio::test]
async fn connections_that_are_cut_at_any_time_lose_no_run() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let relay = Relay::new(&fixture.config).await;
    let node = fixture
        .builder()
        .start(relay.config.clone(), NoTls)
        .await
        .unwrap();
    let job = fixture
        .enqueue(NewJob::new(&Task::Sleep(5)).every(MS * 20))
        .await;
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..6 {
        tokio::time::sleep(MS * random.u32(300..900)).await;
        relay.set(Link::Cut);
        tokio::time::sleep(MS * random.u32(0..100)).await;
        relay.set(Link::Passes);
    }
    let end = format!("UPDATE {}.job SET next_run = NULL", fixture.schema);
    fixture.client.batch_execute(&end).await.unwrap();
    let runs = fixture
        .until(job, |runs| {
            runs.iter().all(|run| run.state == RunState::Done)
        })
        .await;
    let mut due: Vec<_> = runs.iter().map(|run| run.due).collect();
    due.sort();
    assert!(
        due.len() > 50
            && due
                .windows(2)
                .all(|pair| pair[1].duration_since(pair[0]).as_millis() == 20)
    );
    // Each execution after the first one is marked.
    assert!(
        runs.iter().all(|run| run.attempt == 1 + run.interrupted),
        "{runs:?}"
    );
    shut_down(node).await;
}

#[tokio::test]
async fn shutdown_without_a_network_ends() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    for link in [Link::Frozen, Link::Cut] {
        let relay = Relay::new(&fixture.config).await;
        let node = fixture
            .mortal()
            .start(relay.config.clone(), NoTls)
            .await
            .unwrap();
        let job = fixture.enqueue(NewJob::new(&Task::Sleep(600_000))).await;
        fixture
            .until(job, |runs| {
                runs.iter().any(|run| run.state == RunState::Running)
            })
            .await;
        relay.set(link);
        // In the second case it tries to connect again and again.
        tokio::time::sleep(MS * 1_000).await;
        let begin = Instant::now();
        // Whether it is an error depends on what it was doing.
        let _ = node.shutdown(MS * 500).await;
        // Some leases of 1.5 s.
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{link:?}: {:?}",
            begin.elapsed()
        );
        fixture.jobs.delete(&fixture.client, job).await.unwrap();
    }
}
