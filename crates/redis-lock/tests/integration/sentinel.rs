//! The lock on a master with a replica, which a sentinel makes the master.

use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::redis_server::{SentinelSetup, until};
use hashed_wheel_trial::testing;
use redis::IntoConnectionInfo;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis_lock::{Lock, LockClient, LockError, LockOptions};

use super::common::restricted_user;

const PATIENCE: Duration = Duration::from_secs(20);

/// It is longer than the failover, so that the holder keeps the lock.
const LEASE: Duration = Duration::from_secs(30);

const SERVICE: &str = "locks";

/// Takes the lock, however often a call to Redis fails, and releases it. Returns the token.
async fn take_and_release(mut lock: Lock) -> u64 {
    let take = async {
        loop {
            match lock.lock().await {
                Ok(guard) => return guard,
                Err(LockError::Redis(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let guard = tokio::time::timeout(PATIENCE, take)
        .await
        .expect("it is taken");
    let token = guard.token();
    guard.unlock().await.unwrap();
    token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_follows_a_failover() {
    let started = SentinelSetup::start("lock-sentinel", SERVICE, Duration::from_secs(1));
    let Some(mut setup) = testing::server_or_skip(started) else {
        return;
    };
    let timer = HashedWheelTimer::new(Duration::from_millis(5), 512);
    let [user, _] = [&setup.master, &setup.replica].map(|server| {
        restricted_user(&server.url(), "locks", "+role")
            .into_connection_info()
            .unwrap()
    });
    let user = SentinelNodeConnectionInfo::default()
        .set_redis_connection_info(user.redis_settings().clone());
    let sentinels = vec![setup.sentinel.url()];
    // With the feature tls, a reference would be sufficient.
    let service = String::from(SERVICE);
    let client =
        SentinelClient::build(sentinels, service, Some(user), SentinelServerType::Master).unwrap();
    let locks = LockClient::sentinel(client).timer(&timer).build().unwrap();

    let held = locks
        .lock_with("held", LockOptions::new().lease(LEASE))
        .lock()
        .await
        .unwrap();
    let short = LockOptions::new()
        .lease(Duration::from_secs(3))
        .poll(PATIENCE * 3);
    let before = take_and_release(locks.lock_with("other", short.clone())).await;
    until("the replica has all data", || {
        Ok(setup.master.info("master_repl_offset")? == setup.replica.info("slave_repl_offset")?)
    })
    .unwrap();

    setup.master.kill().unwrap();
    let after = take_and_release(locks.lock_with("other", short.clone())).await;
    assert!(
        setup.replica.is_master().unwrap(),
        "the lock is on the former replica"
    );
    assert!(
        after > before,
        "the token after the failover, {after}, is not greater than {before}"
    );

    // The lock that was held before is still held, by the same owner, and its unlock wakes.
    held.check().unwrap();
    let mut waiting = locks.lock_with("held", LockOptions::new().lease(LEASE).poll(PATIENCE * 3));
    let waiting = tokio::spawn(async move { waiting.lock().await });
    until("the caller is subscribed", || {
        Ok(setup.replica.subscribed_channels("lock-wake:*")? == 1)
    })
    .unwrap();
    held.unlock().await.unwrap();
    let guard = tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("it is woken")
        .unwrap()
        .unwrap();
    guard.unlock().await.unwrap();
}
