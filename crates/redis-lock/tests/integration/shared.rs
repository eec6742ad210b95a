//! Read-write locks and semaphores, on a real Redis.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::Commands;
use redis_lock::{Guard, LockError, Loss};

use super::common::{Answers, LEASE, READ, Setup, client, long, options, take, within};

#[tokio::test]
async fn readers_share_and_a_writer_is_alone() {
    let Some(mut setup) = Setup::new("lock-rw") else {
        return;
    };
    let other = client(&setup.server, &setup.timer);
    let [here, there] = [&setup.locks, &other].map(|locks| locks.rw_lock_with("a", options()));
    let mut last = 0;
    for _ in 0..2 {
        let mut readers = Vec::new();
        for lock in [&here, &there, &here] {
            let reader = lock
                .read()
                .try_lock()
                .await
                .unwrap()
                .expect("readers share it");
            assert!(reader.token() > last);
            last = reader.token();
            readers.push(reader);
        }
        for reader in readers {
            assert!(
                there.write().try_lock().await.unwrap().is_none(),
                "a writer entered with readers"
            );
            reader.unlock().await.unwrap();
        }
        let writer = there.write().try_lock().await.unwrap().expect("it is free");
        assert!(writer.token() > last);
        last = writer.token();
        assert!(
            here.write().try_lock().await.unwrap().is_none(),
            "two writers"
        );
        assert!(
            here.read().try_lock().await.unwrap().is_none(),
            "a reader entered with a writer"
        );
        writer.unlock().await.unwrap();
    }
    // The names of locks are independent of it.
    let lock = setup.locks.lock("a").try_lock().await.unwrap().unwrap();
    let writer = here.write().try_lock().await.unwrap().unwrap();
    lock.unlock().await.unwrap();
    writer.unlock().await.unwrap();
    assert_eq!(
        (setup.held("{rwlock:a}"), setup.waiting("{rwlock:a}")),
        (0, 0)
    );
    setup
        .until("there is no timeout", |setup| {
            setup.timer.pending_timeouts() == 0
        })
        .await;
}

#[tokio::test]
async fn a_reader_may_take_its_lock_again() {
    let Some(mut setup) = Setup::new("lock-rw-again") else {
        return;
    };
    let lock = setup.locks.rw_lock_with("a", options());
    let (mut reader, mut writer) = (lock.read(), lock.write());
    let guards = [reader.lock().await.unwrap(), reader.lock().await.unwrap()];
    assert_eq!(guards[0].token(), guards[1].token());
    for guard in guards {
        assert!(writer.try_lock().await.unwrap().is_none());
        guard.unlock().await.unwrap();
    }
    drop(writer.lock().await.unwrap());
    setup
        .until("the dropped guard has released it", |setup| {
            setup.held("{rwlock:a}") == 0
        })
        .await;
}

#[tokio::test]
async fn as_many_hold_as_there_are_permits() {
    let Some(mut setup) = Setup::new("lock-permits") else {
        return;
    };
    let other = client(&setup.server, &setup.timer);
    let [here, there] = [&setup.locks, &other].map(|locks| locks.semaphore_with("a", 3, options()));
    let (mut permits, mut last) = (Vec::new(), 0);
    for semaphore in [&here, &there, &here] {
        let permit = semaphore.try_acquire().await.unwrap().expect("one is free");
        assert!(permit.token() > last);
        last = permit.token();
        permits.push(permit);
    }
    for permit in permits {
        assert!(
            there.try_acquire().await.unwrap().is_none(),
            "a fourth permit"
        );
        permit.unlock().await.unwrap();
        let again = here.acquire().await.unwrap();
        assert!(
            there
                .acquire_timeout(Duration::from_millis(20))
                .await
                .unwrap()
                .is_none()
        );
        std::mem::forget(again);
    }
    assert_eq!(setup.held("{semaphore:a}"), 3);
    setup
        .until("nobody waits", |setup| setup.waiting("{semaphore:a}") == 0)
        .await;
    let failed = setup.locks.semaphore("a", 0).acquire().await;
    let Err(LockError::Options(why)) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!(why, "a semaphore with 0 permits; at least 1 is needed");
}

/// Each caller counts by its own number.
#[tokio::test]
async fn callers_may_disagree_about_the_number_of_permits() {
    let Some(setup) = Setup::new("lock-disagree") else {
        return;
    };
    let [two, three] = [2, 3].map(|permits| setup.locks.semaphore_with("a", permits, options()));
    let first = three.try_acquire().await.unwrap().unwrap();
    let second = three.try_acquire().await.unwrap().unwrap();
    assert!(two.try_acquire().await.unwrap().is_none());
    let third = three.try_acquire().await.unwrap().unwrap();
    first.unlock().await.unwrap();
    assert!(two.try_acquire().await.unwrap().is_none());
    second.unlock().await.unwrap();
    assert!(two.try_acquire().await.unwrap().is_some());
    third.unlock().await.unwrap();
}

/// As in a service whose processes are replaced one after the other.
#[tokio::test]
async fn a_semaphore_with_one_permit_grows_while_it_is_held() {
    let Some(mut setup) = Setup::new("lock-grow") else {
        return;
    };
    for is_fair in [false, true] {
        let [one, four] = [1, 4].map(|permits| {
            setup
                .locks
                .semaphore_with("a", permits, long().fair(is_fair))
        });
        let old = one.acquire().await.unwrap();
        let mut new = Vec::new();
        for _ in 0..3 {
            new.push(
                four.try_acquire()
                    .await
                    .unwrap()
                    .expect("it has four permits"),
            );
        }
        assert!(
            four.try_acquire().await.unwrap().is_none(),
            "a fifth permit"
        );
        assert!(
            one.try_acquire().await.unwrap().is_none(),
            "an old process entered with others"
        );
        let waiting = tokio::spawn(async move { four.acquire().await });
        setup
            .until("it waits", |setup| setup.waiting("{semaphore:a}") == 1)
            .await;
        old.unlock().await.unwrap();
        new.push(within(waiting).await.unwrap().unwrap());
        for permit in new {
            permit.unlock().await.unwrap();
        }
        one.try_acquire()
            .await
            .unwrap()
            .expect("it is free")
            .unlock()
            .await
            .unwrap();
    }
}

/// More readers than one script examines.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_waiting_readers_enter_together() {
    const READERS: usize = 100;
    let Some(mut setup) = Setup::new("lock-readers") else {
        return;
    };
    for is_fair in [false, true] {
        let lock = setup.locks.rw_lock_with("a", long().fair(is_fair));
        let writer = lock.write().lock().await.unwrap();
        let all = Arc::new(tokio::sync::Barrier::new(READERS));
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let (mut reader, all) = (lock.read(), Arc::clone(&all));
                tokio::spawn(async move {
                    let guard = reader.lock().await.unwrap();
                    all.wait().await;
                    guard.unlock().await.unwrap();
                })
            })
            .collect();
        setup
            .until("all wait", |setup| setup.waiting("{rwlock:a}") == READERS)
            .await;
        writer.unlock().await.unwrap();
        for reader in readers {
            within(reader).await.unwrap();
        }
        assert_eq!(
            (setup.held("{rwlock:a}"), setup.waiting("{rwlock:a}")),
            (0, 0)
        );
    }
}

/// The first of the queue was told, and does not react.
#[tokio::test]
async fn a_dead_reader_does_not_delay_the_others() {
    let Some(mut setup) = Setup::new("lock-dead-reader") else {
        return;
    };
    for is_fair in [false, true] {
        let lock = setup.locks.rw_lock_with("a", long().fair(is_fair));
        let writer = lock.write().lock().await.unwrap();
        setup.add_dead_caller("{rwlock:a}", &format!("a dead client:0/{READ}"));
        let waiting = [(); 2].map(|()| {
            let mut reader = lock.read();
            tokio::spawn(async move { reader.lock().await })
        });
        setup
            .until("all wait", |setup| setup.waiting("{rwlock:a}") == 3)
            .await;
        writer.unlock().await.unwrap();
        for reader in waiting {
            within(reader)
                .await
                .unwrap()
                .unwrap()
                .unlock()
                .await
                .unwrap();
        }
        let () = redis::cmd("FLUSHALL").query(&mut setup.redis).unwrap();
    }
}

#[tokio::test]
async fn readers_do_not_overtake_a_waiting_writer() {
    let Some(mut setup) = Setup::new("lock-overtake-writer") else {
        return;
    };
    for is_fair in [false, true] {
        let lock = setup.locks.rw_lock_with("a", long().fair(is_fair));
        let reader = lock.read().lock().await.unwrap();
        let mut writer = lock.write();
        let writer = tokio::spawn(async move { writer.lock().await });
        setup
            .until("it waits", |setup| setup.waiting("{rwlock:a}") == 1)
            .await;
        assert!(
            lock.read().try_lock().await.unwrap().is_none(),
            "a reader overtook the writer"
        );
        reader.unlock().await.unwrap();
        within(writer)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_fair_read_write_lock_is_granted_in_order() {
    let Some(mut setup) = Setup::new("lock-rw-fair") else {
        return;
    };
    let lock = setup.locks.rw_lock_with("a", long().fair(true));
    let writer = lock.write().lock().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (before, name) in ["reader 1", "writer 2", "reader 3", "writer 4", "writer 5"]
        .into_iter()
        .enumerate()
    {
        let mut owner = if name.starts_with("reader") {
            lock.read()
        } else {
            lock.write()
        };
        let order = Arc::clone(&order);
        tasks.push(tokio::spawn(async move {
            let guard = owner.lock().await.unwrap();
            order.lock().unwrap().push(name);
            tokio::time::sleep(Duration::from_millis(20)).await;
            guard.unlock().await.unwrap();
        }));
        setup
            .until("it waits", |setup| {
                setup.waiting("{rwlock:a}") == before + 1
            })
            .await;
    }
    writer.unlock().await.unwrap();
    for task in tasks {
        within(task).await.unwrap();
    }
    assert_eq!(
        *order.lock().unwrap(),
        ["reader 1", "writer 2", "reader 3", "writer 4", "writer 5"]
    );

    // The first waiting reader is slow, and a writer is behind it.
    setup.add_dead_caller("{rwlock:a}", &format!("a slow client:0/{READ}"));
    setup.add_dead_caller("{rwlock:a}", "a slow client:1/w");
    assert!(
        lock.read().try_lock().await.unwrap().is_none(),
        "a reader overtook a writer"
    );
}

#[tokio::test]
async fn nobody_overtakes_the_queue_of_a_fair_semaphore() {
    let Some(mut setup) = Setup::new("lock-permits-fair") else {
        return;
    };
    let fair = long().fair(true);
    setup.add_dead_caller("{semaphore:a}", "a slow client:0/1");
    // The second permit is free even if the first of the queue takes one.
    let semaphore = setup.locks.semaphore_with("a", 2, fair);
    let second = semaphore
        .try_acquire()
        .await
        .unwrap()
        .expect("there are two permits");
    assert!(
        semaphore.try_acquire().await.unwrap().is_none(),
        "a caller overtook the queue"
    );
    let not_fair = setup.locks.semaphore_with("a", 2, long());
    not_fair
        .try_acquire()
        .await
        .unwrap()
        .expect("it is not fair")
        .unlock()
        .await
        .unwrap();
    second.unlock().await.unwrap();
}

#[tokio::test]
async fn a_waiting_caller_of_a_semaphore_is_woken() {
    let Some(mut setup) = Setup::new("lock-permit-woken") else {
        return;
    };
    let other = client(&setup.server, &setup.timer);
    for locks in [&setup.locks.clone(), &other] {
        let semaphore = setup.locks.semaphore_with("a", 2, long());
        let permits = [
            semaphore.acquire().await.unwrap(),
            semaphore.acquire().await.unwrap(),
        ];
        let waiting = locks.semaphore_with("a", 2, long());
        let waiting = tokio::spawn(async move { waiting.acquire().await });
        setup
            .until("it waits", |setup| setup.waiting("{semaphore:a}") == 1)
            .await;
        let [first, second] = permits;
        second.unlock().await.unwrap();
        within(waiting)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap();
        first.unlock().await.unwrap();
    }
}

#[tokio::test]
async fn the_permit_of_a_dead_holder_is_free_after_its_lease() {
    let Some(mut setup) = Setup::new("lock-dead-permit") else {
        return;
    };
    let semaphore = setup.locks.semaphore_with("a", 2, long());
    let held = semaphore.acquire().await.unwrap();
    let (begin, lease) = (Instant::now(), Duration::from_millis(700));
    setup.add_dead_holder("{semaphore:a}", "a dead client:0/1", lease);
    let waiting = [(); 2].map(|()| {
        let semaphore = setup.locks.semaphore_with("a", 2, long());
        tokio::spawn(async move { semaphore.acquire().await.unwrap().unlock().await })
    });
    for waiting in waiting {
        within(waiting).await.unwrap().unwrap();
    }
    // The resolution of Redis is a millisecond.
    assert!(
        begin.elapsed() + Duration::from_millis(2) >= lease,
        "{:?}",
        begin.elapsed()
    );
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn a_writer_enters_after_the_leases_of_dead_readers() {
    let Some(mut setup) = Setup::new("lock-dead-readers") else {
        return;
    };
    let begin = Instant::now();
    for millis in [300, 900, 600] {
        let owner = format!("a dead client:{millis}/{READ}");
        setup.add_dead_holder("{rwlock:a}", &owner, Duration::from_millis(millis));
    }
    let writer = within(setup.locks.rw_lock_with("a", long()).write().lock())
        .await
        .unwrap();
    assert!(
        begin.elapsed() >= Duration::from_millis(898),
        "{:?}",
        begin.elapsed()
    );
    writer.unlock().await.unwrap();
}

/// A holder takes the free permit, and its lease ends before that of the other holder.
#[tokio::test]
async fn the_next_waiting_caller_learns_when_a_new_lease_ends() {
    let Some(mut setup) = Setup::new("lock-permit-next") else {
        return;
    };
    let semaphore = setup.locks.semaphore_with("a", 1, long());
    let held = semaphore.acquire().await.unwrap();
    let first = setup
        .locks
        .semaphore_with("a", 1, options().lease(LEASE).watchdog(false));
    let first = tokio::spawn(async move { std::mem::forget(first.acquire().await) });
    setup
        .until("the first waits", |setup| {
            setup.waiting("{semaphore:a}") == 1
        })
        .await;
    let second = tokio::spawn(async move { semaphore.acquire().await });
    setup
        .until("both wait", |setup| setup.waiting("{semaphore:a}") == 2)
        .await;
    // The end of the time to take the permit is told to a caller of another client.
    setup.add_dead_caller_at(1 << 52, "{semaphore:a}", "a dead client:0/0");
    held.unlock().await.unwrap();
    within(first).await.unwrap();
    within(second)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// Leases ended, and no release offers the permits to the callers that died.
#[tokio::test]
async fn free_permits_pass_callers_that_died() {
    let Some(mut setup) = Setup::new("lock-permits-die") else {
        return;
    };
    for number in 0..4 {
        setup.add_dead_caller("{semaphore:a}", &format!("a dead client:{number}/1"));
    }
    let fair = setup.locks.semaphore_with("a", 2, long().fair(true));
    within(fair.acquire())
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_caller_of_a_semaphore_that_gives_up_leaves_nothing() {
    let Some(mut setup) = Setup::new("lock-permit-give-up") else {
        return;
    };
    let semaphore = Arc::new(setup.locks.semaphore_with("a", 1, long()));
    let held = semaphore.acquire().await.unwrap();
    assert!(
        semaphore
            .acquire_timeout(Duration::from_millis(50))
            .await
            .unwrap()
            .is_none()
    );
    setup
        .until("it has left the queue", |setup| {
            setup.waiting("{semaphore:a}") == 0
        })
        .await;
    let aborted = Arc::clone(&semaphore);
    let aborted = tokio::spawn(async move { aborted.acquire().await });
    setup
        .until("it waits", |setup| setup.waiting("{semaphore:a}") == 1)
        .await;
    aborted.abort();
    setup
        .until("it has left the queue", |setup| {
            setup.waiting("{semaphore:a}") == 0
        })
        .await;
    held.unlock().await.unwrap();

    for microseconds in (0..1_000).step_by(20) {
        let taken =
            tokio::time::timeout(Duration::from_micros(microseconds), semaphore.acquire()).await;
        if let Ok(permit) = taken {
            permit.unwrap().unlock().await.unwrap();
        }
    }
    setup
        .until("it is free", |setup| {
            setup.held("{semaphore:a}") + setup.waiting("{semaphore:a}") == 0
        })
        .await;
}

#[tokio::test]
async fn a_repeated_call_finds_its_own_hold() {
    let Some(mut setup) = Setup::new("lock-rw-cut") else {
        return;
    };
    let (proxy, locks) = setup.through_proxy();
    locks
        .rw_lock("warm up")
        .read()
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    proxy.set(Answers::Cut);
    let lock = locks.rw_lock_with("a", long());
    let guard = within(lock.write().lock()).await.unwrap();
    assert!(proxy.has_cut());
    assert_eq!(setup.held("{rwlock:a}"), 1);
    assert_eq!(setup.last_token("{rwlock:a}"), guard.token());
    guard.unlock().await.unwrap();
    assert_eq!(setup.held("{rwlock:a}"), 0);
}

#[tokio::test]
async fn a_lost_hold_is_reported() {
    let Some(mut setup) = Setup::new("lock-rw-lost") else {
        return;
    };
    let lock = setup.locks.rw_lock_with("a", long());
    // Re-entry is a renewal.
    let lost = async |setup: &mut Setup, is_writer: bool, command: &[&str]| {
        let mut owner = if is_writer { lock.write() } else { lock.read() };
        let guard = owner.lock().await.unwrap();
        let [name]: [String; 1] = setup.redis.zrange("{rwlock:a}", 0, -1).unwrap();
        let words = command
            .iter()
            .map(|&word| if word == "NAME" { &*name } else { word });
        let mut command = redis::cmd("EVAL");
        let () = command
            .arg(words.collect::<Vec<_>>())
            .query(&mut setup.redis)
            .unwrap();
        let again = owner.lock().await;
        let Err(LockError::Lost(loss)) = again else {
            panic!("{again:?}")
        };
        assert!(matches!(guard.unlock().await, Err(LockError::Lost(_))));
        let () = redis::cmd("DEL")
            .arg("{rwlock:a}")
            .query(&mut setup.redis)
            .unwrap();
        loss
    };
    let deleted = ["return redis.call('del', KEYS[1])", "1", "{rwlock:a}"];
    assert_eq!(lost(&mut setup, false, &deleted).await, Loss::NoOwner);
    assert_eq!(lost(&mut setup, true, &deleted).await, Loss::NoOwner);
    let ended = [
        "return redis.call('zadd', KEYS[1], 1, ARGV[1])",
        "1",
        "{rwlock:a}",
        "NAME",
    ];
    assert_eq!(lost(&mut setup, false, &ended).await, Loss::NoOwner);
    let replace =
        "redis.call('del', KEYS[1]) return redis.call('zadd', KEYS[1], 1e15, 'another:0/w')";
    assert_eq!(
        lost(&mut setup, false, &[replace, "1", "{rwlock:a}"]).await,
        Loss::OtherOwner
    );
    assert_eq!(
        lost(&mut setup, true, &[replace, "1", "{rwlock:a}"]).await,
        Loss::OtherOwner
    );
    let another_type = "redis.call('del', KEYS[1]) return redis.call('set', KEYS[1], 'text')";
    assert_eq!(
        lost(&mut setup, true, &[another_type, "1", "{rwlock:a}"]).await,
        Loss::OtherOwner
    );
}

#[tokio::test]
async fn without_a_watchdog_a_permit_expires() {
    let Some(mut setup) = Setup::new("lock-permit-expires") else {
        return;
    };
    let lease = Duration::from_secs(3);
    let semaphore = setup
        .locks
        .semaphore_with("a", 2, options().lease(lease).watchdog(false));
    let begin = Instant::now();
    let permit = within(semaphore.acquire()).await.unwrap();
    assert_eq!(within(permit.lost()).await, Loss::LeaseEnded(None));
    assert!(begin.elapsed() >= lease, "{:?}", begin.elapsed());
    setup
        .until("Redis has ended the lease", |setup| {
            setup.held("{semaphore:a}") == 0
        })
        .await;
}

#[tokio::test]
async fn renewals_of_shared_holds_share_calls() {
    const EACH: usize = 100;
    let Some(mut setup) = Setup::new("lock-shared-batches") else {
        return;
    };
    let lost = Arc::new(AtomicU32::new(0));
    let mut guards: Vec<Guard> = Vec::new();
    let short = options().lease(LEASE);
    let semaphore = setup.locks.semaphore_with("a", EACH as u32, short.clone());
    let lock = setup.locks.rw_lock_with("a", short.clone());
    for number in 0..EACH {
        guards.push(semaphore.acquire().await.unwrap());
        guards.push(take(&mut lock.read()).await);
        guards.push(
            take(
                &mut setup
                    .locks
                    .rw_lock_with(&number.to_string(), short.clone())
                    .write(),
            )
            .await,
        );
        guards.push(take(&mut setup.locks.lock_with(&number.to_string(), short.clone())).await);
    }
    for guard in &guards {
        let lost = Arc::clone(&lost);
        guard.on_lost(move |_| _ = lost.fetch_add(1, SeqCst));
    }
    let calls = |setup: &Setup| {
        let line = setup.server.info("cmdstat_evalsha").unwrap();
        line.trim_start_matches("calls=")
            .split(',')
            .next()
            .unwrap()
            .parse::<usize>()
            .unwrap()
    };
    let (begin, before) = (Instant::now(), calls(&setup));
    tokio::time::sleep(LEASE * 3 / 2).await;
    let (calls, thirds) = (
        calls(&setup) - before,
        begin.elapsed().div_duration_f64(LEASE / 3),
    );
    assert_eq!(lost.load(SeqCst), 0, "holds were not renewed");
    // Two calls renew the shared holds, and one the locks.
    assert!(
        calls as f64 <= (thirds + 2.0) * 3.0,
        "{calls} calls in {thirds} thirds of a lease"
    );
    assert_eq!(
        (setup.held("{semaphore:a}"), setup.held("{rwlock:a}")),
        (EACH, EACH)
    );
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    setup
        .until("there is no timeout", |setup| {
            setup.timer.pending_timeouts() == 0
        })
        .await;
    assert_eq!(
        (setup.held("{semaphore:a}"), setup.held("{rwlock:a}")),
        (0, 0)
    );
}
