//! The reports of a node about itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_job_scheduler::{Ended, Monitor, NewJob, RunError};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio_postgres::NoTls;

use crate::fixture::{Fixture, MS, eventually, shut_down};
use crate::network::{Link, Relay};

#[tokio::test]
async fn node_without_a_network_is_alive_and_not_ready() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let relay = Relay::new(&fixture.config).await;
    let node = fixture
        .builder()
        .start(relay.config.clone(), NoTls)
        .await
        .unwrap();
    let is_ready = async || node.health().is_ready;
    eventually(is_ready).await;
    let health = node.health();
    assert!(health.is_alive && health.last_error.is_none(), "{health:?}");
    relay.set(Link::Cut);
    eventually(async || !node.health().is_ready).await;
    tokio::time::sleep(MS * 500).await;
    let health = node.health();
    assert!(health.is_alive && health.last_error.is_some(), "{health:?}");
    assert!(health.last_beat >= MS * 400, "{health:?}");
    relay.set(Link::Passes);
    eventually(is_ready).await;
    assert!(node.health().last_beat < Duration::from_secs(30));
    shut_down(node).await;
}

/// Nothing arrives, so the node does not fail before its lease ends.
#[tokio::test]
async fn node_whose_lease_has_ended_is_not_ready() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let relay = Relay::new(&fixture.config).await;
    let node = fixture
        .mortal()
        .start(relay.config.clone(), NoTls)
        .await
        .unwrap();
    eventually(async || node.health().is_ready).await;
    relay.set(Link::Frozen);
    eventually(async || !node.health().is_ready).await;
    assert!(node.health().is_alive);
    drop(node);
}

#[tokio::test]
async fn end_of_a_node_says_why() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let (ended, monitor) = (node.ended(), node.monitor());
    assert!(monitor.health().is_alive);
    shut_down(node).await;
    assert_eq!(
        (ended.await, monitor.ended().await),
        (Ended::ShutDown, Ended::ShutDown)
    );
    assert!(!monitor.health().is_alive && !monitor.health().is_ready);

    let node = fixture.node().await;
    let (ended, monitor) = (node.ended(), node.monitor());
    drop(node);
    assert_eq!(ended.await, Ended::Dropped);
    assert!(!monitor.health().is_alive);

    let timer = HashedWheelTimer::new(MS, 512);
    let node = fixture.start(fixture.builder().timer(timer.clone())).await;
    let ended = node.ended();
    timer.stop();
    let why = ended.await;
    assert!(
        matches!(&why, Ended::Failed(why) if why.starts_with("timer error")),
        "{why:?}"
    );
    assert!(!node.health().is_alive);
    assert!(node.shutdown(MS).await.is_err());
}

/// A handler blocks the only thread of its runtime. (The node is in a thread of its own.)
#[tokio::test]
async fn node_is_not_alive_while_a_handler_blocks_all_threads() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let blocks = Arc::new(AtomicBool::new(true));
    let (sender, receiver) = oneshot::channel::<Monitor>();
    let (stop, stopped) = oneshot::channel::<()>();
    let (flag, config) = (blocks.clone(), fixture.config.clone());
    let builder = fixture
        .builder()
        .lease(MS * 500)
        .heartbeat(MS * 100)
        .handler_named("block", move |_, _: Value| {
            let flag = flag.clone();
            async move {
                while flag.load(Relaxed) {
                    std::thread::sleep(MS);
                }
                Ok::<_, RunError>(())
            }
        });
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let node = builder.start(config, NoTls).await.unwrap();
            sender.send(node.monitor()).unwrap();
            let _ = stopped.await;
            // It may have lost its lease.
            let _ = node.shutdown(MS * 1_000).await;
        });
    });
    let monitor = receiver.await.unwrap();
    assert!(monitor.health().is_alive);
    fixture.enqueue(NewJob::named("block", Value::Null)).await;
    eventually(async || !monitor.health().is_alive).await;
    let health = monitor.health();
    assert!(
        !health.is_ready && health.last_beat >= MS * 500 * 8,
        "{health:?}"
    );
    // It has not ended, and continues.
    blocks.store(false, Relaxed);
    eventually(async || monitor.health().is_alive && monitor.health().is_ready).await;
    stop.send(()).unwrap();
    monitor.ended().await;
    thread.join().unwrap();
}
