//! Many timeouts at once beside one by one: `cancel_each` beside `cancel_and_drop`, `reset_each`
//! beside `reset_at`.
//!
//! `cargo bench -p hashed-wheel-benches --bench each` prints a table in about a minute. Each figure
//! is the nanoseconds per timeout of a million that are in the wheel, in random order, so that each
//! waits for its cache line; "with the worker" adds the turn that reclaims them. The ways take
//! turns, and a figure is the least of all rounds, so a busy machine matters less.

use std::time::{Duration, Instant};

use hashed_wheel::{Cancel, Driver, HashedWheelTimer, ManualClock, Timeout};
use hashed_wheel_benches::{random, size};

const TIMEOUTS: usize = 1_000_000;

const ROUNDS: usize = 9;

/// A turn takes at most 100 000 messages.
fn turn(driver: &mut Driver) {
    (0..12).for_each(|_| _ = driver.turn());
}

/// Timeouts in the wheel, in random order; `task` is what they have.
fn schedule<F: FnOnce(&Timeout) + Send + 'static>(
    task: impl Fn() -> F,
) -> (HashedWheelTimer, Driver, Vec<Timeout>) {
    let builder = HashedWheelTimer::builder().clock(ManualClock::new());
    let (timer, mut driver) = builder.build_driven().unwrap();
    let minute = |n| Duration::from_secs(60) + Duration::from_micros(n);
    let mut timeouts: Vec<_> = (0..size(TIMEOUTS) as u64)
        .map(|n| {
            timer
                .new_timeout(task(), minute(n * 37 % 1_000_000))
                .unwrap()
        })
        .collect();
    turn(&mut driver);
    random().shuffle(&mut timeouts);
    (timer, driver, timeouts)
}

/// Measures an operation on all timeouts, alone and with the turn after it.
fn measure<F: FnOnce(&Timeout) + Send + 'static>(
    task: impl Fn() -> F,
    operation: impl FnOnce(&HashedWheelTimer, &mut Vec<Timeout>) -> usize,
) -> [f64; 2] {
    let (timer, mut driver, mut timeouts) = schedule(task);
    let begin = Instant::now();
    let count = operation(&timer, &mut timeouts);
    let alone = begin.elapsed();
    turn(&mut driver);
    let with_worker = begin.elapsed();
    assert_eq!(count, size(TIMEOUTS));
    [alone, with_worker].map(|time| time.as_nanos() as f64 / count as f64)
}

fn one_by_one(timeouts: &mut Vec<Timeout>) -> usize {
    let cancelled = timeouts.drain(..).map(Timeout::cancel_and_drop);
    cancelled.filter(|is_cancelled| *is_cancelled).count()
}

fn main() {
    let hour = Duration::from_secs(3_600);
    let shared = std::sync::Arc::new(());
    let with_arc = || {
        let shared = std::sync::Arc::clone(&shared);
        move |_: &Timeout| drop(shared)
    };
    let plain = || |_: &Timeout| ();
    let rows: [(&str, &dyn Fn() -> [f64; 2]); 6] = [
        ("cancel_and_drop", &|| {
            measure(plain, |_, timeouts| one_by_one(timeouts))
        }),
        ("cancel_each", &|| {
            measure(plain, |_, timeouts| {
                Timeout::cancel_each(timeouts.drain(..))
            })
        }),
        ("cancel_and_drop, a task with an Arc", &|| {
            measure(with_arc, |_, timeouts| one_by_one(timeouts))
        }),
        ("cancel_each, a task with an Arc", &|| {
            measure(with_arc, |_, timeouts| {
                Timeout::cancel_each(timeouts.drain(..))
            })
        }),
        ("reset_at", &|| {
            measure(plain, |timer, timeouts| {
                let deadline = timer.now() + hour;
                timeouts
                    .iter()
                    .filter(|timeout| timeout.reset_at(deadline))
                    .count()
            })
        }),
        ("reset_each", &|| {
            measure(plain, |timer, timeouts| {
                Timeout::reset_each(&*timeouts, timer.now() + hour)
            })
        }),
    ];
    let mut least = [[f64::MAX; 2]; 6];
    for _ in 0..ROUNDS {
        for ((_, row), least) in rows.iter().zip(&mut least) {
            let times = row();
            *least = [0, 1].map(|at| times[at].min(least[at]));
        }
    }
    println!(
        "{:36}{:>10}{:>18}",
        "ns per timeout", "caller", "with the worker"
    );
    for ((name, _), [alone, with_worker]) in rows.iter().zip(least) {
        println!("{name:36}{alone:>10.1}{with_worker:>18.1}");
    }
}
