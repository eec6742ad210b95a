//! The settings of a client: its timer, and the prefix of its keys.

use redis::{Client, Commands};
use redis_lock::{LockClient, LockClientBuilder, LockError, hashed_wheel::HashedWheelTimer};

use super::common::{Setup, options, restricted_user, within};

fn builder(setup: &Setup) -> LockClientBuilder {
    LockClient::builder(Client::open(setup.server.url()).unwrap()).timer(&setup.timer)
}

#[tokio::test]
async fn a_client_without_settings_uses_the_timer_of_the_process() {
    let Some(mut setup) = Setup::new("lock-global") else {
        return;
    };
    let locks = LockClient::new(Client::open(setup.server.url()).unwrap()).unwrap();
    let guard = locks.lock("a").lock().await.unwrap();
    assert!(
        HashedWheelTimer::global().pending_timeouts() >= 2,
        "the renewal, and the end of the lease"
    );
    assert_eq!(setup.timer.pending_timeouts(), 0);
    assert!(setup.holder("a").is_some());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn clients_with_different_prefixes_have_different_locks() {
    let Some(mut setup) = Setup::new("lock-prefix") else {
        return;
    };
    let locks = builder(&setup).prefix("shop:").build().unwrap();
    let others = [
        builder(&setup).prefix("shop").build().unwrap(),
        setup.locks.clone(),
    ];
    // A brace in the name is after that of the key.
    let guard = locks.lock_with("a{b}", options()).lock().await.unwrap();
    for other in &others {
        let _free = other
            .lock_with("a{b}", options())
            .try_lock()
            .await
            .unwrap()
            .expect("it is another lock");
    }
    let mut same = builder(&setup)
        .prefix("shop:")
        .build()
        .unwrap()
        .lock_with("a{b}", options());
    assert!(same.try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();

    let keys: Vec<String> = setup.redis.keys("shop:*").unwrap();
    assert_eq!(keys, ["shop:{lock:a{b}}:tokens"]);
}

/// The poll is longer than the patience: only the message on the channel with the prefix wakes.
#[tokio::test]
async fn a_user_with_rights_for_a_prefix_waits_and_is_woken() {
    let Some(mut setup) = Setup::new("lock-prefix-wake") else {
        return;
    };
    let rules = "resetkeys resetchannels ~shop:{lock:* &shop:lock-wake:*";
    let url = restricted_user(&setup.server.url(), "shop", rules);
    let locks = LockClient::builder(Client::open(url).unwrap())
        .timer(&setup.timer)
        .prefix("shop:");
    let locks = locks.build().unwrap();
    let guard = locks.lock_with("a{b}", options()).lock().await.unwrap();
    let mut waiting = locks.lock_with("a{b}", options());
    let waiting = tokio::spawn(async move { waiting.lock().await });
    setup
        .until("it waits", |setup| {
            setup
                .redis
                .zcard::<_, usize>("shop:{lock:a{b}}:queue")
                .unwrap()
                == 1
        })
        .await;
    guard.unlock().await.unwrap();
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_prefix_that_is_not_valid_is_rejected() {
    let client = Client::open("redis://127.0.0.1:1/").unwrap();
    let build = |prefix: &str| LockClient::builder(client.clone()).prefix(prefix).build();
    for (prefix, reason) in [
        ("a{b", "the prefix \"a{b\" contains '{'"),
        ("}", "the prefix \"}\" contains '}'"),
        ("a b", "the prefix \"a b\" contains ' '"),
        ("a\0", "the prefix \"a\\0\" contains '\\0'"),
        (&"ä".repeat(65), "a prefix of 130 bytes is longer than 128"),
    ] {
        let failed = build(prefix);
        let Err(LockError::Options(why)) = failed else {
            panic!("{failed:?}")
        };
        assert!(why.starts_with(reason), "{why}");
    }
    build(&"ä".repeat(64)).unwrap();
}
