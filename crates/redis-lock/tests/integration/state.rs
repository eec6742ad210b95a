//! Asking which holder has a lock, and ending its hold.

use std::process;
use std::time::{Duration, Instant};

use redis::{Client, Commands};
use redis_lock::{LockClient, LockError, Loss};

use super::common::{
    ANOTHER, Answers, LEASE, PATIENCE, Setup, client, long, options, take_away, within,
};

/// A client whose locks have a holder of this name.
fn named(setup: &Setup, holder: &str) -> LockClient {
    let client = LockClient::builder(Client::open(setup.server.url()).unwrap());
    client.timer(&setup.timer).holder(holder).build().unwrap()
}

#[tokio::test]
async fn a_lock_says_who_holds_it_for_how_long_and_how_many_wait() {
    let Some(mut setup) = Setup::new("lock-state") else {
        return;
    };
    assert_eq!(setup.locks.state("a").await.unwrap(), None);
    // Only the last two colons separate.
    let holder = "billing:7/ä:";
    let begin = Instant::now();
    let guard = named(&setup, holder)
        .lock_with("a", long())
        .lock()
        .await
        .unwrap();
    let state = setup.locks.state("a").await.unwrap().expect("it is held");
    assert_eq!(
        (&*state.holder, state.token, state.waiting),
        (holder, Some(guard.token()), 0)
    );
    // Redis rounds to milliseconds.
    let most = PATIENCE * 3 + Duration::from_millis(1);
    assert!(state.expires_in <= most, "{state:?}");
    let rest = (PATIENCE * 3).saturating_sub(begin.elapsed() + Duration::from_millis(1));
    assert!(state.expires_in >= rest, "{state:?} {rest:?}");

    let mut waiting = setup.locks.lock_with("a", long());
    let waiting = tokio::spawn(async move { waiting.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("a") == 1)
        .await;
    let state = setup.locks.state("a").await.unwrap().expect("it is held");
    assert_eq!((&*state.holder, state.waiting), (holder, 1));
    guard.unlock().await.unwrap();
    let guard = within(waiting).await.unwrap().unwrap();
    let state = setup.locks.state("a").await.unwrap().expect("it is held");
    assert_eq!((state.token, state.waiting), (Some(guard.token()), 0));
    // The default.
    let (host, id) = state.holder.split_once('/').unwrap();
    assert_eq!(id, process::id().to_string());
    assert!(!host.is_empty());
    guard.unlock().await.unwrap();
    assert_eq!(setup.locks.state("a").await.unwrap(), None);
}

#[tokio::test]
async fn a_lock_of_another_program_has_no_token() {
    let Some(mut setup) = Setup::new("lock-state-other") else {
        return;
    };
    take_away(&mut setup.redis, "a");
    let state = setup.locks.state("a").await.unwrap().expect("it is held");
    assert_eq!((&*state.holder, state.token), (ANOTHER, None));
}

/// The poll is longer than the patience.
#[tokio::test]
async fn a_hold_that_was_ended_is_lost_and_the_first_waiting_caller_gets_the_lock() {
    let Some(mut setup) = Setup::new("lock-force") else {
        return;
    };
    assert_eq!(setup.locks.force_unlock("a").await.unwrap(), None);
    for is_fair in [false, true] {
        let guard = named(&setup, "stuck").lock_with("a", options().lease(LEASE).fair(is_fair));
        let guard = { guard }.lock().await.unwrap();
        let mut waiting = client(&setup.server, &setup.timer).lock_with("a", long().fair(is_fair));
        let waiting = tokio::spawn(async move { waiting.lock().await });
        setup
            .until("it waits", |setup| setup.queue_len("a") == 1)
            .await;
        let ended = setup
            .locks
            .force_unlock("a")
            .await
            .unwrap()
            .expect("it was held");
        assert_eq!(
            (&*ended.holder, ended.token),
            ("stuck", Some(guard.token()))
        );
        let next = within(waiting).await.unwrap().unwrap();
        assert!(next.token() > guard.token());
        let loss = within(guard.lost()).await;
        // On a machine that stalls for two thirds of the lease, the lease ends first.
        assert!(
            matches!(loss, Loss::OtherOwner | Loss::LeaseEnded(_)),
            "{loss:?}"
        );
        assert!(matches!(guard.unlock().await, Err(LockError::Lost(_))));
        next.check().unwrap();
        next.unlock().await.unwrap();
    }
    let guard = setup
        .locks
        .lock_with("a", options().lease(LEASE))
        .lock()
        .await
        .unwrap();
    setup
        .locks
        .force_unlock("a")
        .await
        .unwrap()
        .expect("it was held");
    let loss = within(guard.lost()).await;
    assert!(
        matches!(loss, Loss::NoOwner | Loss::LeaseEnded(_)),
        "{loss:?}"
    );
}

/// A repeated call could end the next hold.
#[tokio::test]
async fn a_call_that_ends_a_hold_is_not_repeated() {
    let Some(mut setup) = Setup::new("lock-force-cut") else {
        return;
    };
    let (proxy, locks) = setup.through_proxy();
    let guard = setup.locks.lock_with("a", long()).lock().await.unwrap();
    locks.state("a").await.unwrap().expect("it is held");
    proxy.set(Answers::Cut);
    let ended = within(locks.force_unlock("a")).await;
    assert!(matches!(ended, Err(LockError::Redis(_))), "{ended:?}");
    assert_eq!(setup.holder("a"), None);
    // A question is repeated.
    proxy.set(Answers::Cut);
    assert_eq!(within(locks.state("a")).await.unwrap(), None);
    assert!(proxy.has_cut());
    assert!(guard.unlock().await.is_err());
}

#[tokio::test]
async fn the_state_of_a_semaphore_has_each_holder_and_its_token() {
    let Some(mut setup) = Setup::new("lock-state-permits") else {
        return;
    };
    let semaphore = setup.locks.semaphore_with("a", 2, long());
    assert_eq!(semaphore.state().await.unwrap().holders, []);
    let begin = Instant::now();
    let [first, second] =
        ["first", "second"].map(|name| named(&setup, name).semaphore_with("a", 2, long()));
    let first = first.acquire().await.unwrap();
    // Its lease ends, and no release removes its token.
    setup.add_dead_holder("{semaphore:a}", "dead:client:0/1", Duration::from_millis(1));
    let () = setup
        .redis
        .hset("{semaphore:a}:tokens", "dead:client:0/1", 7)
        .unwrap();
    let permits = [first, second.acquire().await.unwrap()];
    let waiting = tokio::spawn({
        let semaphore = setup.locks.semaphore_with("a", 2, long());
        async move { semaphore.acquire().await }
    });
    setup
        .until("it waits", |setup| setup.waiting("{semaphore:a}") == 1)
        .await;
    let mut state = semaphore.state().await.unwrap();
    assert_eq!(state.waiting, 1);
    state.holders.sort_by_key(|holder| holder.token);
    let found = state
        .holders
        .iter()
        .map(|holder| (&*holder.holder, holder.token, holder.is_writer));
    let [first, second] = [&permits[0], &permits[1]].map(|permit| Some(permit.token()));
    assert!(
        found.eq([("first", first, false), ("second", second, false)]),
        "{state:?}"
    );
    for holder in state.holders {
        // Redis rounds to milliseconds.
        let most = PATIENCE * 3 + Duration::from_millis(1);
        let least = (PATIENCE * 3).saturating_sub(begin.elapsed() + Duration::from_millis(1));
        assert!(
            (least..=most).contains(&holder.expires_in),
            "{holder:?} {least:?}"
        );
    }
    assert_eq!(setup.redis.hlen("{semaphore:a}:tokens"), Ok(3));
    for permit in permits {
        permit.unlock().await.unwrap();
    }
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert_eq!(setup.redis.hlen("{semaphore:a}:tokens"), Ok(1));
}

#[tokio::test]
async fn tokens_of_holders_that_expired_with_their_key_are_forgotten() {
    let Some(mut setup) = Setup::new("lock-state-expired") else {
        return;
    };
    for n in 0..3 {
        let owner = format!("dead:client:0/{n}");
        let () = setup.redis.hset("{lock:a}:tokens", owner, 7).unwrap();
    }
    let guard = setup.locks.lock("a").lock().await.unwrap();
    // The last token, and that of the holder.
    assert_eq!(setup.redis.hlen("{lock:a}:tokens"), Ok(2));
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn the_state_of_a_read_write_lock_tells_readers_from_a_writer() {
    let Some(setup) = Setup::new("lock-state-rw") else {
        return;
    };
    let lock = named(&setup, "a:b").rw_lock_with("a", long());
    let readers = [
        lock.read().lock().await.unwrap(),
        lock.read().lock().await.unwrap(),
    ];
    let state = lock.state().await.unwrap();
    assert_eq!(state.holders.len(), 2);
    assert!(
        state
            .holders
            .iter()
            .all(|holder| holder.holder == "a:b" && !holder.is_writer),
        "{state:?}"
    );
    for reader in readers {
        reader.unlock().await.unwrap();
    }
    let writer = lock.write().lock().await.unwrap();
    let state = lock.state().await.unwrap();
    let [holder] = &*state.holders else {
        panic!("{state:?}")
    };
    assert_eq!(
        (holder.token, holder.is_writer),
        (Some(writer.token()), true)
    );
    writer.unlock().await.unwrap();
}

/// The poll is longer than the patience.
#[tokio::test]
async fn a_hold_of_several_can_be_ended_alone() {
    let Some(mut setup) = Setup::new("lock-force-shared") else {
        return;
    };
    let semaphore = setup.locks.semaphore_with("a", 2, long());
    let other = semaphore.acquire().await.unwrap();
    let hung = named(&setup, "hung").semaphore_with("a", 2, options().lease(LEASE));
    let hung = within(hung.acquire()).await.unwrap();
    let waiting = setup.locks.semaphore_with("a", 2, long());
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    setup
        .until("it waits", |setup| setup.waiting("{semaphore:a}") == 1)
        .await;
    assert_eq!(
        semaphore
            .force_release(hung.token() + 1_000_000)
            .await
            .unwrap(),
        None
    );
    let ended = semaphore
        .force_release(hung.token())
        .await
        .unwrap()
        .expect("it was held");
    assert_eq!((&*ended.holder, ended.token), ("hung", Some(hung.token())));
    let next = within(waiting).await.unwrap().unwrap();
    let loss = within(hung.lost()).await;
    // On a machine that stalls for two thirds of the lease, the lease ends first.
    assert!(
        matches!(loss, Loss::OtherOwner | Loss::LeaseEnded(_)),
        "{loss:?}"
    );
    assert!(matches!(hung.unlock().await, Err(LockError::Lost(_))));
    for permit in [other, next] {
        permit.unlock().await.unwrap();
    }
    let lock = setup.locks.rw_lock_with("a", long());
    let writer = lock.write().lock().await.unwrap();
    lock.force_release(writer.token())
        .await
        .unwrap()
        .expect("it was held");
    lock.read()
        .try_lock()
        .await
        .unwrap()
        .expect("there is no writer")
        .unlock()
        .await
        .unwrap();
    assert!(matches!(
        writer.unlock().await,
        Err(LockError::Lost(Loss::NoOwner))
    ));
}

/// The repeated call would find no hold with this token.
#[tokio::test]
async fn a_call_that_ends_one_hold_is_not_repeated() {
    let Some(mut setup) = Setup::new("lock-force-shared-cut") else {
        return;
    };
    let (proxy, locks) = setup.through_proxy();
    let semaphore = locks.semaphore_with("a", 1, long());
    let permit = semaphore.acquire().await.unwrap();
    // Redis knows the script from now on.
    assert_eq!(semaphore.state().await.unwrap().holders.len(), 1);
    proxy.set(Answers::Cut);
    let ended = within(semaphore.force_release(permit.token())).await;
    assert!(matches!(ended, Err(LockError::Redis(_))), "{ended:?}");
    assert_eq!(setup.held("{semaphore:a}"), 0);
    // A question is repeated.
    proxy.set(Answers::Cut);
    assert_eq!(within(semaphore.state()).await.unwrap().holders, []);
    assert!(proxy.has_cut());
    assert!(permit.unlock().await.is_err());
}

#[tokio::test]
async fn a_name_of_a_holder_that_is_not_valid_is_rejected() {
    let client = Client::open("redis://127.0.0.1:1/").unwrap();
    let build = |holder: &str| LockClient::builder(client.clone()).holder(holder).build();
    for (holder, reason) in [
        ("", "the name of the holder is empty"),
        (
            "a b",
            "the name of the holder \"a b\" contains ' ': white space",
        ),
        ("a\n", "the name of the holder \"a\\n\" contains '\\n'"),
        (
            &"ä".repeat(65),
            "a name of the holder of 130 bytes is longer than 128",
        ),
    ] {
        let failed = build(holder);
        let Err(LockError::Options(why)) = failed else {
            panic!("{failed:?}")
        };
        assert!(why.starts_with(reason), "{why}");
    }
    build("{a:b/c}").unwrap();
}
