//! The lock on a cluster of three masters, of which one has a replica.

use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::redis_server::{RedisCluster, connect, until};
use hashed_wheel_trial::testing;
use redis::{FromRedisValue, RedisResult};
use redis_lock::{Guard, LockClient, LockError, LockOptions, Loss};

use super::common::{PATIENCE, is_run_elsewhere, restricted_user, within};

/// After which time without an answer the cluster considers a node to be down.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);

/// Longer than a failover, so that holders keep their locks.
const LEASE: Duration = Duration::from_secs(15);

/// The number of locks, enough to have some on each node.
const LOCKS: usize = 24;

/// The node that fails, and the one that takes over.
const FIRST: usize = RedisCluster::PAIR[0];
const REPLICA: usize = RedisCluster::PAIR[1];

struct Setup {
    cluster: RedisCluster,
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
        let cluster = testing::server_or_skip(RedisCluster::start(test, NODE_TIMEOUT))?;
        let timer = HashedWheelTimer::new(Duration::from_millis(5), 512);
        let locks = LockClient::cluster(cluster.urls())
            .timer(&timer)
            .build()
            .unwrap();
        Some(Self {
            cluster,
            timer,
            locks,
        })
    }

    /// Takes many locks, and returns their names and guards: those whose slots the first master
    /// has, and the others.
    async fn take_many(&self, options: &LockOptions) -> [Vec<(String, Guard)>; 2] {
        let mut guards = [Vec::new(), Vec::new()];
        for number in 0..LOCKS {
            let name = format!("lock-{number}");
            let guard = take(&self.locks, &name, options.clone()).await;
            guards[usize::from(!is_of_first(&name))].push((name, guard));
        }
        assert!(
            guards.iter().all(|guards| guards.len() > 2),
            "all nodes have locks"
        );
        guards
    }

    /// Returns the number of script calls of all nodes that were executed.
    fn calls(&mut self) -> usize {
        [FIRST, 1, 2, REPLICA]
            .into_iter()
            .map(|node| {
                let line = self.cluster.node(node).info("cmdstat_evalsha").unwrap();
                line.trim_start_matches("calls=")
                    .split(',')
                    .next()
                    .unwrap()
                    .parse()
                    .unwrap_or(0)
            })
            .sum()
    }
}

fn options() -> LockOptions {
    // Without the messages, a waiting caller would exceed the patience.
    LockOptions::new().lease(LEASE).poll(PATIENCE * 3)
}

/// Returns whether the first master has the slot of the lock.
fn is_of_first(name: &str) -> bool {
    RedisCluster::FIRST_SLOTS.contains(&slot(name).into())
}

/// Returns the slot of a lock.
fn slot(name: &str) -> u16 {
    slot_of(&format!("lock:{name}"))
}

/// Returns the slot of keys with this part in braces: its CRC-16/XMODEM, modulo 16384.
fn slot_of(part: &str) -> u16 {
    let crc = part.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    });
    crc % 16_384
}

/// Takes the lock, however often a call to Redis fails.
async fn take(locks: &LockClient, name: &str, options: LockOptions) -> Guard {
    let mut lock = locks.lock_with(name, options);
    within(async {
        loop {
            match lock.lock().await {
                Ok(guard) => return guard,
                Err(LockError::Redis(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_many_slots_are_renewed_and_released() {
    let Some(mut setup) = Setup::new("lock-cluster") else {
        return;
    };
    let third = Duration::from_secs(2);
    let short = options().lease(third * 3);
    let [of_first, others] = setup.take_many(&short).await;
    let mut waiting = setup.locks.lock_with("lock-0", short.clone());
    let waiting = tokio::spawn(async move { waiting.lock().await });

    let (begin, before) = (Instant::now(), setup.calls());
    tokio::time::sleep(third * 9 / 2).await;
    let (calls, thirds) = (
        setup.calls() - before,
        begin.elapsed().div_duration_f64(third),
    );
    assert!(
        calls >= 3 * LOCKS,
        "{calls} calls renewed {LOCKS} locks, for more than a lease"
    );
    // Each slot has one lock, so there is one call per lock and third of the lease.
    assert!(
        calls as f64 <= (thirds + 2.0) * LOCKS as f64,
        "{calls} calls in {thirds} thirds of a lease"
    );

    // The first master has a replica, and the others have none.
    for (of_first, replicas) in [(true, 1), (false, 0)] {
        let taken = setup
            .locks
            .lock_with(&name(of_first), short.clone().replicas(1))
            .lock()
            .await;
        match taken {
            Ok(guard) if replicas == 1 => guard.unlock().await.unwrap(),
            Err(LockError::Replicas {
                wanted: 1,
                acknowledged: 0,
            }) if replicas == 0 => {}
            taken => panic!("{replicas} replicas: {taken:?}"),
        }
    }
    for (name, guard) in of_first.into_iter().chain(others) {
        guard.check().unwrap();
        let state = setup.locks.state(&name).await.unwrap().expect("it is held");
        assert_eq!(state.token, Some(guard.token()));
        guard.unlock().await.unwrap();
    }
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// Several locks as one, in slots of several nodes, and what several owners hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_locks_and_several_owners() {
    let Some(setup) = Setup::new("lock-cluster-several") else {
        return;
    };
    let names = [name(true), name(false), format!("{}-too", name(false))];
    let mut all = setup.locks.multi_lock_with(&names, options());
    let guard = within(all.lock()).await.unwrap();
    assert!(guard.tokens().map(|(name, _)| name).eq(all.names()));
    let mut waiting = setup.locks.multi_lock_with(&names[..2], options());
    let waiting = tokio::spawn(async move { waiting.lock().await });
    guard.unlock().await.unwrap();
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();

    for name in &names {
        let lock = setup.locks.rw_lock_with(name, options());
        let readers = [
            lock.read().lock().await.unwrap(),
            lock.read().lock().await.unwrap(),
        ];
        let mut writer = lock.write();
        let writer = tokio::spawn(async move { writer.lock().await });
        for reader in readers {
            reader.unlock().await.unwrap();
        }
        within(writer)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap();
        let semaphore = setup.locks.semaphore_with(name, 1, options());
        let permit = semaphore.acquire().await.unwrap();
        assert!(semaphore.try_acquire().await.unwrap().is_none());
        permit.unlock().await.unwrap();
    }
}

/// Returns a name that no other lock has, with a slot of the first master or of another one.
fn name(of_first: bool) -> String {
    (0..)
        .map(|number| format!("other-{number}"))
        .find(|name| is_of_first(name) == of_first)
        .unwrap()
}

/// The first master accepts connections but does not answer, until its replica has taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_keeps_replicated_locks_and_disturbs_no_other() {
    let Some(mut setup) = Setup::new("lock-failover") else {
        return;
    };
    let guards = setup.take_many(&options()).await;
    let held = take(&setup.locks, &name(true), options()).await;
    setup.cluster.until_replicated().unwrap();

    let (begin, live) = (Instant::now(), [1, 2, REPLICA]);
    setup.cluster.node(FIRST).freeze().unwrap();
    // A client connects although the first of its nodes does not answer. That takes longer than a
    // call with this lease may take.
    let new_client = LockClient::cluster(setup.cluster.urls())
        .timer(&setup.timer)
        .prefix("shop:")
        .build()
        .unwrap();
    drop(
        take(
            &new_client,
            &name(false),
            options().lease(Duration::from_secs(3)),
        )
        .await,
    );
    // A waiting caller receives messages, although it tries that node first.
    let of_another_node = take(&new_client, &name(false), options()).await;
    let mut waiting = new_client.lock_with(&name(false), options());
    let waiting = tokio::spawn(async move { waiting.lock().await });
    until("the caller is subscribed", || {
        live.iter()
            .map(|&node| {
                setup
                    .cluster
                    .node(node)
                    .subscribed_channels("shop:lock-wake:*")
            })
            .sum::<RedisResult<usize>>()
            .map(|channels| channels == 1)
    })
    .unwrap();
    of_another_node.unlock().await.unwrap();
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();

    setup.cluster.until_failed_over(REPLICA, &live).unwrap();
    tokio::time::sleep((LEASE + LEASE / 3).saturating_sub(begin.elapsed())).await;
    for guard in guards
        .iter()
        .flatten()
        .map(|(_, guard)| guard)
        .chain([&held])
    {
        guard.check().unwrap();
    }
    let token = held.token();
    held.unlock().await.unwrap();
    let after = take(&setup.locks, &name(true), options()).await;
    assert!(after.token() > token, "the tokens went back");
    setup.cluster.node(FIRST).thaw().unwrap();
}

/// The first master fails, and its replica does not have the last locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_loses_locks_tells_their_holders() {
    let Some(mut setup) = Setup::new("lock-failover-loss") else {
        return;
    };
    setup.cluster.stop_replication().unwrap();
    let [lost, kept] = setup.take_many(&options()).await;
    setup.cluster.node(FIRST).kill().unwrap();
    for (_, guard) in &lost {
        let loss = within(guard.lost()).await;
        // On a machine that stalls, the lease ends first.
        assert!(
            matches!(loss, Loss::NoOwner | Loss::LeaseEnded(_)),
            "{loss:?}"
        );
    }
    for (name, guard) in lost {
        let token = guard.token();
        assert!(matches!(guard.unlock().await, Err(LockError::Lost(_))));
        let after = take(&setup.locks, &name, options()).await;
        assert!(after.token() > token, "the tokens went back");
    }
    for (_, guard) in kept {
        guard.check().unwrap();
        guard.unlock().await.unwrap();
    }
}

/// Executes a subcommand of `CLUSTER`.
fn cluster<T: FromRedisValue>(url: &str, arguments: &[&str]) -> T {
    redis::cmd("CLUSTER")
        .arg(arguments)
        .query(&mut connect(url).unwrap())
        .unwrap()
}

/// Moves a key to the node with this port.
fn migrate(url: &str, port: &str, key: &str) {
    let mut redis = connect(url).unwrap();
    let () = redis::cmd("MIGRATE")
        .arg(&["127.0.0.1", port, key, "0", "5000"])
        .query(&mut redis)
        .unwrap();
}

/// Asserts that a call fails with this code, and that a call with more time succeeds after `mend`.
async fn repeats(locks: &LockClient, name: &str, code: &str, mend: impl FnOnce()) {
    let failed = within(locks.lock_with(name, options().lease(LEASE / 2)).lock()).await;
    assert!(
        matches!(&failed, Err(LockError::Redis(error)) if error.code() == Some(code)),
        "{failed:?}"
    );
    let mut waiting = locks.lock_with(name, options().lease(LEASE * 4));
    let waiting = tokio::spawn(async move { waiting.lock().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    mend();
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// A slot of the first master moves to the second one, and has no master after that. While its keys
/// are on both, Redis executes no call with several keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_a_slot_that_moves_are_renewed_and_errors_have_the_reason() {
    let Some(mut setup) = Setup::new("lock-slot") else {
        return;
    };
    let rights = "+cluster|slots +asking";
    let urls = setup
        .cluster
        .urls()
        .into_iter()
        .map(|url| restricted_user(&url, "locks", rights));
    let locks = LockClient::cluster(urls.collect::<Vec<_>>())
        .timer(&setup.timer)
        .build()
        .unwrap();
    let names = || (0..).map(|number| format!("same-{number}"));
    let slot_of_all = slot(&names().find(|name| is_of_first(name)).unwrap());
    let mut names = names().filter(|name| slot(name) == slot_of_all);
    let [first, second, third] = [(); 3].map(|()| names.next().unwrap());
    let number = slot_of_all.to_string();

    let mut permits = (0..).map(|number| format!("permits-{number}"));
    let permits = permits
        .find(|name| slot_of(&format!("semaphore:{name}")) == slot_of_all)
        .unwrap();

    // One call renews all.
    let short = options().lease(LEASE / 2);
    let guards = [
        take(&locks, &first, short.clone()).await,
        take(&locks, &second, short.clone()).await,
        within(locks.semaphore_with(&permits, 2, short).acquire())
            .await
            .unwrap(),
    ];
    let [from, to] = [FIRST, 1].map(|node| setup.cluster.node(node).url());
    let [from_id, to_id]: [String; 2] = [&from, &to].map(|url| cluster(url, &["MYID"]));
    let () = cluster(&to, &["SETSLOT", &number, "IMPORTING", &from_id]);
    let () = cluster(&from, &["SETSLOT", &number, "MIGRATING", &to_id]);
    let port = setup.cluster.node(1).port().to_string();
    migrate(&from, &port, &format!("{{lock:{first}}}"));
    tokio::time::sleep(LEASE * 2 / 3).await;
    guards.iter().for_each(|guard| guard.check().unwrap());

    repeats(&locks, &third, "TRYAGAIN", || {
        let keys: Vec<String> = cluster(&from, &["GETKEYSINSLOT", &number, "100"]);
        keys.iter().for_each(|key| migrate(&from, &port, key));
        for url in [&to, &from] {
            cluster::<()>(url, &["SETSLOT", &number, "NODE", &to_id]);
        }
    })
    .await;
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    let () = cluster(&to, &["DELSLOTS", &number]);
    repeats(&locks, &third, "CLUSTERDOWN", || {
        let () = cluster(&to, &["ADDSLOTS", &number]);
    })
    .await;
}
