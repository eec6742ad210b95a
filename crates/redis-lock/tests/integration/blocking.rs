//! The blocking API: each function, on a real Redis.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use redis::Client;
use redis_lock::blocking::{Guard, Lock, LockClient};
use redis_lock::{LockClientBuilder, LockError, Loss};
use tokio::runtime::{Builder, Runtime};

use super::common::{LEASE, PATIENCE, Setup, long, options, patience};

/// Takes a lock whose lease is so short that a busy machine may not answer within a sixth of it.
fn take(lock: &mut Lock) -> Guard {
    let begin = Instant::now();
    loop {
        match lock.lock() {
            Err(LockError::Redis(_) | LockError::Lost(_)) if begin.elapsed() < patience() => {}
            taken => return taken.unwrap(),
        }
    }
}

fn client(setup: &Setup) -> LockClient {
    builder(setup).build_blocking().unwrap()
}

fn builder(setup: &Setup) -> LockClientBuilder {
    redis_lock::LockClient::builder(Client::open(setup.server.url()).unwrap()).timer(&setup.timer)
}

/// A server, and a runtime whose only use is to make the setup.
struct Blocking {
    setup: Setup,
    locks: LockClient,
    _runtime: Runtime,
}

impl Blocking {
    fn new(test: &str) -> Option<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let setup = runtime.block_on(async { Setup::new(test) })?;
        let locks = client(&setup);
        Some(Self {
            setup,
            locks,
            _runtime: runtime,
        })
    }

    fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Setup) -> bool) {
        let begin = Instant::now();
        while !condition(&mut self.setup) {
            assert!(
                begin.elapsed() < patience(),
                "not within {:?}: {what}",
                patience()
            );
            thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn locks_exclude_each_other_until_they_are_released() {
    let Some(mut test) = Blocking::new("blocking-all") else {
        return;
    };
    let (mut lock, mut other) = (
        test.locks.lock("a"),
        test.locks.clone().lock_with("a", long()),
    );
    assert_eq!(lock.name(), "a");
    let first: Guard = lock.lock().unwrap();
    assert!(
        test.setup
            .holder("a")
            .unwrap()
            .starts_with(test.locks.name())
    );
    let again = lock
        .try_lock()
        .unwrap()
        .expect("an owner may take its lock again");
    assert_eq!(first.token(), again.token());
    first.check().unwrap();
    assert!(other.try_lock().unwrap().is_none());
    let begin = Instant::now();
    assert!(
        other
            .lock_timeout(Duration::from_millis(50))
            .unwrap()
            .is_none()
    );
    assert!(begin.elapsed() >= Duration::from_millis(50));
    first.unlock().unwrap();
    assert!(other.try_lock().unwrap().is_none());
    assert_eq!(
        test.locks.state("a").unwrap().unwrap().token,
        Some(again.token())
    );
    again.unlock().unwrap();
    assert_eq!(test.setup.holder("a"), None);
    let next = other.lock_timeout(patience()).unwrap().expect("it is free");
    let token = next.token();
    next.unlock().unwrap();
    assert!(lock.lock().unwrap().token() > token);
}

#[test]
fn a_dropped_guard_has_released_the_lock() {
    let Some(mut test) = Blocking::new("blocking-drop") else {
        return;
    };
    for _ in 0..50 {
        let guard = test.locks.lock_with("a", long()).lock().unwrap();
        assert!(test.setup.holder("a").is_some());
        drop(guard);
        assert_eq!(test.setup.holder("a"), None);
    }
}

#[test]
fn a_hold_can_be_ended() {
    let Some(test) = Blocking::new("blocking-force") else {
        return;
    };
    let guard = test.locks.lock_with("a", long()).lock().unwrap();
    assert_eq!(
        test.locks.force_unlock("a").unwrap().unwrap().token,
        Some(guard.token())
    );
    assert_eq!(test.locks.force_unlock("a").unwrap(), None);
    assert!(matches!(
        guard.unlock(),
        Err(LockError::Lost(Loss::NoOwner))
    ));

    let semaphore = test.locks.semaphore_with("a", 1, long());
    let permit = semaphore.acquire().unwrap();
    assert_eq!(
        semaphore.state().unwrap().holders[0].token,
        Some(permit.token())
    );
    semaphore
        .force_release(permit.token())
        .unwrap()
        .expect("it was held");
    assert!(matches!(
        permit.unlock(),
        Err(LockError::Lost(Loss::NoOwner))
    ));
    let lock = test.locks.rw_lock_with("a", long());
    let writer = lock.write().lock().unwrap();
    assert!(lock.state().unwrap().holders[0].is_writer);
    lock.force_release(writer.token())
        .unwrap()
        .expect("it was held");
    assert!(matches!(
        writer.unlock(),
        Err(LockError::Lost(Loss::NoOwner))
    ));
}

#[test]
fn a_waiting_thread_is_woken() {
    let Some(mut test) = Blocking::new("blocking-wait") else {
        return;
    };
    let guard = test.locks.lock_with("a", long()).lock().unwrap();
    let mut waiting = test.locks.lock_with("a", long());
    let waiting = thread::spawn(move || waiting.lock().unwrap().unlock().unwrap());
    test.until("it waits", |setup| setup.queue_len("a") == 1);
    guard.unlock().unwrap();
    waiting.join().unwrap();
}

#[test]
fn threads_get_a_fair_lock_in_order() {
    let Some(mut test) = Blocking::new("blocking-fair") else {
        return;
    };
    let fair = long().fair(true);
    let guard = test.locks.lock_with("a", fair.clone()).lock().unwrap();
    let (order, mut threads) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
    for number in 0..4 {
        let (mut lock, order) = (test.locks.lock_with("a", fair.clone()), Arc::clone(&order));
        threads.push(thread::spawn(move || {
            let guard = lock.lock().unwrap();
            order.lock().unwrap().push(number);
            guard.unlock().unwrap();
        }));
        test.until("it waits", |setup| setup.queue_len("a") == number + 1);
    }
    guard.unlock().unwrap();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
}

#[test]
fn the_holder_is_told() {
    let Some(test) = Blocking::new("blocking-lost") else {
        return;
    };
    let lease = Duration::from_millis(300);
    let mut lock = test
        .locks
        .lock_with("a", options().lease(lease).watchdog(false));
    let guard = take(&mut lock);
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |loss| tell.send(loss).unwrap());
    assert_eq!(guard.lost(), Loss::LeaseEnded(None));
    assert_eq!(told.recv_timeout(patience()), Ok(Loss::LeaseEnded(None)));
    assert!(matches!(
        guard.check(),
        Err(LockError::Lost(Loss::LeaseEnded(None)))
    ));
    assert!(matches!(
        guard.unlock(),
        Err(LockError::Lost(Loss::LeaseEnded(None)))
    ));
}

/// It runs on the thread of the timer, which ends calls that are not answered.
#[test]
fn a_callback_may_drop_its_guard_without_an_answer() {
    let Some(test) = Blocking::new("blocking-callback") else {
        return;
    };
    let mut lock = test.locks.lock_with(
        "a",
        options()
            .lease(Duration::from_millis(1_500))
            .watchdog(false),
    );
    let guard = take(&mut lock);
    is_dropped_by_its_callback(&test, guard, |guard, f| guard.on_lost(f));
}

/// The lease of the other lock ends later, so its release would be awaited.
#[test]
fn a_callback_may_drop_a_guard_of_several_locks_without_an_answer() {
    let Some(test) = Blocking::new("blocking-callback-multi") else {
        return;
    };
    let second = test.locks.lock_with("b", long()).lock().unwrap();
    let options = options().lease(LEASE / 2).watchdog(false);
    let mut both = test.locks.multi_lock_with(["a", "b"], options);
    let guard = thread::scope(|scope| {
        let both = scope.spawn(|| both.lock());
        thread::sleep(Duration::from_secs(1));
        second.unlock().unwrap();
        both.join().unwrap().unwrap()
    });
    is_dropped_by_its_callback(&test, guard, |guard, f| guard.on_lost(f));
}

fn is_dropped_by_its_callback<G: Send + 'static>(
    test: &Blocking,
    guard: G,
    on_lost: impl FnOnce(&G, Box<dyn FnOnce(Loss) + Send>),
) {
    test.setup.server.freeze().unwrap();
    let (slot, (tell, told)) = (Arc::new(Mutex::new(None)), mpsc::channel());
    let own = Arc::clone(&slot);
    // If the lease has ended already, this thread runs the callback, and there is no guard yet.
    let callback = move |loss| {
        drop(own.lock().unwrap().take());
        tell.send(loss).unwrap();
    };
    on_lost(&guard, Box::new(callback));
    *slot.lock().unwrap() = Some(guard);
    assert_eq!(told.recv_timeout(patience()), Ok(Loss::LeaseEnded(None)));
    test.setup.server.thaw().unwrap();
}

/// Blocking the thread of a runtime is an error of the program.
#[test]
fn calls_panic_on_the_thread_of_a_runtime_and_leave_no_lock() {
    let Some(mut test) = Blocking::new("blocking-async") else {
        return;
    };
    let caller = Builder::new_current_thread().enable_all().build().unwrap();
    let panics = |call: &mut dyn FnMut()| {
        let ended = caller.block_on(async { catch_unwind(AssertUnwindSafe(call)) });
        let text = *ended.expect_err("it panics").downcast::<&str>().unwrap();
        assert!(text.contains("from within a runtime"), "{text}");
    };
    let mut lock = test.locks.lock_with("a", long());
    panics(&mut || drop(lock.lock()));
    panics(&mut || drop(lock.try_lock()));
    panics(&mut || drop(lock.lock_timeout(PATIENCE)));
    assert_eq!(test.setup.holder("a"), None);
    let mut guard = Some(lock.lock().unwrap());
    panics(&mut || _ = guard.as_ref().unwrap().lost());
    guard.as_ref().unwrap().check().unwrap();
    panics(&mut || drop(guard.take().unwrap().unlock()));
    test.until("the release goes on in the background", |setup| {
        setup.holder("a").is_none()
    });
}

/// The last use of the runtime is the release.
#[test]
fn a_guard_that_is_dropped_on_the_thread_of_a_runtime_is_released() {
    let Some(mut test) = Blocking::new("blocking-drop-async") else {
        return;
    };
    let caller = Builder::new_current_thread().enable_all().build().unwrap();
    for _ in 0..20 {
        let locks = client(&test.setup);
        let guard = locks.lock_with("a", long()).lock().unwrap();
        drop(locks);
        caller.block_on(async { drop(guard) });
        test.until("it is free", |setup| setup.holder("a").is_none());
    }
}

#[test]
fn a_release_is_repeated_after_the_client_was_dropped() {
    let Some(mut test) = Blocking::new("blocking-outage") else {
        return;
    };
    let locks = client(&test.setup);
    // The release is repeated after 4 s. The lease ends after the patience.
    let mut lock = locks.lock_with("a", options().lease(Duration::from_secs(24)));
    let guard = lock.lock().unwrap();
    test.setup.server.kill().unwrap();
    assert!(matches!(guard.unlock(), Err(LockError::Redis(_))));
    drop((lock, locks));
    test.setup.server.restart().unwrap();
    test.setup.redis = hashed_wheel_trial::redis_server::connect(&test.setup.server.url()).unwrap();
    assert!(test.setup.holder("a").is_some());
    test.until("it is free", |setup| setup.holder("a").is_none());
}

#[test]
fn a_client_that_is_dropped_leaves_nothing() {
    let Some(mut test) = Blocking::new("blocking-end") else {
        return;
    };
    let locks = client(&test.setup);
    let guard = locks.lock_with("a", long()).lock().unwrap();
    let waited = locks
        .lock_with("a", long())
        .lock_timeout(Duration::from_millis(1));
    assert!(waited.unwrap().is_none());
    drop(locks);
    guard.unlock().unwrap();
    test.until("all connections are closed", |setup| {
        let list: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query(&mut setup.redis)
            .unwrap();
        list.lines().count() == 1
    });
    test.until("there is no timeout", |setup| {
        setup.timer.pending_timeouts() == 0
    });
}

#[test]
fn a_client_is_made_on_its_runtime() {
    let Some(test) = Blocking::new("blocking-with") else {
        return;
    };
    // With the timer of the process.
    let locks = LockClient::new(Client::open(test.setup.server.url()).unwrap()).unwrap();
    assert_ne!(locks.name(), test.locks.name());
    locks.lock("a").lock().unwrap().unlock().unwrap();
    // Also on the thread of a runtime, which must not wait for the end of another one.
    let caller = Builder::new_current_thread().build().unwrap();
    caller.block_on(async {
        let failed = builder(&test.setup).prefix("{").build_blocking();
        assert!(matches!(failed, Err(LockError::Options(_))), "{failed:?}");
        drop(locks);
    });
}

#[test]
fn without_redis_calls_fail() {
    let Some(mut test) = Blocking::new("blocking-down") else {
        return;
    };
    let guard = test.locks.lock_with("a", long()).lock().unwrap();
    test.setup.server.kill().unwrap();
    let mut other = test.locks.lock_with("b", long());
    assert!(matches!(other.lock(), Err(LockError::Redis(_))));
    assert!(matches!(
        other.lock_timeout(PATIENCE),
        Err(LockError::Redis(_))
    ));
    assert!(matches!(guard.unlock(), Err(LockError::Redis(_))));
}

#[test]
fn read_write_locks_and_semaphores() {
    let Some(Blocking {
        setup,
        locks,
        _runtime,
    }) = Blocking::new("lock-blocking-shared")
    else {
        return;
    };
    let lock = locks.rw_lock_with("a", long());
    assert_eq!(lock.name(), "a");
    let readers = [lock.read().lock().unwrap(), lock.read().lock().unwrap()];
    assert!(lock.write().try_lock().unwrap().is_none());
    drop(readers);
    lock.write()
        .try_lock()
        .unwrap()
        .expect("the readers are gone")
        .unlock()
        .unwrap();
    locks.rw_lock("b").read().lock().unwrap().unlock().unwrap();

    let semaphore = locks.semaphore_with("a", 2, long());
    assert_eq!(semaphore.name(), "a");
    let permits = [
        semaphore.acquire().unwrap(),
        semaphore.try_acquire().unwrap().unwrap(),
    ];
    assert!(semaphore.try_acquire().unwrap().is_none());
    assert!(
        semaphore
            .acquire_timeout(Duration::from_millis(10))
            .unwrap()
            .is_none()
    );
    drop(permits);
    semaphore
        .acquire_timeout(PATIENCE)
        .unwrap()
        .expect("the permits are free")
        .unlock()
        .unwrap();
    locks.semaphore("b", 1).acquire().unwrap().unlock().unwrap();
    drop(setup);
}

#[test]
fn several_locks_as_one() {
    let Some(Blocking {
        mut setup,
        locks,
        _runtime,
    }) = Blocking::new("lock-blocking-multi")
    else {
        return;
    };
    let mut both = locks.multi_lock_with(["b", "a"], long());
    assert!(both.names().eq(["a", "b"]));
    let guard = both.lock().unwrap();
    assert_eq!(guard.tokens().count(), 2);
    guard.check().unwrap();
    guard.on_lost(|loss| panic!("it was not lost: {loss}"));
    let mut other = locks.multi_lock(["b", "c"]);
    assert!(other.try_lock().unwrap().is_none());
    assert!(
        other
            .lock_timeout(Duration::from_millis(10))
            .unwrap()
            .is_none()
    );
    guard.unlock().unwrap();
    let guard = other
        .lock_timeout(PATIENCE)
        .unwrap()
        .expect("they are free");
    drop(guard);
    assert_eq!(
        (setup.holder("b"), setup.holder("c")),
        (None, None),
        "dropping it has released them"
    );
}
