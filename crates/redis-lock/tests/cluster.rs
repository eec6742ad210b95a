//! The lock on a cluster of one node, which has all slots.

#![cfg(feature = "cluster")]

use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_examples::redis_server::{RedisServer, connect};
use hashed_wheel_examples::server::free_port;
use hashed_wheel_examples::testing;
use redis_lock::{LockClient, LockOptions};

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn locks_of_many_slots_are_renewed_and_released() {
    // The default port of the bus may be too large.
    let port = free_port().unwrap().to_string();
    let arguments = ["--cluster-enabled", "yes", "--cluster-port", &port].map(str::to_owned);
    let started = RedisServer::start_with("lock-cluster", arguments.into());
    let Some(server) = testing::server_or_skip(started) else { return };
    let mut redis = connect(&server.url()).unwrap();
    let () = redis::cmd("CLUSTER").arg(&["ADDSLOTSRANGE", "0", "16383"]).query(&mut redis).unwrap();
    let begin = Instant::now();
    loop {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut redis).unwrap();
        if info.contains("cluster_state:ok") {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{info}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let timer = HashedWheelTimer::new(Duration::from_millis(5), 512);
    let locks = LockClient::cluster([server.url()], &timer).unwrap();
    let options = LockOptions::new().lease(Duration::from_secs(2)).poll(PATIENCE * 3);
    let mut guards = Vec::new();
    for number in 0..50 {
        guards.push(locks.lock_with(&format!("lock-{number}"), options.clone()).lock().await.unwrap());
    }
    let mut waiting = locks.lock_with("lock-0", options.clone());
    let waiting = tokio::spawn(async move { waiting.lock().await });
    tokio::time::sleep(Duration::from_secs(5)).await;
    for guard in guards {
        guard.check().unwrap();
        guard.unlock().await.unwrap();
    }
    let guard = tokio::time::timeout(PATIENCE, waiting).await.expect("it is woken").unwrap().unwrap();
    guard.unlock().await.unwrap();
}
