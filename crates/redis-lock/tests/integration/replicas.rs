//! Waiting until replicas have a lock.

use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::redis_server::{RedisServer, connect, until};
use hashed_wheel_trial::testing;
use redis::{Client, Commands};
use redis_lock::{LockClient, LockError, LockOptions, Loss};

use super::common::{
    self, Answers, PATIENCE, Proxy, is_run_elsewhere, patience, restricted_user, within,
};

/// So long that no test sees its end, and that replicas have a second.
const LEASE: Duration = Duration::from_secs(60);

/// A master with two replicas.
struct Setup {
    master: RedisServer,
    replicas: [RedisServer; 2],
    timer: HashedWheelTimer,
    locks: LockClient,
}

impl Setup {
    /// Returns `None` if Redis is not installed, and in the tests of the trial unless they are run
    /// for a mutant: each test of the crate is run once.
    fn new(test: &str) -> Option<Self> {
        if is_run_elsewhere() {
            return None;
        }
        let at_once = ["--repl-diskless-sync-delay", "0"];
        let arguments = |more: &[&str]| {
            [&at_once, more]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .collect()
        };
        let started = RedisServer::start_with(&format!("{test}-master"), arguments(&[]));
        let master = testing::server_or_skip(started)?;
        let port = master.port().to_string();
        let replicas = ["one", "two"].map(|name| {
            let name = format!("{test}-{name}");
            RedisServer::start_with(&name, arguments(&["--replicaof", "127.0.0.1", &port])).unwrap()
        });
        // A replica acknowledges nothing until it has all data.
        let mut redis = connect(&master.url()).unwrap();
        until("the replicas acknowledge", || {
            let mut write = redis::pipe();
            write.set("probe", 1).ignore().cmd("WAIT").arg(&[2, 100]);
            let [acknowledged]: [usize; 1] = write.query(&mut redis)?;
            Ok(acknowledged == 2)
        })
        .unwrap();
        let timer = HashedWheelTimer::new(Duration::from_millis(5), 512);
        let user = restricted_user(&master.url(), "locks", "+wait");
        let locks = LockClient::builder(Client::open(user).unwrap())
            .timer(&timer)
            .build()
            .unwrap();
        Some(Self {
            master,
            replicas,
            timer,
            locks,
        })
    }
}

fn options(replicas: u8) -> LockOptions {
    // Without the messages, a waiting caller would exceed the patience.
    LockOptions::new()
        .lease(LEASE)
        .poll(PATIENCE * 3)
        .replicas(replicas)
}

fn holder(server: &RedisServer, name: &str) -> Option<String> {
    super::common::holder(&mut connect(&server.url()).unwrap(), name)
}

/// Closes the connection to this server whose last command is this one.
fn close(server: &RedisServer, command: &str) {
    let mut redis = connect(&server.url()).unwrap();
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut redis).unwrap();
    let of_command: Vec<_> = list.lines().filter(|line| line.contains(command)).collect();
    let [line] = &*of_command else {
        panic!("{list}")
    };
    let (id, _) = line.strip_prefix("id=").unwrap().split_once(' ').unwrap();
    let closed: i64 = redis::cmd("CLIENT")
        .arg(&["KILL", "ID", id])
        .query(&mut redis)
        .unwrap();
    assert_eq!(closed, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_have_a_lock_and_its_token_when_it_is_granted() {
    let Some(setup) = Setup::new("replicas-have") else {
        return;
    };
    for number in 0..20 {
        let name = number.to_string();
        let guard = setup
            .locks
            .lock_with(&name, options(2))
            .lock()
            .await
            .unwrap();
        for replica in &setup.replicas {
            assert_eq!(holder(replica, &name), holder(&setup.master, &name));
            let token: u64 = connect(&replica.url())
                .unwrap()
                .hget(format!("{{lock:{name}}}:tokens"), "")
                .unwrap();
            assert_eq!(token, guard.token());
        }
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_too_few_replicas_have_is_released() {
    let Some(setup) = Setup::new("replicas-few") else {
        return;
    };
    setup.replicas[0].freeze().unwrap();
    let begin = Instant::now();
    let failed = setup.locks.lock_with("a", options(2)).lock().await;
    assert!(
        matches!(
            failed,
            Err(LockError::Replicas {
                wanted: 2,
                acknowledged: 1
            })
        ),
        "{failed:?}"
    );
    assert!(
        begin.elapsed() >= Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
    until(
        "it is released",
        || Ok(holder(&setup.master, "a").is_none()),
    )
    .unwrap();
    // One replica is sufficient for other locks, and none for the rest.
    setup
        .locks
        .lock_with("a", options(1))
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    setup
        .locks
        .lock_with("a", options(0))
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    setup.replicas[0].thaw().unwrap();
    setup
        .locks
        .lock_with("a", options(2))
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    // There are two.
    let failed = setup.locks.lock_with("a", options(3)).try_lock().await;
    assert!(
        matches!(
            failed,
            Err(LockError::Replicas {
                wanted: 3,
                acknowledged: 2
            })
        ),
        "{failed:?}"
    );
    setup.timer.stop();
}

/// A caller that waits is woken when the lock is released that too few replicas have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_replicas_passes_to_the_next_caller() {
    let Some(setup) = Setup::new("replicas-next") else {
        return;
    };
    setup.replicas[0].freeze().unwrap();
    let mut first = setup.locks.lock_with("a", options(2));
    let first = tokio::spawn(async move { first.lock().await });
    until("it is granted", || Ok(holder(&setup.master, "a").is_some())).unwrap();
    let mut next = setup.locks.lock_with("a", options(1));
    within(next.lock()).await.unwrap().unlock().await.unwrap();
    assert!(matches!(
        within(first).await.unwrap(),
        Err(LockError::Replicas { .. })
    ));
    setup.replicas[0].thaw().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_calls_do_not_wait_for_replicas() {
    let Some(setup) = Setup::new("replicas-others") else {
        return;
    };
    // Opens the connections.
    setup
        .locks
        .lock_with("a", options(2))
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    setup.replicas[0].freeze().unwrap();
    let begin = Instant::now();
    loop {
        let mut slow = setup.locks.lock_with("slow", options(2));
        let slow = tokio::spawn(async move { slow.lock().await.map(drop) });
        // `flags=b`: the server has blocked the client.
        let waits = || -> redis::RedisResult<bool> {
            let list: String = redis::cmd("CLIENT")
                .arg("LIST")
                .query(&mut connect(&setup.master.url())?)?;
            Ok(list.contains(" flags=b "))
        };
        until("Redis waits", || Ok(waits()? || slow.is_finished())).unwrap();
        setup
            .locks
            .lock_with("b", options(0))
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        let was_first = waits().unwrap();
        assert!(matches!(
            within(slow).await.unwrap(),
            Err(LockError::Replicas { .. })
        ));
        if was_first {
            break;
        }
        // On a machine that stalls, the second of the replicas may be over before.
        assert!(
            begin.elapsed() < patience(),
            "other calls waited for replicas"
        );
    }
    setup.replicas[0].thaw().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spare_connection_that_was_closed_is_replaced() {
    let Some(setup) = Setup::new("replicas-closed") else {
        return;
    };
    for _ in 0..3 {
        setup
            .locks
            .lock_with("a", options(2))
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        close(&setup.master, "cmd=wait");
    }
}

/// The connection that waits leads to another server, as after a failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_a_server_without_the_lock_do_not_count() {
    let Some(setup) = Setup::new("replicas-other") else {
        return;
    };
    let first = RedisServer::start("replicas-first").unwrap();
    let proxy = Proxy::new(&first);
    let client = LockClient::builder(Client::open(&*proxy.url).unwrap()).timer(&setup.timer);
    let locks = client.build().unwrap();
    locks
        .lock_with("a", options(0))
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    proxy.connect_to(&setup.master);
    let failed = locks.lock_with("a", options(2)).lock().await;
    assert!(
        matches!(failed, Err(LockError::Lost(Loss::NoOwner))),
        "{failed:?}"
    );
    until("it is released", || Ok(holder(&first, "a").is_none())).unwrap();
}

/// Each connection takes longer than a call may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_takes_longer_than_a_call_is_used_by_the_next_one() {
    let Some(setup) = Setup::new("replicas-slow") else {
        return;
    };
    let proxy = Proxy::new(&setup.master);
    let client = LockClient::builder(Client::open(&*proxy.url).unwrap()).timer(&setup.timer);
    let locks = client.build().unwrap();
    proxy.set(Answers::DelayNew);
    let (mut lock, begin) = (
        locks.lock_with("a", options(2).lease(common::LEASE)),
        Instant::now(),
    );
    loop {
        match lock.lock().await {
            Ok(guard) => return guard.unlock().await.unwrap(),
            failed => assert!(begin.elapsed() < patience(), "{failed:?}"),
        }
    }
}

/// The connection of all calls has failed, and the next one leads to another server. The spare one
/// still leads to the first server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spare_connections_are_left_with_their_server() {
    let Some(setup) = Setup::new("replicas-left") else {
        return;
    };
    let first = RedisServer::start("replicas-left-first").unwrap();
    let proxy = Proxy::new(&first);
    let client = LockClient::builder(Client::open(&*proxy.url).unwrap()).timer(&setup.timer);
    let locks = client.build().unwrap();
    let failed = locks.lock_with("a", options(1)).lock().await;
    assert!(
        matches!(
            failed,
            Err(LockError::Replicas {
                wanted: 1,
                acknowledged: 0
            })
        ),
        "{failed:?}"
    );
    until("it is released", || Ok(holder(&first, "a").is_none())).unwrap();
    proxy.connect_to(&setup.master);
    // That of all calls.
    close(&first, "cmd=eval");
    locks
        .lock_with("a", options(2))
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// The spare connection leads to a replica at first, as during a failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spare_connection_to_a_replica_is_replaced() {
    let Some(setup) = Setup::new("replicas-stale") else {
        return;
    };
    let replica = RedisServer::start("replicas-stale-other").unwrap();
    let mut redis = connect(&replica.url()).unwrap();
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "replica-serve-stale-data", "no"])
        .query(&mut redis)
        .unwrap();
    let () = redis::cmd("REPLICAOF")
        .arg(&["127.0.0.1", "1"])
        .query(&mut redis)
        .unwrap();
    let proxy = Proxy::new(&setup.master);
    let client = LockClient::builder(Client::open(&*proxy.url).unwrap()).timer(&setup.timer);
    let locks = client.build().unwrap();
    locks
        .lock_with("a", options(0))
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    proxy.connect_to(&replica);
    let mut lock = locks.lock_with("a", options(2));
    let locking = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.connect_to(&setup.master);
    within(locking)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// The replica takes over at once after the acquisition, and has the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_survives_a_failover_to_a_replica_that_has_it() {
    let Some(mut setup) = Setup::new("replicas-failover") else {
        return;
    };
    let guard = setup.locks.lock_with("a", options(2)).lock().await.unwrap();
    setup.master.kill().unwrap();
    let [new, _] = &setup.replicas;
    let mut redis = connect(&new.url()).unwrap();
    let () = redis::cmd("REPLICAOF")
        .arg(&["NO", "ONE"])
        .query(&mut redis)
        .unwrap();
    let client = LockClient::builder(Client::open(new.url()).unwrap()).timer(&setup.timer);
    let locks = client.build().unwrap();
    assert!(
        locks
            .lock_with("a", options(0))
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        locks.state("a").await.unwrap().unwrap().token,
        Some(guard.token())
    );
    locks.force_unlock("a").await.unwrap();
    let next = locks.lock_with("a", options(0)).lock().await.unwrap();
    assert!(next.token() > guard.token());
}
