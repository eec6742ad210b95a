//! `shutdown`: nobody is let in any more, what is due runs, and the rest is returned.

use loom::sync::atomic::AtomicU64;

use super::sleep::threaded;
use super::start::Looked;
use super::wakers::Sleeper;
use super::*;

/// A timer whose first tick has come, and which has not turned since.
fn at_the_first_tick() -> Driven {
    let driven = Driven::new();
    driven.clock.advance(TICK);
    driven
}

#[test]
fn what_is_accepted_and_due_runs_before_a_shutdown_is_over() {
    explore(None, [mutant("ShutdownWithoutThoseAdmitted"), mutant("AdmitWithoutCompare")], || {
        let Driven { timer, driver: _driver, .. } = at_the_first_tick();
        let (ends, other) = (Arc::new(Ends::default()), timer.clone());
        let task = Task(Arc::clone(&ends));
        let schedule = thread::spawn(move || other.new_timeout_task(task, Duration::ZERO).is_ok());
        assert!(timer.shutdown(Duration::ZERO).is_empty());
        assert_eq!(timer.pending_timeouts(), 0);
        ends.assert(usize::from(schedule.join().unwrap()), 0);
    });
}

#[test]
fn what_is_accepted_and_not_due_is_returned_by_a_shutdown() {
    explore(None, [mutant("AdmitWithoutCompare")], || {
        let Driven { timer, driver: _driver, .. } = Driven::new();
        let (ends, other) = (Arc::new(Ends::default()), timer.clone());
        let task = Task(Arc::clone(&ends));
        let schedule = thread::spawn(move || other.new_timeout_task(task, TICK).ok());
        let rest = timer.shutdown(TICK * 5);
        let accepted = schedule.join().unwrap();
        ends.assert(0, usize::from(accepted.is_some()));
        assert_eq!(rest, Vec::from_iter(accepted));
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

/// A clock that orders nothing: who has read it may know of a later time than others.
#[derive(Clone, Default)]
struct Told(Arc<AtomicU64>);

impl Clock for Told {
    fn now(&self) -> Duration {
        TICK * self.0.load(Relaxed) as u32
    }
}

#[test]
fn who_was_let_in_has_read_the_clock_before_a_shutdown_does() {
    explore(None, [no_acquire("engine/end.rs close"), no_release("engine/state.rs register")], || {
        let clock = Told::default();
        let (timer, _driver) = small().clock(clock.clone()).build_driven().unwrap();
        let (ends, other) = (Arc::new(Ends::default()), timer.clone());
        let task = Task(Arc::clone(&ends));
        let schedule = thread::spawn(move || {
            clock.0.store(1, Relaxed);
            other.new_timeout_task(task, Duration::ZERO).is_ok()
        });
        let rest = timer.shutdown(Duration::ZERO);
        ends.assert(usize::from(schedule.join().unwrap()), 0);
        assert!(rest.is_empty(), "its deadline is not after the grace");
    });
}

#[test]
fn one_of_cancel_and_shutdown_wins() {
    explore(Some(4), [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let cancel = thread::spawn(move || timeout.cancel());
        assert!(driven.timer.shutdown(Duration::ZERO).is_empty());
        let cancelled = usize::from(cancel.join().unwrap());
        ends.assert(1 - cancelled, cancelled);
    });
}

#[test]
fn a_reset_keeps_nothing_from_shutdown() {
    explore(Some(4), [mutant("ChangeWithoutCompare"), mutant("StopTakesTheEntry")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        driven.clock.advance(TICK);
        let other = timeout.clone();
        let reset = thread::spawn(move || {
            let _either = other.reset(Duration::ZERO);
            other
        });
        let rest = driven.timer.shutdown(Duration::ZERO);
        let _other = reset.join().unwrap();
        let is_returned = usize::from(!rest.is_empty());
        assert!(
            rest.is_empty() || timeout.references() >= 3,
            "an entry left to a message is not given up twice"
        );
        ends.assert(1 - is_returned, is_returned);
    });
}

#[test]
fn a_turn_is_not_cut_short_by_a_shutdown() {
    explore(None, [mutant("ShutdownWithoutGrace")], || {
        let mut driven = Driven::new();
        let (_, first) = driven.schedule(1);
        let (later, rest) = driven.schedule(2);
        let (_, second) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        assert_eq!(driven.timer.shutdown(Duration::ZERO), [later]);
        let (_expired, _driver) = turn.join().unwrap();
        first.assert(1, 0);
        second.assert(1, 0);
        rest.assert(0, 1);
    });
}

/// Who waits takes in what the worker has not seen, and the worker has to wake for it all the same. (Should it sleep over it,
/// who waits wakes it.)
#[test]
fn a_worker_that_falls_asleep_runs_what_a_shutdown_waits_for() {
    explore(Some(2), [mutant("ShutdownWithoutGrace")], || {
        let timer = threaded();
        let ends = Arc::new(Ends::default());
        timer.new_timeout_task(Task(Arc::clone(&ends)), TICK).unwrap();
        assert!(timer.shutdown(Duration::from_secs(3_600)).is_empty());
        ends.assert(1, 0);
    });
}

/// While there is neither the one nor the other, it waits for what comes.
#[test]
fn a_poll_with_another_waker_keeps_nothing_from_a_shutdown() {
    explore(None, [mutant("ShutdownWithoutThoseAdmitted")], || {
        let mut driven = Driven::new();
        let (mut sleep, _first) = driven.sleep_placed(5);
        let polls = thread::spawn(move || {
            assert!(Sleeper::new().polls(&mut sleep).is_pending());
            sleep
        });
        assert!(driven.driver.keeps_a_shutdown_waiting(5));
        let _sleep = polls.join().unwrap();
        assert!(driven.driver.keeps_a_shutdown_waiting(5) && !driven.driver.keeps_a_shutdown_waiting(4));
    });
}

#[test]
fn a_shutdown_ends_a_worker_that_is_being_started() {
    explore(Some(4), [mutant("StartWithoutSecondLook")], || {
        let clock = Looked::default();
        let timer = small().clock(clock.clone()).build().unwrap();
        let other = timer.clone();
        let start = thread::spawn(move || drop(other.start()));
        assert!(timer.shutdown(Duration::ZERO).is_empty());
        start.join().unwrap();
        clock.assert_gone(timer);
    });
}

/// With no grace. What it returned.
fn shut_down_elsewhere(timer: &HashedWheelTimer) -> thread::JoinHandle<Vec<Timeout>> {
    let timer = timer.clone();
    thread::spawn(move || {
        let rest = timer.shutdown(Duration::ZERO);
        assert_eq!(timer.pending_timeouts(), 0, "both return when it is over");
        rest
    })
}

#[test]
fn of_two_shutdowns_one_gets_what_is_left() {
    explore(Some(3), [mutant("SecondStopWithoutWaiting"), mutant("ShutdownWithoutGrace")], || {
        let driven = at_the_first_tick();
        let (_, due) = driven.schedule(0);
        let (later, left) = driven.schedule(1);
        let shutdown = shut_down_elsewhere(&driven.timer);
        let mut rest = driven.timer.shutdown(Duration::ZERO);
        assert_eq!(driven.timer.pending_timeouts(), 0, "both return when it is over");
        rest.extend(shutdown.join().unwrap());
        assert_eq!(rest, [later]);
        due.assert(1, 0);
        left.assert(0, 1);
    });
}

#[test]
fn a_stop_ends_a_shutdown() {
    explore(Some(3), [mutant("SecondStopWithoutWaiting")], || {
        let driven = at_the_first_tick();
        let (due, due_ends) = driven.schedule(0);
        let (later, left) = driven.schedule(1);
        let other = driven.timer.clone();
        let stop = thread::spawn(move || {
            let rest = other.stop();
            assert_eq!(other.pending_timeouts(), 0, "both return when it is over");
            rest
        });
        let mut rest = driven.timer.shutdown(Duration::ZERO);
        assert_eq!(driven.timer.pending_timeouts(), 0, "both return when it is over");
        let others = stop.join().unwrap();
        assert!(rest.is_empty() || others.is_empty(), "one gets all");
        rest.extend(others);
        assert!(rest.contains(&later));
        let is_returned = usize::from(rest.contains(&due));
        assert_eq!(rest.len(), 1 + is_returned, "each once");
        due_ends.assert(1 - is_returned, is_returned);
        left.assert(0, 1);
    });
}

#[test]
fn the_drivers_drop_ends_a_shutdown() {
    explore(Some(3), [mutant("SecondStopWithoutWaiting")], || {
        let driven = at_the_first_tick();
        let (_, due) = driven.schedule(0);
        let (later, left) = driven.schedule(1);
        let shutdown = shut_down_elsewhere(&driven.timer);
        drop(driven.driver);
        assert_eq!(driven.timer.pending_timeouts(), 0, "both return when it is over");
        let rest = shutdown.join().unwrap();
        assert!(rest.is_empty() || rest == [later]);
        let ran = due.runs.load(Relaxed);
        due.assert(ran, 1 - ran);
        left.assert(0, 1);
    });
}

/// A `shutdown` has seen that the timer is not stopped, and waits for the lock that a turn has. The turn is cut short by a
/// `stop`, and leaves what it had taken out of the wheel (the owed ones) for that; but the `shutdown` gets the lock first, and
/// takes a message in about one of these.
#[test]
fn what_a_turn_leaves_to_stop_is_not_taken_in_by_a_shutdown() {
    explore(Some(2), [mutant("TakeInBesideDue")], || {
        let mut driven = Driven::new();
        let (mut sleep, _first) = driven.sleep_placed(20);
        let [_a, _b] = [1, 1].map(|ticks| driven.schedule(ticks));
        let victim = Arc::new(std::sync::Mutex::new(None::<Timeout>));
        let threads = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (cancels, spawned, timers) =
            (Arc::clone(&victim), Arc::clone(&threads), [driven.timer.clone(), driven.timer.clone()]);
        let _c = driven
            .timer
            .new_timeout(
                move |_| {
                    let victim = cancels.lock().unwrap().take().unwrap();
                    assert!(victim.cancel());
                    drop(victim);
                    let [one, two] = timers;
                    let shutdown = thread::spawn(move || drop(one.shutdown(Duration::ZERO)));
                    let stop = thread::spawn(move || drop(two.stop()));
                    spawned.lock().unwrap().extend([shutdown, stop]);
                },
                TICK,
            )
            .unwrap();
        *victim.lock().unwrap() = Some(driven.schedule(1).0);
        driven.clock.advance(TICK);
        // In a model a turn takes two in: the other two are owed their tick.
        assert_eq!(driven.driver.turn(), 2);
        driven.driver.turn();
        let second = Sleeper::new();
        let _either = second.polls(&mut sleep);
        let threads = std::mem::take(&mut *threads.lock().unwrap());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}
