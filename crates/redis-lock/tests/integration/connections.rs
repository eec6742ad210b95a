//! The lock when its connections fail, or Redis does not answer.

use std::time::{Duration, Instant};

use redis_lock::{LockError, Loss};

use super::common::{Answers, Setup, long, options, within};

#[tokio::test]
async fn a_lock_that_was_granted_is_not_lost_with_the_connection() {
    let Some(mut setup) = Setup::new("lock-cut") else {
        return;
    };
    let (proxy, locks) = setup.through_proxy();
    locks
        .lock("warm up")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    proxy.set(Answers::Cut);
    let guard = within(locks.lock_with("a", long()).lock()).await.unwrap();
    assert!(proxy.has_cut());
    assert_eq!(setup.last_token("{lock:a}"), guard.token());
    // The release is executed, but the client cannot know that.
    proxy.set(Answers::Cut);
    let unlocked = within(guard.unlock()).await;
    assert!(matches!(unlocked, Err(LockError::Redis(_))), "{unlocked:?}");
    assert_eq!(setup.holder("a"), None);
}

#[tokio::test]
async fn a_lock_whose_answer_never_comes_is_released() {
    let Some(mut setup) = Setup::new("lock-swallow") else {
        return;
    };
    let (proxy, locks) = setup.through_proxy();
    locks
        .lock("warm up")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    proxy.set(Answers::Swallow);
    // A call may take 5 s.
    let mut lock = locks.lock_with("a", options().lease(Duration::from_secs(30)));
    let begin = Instant::now();
    let taking = tokio::spawn(async move { lock.lock().await.map(drop) });
    setup
        .until("Redis has granted it", |setup| setup.holder("a").is_some())
        .await;
    let failed = within(taking).await.unwrap();
    assert!(
        matches!(&failed, Err(LockError::Redis(error)) if error.is_timeout()),
        "{failed:?}"
    );
    proxy.set(Answers::Forward);
    setup
        .until("it is free", |setup| setup.holder("a").is_none())
        .await;
    assert!(
        begin.elapsed() < Duration::from_secs(30),
        "the lease has ended: {:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn calls_survive_a_connection_that_was_closed_between_them() {
    let Some(mut setup) = Setup::new("lock-closed") else {
        return;
    };
    let mut close = || {
        let kill = &["KILL", "TYPE", "normal"];
        let closed: i64 = redis::cmd("CLIENT")
            .arg(kill)
            .query(&mut setup.redis)
            .unwrap();
        assert_eq!(closed, 1);
    };
    let mut lock = setup.locks.lock_with("a", long());
    let guard = lock.lock().await.unwrap();
    close();
    let again = lock.lock().await.unwrap();
    close();
    again.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    assert_eq!(setup.holder("a"), None);
}

#[tokio::test]
async fn a_release_is_repeated_after_an_outage() {
    let Some(mut setup) = Setup::new("lock-outage") else {
        return;
    };
    // The release is repeated after 4 s. The lease ends after the patience.
    let lease = Duration::from_secs(24);
    let guard = setup
        .locks
        .lock_with("a", options().lease(lease))
        .lock()
        .await
        .unwrap();
    setup.server.kill().unwrap();
    let unlocked = within(guard.unlock()).await;
    assert!(matches!(unlocked, Err(LockError::Redis(_))), "{unlocked:?}");
    setup.server.restart().unwrap();
    setup.redis = hashed_wheel_trial::redis_server::connect(&setup.server.url()).unwrap();
    setup
        .until("it is free", |setup| setup.holder("a").is_none())
        .await;
}

#[tokio::test]
async fn a_failed_renewal_is_repeated_after_a_sixth_of_the_lease() {
    let Some(mut setup) = Setup::new("lock-sixth") else {
        return;
    };
    let (proxy, locks) = setup.through_proxy();
    let guard = locks
        .lock_with("a", options().lease(Duration::from_secs(12)))
        .lock()
        .await
        .unwrap();
    assert_eq!(proxy.connections(), 1);
    setup.server.kill().unwrap();
    let loss = within(guard.lost()).await;
    assert!(matches!(loss, Loss::LeaseEnded(Some(_))), "{loss:?}");
    // The first renewal finds a closed connection, and opens another one. Each of the others opens
    // two. They are made 4, 6, 8 and 10 s after the acquisition. One may be missing.
    let connections = proxy.connections();
    assert!(connections >= 6, "{connections}");
}

#[tokio::test]
async fn a_failed_re_entry_does_not_count() {
    let Some(mut setup) = Setup::new("lock-reentry-down") else {
        return;
    };
    let mut lock = setup.locks.lock_with("a", long());
    let guard = lock.lock().await.unwrap();
    setup.server.kill().unwrap();
    for _ in 0..3 {
        let again = within(lock.lock()).await;
        assert!(matches!(again, Err(LockError::Redis(_))), "{again:?}");
    }
    setup.server.restart().unwrap();
    setup.redis = hashed_wheel_trial::redis_server::connect(&setup.server.url()).unwrap();
    guard.unlock().await.unwrap();
    assert_eq!(setup.holder("a"), None);
}

#[tokio::test]
async fn a_call_ends_however_long_the_lease_is() {
    let Some(setup) = Setup::new("lock-day") else {
        return;
    };
    let guard = setup.locks.lock("a").lock().await.unwrap();
    setup.server.freeze().unwrap();
    let day = Duration::from_secs(86_400);
    let failed = within(setup.locks.lock_with("b", options().lease(day)).lock()).await;
    assert!(
        matches!(&failed, Err(LockError::Redis(error)) if error.is_timeout()),
        "{failed:?}"
    );
    setup.server.thaw().unwrap();
    drop(guard);
}

#[tokio::test]
async fn without_a_subscription_callers_poll() {
    let Some(mut setup) = Setup::new("lock-no-subscription") else {
        return;
    };
    let (proxy, locks) = setup.through_proxy();
    // A call may take 10 s.
    let options = long().poll(Duration::from_millis(100));
    let guard = locks.lock_with("a", options.clone()).lock().await.unwrap();
    proxy.set(Answers::SwallowNew);
    let mut other = locks.lock_with("a", options);
    let begin = Instant::now();
    assert!(
        within(other.lock_timeout(Duration::from_millis(50)))
            .await
            .unwrap()
            .is_none()
    );
    let waiting = tokio::spawn(async move { other.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("a") == 1)
        .await;
    assert!(
        begin.elapsed() < Duration::from_secs(8),
        "{:?}",
        begin.elapsed()
    );
    guard.unlock().await.unwrap();
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}
