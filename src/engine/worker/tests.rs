//! Turns of a driven timer, and the memory that they return.

use std::ops::ControlFlow;

use super::*;
use crate::engine::return_timer::{RETURN_INTERVAL, SURPLUS_TIME, SURPLUS_TIME_IF_BUSY};
use crate::engine::tests::{Driven, Nothing, TICK};
use crate::node::Owner;
use crate::sync::{Arc, Mutex, thread};
use crate::{HashedWheelTimer, ManualClock, Periodic, PeriodicRun, Schedule};

#[test]
fn what_comes_between_two_sleeps_adds_up() {
    let mut t = Driven::new();
    for (more, sum) in [(2, 2), (3, 5)] {
        (0..more).for_each(|_| _ = t.schedule(TICK * 5));
        t.turn();
        let worker = t.inner().worker.lock();
        assert!(worker.receiver.taken_last > 0);
        assert!(!worker.receiver.has_reclaimed, "they have not ended");
        assert_eq!(worker.receiver.taken_since_plan, sum as usize);
        assert_eq!(t.inner().counters.worker.taken.get(), sum);
    }
    t.turn();
    assert_eq!(t.inner().worker.lock().receiver.taken_last, 0);
}

/// A cancel; a handle that is dropped by a thread that does not use the timer; a thread that
/// ends.
#[test]
fn whatever_frees_memory_has_reclaimed() {
    let mut t = Driven::new();
    let has_reclaimed = |t: &mut Driven| {
        t.turn();
        t.inner().worker.lock().receiver.has_reclaimed
    };
    let cancelled = t.schedule(TICK * 5);
    assert!(!has_reclaimed(&mut t));
    cancelled.cancel();
    assert!(has_reclaimed(&mut t));
    assert!(!has_reclaimed(&mut t));

    let expired = t.schedule(TICK);
    assert_eq!(t.pass(TICK), 1);
    assert!(!has_reclaimed(&mut t));
    thread::spawn(|| drop(expired)).join().unwrap();
    assert!(has_reclaimed(&mut t));
    assert!(!has_reclaimed(&mut t));

    let timer = t.timer.clone();
    thread::spawn(move || _ = timer.new_timeout(|_| (), TICK * 5).unwrap())
        .join()
        .unwrap();
    assert!(has_reclaimed(&mut t));
    assert!(!has_reclaimed(&mut t));
}

#[test]
fn messages_wait_for_the_turn_of_a_worker_that_is_behind() {
    let mut t = Driven::new();
    t.schedule(TICK);
    for (has_backlog, taken) in [(true, 0), (false, 1)] {
        let mut worker = t.inner().worker.lock();
        worker.receiver.has_backlog = has_backlog;
        worker.drain_messages_unless_behind(t.inner());
        assert_eq!(t.inner().counters.worker.taken.get(), taken);
    }
    assert_eq!(t.pass(TICK), 1);
}

/// Their callers see that the timer closes, and withdraw them.
#[test]
fn a_closing_timer_refuses_new_timeouts_that_come_later() {
    let t = Driven::new();
    let mut lane = t.open_lane();
    for ends in [false, true] {
        let handle = lane.borrow(t.inner()).schedule(Nothing, 0);
        let mut worker = t.inner().worker.lock();
        worker.receiver.refuses_new = true;
        if ends {
            assert_eq!(worker.end_all(t.inner()).0.len(), 0);
        } else {
            worker.drain_messages_unless_behind(t.inner());
        }
        assert_eq!(worker.nodes.len(), 0);
        assert!(lane.borrow(t.inner()).withdraw(handle).is_ok_and(|task| {
            task.into_task::<Nothing>();
            true
        }));
    }
}

/// Threads schedule faster than the worker takes in.
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn a_backlog_holds_up_neither_what_is_due_nor_other_threads() {
    const MOST: usize = MAX_MESSAGES_PER_TURN;

    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().tick(TICK).clock(clock.clone());
    let timer = builder.build().unwrap();
    // This thread is the worker.
    timer.inner.state.set_started();
    let turn = || timer.inner.turn(usize::MAX);
    let schedule = |ticks| drop(timer.new_timeout(|_| (), TICK * ticks).unwrap());
    (0..2 * MOST).for_each(|number| schedule(if number == 0 { 1 } else { 9 }));
    assert_eq!(turn(), 0);
    let taken = || timer.inner.counters.worker.taken.get() as usize;
    assert_eq!(taken(), MOST, "a stall is made up for in one turn");
    thread::scope(|scope| {
        scope.spawn(|| (0..MOST).for_each(|number| schedule(if number == 0 { 1 } else { 9 })));
    });
    clock.advance(TICK);
    assert_eq!(turn(), 2);
    let quarter = (TICK.as_nanos() as u64 / 4 / NANOS_PER_MESSAGE) as usize;
    assert_eq!(taken(), MOST + 2 * quarter, "one lane was known");
    assert_eq!(turn(), 0);
    assert_eq!(taken(), MOST + 3 * quarter, "two lanes were busy");
    while timer.inner.worker.lock().receiver.has_backlog {
        assert_eq!(turn(), 0);
    }
    assert_eq!(taken(), 3 * MOST);
}

/// Not of a driver, whose turns may be rare, nor while the wheel has a ready list to sort.
#[test]
fn portions_are_as_large_as_a_look_at_many_lanes_needs() {
    let portion = |timer: &HashedWheelTimer| {
        let (inner, mut worker) = (&timer.inner, timer.inner.worker.lock());
        let Worker {
            receiver, nodes, ..
        } = &mut *worker;
        receiver.portion(inner, &nodes.of(inner))
    };
    let builder = HashedWheelTimer::builder().tick(Duration::from_micros(1));
    let short = builder.build().unwrap();
    assert_eq!(portion(&short), Some(MIN_PORTION as usize));
    let lanes: Vec<_> = (0..100).map(|_| short.inner.new_lanes.open()).collect();
    short.inner.worker.lock().drain_messages(&short.inner);
    assert_eq!(portion(&short), Some(lanes.len()));
    let second = Duration::from_secs(1);
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().tick(second);
    let long = builder.clock(clock.clone()).build().unwrap();
    assert_eq!(portion(&long), Some(MAX_MESSAGES_PER_TURN));

    // This thread is the worker.
    long.inner.state.set_started();
    (0..2).for_each(|_| drop(long.new_timeout(|_| (), second).unwrap()));
    clock.advance(second);
    assert_eq!(long.inner.turn(1), 1);
    assert_eq!(portion(&long), None, "one is in the ready list");
    assert_eq!(long.inner.turn(1), 1);
    assert_eq!(portion(&long), Some(MAX_MESSAGES_PER_TURN));
    assert_eq!(portion(&Driven::new().timer), None);
}

/// In each case one message is left over from a turn.
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn only_what_is_left_over_when_the_wheel_moves_is_carried_over() {
    const MOST: usize = MAX_MESSAGES_PER_TURN;

    let mut t = Driven::new();
    (0..=MOST).for_each(|_| _ = t.schedule(Duration::ZERO));
    assert_eq!(
        [t.turn(), t.turn()],
        [0, 0],
        "all of them fire at the next tick"
    );
    assert_eq!(t.pass(TICK), MOST + 1);
    (0..=MOST).for_each(|_| _ = t.schedule(TICK));
    assert_eq!(
        [t.pass(TICK), t.turn()],
        [MOST, 1],
        "none of them is a tick late"
    );
}

/// More timeouts than are kept in reserve end, and the worker takes that in. Each of `kept` is
/// in a page of its own.
fn with_surplus_but(kept: usize) -> (Driven, Vec<Timeout>) {
    let mut t = Driven::new();
    let mut timeouts: Vec<_> = (0..100_000)
        .map(|_| t.schedule(Duration::from_secs(3_600)))
        .collect();
    while t.inner().counters.worker.taken.get() < timeouts.len() as u64 {
        t.turn();
    }
    let kept = (0..kept).map(|n| timeouts.swap_remove(n * 500)).collect();
    cancel_all(&mut t, timeouts);
    (t, kept)
}

fn cancel_all(t: &mut Driven, timeouts: Vec<Timeout>) {
    assert!(timeouts.iter().all(Timeout::cancel));
    drop(timeouts);
    t.turn();
    while t.inner().worker.lock().receiver.taken_last > 0 {
        t.turn();
    }
}

fn with_surplus() -> Driven {
    with_surplus_but(0).0
}

/// Passes time until all memory is returned. (The first turn has made some steps.)
fn return_all(t: &mut Driven) {
    for turns in 0.. {
        assert!(turns < 100, "the memory is returned");
        if surplus(t) == (None, false) {
            break;
        }
        t.pass(RETURN_INTERVAL);
    }
}

/// Whether memory is to be returned, as the worker says.
fn surplus(t: &Driven) -> (Option<Duration>, bool) {
    let mut worker = t.inner().worker.lock();
    let wait = worker.surplus_wait(t.inner());
    let has_surplus = worker.nodes.of(t.inner()).has_surplus();
    (wait, has_surplus)
}

#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn a_driver_returns_memory_after_two_seconds() {
    if !crate::platform::CAN_RETURN_MEMORY {
        return;
    }
    let mut t = with_surplus();
    t.turn();
    assert_eq!(surplus(&t), (Some(SURPLUS_TIME), true));
    t.pass(SURPLUS_TIME - Duration::from_nanos(1));
    assert_eq!(surplus(&t), (Some(SURPLUS_TIME), true));
    t.pass(Duration::from_nanos(1));
    return_all(&mut t);
}

/// Each of the timeouts that end last frees a page.
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn a_driver_returns_what_few_timeouts_free_after_two_seconds() {
    if !crate::platform::CAN_RETURN_MEMORY {
        return;
    }
    let (mut t, kept) = with_surplus_but(150);
    t.pass(SURPLUS_TIME);
    return_all(&mut t);
    cancel_all(&mut t, kept);
    assert_eq!(surplus(&t), (Some(SURPLUS_TIME), true));
    t.pass(SURPLUS_TIME);
    return_all(&mut t);
}

/// Each step is a delay for what falls due meanwhile.
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn a_busy_worker_returns_memory_in_single_steps() {
    if !crate::platform::CAN_RETURN_MEMORY {
        return;
    }
    let t = with_surplus();
    // Due immediately.
    t.schedule(Duration::ZERO);
    let mut worker = t.inner().worker.lock();
    worker.drain_messages_unless_behind(t.inner());
    let mut now = t.now() + TICK.as_nanos() as u64;
    worker.return_memory(t.inner(), now, 16);
    let wait = worker.surplus_wait(t.inner());
    assert_eq!(wait, Some(SURPLUS_TIME), "not yet");
    now += SURPLUS_TIME_IF_BUSY.as_nanos() as u64;
    worker.return_memory(t.inner(), now, 16);
    let wait = worker.surplus_wait(t.inner());
    assert_eq!(wait, Some(RETURN_INTERVAL), "one step is not enough");
    assert_eq!(worker.return_timer.last_return, now);
    let interval = RETURN_INTERVAL.as_nanos() as u64;
    worker.return_memory(t.inner(), now + interval - 1, 16);
    assert_eq!(worker.return_timer.last_return, now, "too soon");
    worker.return_memory(t.inner(), now + interval, 16);
    assert_eq!(worker.return_timer.last_return, now + interval);
    drop(worker);
    assert_eq!(surplus(&t).0, Some(RETURN_INTERVAL));
    t.timer.stop();
    assert_eq!(surplus(&t).0, None, "the memory goes with the timer");
}

/// After the last run, and after a cancellation during a run. Each node is used by one timeout at a
/// time, so all of the timeouts fire.
#[test]
fn node_of_a_periodic_task_that_has_ended_is_used_again() {
    const COUNT: usize = if cfg!(miri) { 200 } else { 1_000 };

    for cancels in [false, true] {
        let mut t = Driven::new();
        let fire_all = |t: &mut Driven, count| {
            let timeouts: Vec<_> = (0..count).map(|_| t.schedule(TICK)).collect();
            assert_eq!(t.pass(TICK), timeouts.len());
            drop(timeouts);
            t.inner().pool().made()
        };
        let made = fire_all(&mut t, COUNT / 4);
        for _ in 0..COUNT {
            let own = Arc::new(Mutex::new(None::<Periodic>));
            let place = Arc::clone(&own);
            let task = move |_: &PeriodicRun<'_>| {
                let own = place.lock().take();
                assert!(own.is_some_and(|own| !cancels || own.cancel()));
                ControlFlow::Break(())
            };
            let schedule = Schedule::with_fixed_delay(TICK);
            let periodic = t.timer.schedule_periodic(schedule, task).unwrap();
            *own.lock() = Some(periodic);
            assert_eq!(t.pass(TICK), 1);
            t.turn();
        }
        let more = fire_all(&mut t, COUNT / 4) - made;
        assert!(more < COUNT as u64 / 2, "{more} more nodes were made");
    }
}
