//! Futures that wait, and their wakers: who polled last is woken, or has been told that there is nothing to wait for.

use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

use hashed_wheel::Sleep;

use super::sleep::turn_and_rest;
use super::*;

/// A task of some executor.
#[derive(Default)]
pub(super) struct Sleeper {
    wakes: AtomicUsize,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Relaxed);
    }
}

impl Sleeper {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(super) fn polls(self: &Arc<Self>, sleep: &mut Sleep) -> Poll<Result<(), NewTimeoutError>> {
        Pin::new(sleep).poll(&mut Context::from_waker(&Waker::from(Arc::clone(self))))
    }

    /// How often it was woken; nobody is to have a waker of it any more.
    #[track_caller]
    fn wakes(self: &Arc<Self>) -> usize {
        assert_eq!(Arc::strong_count(self), 1, "its waker is gone");
        self.wakes.load(Relaxed)
    }
}

fn is_over<E>(poll: &Poll<Result<(), E>>) -> bool {
    matches!(poll, Poll::Ready(Ok(())))
}

fn is_stopped(poll: &Poll<Result<(), NewTimeoutError>>) -> bool {
    matches!(poll, Poll::Ready(Err(NewTimeoutError::Stopped)))
}

impl Driven {
    /// One that waits, in the lane.
    fn sleep(&self, ticks: u32) -> (Sleep, Arc<Sleeper>) {
        let (mut sleep, sleeper) = (self.timer.sleep(TICK * ticks), Sleeper::new());
        assert!(sleeper.polls(&mut sleep).is_pending());
        (sleep, sleeper)
    }

    /// In the wheel.
    pub(super) fn sleep_placed(&mut self, ticks: u32) -> (Sleep, Arc<Sleeper>) {
        let sleep = self.sleep(ticks);
        assert_eq!(self.driver.turn(), 0);
        sleep
    }
}

// --- the first poll ---------------------------------------------------------------------------------------------------

#[test]
fn a_first_poll_is_woken_or_ready() {
    explore(None, [no_release("node/lane.rs push")], || {
        let clock = Seen::default();
        let (timer, mut driver) = small().clock(clock.clone()).build_driven().unwrap();
        let (mut sleep, sleeper) = (timer.sleep(TICK), Sleeper::new());
        let task = Arc::clone(&sleeper);
        let polls = thread::spawn(move || (task.polls(&mut sleep), sleep));
        clock.0.fetch_add(1, AcqRel);
        driver.turn();
        let (first, mut sleep) = polls.join().unwrap();
        clock.0.fetch_add(1, AcqRel);
        driver.turn();
        assert_eq!(sleeper.wakes(), usize::from(first.is_pending()), "woken, or it need not be");
        assert!(is_over(&sleeper.polls(&mut sleep)));
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

#[test]
fn a_first_poll_meets_a_stop() {
    explore(None, [mutant("StopWithoutWaiting"), mutant("AdmitWithoutCompare")], || {
        let Driven { timer, driver: _driver, .. } = Driven::new();
        let (mut sleep, sleeper) = (timer.sleep(TICK), Sleeper::new());
        let other = timer.clone();
        let stop = thread::spawn(move || other.stop().len());
        let first = sleeper.polls(&mut sleep);
        let rest = stop.join().unwrap();
        assert!(first.is_pending() || is_stopped(&first));
        assert_eq!(
            (sleeper.wakes(), rest),
            (usize::from(first.is_pending()), usize::from(first.is_pending()))
        );
        assert!(is_stopped(&sleeper.polls(&mut sleep)));
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

// --- a poll with another waker ----------------------------------------------------------------------------------------

#[test]
fn who_polls_last_is_woken_or_finds_it_expired() {
    explore(None, [mutant("RepollKeepsTheWaker"), mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (mut sleep, first) = driven.sleep_placed(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let second = Sleeper::new();
        let poll = second.polls(&mut sleep);
        let (expired, mut driver) = turn.join().unwrap();

        assert!(poll.is_pending() || is_over(&poll) && expired == 1);
        // What was pushed after the turn is due at the next tick.
        driven.clock.advance(TICK);
        assert_eq!(driver.turn() + expired, 1, "one of the two");
        assert_eq!((first.wakes(), second.wakes()), if poll.is_pending() { (0, 1) } else { (1, 0) });
        assert!(is_over(&second.polls(&mut sleep)));
        assert_eq!(driven.timer.pending_timeouts(), 0);
        driver.turn();
        assert_eq!(driver.next_turn(), None, "nothing is left in the wheel");
        assert!(driver.could_sleep());
    });
}

/// It is in the lane, and the thread that has put it there takes it back, or comes too late.
#[test]
fn who_polls_last_is_woken_though_the_worker_takes_it_in() {
    explore(None, [mutant("RepollKeepsTheWaker"), mutant("TakeBackWithoutCompare")], || {
        let driven = Driven::new();
        let (mut sleep, first) = driven.sleep(1);
        let turn = Driven::turn(driven.driver);
        let second = Sleeper::new();
        assert!(second.polls(&mut sleep).is_pending());
        let (_, mut driver) = turn.join().unwrap();
        assert_eq!(first.wakes(), 0);
        driver.turn();
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1);
        assert_eq!(second.wakes(), 1);
        assert!(is_over(&second.polls(&mut sleep)));
        assert_eq!(driven.timer.pending_timeouts(), 0);
        assert_eq!(driver.next_turn(), None, "nothing is left in the wheel");
        assert!(driver.could_sleep());
    });
}

/// By a thread that has not put it there.
#[test]
fn who_polls_last_elsewhere_is_woken() {
    explore(None, [mutant("RepollKeepsTheWaker"), mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (mut sleep, first) = driven.sleep(1);
        let second = Sleeper::new();
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
        assert!(is_over(&second.polls(&mut sleep)));
        assert_eq!(driven.timer.pending_timeouts(), 0);
        driven.driver.turn();
        assert_eq!(driven.driver.next_turn(), None, "nothing is left in the wheel");
    });
}

/// While there is neither the one nor the other, `stop` waits.
#[test]
fn a_poll_with_another_waker_meets_a_stop() {
    explore(None, [mutant("ReplaceLeavesFirst"), mutant("StopWithoutWaiting")], || {
        let driven = Driven::new();
        let (sleep, first) = driven.sleep(5);
        meets_a_stop(&driven, sleep, &first);
    });
}

/// In the wheel.
#[test]
fn a_poll_with_another_waker_of_what_is_placed_meets_a_stop() {
    explore(Some(4), [mutant("ReplaceLeavesFirst"), mutant("StopWithoutWaiting")], || {
        let mut driven = Driven::new();
        let (sleep, first) = driven.sleep_placed(5);
        meets_a_stop(&driven, sleep, &first);
    });
}

fn meets_a_stop(driven: &Driven, mut sleep: Sleep, first: &Arc<Sleeper>) {
    let other = driven.timer.clone();
    let stop = thread::spawn(move || {
        let rest = other.stop().len();
        assert_eq!(other.pending_timeouts(), 0, "stop waits for who has replaced one");
        rest
    });
    let second = Sleeper::new();
    let poll = second.polls(&mut sleep);
    assert_eq!(stop.join().unwrap(), 1, "one of the two");
    assert!(poll.is_pending() || is_stopped(&poll));
    assert_eq!((first.wakes(), second.wakes()), if poll.is_pending() { (0, 1) } else { (1, 0) });
    assert!(is_stopped(&second.polls(&mut sleep)));
    assert_eq!(driven.timer.pending_timeouts(), 0);
}

/// It has its place, and nobody else gets it meanwhile.
#[test]
fn a_poll_with_another_waker_takes_no_second_place() {
    explore(None, [mutant("ReplaceLeavesFirst")], || {
        let driven = Driven::with_limit(1);
        let (mut sleep, _first) = driven.sleep(5);
        let other = driven.timer.clone();
        let schedule = thread::spawn(move || {
            let is_refused = other.new_timeout(|_| (), TICK).is_err();
            assert_eq!(other.pending_timeouts(), 1, "a reader never sees another count");
            is_refused
        });
        assert!(Sleeper::new().polls(&mut sleep).is_pending());
        assert!(schedule.join().unwrap(), "no place was free");
        assert_eq!(driven.timer.pending_timeouts(), 1);
    });
}

/// As with new timeouts: in a model the count runs over after four.
#[test]
fn a_worker_sees_so_many_polls_that_their_count_runs_over() {
    explore(Some(3), [no_release("engine/state.rs transfer"), mutant("CancelWithoutPush")], || {
        let mut driven = Driven::new();
        let (mut sleep, first) = driven.sleep_placed(5);
        let worker = turn_and_rest(driven.driver);
        let second = Sleeper::new();
        for sleeper in [&second, &first, &second, &first] {
            assert!(sleeper.polls(&mut sleep).is_pending());
        }
        let (asleep, mut driver) = worker.join().unwrap();
        assert!(!(asleep && driver.misses_something()));
        drop(sleep);
        while driver.next_turn() == Some(Duration::ZERO) {
            driver.turn();
        }
        assert_eq!(driver.next_turn(), None, "nothing is left in the wheel");
    });
}

/// Its loop has promised a turn for the timeout that goes, or none for the one that comes.
#[test]
fn a_poll_with_another_waker_keeps_a_loop_to_its_promise() {
    explore(Some(3), [mutant("PushWithoutLook"), mutant("PromiseWithoutSecondLook")], || {
        let woken = Arc::new(AtomicUsize::new(0));
        let wakes = Arc::clone(&woken);
        let driven = Driven::build(|builder| builder.waker(move || _ = wakes.fetch_add(1, Relaxed)));
        let (mut sleep, _first) = driven.sleep(5);
        let polls = thread::spawn(move || {
            assert!(Sleeper::new().polls(&mut sleep).is_pending());
            sleep
        });
        let promised = driven.driver.next_turn();
        let _sleep = polls.join().unwrap();
        let is_in_time = promised.is_some_and(|promised| promised <= TICK * 5);
        assert!(is_in_time || woken.load(Relaxed) > 0, "{promised:?} and nobody wakes it");
    });
}

// --- the drop ---------------------------------------------------------------------------------------------------------

#[test]
fn a_drop_meets_the_expiry() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (sleep, sleeper) = driven.sleep_placed(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        drop(sleep);
        let pending = driven.timer.pending_timeouts();
        let (expired, mut driver) = turn.join().unwrap();

        assert!(pending <= expired, "gone at once, or with its expiry");
        assert_eq!(driven.timer.pending_timeouts(), 0);
        assert_eq!(sleeper.wakes(), expired, "woken by the worker, or not at all");
        // Its node is used again, once.
        let (next, ends) = schedule(&driven.timer, 1);
        driver.turn();
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1);
        ends.assert(1, 0);
        assert!(next.is_the_only_handle());
        assert_eq!(driver.next_turn(), None, "nothing is left in the wheel");
        assert!(driver.could_sleep());
    });
}

#[test]
fn a_drop_meets_a_stop() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (sleep, sleeper) = driven.sleep_placed(5);
        let timer = driven.timer.clone();
        let stop = thread::spawn(move || timer.stop().len());
        drop(sleep);
        let pending = driven.timer.pending_timeouts();
        let stopped = stop.join().unwrap();
        assert!(pending <= stopped, "gone at once, or with the stop");
        assert_eq!(sleeper.wakes(), stopped, "woken by the stop, or not at all");
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}
