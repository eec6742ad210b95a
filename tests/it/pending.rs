//! The snapshot of pending timeouts: `HashedWheelTimer::next_timeouts`.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::{
    Driver, HashedWheelTimer, ManualClock, PendingTimeout, Timeout, TimerTask, Unavailable,
};

const TICK: Duration = Duration::from_millis(10);

struct Named;

impl TimerTask for Named {
    fn run(self, _: &Timeout) {}
}

fn driven(hierarchical: bool) -> (HashedWheelTimer, Driver, ManualClock) {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder()
        .tick(TICK)
        .ticks_per_wheel(8)
        .clock(clock.clone());
    let builder = builder.hierarchical(hierarchical);
    let (timer, driver) = builder.build_driven().unwrap();
    (timer, driver, clock)
}

/// The time left until each of the first timeouts.
fn remaining(timer: &HashedWheelTimer, limit: usize) -> Vec<Duration> {
    let now = timer.now();
    let left = |timeout: PendingTimeout| timeout.deadline.saturating_duration_since(now);
    timer
        .next_timeouts(limit)
        .unwrap()
        .into_iter()
        .map(left)
        .collect()
}

#[test]
fn first_timeouts_come_in_the_order_of_their_deadlines() {
    for hierarchical in [false, true] {
        let (timer, mut driver, clock) = driven(hierarchical);
        let mut random = Rng::with_seed(1);
        let mut delays = BTreeMap::new();
        for _ in 0..if cfg!(miri) { 60 } else { 300 } {
            let range = [50, 100, 10_000, 1_000_000][random.usize(..4)];
            let delay = Duration::from_millis(random.u64(..range));
            let timeout = timer.new_timeout_task(Named, delay).unwrap();
            match random.u32(..10) {
                0 => assert!(timeout.cancel()),
                1..4 => {
                    // The worker knows it in some cases.
                    if random.bool() {
                        driver.turn_at_most(0);
                    }
                    let delay = delay * 2 / random.u32(1..5);
                    assert!(timeout.reset(delay));
                    *delays.entry(delay).or_insert(0) += 1;
                }
                _ => *delays.entry(delay).or_insert(0) += 1,
            }
        }
        let all: Vec<_> = delays
            .iter()
            .flat_map(|(&delay, &count)| vec![delay; count])
            .collect();
        for limit in [0, 1, 2, 10, 100, all.len(), usize::MAX] {
            let pending = timer.next_timeouts(limit).unwrap();
            assert_eq!(remaining(&timer, limit), all[..limit.min(all.len())]);
            assert!(
                pending
                    .iter()
                    .all(|timeout| timeout.task_type.ends_with("Named"))
            );
        }
        // Some are due, and are left after a portion.
        clock.advance(TICK * 3);
        driver.turn_at_most(2);
        let left: Vec<_> = all[2..]
            .iter()
            .map(|delay| delay.saturating_sub(TICK * 3))
            .collect();
        assert_eq!(remaining(&timer, usize::MAX), left);
        assert_eq!(remaining(&timer, 4), left[..4]);
    }
}

#[test]
fn a_timeout_that_never_fires_comes_last() {
    let (timer, _driver, _) = driven(false);
    timer.new_timeout(|_| (), Duration::MAX).unwrap();
    timer.new_timeout_task(Named, TICK).unwrap();
    let pending = timer.next_timeouts(9).unwrap();
    assert_eq!(remaining(&timer, 1), [TICK]);
    assert!(pending[1].deadline - timer.now() > Duration::from_secs(100 * 365 * 24 * 3_600));
    assert!(
        pending[1].task_type.contains("a_timeout_that_never_fires"),
        "{pending:?}"
    );
}

#[test]
fn a_task_and_a_stopped_timer_have_no_snapshot() {
    let (timer, mut driver, clock) = driven(false);
    let (send, seen) = mpsc::channel();
    let task = move |timeout: &Timeout| send.send(timeout.timer().next_timeouts(1)).unwrap();
    timer.new_timeout(task, TICK).unwrap();
    clock.advance(TICK);
    driver.turn();
    assert_eq!(
        seen.recv().unwrap(),
        Err(Unavailable::Busy),
        "the worker has its own lock"
    );
    assert_eq!(timer.next_timeouts(1), Ok(Vec::new()));
    timer.stop();
    assert_eq!(timer.next_timeouts(1), Err(Unavailable::Stopped));
}

#[test]
fn snapshot_takes_in_what_is_queued() {
    let (timer, mut driver, clock) = driven(false);
    let soon = timer.new_timeout_task(Named, TICK * 2).unwrap();
    let far = timer.new_timeout_task(Named, TICK * 100).unwrap();
    driver.turn();
    assert!(far.reset(TICK));
    assert!(soon.cancel());
    assert_eq!(timer.occupancy().unwrap().queued, 0);
    timer.new_timeout_task(Named, TICK * 3).unwrap();
    assert_eq!(timer.occupancy().unwrap().queued, 1);
    assert_eq!(remaining(&timer, 9), [TICK, TICK * 3]);
    assert_eq!(timer.occupancy().unwrap().queued, 0);
    assert_eq!(timer.stats().cancelled_not_reclaimed, 0);
    assert_eq!(driver.next_turn(), Some(TICK));
    clock.advance(TICK * 3);
    assert_eq!(driver.turn(), 2);
}

#[test]
fn worker_thread_fires_what_a_snapshot_has_taken_in() {
    let timer = HashedWheelTimer::builder()
        .tick(Duration::from_millis(1))
        .build()
        .unwrap();
    let (send, fired) = mpsc::channel();
    for number in 0..if cfg!(miri) { 30 } else { 200 } {
        let send = send.clone();
        timer
            .new_timeout(
                move |_| send.send(number).unwrap(),
                Duration::from_millis(1),
            )
            .unwrap();
        let _ = timer.next_timeouts(1);
        assert_eq!(fired.recv_timeout(Duration::from_secs(30)), Ok(number));
    }
}

/// A task that does not fit into a node.
struct Large([u64; 99]);

impl TimerTask for Large {
    fn run(self, _: &Timeout) {
        assert_eq!(self.0, [0; 99]);
    }
}

fn names(timer: &HashedWheelTimer) -> Vec<&'static str> {
    timer
        .next_timeouts(9)
        .unwrap()
        .iter()
        .map(|timeout| timeout.task_type)
        .collect()
}

#[test]
fn each_task_has_the_name_of_its_type() {
    let (timer, mut driver, clock) = driven(false);
    timer.new_timeout_task(Large([0; 99]), TICK).unwrap();
    assert!(names(&timer)[0].ends_with("::Large"), "{:?}", names(&timer));
    clock.advance(TICK);
    driver.turn();
    timer.new_timeout_task(Named, TICK).unwrap();
    assert!(names(&timer)[0].ends_with("::Named"), "{:?}", names(&timer));
}

#[cfg(feature = "async")]
#[test]
fn tasks_of_the_timer_itself_have_names_in_parentheses() {
    let (timer, _driver, _) = driven(false);
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    let mut sleep = std::pin::pin!(timer.sleep(TICK));
    assert!(sleep.as_mut().poll(context).is_pending());
    assert_eq!(names(&timer), ["(the waker of a future)"]);
}
