//! Lanes that the worker does not look at: it learns of each message in them.

use hashed_wheel::Cancel;
use hashed_wheel::inside::Lanes;

use super::wakers::Poller;
use super::*;

/// After this many turns without a message the lanes are idle.
const TURNS_UNTIL_IDLE: usize = 4;

/// Returns a timer whose worker unlists all lanes before its next sleep, with a timeout of this
/// thread in the wheel.
fn with_idle_lanes() -> (Driven, Timeout) {
    with_idle_lanes_of(Driven::new())
}

fn with_idle_lanes_of(mut driven: Driven) -> (Driven, Timeout) {
    let (timeout, _) = driven.schedule_in_wheel(9);
    (0..TURNS_UNTIL_IDLE).for_each(|_| assert_eq!(driven.driver.turn(), 0));
    (driven, timeout)
}

/// Returns a timer whose worker has unlisted all lanes, in a turn.
pub(super) fn with_unlisted_lanes() -> (Driven, Timeout) {
    with_unlisted_lanes_of(Driven::new())
}

fn with_unlisted_lanes_of(driven: Driven) -> (Driven, Timeout) {
    let (mut driven, timeout) = with_idle_lanes_of(driven);
    assert_eq!(driven.driver.turn(), 0);
    (driven, timeout)
}

/// Lets the worker fall asleep on another thread.
pub(super) fn fall_asleep(driver: Driver) -> thread::JoinHandle<(bool, Driver)> {
    thread::spawn(move || (driver.falls_asleep(), driver))
}

/// The worker has seen the message of a timeout that is due in the next tick, or was woken. Then
/// its next turn expires the timeout.
#[track_caller]
pub(super) fn assert_expires(worker: thread::JoinHandle<(bool, Driver)>, clock: &ManualClock) {
    let (asleep, mut driver) = worker.join().unwrap();
    assert!(
        !(asleep && driver.misses_messages()),
        "the worker is not asleep, or has seen the message"
    );
    clock.advance(TICK);
    assert_eq!(driver.turn(), 1, "the worker finds the message");
}

#[test]
fn worker_sees_a_push_or_the_thread_lists_its_lane() {
    let mutants = [
        mutant("PushWithoutListing"),
        mutant("UnlistAfterFence"),
        mutant("UnlistWithoutSecondLook"),
        mutant("UnlistedReadBeforeFence"),
        mutant("PushWithoutFence"),
        mutant("ChangeWithoutFence"),
    ];
    explore(None, mutants, || {
        let (driven, _far) = with_idle_lanes();
        let worker = fall_asleep(driven.driver);
        let _near = driven.timer.new_timeout(|_| (), TICK).unwrap();
        assert_expires(worker, &driven.clock);
    });
}

#[test]
fn push_to_an_unlisted_lane_wakes_a_worker_that_falls_asleep() {
    let mutants = [
        "PushWithoutListing",
        "ListingWithoutFence",
        "ChangeWithoutFence",
        "SleepWithoutSecondLook",
    ];
    explore(None, mutants.map(mutant), || {
        let (driven, _far) = with_unlisted_lanes();
        let worker = fall_asleep(driven.driver);
        let _near = driven.timer.new_timeout(|_| (), TICK).unwrap();
        assert_expires(worker, &driven.clock);
    });
}

#[test]
fn push_to_an_unlisted_lane_wakes_a_loop_that_announces() {
    explore(
        None,
        [mutant("PushWithoutListing"), mutant("ListingWithoutFence")],
        || {
            let woken = Arc::new(AtomicUsize::new(0));
            let wakes = Arc::clone(&woken);
            let with_waker =
                Driven::build(|builder| builder.waker(move || _ = wakes.fetch_add(1, Relaxed)));
            let (driven, _far) = with_unlisted_lanes_of(with_waker);
            let (driver, clock) = (driven.driver, driven.clock);
            let turned = thread::spawn(move || {
                let announced = driver.next_turn();
                (announced, driver)
            });
            let _near = driven.timer.new_timeout(|_| (), TICK).unwrap();
            let (announced, mut driver) = turned.join().unwrap();
            assert!(
                announced == Some(TICK) || woken.load(Relaxed) == 1,
                "{announced:?}, {woken:?}"
            );
            clock.advance(TICK);
            assert_eq!(driver.turn(), 1, "the worker finds the message");
        },
    );
}

#[test]
fn turn_without_a_sleep_sees_a_push_or_the_thread_lists_its_lane() {
    let mutants = [
        mutant("PushWithoutListing"),
        mutant("UnlistWithoutFence"),
        mutant("UnlistAfterFence"),
        mutant("UnlistWithoutSecondLook"),
        mutant("UnlistedReadBeforeFence"),
        mutant("PushWithoutFence"),
    ];
    explore(None, mutants, || {
        let (driven, _far) = with_idle_lanes();
        let worker = Driven::turn(driven.driver);
        let _near = driven.timer.new_timeout(|_| (), TICK).unwrap();
        let (_, mut driver) = worker.join().unwrap();
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1, "the worker finds the message");
    });
}

#[test]
fn worker_finds_a_cancel_in_an_unlisted_lane() {
    explore(
        None,
        [
            mutant("CancelWithoutListing"),
            mutant("UnlistWithoutSecondLook"),
        ],
        || {
            let (driven, timeout) = with_idle_lanes();
            let worker = fall_asleep(driven.driver);
            assert!(timeout.cancel());
            let (_, mut driver) = worker.join().unwrap();
            driver.turn();
            assert!(
                timeout.is_only_handle(),
                "the worker has released its reference"
            );
        },
    );
}

#[test]
fn worker_finds_a_discard_in_an_unlisted_lane() {
    explore(
        None,
        [
            mutant("DiscardWithoutListing"),
            mutant("UnlistWithoutSecondLook"),
        ],
        || {
            let driven = Driven::new();
            let timeout = driven.timer.new_timeout(|_| (), TICK * 20).unwrap();
            let (driven, _far) = with_idle_lanes_of(driven);
            let worker = fall_asleep(driven.driver);
            assert!(timeout.cancel_and_drop());
            let (_, mut driver) = worker.join().unwrap();
            driver.turn();
            let wheel = driven.timer.occupancy().unwrap();
            let nodes: usize = wheel.levels.iter().flat_map(|level| &level.slots).sum();
            assert_eq!(nodes, 1, "the worker has removed the entry");
        },
    );
}

#[test]
fn worker_finds_a_reset_in_an_unlisted_lane() {
    explore(
        bound(5, None),
        [
            mutant("MessageWithoutListing"),
            mutant("UnlistWithoutSecondLook"),
        ],
        || {
            let (driven, timeout) = with_idle_lanes();
            let worker = fall_asleep(driven.driver);
            assert!(timeout.reset(TICK));
            assert_expires(worker, &driven.clock);
        },
    );
}

#[test]
fn worker_finds_a_poll_in_an_unlisted_lane() {
    explore(
        None,
        [
            mutant("ReplaceWithoutListing"),
            mutant("PushWithoutListing"),
        ],
        || {
            let mut driven = Driven::new();
            let (mut sleep, _first) = driven.sleep_in_wheel(1);
            let (driven, _far) = with_idle_lanes_of(driven);
            let worker = fall_asleep(driven.driver);
            let last = Poller::new();
            assert!(last.polls(&mut sleep).is_pending());
            let (_, mut driver) = worker.join().unwrap();
            driven.clock.advance(TICK);
            driver.turn();
            assert_eq!(last.wakes(), 1, "the last waker is woken");
        },
    );
}

#[test]
fn stop_finds_a_new_timeout_in_an_unlisted_lane() {
    let mutants = [
        mutant("PushWithoutListing").never_ends(),
        mutant("ListingWithoutFence").never_ends(),
        mutant("NewTimeoutNotWithdrawn").never_ends(),
    ];
    explore(Some(3), mutants, || {
        let (Driven { timer, driver, .. }, far) = with_unlisted_lanes();
        let other = timer.clone();
        let stop = thread::spawn(move || other.stop());
        let outcome = Arc::new(Outcome::default());
        let new = timer.new_timeout_task(Task(Arc::clone(&outcome)), TICK);
        let rest = stop.join().unwrap();
        outcome.assert(0, usize::from(new.is_ok()));
        assert_eq!(rest, Vec::from_iter([far].into_iter().chain(new.ok())));
        assert_eq!(timer.pending_timeouts(), 0);
        drop(driver);
    });
}

#[test]
fn shutdown_finds_a_new_timeout_in_an_unlisted_lane() {
    explore(
        Some(3),
        ["ListingWithoutFence", "NewTimeoutNotWithdrawn"].map(|name| mutant(name).never_ends()),
        || {
            let (
                Driven {
                    timer,
                    driver: _driver,
                    clock,
                },
                _far,
            ) = with_unlisted_lanes();
            clock.advance(TICK);
            let other = timer.clone();
            let shutdown = thread::spawn(move || other.shutdown(Duration::ZERO).len());
            let outcome = Arc::new(Outcome::default());
            let is_ok = timer
                .new_timeout_task(Task(Arc::clone(&outcome)), Duration::ZERO)
                .is_ok();
            assert_eq!(shutdown.join().unwrap(), 1);
            assert_eq!(timer.pending_timeouts(), 0);
            outcome.assert(usize::from(is_ok), 0);
        },
    );
}

/// A block has two slots in a model: the thread begins several while the worker unlists the lane.
#[test]
fn lane_is_listed_by_one_side() {
    let mutants = [
        mutant("LaneListedTwice"),
        mutant("LaneListedAtLastBlock"),
        mutant("UnlistWithoutSecondLook"),
    ];
    explore(None, mutants, || {
        let lanes = Arc::new(Lanes::new());
        let (mut taken, count) = (Vec::new(), 4);
        let mut lane = lanes.open();
        lane.push(1);
        for _ in 0..=TURNS_UNTIL_IDLE {
            taken.extend(lanes.take(8).0);
        }
        let other = Arc::clone(&lanes);
        let producer = thread::spawn(move || {
            for message in 2..=5 {
                lane.push(message);
                lane.list_if_unlisted(&other);
            }
            lane
        });
        lanes.unlist_idle();
        taken.extend(lanes.take(8).0);
        let _lane = producer.join().unwrap();
        taken.extend(lanes.take(8).0);
        assert_eq!(
            taken,
            Vec::from_iter(1..=5),
            "each message arrives once, in order"
        );
        assert!(lanes.count() <= count, "a lane has one consumer");
    });
}
