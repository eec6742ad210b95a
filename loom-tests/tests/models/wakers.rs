//! Futures and their wakers: the waker of the last poll is called, or that poll was ready.

use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

use hashed_wheel::Sleep;

use super::sleep::turn_and_idle;
use super::*;

/// A task that polls futures and counts how often it is woken.
#[derive(Default)]
pub(super) struct Poller {
    wakes: AtomicUsize,
}

impl Wake for Poller {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Relaxed);
    }
}

impl Poller {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(super) fn polls(self: &Arc<Self>, sleep: &mut Sleep) -> Poll<Result<(), NewTimeoutError>> {
        Pin::new(sleep).poll(&mut Context::from_waker(&Waker::from(Arc::clone(self))))
    }

    /// Returns whether the task was woken since the last call.
    pub(super) fn was_woken(&self) -> bool {
        self.wakes.swap(0, Relaxed) > 0
    }

    /// Returns how often the task was woken. All its wakers have to be dropped.
    #[track_caller]
    pub(super) fn wakes(self: &Arc<Self>) -> usize {
        assert_eq!(Arc::strong_count(self), 1, "all its wakers are dropped");
        self.wakes.load(Relaxed)
    }
}

fn is_elapsed<E>(poll: &Poll<Result<(), E>>) -> bool {
    matches!(poll, Poll::Ready(Ok(())))
}

fn is_stopped(poll: &Poll<Result<(), NewTimeoutError>>) -> bool {
    matches!(poll, Poll::Ready(Err(NewTimeoutError::Stopped)))
}

impl Driven {
    /// Returns a sleep that was polled once. Its message is in the lane.
    fn sleep(&self, ticks: u32) -> (Sleep, Arc<Poller>) {
        let (mut sleep, poller) = (self.timer.sleep(TICK * ticks), Poller::new());
        assert!(poller.polls(&mut sleep).is_pending());
        (sleep, poller)
    }

    /// Returns a sleep that was polled once and is in the wheel.
    pub(super) fn sleep_in_wheel(&mut self, ticks: u32) -> (Sleep, Arc<Poller>) {
        let sleep = self.sleep(ticks);
        assert_eq!(self.driver.turn(), 0);
        sleep
    }
}

// --- before the first poll -----------------------------------------------------------------------

/// It takes its reference to the timer on one thread, and gives it up on another, before or after
/// the timer ends.
#[test]
fn future_keeps_the_timer_that_has_ended() {
    explore(
        None,
        [
            mutant("FutureDoesNotKeepTimer"),
            mutant("FutureKeepsTimerForGood"),
        ],
        || {
            let clock = ModelClock::default();
            let (clocks, has_ended) = (
                Arc::downgrade(&clock.0),
                Arc::new(loom::sync::atomic::AtomicU64::new(0)),
            );
            let (timer, driver) = small_wheel().clock(clock).build_driven().unwrap();
            let (sleep, clock, when) = (timer.sleep(TICK), clocks.clone(), Arc::clone(&has_ended));
            let other = thread::spawn(move || {
                when.load(Relaxed);
                assert_eq!(
                    clock.strong_count(),
                    1,
                    "the timer is there, and has its clock"
                );
                drop(sleep);
            });
            drop((timer, driver));
            has_ended.store(1, Relaxed);
            other.join().unwrap();
            assert_eq!(clocks.strong_count(), 0, "nothing else keeps the timer");
        },
    );
}

// --- the first poll ------------------------------------------------------------------------------

#[test]
fn first_poll_is_woken_or_ready() {
    explore(None, [no_release("node/lane.rs push")], || {
        let clock = ModelClock::default();
        let (timer, mut driver) = small_wheel().clock(clock.clone()).build_driven().unwrap();
        let (mut sleep, poller) = (timer.sleep(TICK), Poller::new());
        let task = Arc::clone(&poller);
        let polls = thread::spawn(move || (task.polls(&mut sleep), sleep));
        clock.0.fetch_add(1, AcqRel);
        driver.turn();
        let (first, mut sleep) = polls.join().unwrap();
        clock.0.fetch_add(1, AcqRel);
        driver.turn();
        assert_eq!(
            poller.wakes(),
            usize::from(first.is_pending()),
            "a pending poll is woken"
        );
        assert!(is_elapsed(&poller.polls(&mut sleep)));
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

#[test]
fn first_poll_during_stop_is_woken_or_rejected() {
    explore(
        bound(5, None),
        [
            mutant("NewTimeoutNotWithdrawn"),
            mutant("PushWithoutFence"),
            mutant("ChangeWithoutFence"),
        ],
        || {
            let Driven {
                timer,
                driver: _driver,
                ..
            } = Driven::new();
            let (mut sleep, poller) = (timer.sleep(TICK), Poller::new());
            let other = timer.clone();
            let stop = thread::spawn(move || other.stop().len());
            let first = poller.polls(&mut sleep);
            let rest = stop.join().unwrap();
            assert!(first.is_pending() || is_stopped(&first));
            assert_eq!(
                (poller.wakes(), rest),
                (
                    usize::from(first.is_pending()),
                    usize::from(first.is_pending())
                )
            );
            assert!(is_stopped(&poller.polls(&mut sleep)));
            assert_eq!(timer.pending_timeouts(), 0);
        },
    );
}

// --- a poll with another waker -------------------------------------------------------------------

#[test]
fn last_waker_is_woken_or_its_poll_is_ready() {
    explore(
        Some(4),
        [
            mutant("RepollKeepsOldWaker"),
            mutant("ChangeWithoutCompare"),
        ],
        || {
            let mut driven = Driven::new();
            let (mut sleep, first) = driven.sleep_in_wheel(1);
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            let second = Poller::new();
            let poll = second.polls(&mut sleep);
            let (expired, mut driver) = turn.join().unwrap();

            assert!(poll.is_pending() || is_elapsed(&poll) && expired == 1);
            // A timeout that was pushed after the turn is due at the next tick.
            driven.clock.advance(TICK);
            assert_eq!(
                driver.turn() + expired,
                1,
                "one of the two timeouts expires"
            );
            assert_eq!(
                (first.wakes(), second.wakes()),
                if poll.is_pending() { (0, 1) } else { (1, 0) }
            );
            assert!(is_elapsed(&second.polls(&mut sleep)));
            assert_eq!(driven.timer.pending_timeouts(), 0);
            driver.turn();
            assert_eq!(driver.next_turn(), None, "the wheel is empty");
            assert!(driver.could_sleep());
        },
    );
}

/// The message is in the lane. The thread that pushed it takes it back, or comes too late.
#[test]
fn last_waker_is_woken_although_the_worker_drains() {
    explore(
        None,
        [
            mutant("RepollKeepsOldWaker"),
            mutant("TakeBackWithoutCompare"),
        ],
        || {
            let driven = Driven::new();
            let (mut sleep, first) = driven.sleep(1);
            let turn = Driven::turn(driven.driver);
            let second = Poller::new();
            assert!(second.polls(&mut sleep).is_pending());
            let (_, mut driver) = turn.join().unwrap();
            assert_eq!(first.wakes(), 0);
            driver.turn();
            driven.clock.advance(TICK);
            assert_eq!(driver.turn(), 1);
            assert_eq!(second.wakes(), 1);
            assert!(is_elapsed(&second.polls(&mut sleep)));
            assert_eq!(driven.timer.pending_timeouts(), 0);
            assert_eq!(driver.next_turn(), None, "the wheel is empty");
            assert!(driver.could_sleep());
        },
    );
}

/// The second poll comes from a thread that did not push the message.
#[test]
fn last_waker_is_woken_after_a_poll_on_another_thread() {
    explore(
        bound(5, None),
        [
            mutant("RepollKeepsOldWaker"),
            mutant("ChangeWithoutCompare"),
        ],
        || {
            let mut driven = Driven::new();
            let (mut sleep, first) = driven.sleep(1);
            let second = Poller::new();
            let task = Arc::clone(&second);
            let polls = thread::spawn(move || {
                assert!(task.polls(&mut sleep).is_pending());
                sleep
            });
            driven.driver.turn();
            let mut sleep = polls.join().unwrap();
            driven.driver.turn();
            driven.clock.advance(TICK);
            assert_eq!(driven.driver.turn(), 1);
            assert_eq!((first.wakes(), second.wakes()), (0, 1));
            assert!(is_elapsed(&second.polls(&mut sleep)));
            assert_eq!(driven.timer.pending_timeouts(), 0);
            driven.driver.turn();
            assert_eq!(driven.driver.next_turn(), None, "the wheel is empty");
        },
    );
}

/// Between the cancel of the old timeout and the push of the new one, `stop` waits.
#[test]
fn poll_with_another_waker_in_lane_is_ended_by_stop() {
    explore(
        Some(4),
        [
            mutant("ReplaceCountsEndFirst"),
            mutant("StopWithoutWaiting"),
        ],
        || {
            let driven = Driven::new();
            let (sleep, first) = driven.sleep(5);
            is_ended_by_stop(&driven, sleep, &first);
        },
    );
}

#[test]
fn poll_with_another_waker_in_wheel_is_ended_by_stop() {
    explore(
        bound(3, Some(4)),
        [
            mutant("ReplaceCountsEndFirst"),
            mutant("StopWithoutWaiting"),
        ],
        || {
            let mut driven = Driven::new();
            let (sleep, first) = driven.sleep_in_wheel(5);
            is_ended_by_stop(&driven, sleep, &first);
        },
    );
}

fn is_ended_by_stop(driven: &Driven, mut sleep: Sleep, first: &Arc<Poller>) {
    let other = driven.timer.clone();
    let stop = thread::spawn(move || {
        let rest = other.stop().len();
        assert_eq!(
            other.pending_timeouts(),
            0,
            "stop waits for a thread that replaces a timeout"
        );
        rest
    });
    let second = Poller::new();
    let poll = second.polls(&mut sleep);
    assert_eq!(
        stop.join().unwrap(),
        1,
        "stop returns one of the two timeouts"
    );
    assert!(poll.is_pending() || is_stopped(&poll));
    assert_eq!(
        (first.wakes(), second.wakes()),
        if poll.is_pending() { (0, 1) } else { (1, 0) }
    );
    assert!(is_stopped(&second.polls(&mut sleep)));
    assert_eq!(driven.timer.pending_timeouts(), 0);
}

/// The new timeout takes the place of the old one. Another caller does not get that place
/// meanwhile.
#[test]
fn poll_with_another_waker_takes_no_second_place() {
    explore(None, [mutant("ReplaceFreesPlace")], || {
        let driven = Driven::with_limit(1);
        let (mut sleep, _first) = driven.sleep(5);
        let other = driven.timer.clone();
        let schedule = thread::spawn(move || {
            let is_rejected = other.new_timeout(|_| (), TICK).is_err();
            assert_eq!(
                other.pending_timeouts(),
                1,
                "a reader never sees another count"
            );
            is_rejected
        });
        assert!(Poller::new().polls(&mut sleep).is_pending());
        assert!(schedule.join().unwrap(), "no place was free");
        assert_eq!(driven.timer.pending_timeouts(), 1);
    });
}

#[test]
fn worker_sees_polls_or_is_woken() {
    explore(
        bound(2, Some(3)),
        [mutant("ReplaceWithoutLook"), mutant("CancelWithoutPush")],
        || {
            let mut driven = Driven::new();
            let (mut sleep, first) = driven.sleep_in_wheel(5);
            let worker = turn_and_idle(driven.driver);
            let second = Poller::new();
            for poller in [&second, &first] {
                assert!(poller.polls(&mut sleep).is_pending());
            }
            let (asleep, mut driver) = worker.join().unwrap();
            assert!(!(asleep && driver.misses_messages() && driver.sleeps_past(5)));
            drop(sleep);
            while driver.next_turn() == Some(Duration::ZERO) {
                driver.turn();
            }
            assert_eq!(driver.next_turn(), None, "the wheel is empty");
        },
    );
}

/// The loop may have announced a turn for the old timeout, and none for the new one.
#[test]
fn poll_with_another_waker_keeps_the_announced_turn() {
    explore(
        Some(3),
        [
            mutant("ReplaceWithoutLook"),
            mutant("SleepWithoutSecondLook"),
        ],
        || {
            let woken = Arc::new(AtomicUsize::new(0));
            let wakes = Arc::clone(&woken);
            let driven =
                Driven::build(|builder| builder.waker(move || _ = wakes.fetch_add(1, Relaxed)));
            let (mut sleep, _first) = driven.sleep(5);
            let polls = thread::spawn(move || {
                assert!(Poller::new().polls(&mut sleep).is_pending());
                sleep
            });
            let announced = driven.driver.next_turn();
            let _sleep = polls.join().unwrap();
            let is_in_time = announced.is_some_and(|announced| announced <= TICK * 5);
            assert!(
                is_in_time || woken.load(Relaxed) > 0,
                "{announced:?}, and the loop is not woken"
            );
        },
    );
}

// --- a reset to a time that has passed -----------------------------------------------------------

/// The sleep is ready whatever the worker does, and the task that waited for it is woken once.
#[test]
fn reset_to_past_or_expiry_wakes_the_task() {
    explore(
        None,
        [
            mutant("ResetToPastWithoutWake"),
            mutant("ChangeWithoutCompare"),
        ],
        || {
            let mut driven = Driven::new();
            let (mut sleep, poller) = driven.sleep_in_wheel(1);
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            sleep.reset(Duration::ZERO);
            assert!(is_elapsed(&Poller::new().polls(&mut sleep)));
            let (_, mut driver) = turn.join().unwrap();
            assert_eq!(poller.wakes(), 1);
            assert_eq!(driven.timer.pending_timeouts(), 0);
            driver.turn();
            assert_eq!(driver.next_turn(), None, "the wheel is empty");
            assert!(driver.could_sleep());
        },
    );
}

#[test]
fn reset_to_past_or_stop_wakes_the_task() {
    explore(
        None,
        [
            mutant("ResetToPastWithoutWake"),
            mutant("ChangeWithoutCompare"),
        ],
        || {
            let mut driven = Driven::new();
            let (mut sleep, poller) = driven.sleep_in_wheel(5);
            let timer = driven.timer.clone();
            let stop = thread::spawn(move || timer.stop().len());
            sleep.reset(Duration::ZERO);
            let poll = Poller::new().polls(&mut sleep);
            let stopped = stop.join().unwrap();
            assert!(if stopped == 0 {
                is_elapsed(&poll)
            } else {
                is_stopped(&poll)
            });
            assert_eq!(poller.wakes(), 1);
            assert_eq!(driven.timer.pending_timeouts(), 0);
        },
    );
}

// --- the drop ------------------------------------------------------------------------------------

#[test]
fn drop_or_expiry_ends_the_sleep() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (sleep, poller) = driven.sleep_in_wheel(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        drop(sleep);
        let pending = driven.timer.pending_timeouts();
        let (expired, mut driver) = turn.join().unwrap();

        assert!(
            pending <= expired,
            "the drop ends the timeout, or the expiry"
        );
        assert_eq!(driven.timer.pending_timeouts(), 0);
        assert_eq!(poller.wakes(), expired, "only the worker wakes it");
        // The node is recycled once.
        let (next, outcome) = schedule(&driven.timer, 1);
        driver.turn();
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1);
        outcome.assert(1, 0);
        assert!(next.is_only_handle());
        assert_eq!(driver.next_turn(), None, "the wheel is empty");
        assert!(driver.could_sleep());
    });
}

#[test]
fn drop_or_stop_ends_the_sleep() {
    explore(bound(5, None), [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (sleep, poller) = driven.sleep_in_wheel(5);
        let timer = driven.timer.clone();
        let stop = thread::spawn(move || timer.stop().len());
        drop(sleep);
        let pending = driven.timer.pending_timeouts();
        let stopped = stop.join().unwrap();
        assert!(pending <= stopped, "the drop ends the timeout, or the stop");
        assert_eq!(poller.wakes(), stopped, "only the stop wakes it");
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}
