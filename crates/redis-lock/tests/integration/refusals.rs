//! Redis answers, but with an error: because of its state, or because of the rights of the user.

use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel_trial::redis_server::{connect, until};
use redis::{Client, Commands, Connection, RedisError, RedisResult};
use redis_lock::{LockClient, LockError, Loss};

use super::common::{Answers, PATIENCE, Proxy, Setup, options, restricted_user, take, within};

/// A call may take a sixth of it: enough for several attempts.
const SHORT: Duration = Duration::from_secs(3);

/// A call may take 10 s.
const LONG: Duration = Duration::from_secs(100);

/// Executes a command whose arguments contain no spaces.
fn execute(redis: &mut Connection, command: &str) -> RedisResult<()> {
    let mut words = command.split(' ');
    redis::cmd(words.next().unwrap())
        .arg(words.collect::<Vec<_>>())
        .query(redis)
}

fn code(error: &RedisError) -> &str {
    error.code().unwrap_or_default()
}

/// Tests holders and callers while Redis refuses calls with the error `code`. The commands `begin`
/// make Redis refuse calls, and `end` makes it execute them again.
async fn refuse(code: &'static str, begin: &'static [&str], end: &[&str]) {
    // Redis 6.2 does not know the argument.
    let debug = &["--enable-debug-command", "yes"];
    let needs_debug = begin.contains(&"DEBUG RELOAD");
    let test = format!("lock-{}", code.to_lowercase());
    let Some(setup) = Setup::with(&test, if needs_debug { debug } else { &[] }) else {
        return;
    };
    let Setup {
        mut redis,
        locks,
        server,
        ..
    } = setup;
    for number in 0..1_000 {
        let () = redis.set(number, "x".repeat(2_000)).unwrap();
    }
    let guard = take(&mut locks.lock_with("held", options().lease(SHORT))).await;

    // Some of these commands only return when the server leaves the state.
    let mut other = connect(&server.url()).unwrap();
    thread::spawn(move || {
        begin
            .iter()
            .for_each(|command| _ = execute(&mut other, command));
    });
    let write = "return redis.call('set', KEYS[1], 1)";
    until("Redis refuses calls", || {
        let refused: RedisResult<()> = redis::cmd("EVAL")
            .arg(&[write, "1", "probe"])
            .query(&mut redis);
        // Redis 6.2 says it in the text.
        Ok(refused.is_err_and(|error| {
            self::code(&error) == code || error.detail().is_some_and(|text| text.contains(code))
        }))
    })
    .unwrap();

    let failed = within(locks.lock_with("short", options().lease(SHORT)).lock()).await;
    let Err(LockError::Redis(error)) = &failed else {
        panic!("{failed:?}")
    };
    assert_eq!((self::code(error), error.is_timeout()), (code, false));
    let text = failed.as_ref().unwrap_err().to_string();
    assert!(
        text.starts_with(&format!("Redis answers: {code} ")),
        "{text}"
    );
    let Loss::LeaseEnded(Some(reason)) = within(guard.lost()).await else {
        panic!("it was renewed")
    };
    assert!(reason.contains(code), "{reason}");

    let mut long = locks.lock_with("long", options().lease(LONG));
    let long = tokio::spawn(async move { long.lock().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!long.is_finished());
    end.iter()
        .for_each(|command| execute(&mut redis, command).unwrap());
    within(long).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused() {
    let Some(setup) = Setup::new("lock-old") else {
        return;
    };
    let (proxy, locks) = setup.through_proxy();
    proxy.set(Answers::Old);
    let failed = within(locks.lock_with("a", options()).lock()).await;
    let text = failed.unwrap_err().to_string();
    let is_clear = text.contains("too old") && text.contains("6.2 is the oldest");
    assert!(is_clear, "{text}");
    // It was replaced.
    proxy.set(Answers::Forward);
    let guard = within(locks.lock_with("a", options()).lock()).await;
    guard.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_busy_redis_is_asked_again() {
    refuse(
        "BUSY",
        &["CONFIG SET lua-time-limit 1", "EVAL while(1)do\nend 0"],
        &["SCRIPT KILL"],
    )
    .await;
}

#[tokio::test]
async fn a_redis_that_loads_its_data_is_asked_again() {
    let begin = &[
        "CONFIG SET rdbcompression no",
        "CONFIG SET key-load-delay 20000",
        "CONFIG SET loading-process-events-interval-bytes 1024",
        "DEBUG RELOAD",
    ];
    refuse("LOADING", begin, &["CONFIG SET key-load-delay 0"]).await;
}

#[tokio::test]
async fn a_redis_without_replicas_is_asked_again() {
    let end = "CONFIG SET min-replicas-to-write 0";
    refuse(
        "NOREPLICAS",
        &["CONFIG SET min-replicas-to-write 1"],
        &[end],
    )
    .await;
}

#[tokio::test]
async fn a_replica_is_asked_again() {
    refuse(
        "READONLY",
        &["REPLICAOF 127.0.0.1 1"],
        &["REPLICAOF NO ONE"],
    )
    .await;
}

#[tokio::test]
async fn a_replica_without_its_master_is_asked_again() {
    let begin = &[
        "CONFIG SET replica-serve-stale-data no",
        "REPLICAOF 127.0.0.1 1",
    ];
    refuse("MASTERDOWN", begin, &["REPLICAOF NO ONE"]).await;
}

/// The address of the master leads to another server after a failover. The old master still answers
/// on connections that exist.
#[tokio::test]
async fn a_call_follows_the_address_of_the_master() {
    let Some(mut old) = Setup::new("lock-old-master") else {
        return;
    };
    let Some(mut new) = Setup::new("lock-new-master") else {
        return;
    };
    let proxy = Proxy::new(&old.server);
    let locks = LockClient::builder(Client::open(&*proxy.url).unwrap())
        .timer(&old.timer)
        .build()
        .unwrap();
    let mut lock = locks.lock_with("a", options().lease(LONG));
    lock.lock().await.unwrap().unlock().await.unwrap();
    execute(&mut old.redis, "REPLICAOF 127.0.0.1 1").unwrap();
    let locking = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.connect_to(&new.server);
    let _guard = within(locking).await.unwrap().unwrap();
    assert!(new.holder("a").is_some());
}

/// An error that does not pass ends the call at once, and leaves the connection as it is. Locks
/// that are held are renewed and released.
#[tokio::test]
async fn a_redis_without_memory_is_not_asked_again() {
    let Some(mut setup) = Setup::new("lock-oom") else {
        return;
    };
    let [mut held, mut other] =
        ["held", "other"].map(|name| setup.locks.lock_with(name, options().lease(LONG)));
    let guard = held.lock().await.unwrap();
    let mut reader = setup
        .locks
        .rw_lock_with("held", options().lease(LONG))
        .read();
    let reading = reader.lock().await.unwrap();
    let connections = |setup: &Setup| setup.server.info("total_connections_received").unwrap();
    execute(&mut setup.redis, "CONFIG SET maxmemory 1").unwrap();
    let before: u64 = connections(&setup).parse().unwrap();
    let begin = Instant::now();
    for _ in 0..3 {
        let failed = other.lock().await;
        assert!(
            matches!(&failed, Err(LockError::Redis(error)) if code(error) == "OOM"),
            "{failed:?}"
        );
    }
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
    held.lock().await.unwrap().unlock().await.unwrap();
    guard.unlock().await.unwrap();
    reader.lock().await.unwrap().unlock().await.unwrap();
    reading.unlock().await.unwrap();
    // The query of their number opens one.
    assert_eq!(connections(&setup), (before + 1).to_string());
}

/// An error of the renewal does not say that another owner has the lock.
#[tokio::test]
async fn a_refused_renewal_is_no_loss() {
    let Some(mut setup) = Setup::new("lock-revoked") else {
        return;
    };
    let url = restricted_user(&setup.server.url(), "locks", "");
    let locks = LockClient::builder(Client::open(url).unwrap())
        .timer(&setup.timer)
        .build()
        .unwrap();
    let mut lock = locks.lock_with("a", options().lease(LONG));
    let guard = lock.lock().await.unwrap();
    for (command, refusal) in [("zscore", "ERR"), ("evalsha", "NOPERM")] {
        execute(&mut setup.redis, &format!("ACL SETUSER locks -{command}")).unwrap();
        let again = lock.lock().await;
        assert!(
            matches!(&again, Err(LockError::Redis(error)) if code(error) == refusal),
            "{again:?}"
        );
        guard.check().unwrap();
        execute(&mut setup.redis, &format!("ACL SETUSER locks +{command}")).unwrap();
    }
    // A key of another type does say that.
    execute(&mut setup.redis, "DEL {lock:a}").unwrap();
    execute(&mut setup.redis, "LPUSH {lock:a} another").unwrap();
    let again = lock.lock().await;
    assert!(
        matches!(again, Err(LockError::Lost(Loss::OtherOwner))),
        "{again:?}"
    );
}

#[tokio::test]
async fn the_reason_is_the_last_answer_if_there_is_none_after_it() {
    let Some(mut setup) = Setup::new("lock-refused-frozen") else {
        return;
    };
    execute(&mut setup.redis, "CONFIG SET min-replicas-to-write 1").unwrap();
    let mut lock = setup.locks.lock_with("a", options().lease(LONG / 5));
    let locking = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    setup.server.freeze().unwrap();
    let failed = within(locking).await.unwrap();
    setup.server.thaw().unwrap();
    assert!(
        matches!(&failed, Err(LockError::Redis(error)) if code(error) == "NOREPLICAS"),
        "{failed:?}"
    );
}

/// Without rights for the channels, callers poll.
#[tokio::test]
async fn a_user_with_few_rights_can_lock() {
    let Some(mut setup) = Setup::new("lock-acl") else {
        return;
    };
    for (user, rules, database) in [
        ("poll", "resetchannels -publish -subscribe", ""),
        ("wake", "", ""),
        ("select", "+select", "1"),
    ] {
        let url = restricted_user(&setup.server.url(), user, rules) + database;
        let locks = LockClient::builder(Client::open(url).unwrap())
            .timer(&setup.timer)
            .build()
            .unwrap();
        let poll = if user == "poll" {
            Duration::from_millis(100)
        } else {
            PATIENCE * 3
        };
        let mut lock = locks.lock_with("a", options().lease(LONG).poll(poll));
        let guard = lock.lock().await.unwrap();
        let mut other = locks.lock_with("a", options().lease(LONG).poll(poll));
        let waiting = tokio::spawn(async move { other.lock().await });
        execute(
            &mut setup.redis,
            &format!(
                "SELECT {}",
                if database.is_empty() { "0" } else { database }
            ),
        )
        .unwrap();
        setup
            .until("it waits", |setup| setup.queue_len("a") == 1)
            .await;
        // Each call has to send its script again.
        execute(&mut setup.redis, "SCRIPT FLUSH").unwrap();
        lock.lock().await.unwrap().unlock().await.unwrap();
        execute(&mut setup.redis, "SCRIPT FLUSH").unwrap();
        assert_eq!(
            locks.state("a").await.unwrap().expect("it is held").waiting,
            1
        );
        guard.unlock().await.unwrap();
        within(waiting)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap();

        let prices = locks.rw_lock_with("a", options().lease(LONG).poll(poll));
        let reading = prices.read().lock().await.unwrap();
        let mut writer = prices.write();
        let writing = tokio::spawn(async move { writer.lock().await });
        setup
            .until("it waits", |setup| {
                setup.redis.exists("{rwlock:a}:queue").unwrap()
            })
            .await;
        execute(&mut setup.redis, "SCRIPT FLUSH").unwrap();
        reading.unlock().await.unwrap();
        within(writing)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap();
        let semaphore = locks.semaphore_with("a", 1, options().lease(LONG).poll(poll));
        let permit = semaphore.acquire().await.unwrap();
        assert_eq!(semaphore.state().await.unwrap().holders.len(), 1);
        semaphore
            .force_release(permit.token())
            .await
            .unwrap()
            .expect("it is held");
        assert!(permit.unlock().await.is_err());
        // The lease of a holder ends.
        let select = if database.is_empty() {
            "SELECT 0"
        } else {
            "SELECT 1"
        };
        execute(&mut setup.redis, select).unwrap();
        setup.add_dead_holder(
            "{semaphore:a}",
            "a dead client:0/0",
            Duration::from_millis(1),
        );
        within(semaphore.acquire())
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    let url = restricted_user(&setup.server.url(), "no-select", "") + "1";
    let locks = LockClient::builder(Client::open(url).unwrap())
        .timer(&setup.timer)
        .build()
        .unwrap();
    let failed = locks.lock("a").lock().await.unwrap_err().to_string();
    assert!(
        failed.contains("no permissions to run the 'select' command"),
        "{failed}"
    );
}
