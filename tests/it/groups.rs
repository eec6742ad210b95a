//! Many timeouts at once: each ends, or moves, as by a call of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use crate::common::{Driven, Schedules, TICK, quietly};
use hashed_wheel::{HashedWheelTimer, ManualClock, Timeout, TimerTask};

const FAR: Duration = Duration::from_secs(3_600);

/// Some more than two groups.
const MANY: u32 = 150;

/// Reports the call of its hook.
struct Hooked(u32, Sender<u32>);

impl TimerTask for Hooked {
    fn run(self, _: &Timeout) {}

    fn cancelled(self, timeout: &Timeout) {
        assert!(timeout.is_cancelled());
        self.1.send(self.0).unwrap();
    }
}

/// Timeouts with tasks that leave nothing, that are dropped, and that have a hook, in turn.
fn schedule(timer: &HashedWheelTimer, calls: &Sender<u32>, shared: &Arc<()>) -> Vec<Timeout> {
    let schedule = |n| match n % 3 {
        0 => timer.new_timeout(|_| (), FAR),
        1 => {
            let shared = Arc::clone(shared);
            timer.new_timeout(move |_| drop(shared), FAR)
        }
        _ => timer.new_timeout_task(Hooked(n, calls.clone()), FAR),
    };
    (0..MANY).map(|n| schedule(n).unwrap()).collect()
}

#[test]
fn any_mix_of_timers_states_and_tasks_is_cancelled() {
    let (mut first, mut second) = (Driven::new(), Driven::new());
    let ((calls, called), shared) = (mpsc::channel(), Arc::new(()));
    let mut timeouts = schedule(&first.timer, &calls, &shared);
    first.driver.turn();
    timeouts.extend(schedule(&second.timer, &calls, &shared));
    timeouts.extend(schedule(&first.timer, &calls, &shared));
    let of_two_timers = schedule(&first.timer, &calls, &shared).into_iter();
    let of_two_timers = of_two_timers.zip(schedule(&second.timer, &calls, &shared));
    timeouts.extend(of_two_timers.flat_map(|(first, second)| [first, second]));
    let (ended, clones) = (timeouts.split_off(5 * MANY as usize - 10), timeouts.clone());
    assert!(ended.iter().all(|timeout| timeout.cancel()));
    let hooks_before = called.try_iter().count();

    let all = timeouts.into_iter().chain(ended);
    assert_eq!(Timeout::cancel_each(all), 5 * MANY as usize - 10);
    assert!(clones.iter().all(Timeout::is_cancelled));
    let hooks = called.try_iter().count() + hooks_before;
    assert_eq!(hooks, 5 * MANY as usize / 3);
    assert_eq!(Arc::strong_count(&shared), 1);
    for driven in [&mut first, &mut second] {
        assert_eq!(driven.timer.pending_timeouts(), 0);
        driven.driver.turn();
        assert_eq!(driven.timer.stats().cancelled_not_reclaimed, 0);
        assert_eq!(driven.driver.next_turn(), None);
    }
    assert_eq!(Timeout::cancel_each(clones), 0);
}

#[test]
fn hooks_are_called_in_the_order_of_the_timeouts() {
    let driven = Driven::new();
    let (calls, called) = mpsc::channel();
    let timeouts = schedule(&driven.timer, &calls, &Arc::new(()));
    Timeout::cancel_each(timeouts);
    assert!(called.try_iter().eq((0..MANY).filter(|n| n % 3 == 2)));
}

#[test]
fn a_hook_that_panics_and_one_that_cancels_others_harm_no_other() {
    struct Panics;
    impl TimerTask for Panics {
        fn run(self, _: &Timeout) {}

        fn cancelled(self, _: &Timeout) {
            panic!("a hook");
        }
    }
    struct CancelsOthers(Vec<Timeout>);
    impl TimerTask for CancelsOthers {
        fn run(self, _: &Timeout) {}

        fn cancelled(self, _: &Timeout) {
            assert_eq!(Timeout::cancel_each(self.0), 1, "the other is in the group");
        }
    }
    let driven = Driven::new();
    let timer = &driven.timer;
    let [other, member] = [0, 1].map(|_| timer.schedule(|_| (), FAR));
    let others = vec![other, member.clone()];
    let mut timeouts = vec![timer.schedule_task(Panics, FAR)];
    timeouts.push(timer.schedule_task(CancelsOthers(others), FAR));
    timeouts.push(member);
    timeouts.push(timer.schedule_task(Panics, FAR));
    assert_eq!(quietly(|| Timeout::cancel_each(timeouts)), 4);
    assert_eq!(timer.stats().panics, 2);
    assert_eq!(timer.pending_timeouts(), 0);
}

#[test]
fn what_an_iterator_has_given_before_its_panic_is_not_left_out() {
    let driven = Driven::new();
    let timeouts = [0, 1, 2].map(|_| driven.timer.schedule(|_| (), FAR));
    let begin = driven.timer.now();
    let panics_at = |panics: usize| {
        let numbered = timeouts.iter().enumerate();
        numbered.map(move |(n, timeout)| {
            assert!(n < panics, "the iterator");
            timeout
        })
    };
    let reset = || Timeout::reset_each(panics_at(2), begin + 2 * FAR);
    quietly(|| thread::scope(|scope| scope.spawn(reset).join().unwrap_err()));
    let is_moved = timeouts
        .each_ref()
        .map(|timeout| timeout.deadline() > begin + FAR);
    assert_eq!(is_moved, [true, true, false]);
    let cancel = || Timeout::cancel_each(panics_at(2).cloned());
    quietly(|| thread::scope(|scope| scope.spawn(cancel).join().unwrap_err()));
    let cancelled = timeouts.map(|timeout| timeout.is_cancelled());
    assert_eq!(cancelled, [true, true, false]);
}

#[test]
fn the_places_under_a_limit_are_free() {
    let driven = Driven::with(|builder| builder.max_pending_timeouts(MANY as usize));
    let (calls, _called) = mpsc::channel();
    for _ in 0..3 {
        let timeouts = schedule(&driven.timer, &calls, &Arc::new(()));
        assert!(driven.timer.new_timeout(|_| (), FAR).is_err());
        assert_eq!(Timeout::cancel_each(timeouts), MANY as usize);
    }
}

/// The thread has no cache of the timer, and its messages fill more than a block.
#[test]
fn another_thread_cancels_what_is_in_the_wheel() {
    let mut driven = Driven::new();
    let (calls, called) = mpsc::channel();
    let shared = Arc::new(());
    let timeouts: Vec<_> = (0..10)
        .flat_map(|_| schedule(&driven.timer, &calls, &shared))
        .collect();
    driven.driver.turn();
    let count = thread::spawn(move || Timeout::cancel_each(timeouts))
        .join()
        .unwrap();
    assert_eq!(
        (count, called.try_iter().count()),
        (10 * MANY as usize, 5 * MANY as usize / 3 * 2)
    );
    driven.driver.turn();
    let next = driven.driver.next_turn();
    assert!(
        next.is_none_or(|next| next < FAR / 2),
        "at most memory to return, after {next:?}"
    );
}

#[test]
fn timeouts_of_a_stopped_timer_have_ended() {
    let driven = Driven::new();
    let (calls, called) = mpsc::channel();
    let timeouts = schedule(&driven.timer, &calls, &Arc::new(()));
    driven.timer.stop();
    called.try_iter().for_each(drop);
    assert_eq!(Timeout::reset_each(&timeouts, driven.timer.now()), 0);
    assert_eq!(Timeout::cancel_each(timeouts), 0);
    assert_eq!(called.try_iter().count(), 0);
}

#[test]
fn each_timeout_fires_at_the_new_deadline() {
    let mut first = Driven::new();
    let mut second = Driven::with(|builder| builder.clock(first.clock.clone()));
    let deadline = |driven: &Driven, ticks| driven.timer.now() + TICK * ticks;
    // In the wheel and in the lane; to earlier and to later.
    for (before, to) in [(9, 3), (2, 5)] {
        let fired = Arc::new(AtomicUsize::new(0));
        let timeout = |timer: &HashedWheelTimer| {
            let fired = Arc::clone(&fired);
            timer.schedule(move |_| _ = fired.fetch_add(1, SeqCst), TICK * before)
        };
        let mut timeouts: Vec<_> = (0..MANY).map(|_| timeout(&first.timer)).collect();
        first.driver.turn();
        timeouts.extend((0..MANY).map(|_| timeout(&first.timer)));
        timeouts.extend((0..MANY).map(|n| {
            timeout(if n % 2 == 0 {
                &first.timer
            } else {
                &second.timer
            })
        }));
        timeouts[1].cancel();
        let count = 3 * MANY as usize - 1;
        assert_eq!(Timeout::reset_each(&timeouts, deadline(&first, to)), count);
        let mut pass = |time| {
            first.pass(time);
            second.driver.turn();
        };
        pass(Duration::ZERO);
        pass(TICK * (to - 1));
        assert_eq!(fired.load(SeqCst), 0, "not before the deadline");
        pass(TICK);
        assert_eq!(fired.load(SeqCst), count);
    }
}

/// It needs the worker once for all of them: for what is in the wheel, and for what is in the lane.
#[test]
fn a_loop_that_sleeps_is_woken_once_for_earlier_deadlines() {
    for is_in_wheel in [true, false] {
        let woken = Arc::new(AtomicUsize::new(0));
        let wakes = Arc::clone(&woken);
        let builder = HashedWheelTimer::builder()
            .tick(TICK)
            .clock(ManualClock::new());
        let builder = builder.waker(move || _ = wakes.fetch_add(1, SeqCst));
        let (timer, mut driver) = builder.build_driven().unwrap();
        if !is_in_wheel {
            assert_eq!(driver.next_turn(), None);
        }
        let timeouts: Vec<_> = (0..MANY)
            .map(|_| timer.schedule(|_| (), Duration::MAX))
            .collect();
        if is_in_wheel {
            driver.turn();
            assert_eq!(driver.next_turn(), None);
        }
        assert_eq!(woken.load(SeqCst), 0);
        let begin = timer.now();
        let count = Timeout::reset_each(&timeouts, begin + TICK * 5);
        assert_eq!(count, MANY as usize);
        assert_eq!(woken.load(SeqCst), 1);
        assert_eq!(driver.next_turn(), Some(TICK * 5));
        // A later deadline needs no turn.
        let count = Timeout::reset_each(&timeouts, begin + TICK * 9);
        assert_eq!(count, MANY as usize);
        assert_eq!(woken.load(SeqCst), 1);
    }
}
