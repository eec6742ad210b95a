//! Timeouts that may be late share wake-ups: `HashedWheelTimer::deadline_within`.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Driven, Schedules, eventually, ms};
use hashed_wheel::HashedWheelTimer;

const SLACK: Duration = ms(50);

/// The most wake-ups per second with this slack.
const MOST_PER_SECOND: u64 = 25;

/// A thousand timeouts per second with random delays.
#[test]
fn thousand_timeouts_per_second_share_at_most_25_wake_ups() {
    const SECONDS: u64 = 10;

    let mut t = Driven::with(|builder| builder.tick(ms(1)).ticks_per_wheel(512));
    let mut random = fastrand::Rng::with_seed(1);
    let lateness = Arc::new(Mutex::new(Vec::new()));
    let (mut wake_ups, mut asleep_until) = (0, None);
    for now in (0..SECONDS * 1_000).map(ms) {
        let due = now + Duration::from_micros(random.u64(100_000..5_000_000));
        let (lateness, clock) = (Arc::clone(&lateness), t.clock.clone());
        let task = move |_: &_| {
            lateness
                .lock()
                .unwrap()
                .push(hashed_wheel::Clock::now(&clock) - due);
        };
        t.schedule_at(task, t.timer.deadline_within(due - now, SLACK));
        if asleep_until.is_some_and(|until| until <= now) {
            t.turn();
            wake_ups += 1;
        }
        asleep_until = t.next_turn().map(|wait| now + wait);
        t.clock.advance(ms(1));
    }
    let lateness = lateness.lock().unwrap();
    assert!(lateness.len() > 6_000);
    assert!(*lateness.iter().max().unwrap() < SLACK);
    assert!(wake_ups <= MOST_PER_SECOND * SECONDS, "{wake_ups} wake-ups");
}

#[test]
#[cfg_attr(miri, ignore = "real time")]
fn worker_thread_sleeps_between_the_shared_wake_ups() {
    const TIMEOUTS: u64 = 1_000;

    let timer = HashedWheelTimer::builder().tick(ms(1)).build().unwrap();
    timer.start().unwrap();
    let fired = Arc::new(AtomicUsize::new(0));
    let (begin, before) = (Instant::now(), timer.stats().wake_ups);
    for i in 0..TIMEOUTS {
        let fired = Arc::clone(&fired);
        let task = move |_: &_| _ = fired.fetch_add(1, SeqCst);
        timer.schedule_at(task, timer.deadline_within(ms(100), SLACK));
        thread::sleep((begin + ms(i + 1)).saturating_duration_since(Instant::now()));
    }
    eventually("all have fired", || fired.load(SeqCst) == TIMEOUTS as usize);
    let (took, wake_ups) = (begin.elapsed(), timer.stats().wake_ups - before);
    let most = MOST_PER_SECOND as f64 * took.as_secs_f64();
    assert!(wake_ups as f64 <= most, "{wake_ups} wake-ups in {took:?}");
}

#[test]
fn deadline_is_never_early_and_at_most_the_slack_late() {
    let mut random = fastrand::Rng::with_seed(2);
    let mut up_to = |bits| {
        let bits = random.u32(1..bits);
        Duration::from_nanos(random.u64(..1 << bits))
    };
    for tick in [
        Duration::from_micros(1),
        Duration::from_micros(1_500),
        ms(10),
    ] {
        let t = Driven::with(|builder| builder.tick(tick));
        for _ in 0..2_000 {
            t.clock.advance(up_to(40));
            let (delay, slack) = (up_to(50), up_to(40));
            let (exact, within) = (t.timer.now() + delay, t.timer.deadline_within(delay, slack));
            assert!(
                exact <= within && within <= exact + slack,
                "{delay:?} within {slack:?}"
            );
            assert!(slack >= tick || within == exact, "exact below a tick");
        }
    }
}

#[test]
fn slack_of_a_deadline_that_never_comes_changes_nothing() {
    let mut t = Driven::new();
    let exact = t.timer.deadline_within(ms(5), Duration::ZERO);
    assert_eq!(exact, t.timer.now() + ms(5));
    let never = t.timer.deadline_within(Duration::MAX, Duration::MAX);
    let timeout = t.schedule_at(|_| (), never);
    assert_eq!(t.next_turn(), None);
    t.clock.advance(Duration::MAX);
    assert_eq!(t.turn(), 0);
    assert!(timeout.cancel());
}
