//! How late a thread's timeouts are while other threads only schedule, faster than the worker can
//! take in.
//!
//! `cargo bench -p hashed-wheel-benches --bench flood` prints a table in about a minute. It takes
//! 2 GB of memory. Each figure is in ticks after the deadline: a timeout is up to one tick late
//! without a flood too.
//!
//! The last two columns are what the operating system adds if there are more threads than cores: a
//! thread in place of the worker only reads the time, beside as many threads that compute.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_benches::size;

/// The threads schedule this many timeouts together, in each round.
const TIMEOUTS: usize = 8_000_000;

const ROUNDS: usize = 5;

/// The time between two timeouts that are measured.
const PAUSE: Duration = Duration::from_micros(100);

/// Floods a timer in `threads` threads, and schedules timeouts of one to three ticks meanwhile.
/// Returns how late these were, and how long the flood lasted.
fn flood(tick: Duration, threads: usize) -> (Vec<Duration>, Duration) {
    let timer = HashedWheelTimer::builder().tick(tick).build().unwrap();
    let running = AtomicUsize::new(threads);
    let (send, receive) = mpsc::channel();
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let hour = Duration::from_secs(3_600);
                let schedule = |_| drop(timer.new_timeout(|_| (), hour).unwrap());
                (0..size(TIMEOUTS) / threads).for_each(schedule);
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for number in 0.. {
            let (delay, send) = (tick * (number % 3 + 1), send.clone());
            let deadline = Instant::now() + delay;
            let task = move |_: &_| send.send(deadline.elapsed()).unwrap();
            timer.new_timeout(task, delay).unwrap();
            thread::sleep(PAUSE);
            if running.load(Ordering::Relaxed) == 0 {
                break;
            }
        }
    });
    let lasted = begin.elapsed();
    drop(send);
    (receive.iter().collect(), lasted)
}

/// Returns how late a thread that always runs sees that a time has come, beside `threads` other
/// threads that do.
fn other_threads_only(threads: usize, time: Duration) -> Vec<Duration> {
    let (is_over, mut late) = (AtomicBool::new(false), Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        let begin = Instant::now();
        let mut next = begin;
        while late.is_empty() || begin.elapsed() < time {
            let now = Instant::now();
            while next <= now {
                late.push(now - next);
                next += PAUSE;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    late
}

/// Sorts the times. Returns a function from a share to the time in ticks below which this share is.
fn quantiles(mut late: Vec<Duration>, tick: Duration) -> impl Fn(f64) -> f64 {
    late.sort();
    move |share| late[((late.len() - 1) as f64 * share) as usize].div_duration_f64(tick)
}

fn main() {
    println!(
        "{:>8}{:>9}{:>12}{:>10}{:>10}{:>10}{:>13}{:>10}",
        "tick", "threads", "M/s", "p50", "p99", "most", "system p99", "most"
    );
    for tick in [1, 100].map(Duration::from_millis) {
        for threads in [1, 2, 8] {
            let (mut late, mut lasted) = (Vec::new(), Duration::ZERO);
            let mut system = Vec::new();
            for _ in 0..ROUNDS {
                let (of_round, time) = flood(tick, threads);
                late.extend(of_round);
                lasted += time;
                system.extend(other_threads_only(threads, time));
            }
            let (at, of_system) = (quantiles(late, tick), quantiles(system, tick));
            println!(
                "{tick:>8?}{threads:>9}{:>12.1}{:>10.2}{:>10.2}{:>10.2}{:>13.2}{:>10.2}",
                (size(TIMEOUTS) * ROUNDS) as f64 / lasted.as_secs_f64() / 1e6,
                at(0.5),
                at(0.99),
                at(1.0),
                of_system(0.99),
                of_system(1.0)
            );
        }
    }
}
