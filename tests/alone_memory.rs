//! The memory of a burst returns to the operating system. One test in a process of its own, because
//! it measures the process. (Miri has memory of its own.)
#![cfg(all(target_os = "linux", not(miri)))]

use std::time::{Duration, Instant};

use hashed_wheel::{Driver, HashedWheelTimer, ManualClock, Timeout};

const BURST: usize = 1_000_000;

/// Ten million are in `.ci/deep`, because they need a gigabyte.
const SIZES: [usize; 3] = [100_000, BURST, 10_000_000];

/// The most that may be left of the growth, without what the allocator keeps: mostly the nodes in
/// reserve, which are 3 % of the smallest burst.
/// glibc can be asked to keep nothing. Elsewhere the allocator's share of the messages, of the
/// wheel and of the test's own handles is in the result.
const LEFT: f64 = if cfg!(target_env = "gnu") { 0.1 } else { 0.5 };

/// Lets `free` return the end of an arena, which `trim_allocator` leaves to it, if the allocator
/// has arenas. Otherwise glibc keeps twice as much there as the largest array that was freed: the
/// handles, so 32 MB of the messages and of the wheel. It depends on the threads' order whether it
/// has so much.
#[allow(unsafe_code, reason = "a call of libc")]
fn return_ends_of_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and may be called on any thread.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 0);
    }
}

/// Makes the allocator return what it keeps, if it can.
#[allow(unsafe_code, reason = "a call of libc")]
fn trim_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and may be called on any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The resident memory of this process in bytes.
fn resident() -> usize {
    // In kB. (`/proc/self/statm` counts pages, whose size differs between machines.)
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim()
        .trim_end_matches(" kB")
        .parse::<usize>()
        .unwrap()
        * 1_024
}

/// How long a test waits at most. (Ten million need a minute on a busy machine.)
const PATIENCE: Duration = Duration::from_secs(300);

/// Schedules a burst, which `end` ends. Then `wait` is called until the memory has come back.
fn burst(
    name: &str,
    timer: &HashedWheelTimer,
    count: usize,
    end: impl FnOnce(Vec<Timeout>),
    mut wait: impl FnMut(),
) {
    let before = resident();
    let mut timeouts = Vec::with_capacity(count);
    timeouts.extend((0..count).map(|n| {
        timer
            .new_timeout(
                |_| (),
                Duration::from_secs(60) + Duration::from_micros(n as u64),
            )
            .unwrap()
    }));
    // The worker takes them in.
    wait();
    let peak = resident().saturating_sub(before);
    // The nodes have 64 bytes each. Some of them use memory that an earlier burst has left.
    assert!(
        peak > count * 32,
        "most of the nodes use new memory: {peak}"
    );
    end(timeouts);
    let began = Instant::now();
    loop {
        wait();
        trim_allocator();
        let left = resident().saturating_sub(before);
        if left as f64 <= peak as f64 * LEFT {
            // (The busy timer has a few.)
            return assert!(timer.pending_timeouts() <= 2);
        }
        assert!(
            began.elapsed() < PATIENCE,
            "{name}: {left} bytes of {peak} are left"
        );
    }
}

fn burst_on_a_thread(name: &str, timer: &HashedWheelTimer, end: impl FnOnce(Vec<Timeout>)) {
    burst(name, timer, BURST, end, || {
        std::thread::sleep(Duration::from_millis(100));
    });
    wait_for_sleep(timer);
}

/// Bursts of all sizes, each of a timer and a clock of its own: cancelled in random order, or fired
/// after their handles were dropped.
fn sizes(is_deep: bool) {
    for &count in &SIZES[..if is_deep { 3 } else { 2 }] {
        for fires in [false, true] {
            let clock = ManualClock::new();
            let builder = HashedWheelTimer::builder().clock(clock.clone());
            let (timer, mut driver) = builder.build_driven().unwrap();
            let end = |timeouts| {
                if fires {
                    drop_and_pass(&clock)(timeouts);
                } else {
                    cancel_in_any_order(timeouts);
                }
            };
            burst(
                &format!("{count}, fires: {fires}"),
                &timer,
                count,
                end,
                || turn(&clock, &mut driver),
            );
        }
    }
}

/// Lets two seconds pass, after which memory is returned if it was not needed.
fn turn(clock: &ManualClock, driver: &mut Driver) {
    for _ in 0..100 {
        clock.advance(Duration::from_millis(20));
        driver.turn();
    }
}

fn cancel_in_any_order(mut timeouts: Vec<Timeout>) {
    fastrand::Rng::with_seed(1).shuffle(&mut timeouts);
    cancel_all(timeouts);
}

fn cancel_all(timeouts: Vec<Timeout>) {
    assert!(timeouts.iter().all(Timeout::cancel));
}

/// The second half ends while the worker returns the memory of the first.
fn cancel_in_two_halves(mut timeouts: Vec<Timeout>) {
    assert!(timeouts.drain(BURST / 2..).all(|timeout| timeout.cancel()));
    std::thread::sleep(Duration::from_millis(2_100));
    cancel_all(timeouts);
}

#[test]
fn memory_of_a_burst_returns() {
    return_ends_of_arenas();
    let [hashed, hierarchical] = [
        HashedWheelTimer::builder(),
        HashedWheelTimer::builder().hierarchical(true),
    ]
    .map(|builder| builder.tick(Duration::from_millis(10)).build().unwrap());
    let at_once = |timer| burst_on_a_thread("a thread", timer, cancel_all);
    let in_two_halves = |timer| burst_on_a_thread("in two halves", timer, cancel_in_two_halves);
    // The memory does not depend on the wheel, so each has one burst, and both in `.ci/deep`.
    at_once(&hashed);
    in_two_halves(&hierarchical);
    let is_deep = std::env::var_os("HASHED_WHEEL_DEEP").is_some();
    if is_deep {
        in_two_halves(&hashed);
        at_once(&hierarchical);
    }
    hashed.stop();
    hierarchical.stop();

    sizes(is_deep);

    // Something always falls due soon, so memory is returned in small steps.
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder()
        .tick(Duration::from_micros(100))
        .clock(clock.clone());
    let (timer, mut driver) = builder.build_driven().unwrap();
    let mut passed = Duration::ZERO;
    burst("a busy driver", &timer, BURST, cancel_all, || {
        for _ in 0..100 {
            let _next = timer
                .new_timeout(|_| (), Duration::from_micros(300))
                .unwrap();
            clock.advance(Duration::from_micros(200));
            driver.turn();
        }
        passed += Duration::from_millis(20);
    });
    assert!(
        passed > Duration::from_secs(10),
        "a busy timer returns memory late: after {passed:?}"
    );
}

/// Waits until the worker does not wake any more, because nothing is left to return.
fn wait_for_sleep(timer: &HashedWheelTimer) {
    let began = Instant::now();
    let (mut wake_ups, mut since) = (timer.stats().wake_ups, began);
    while since.elapsed() < Duration::from_secs(2) {
        assert!(
            began.elapsed() < PATIENCE,
            "an idle timer wakes again and again"
        );
        std::thread::sleep(Duration::from_millis(50));
        let now = timer.stats().wake_ups;
        if now != wake_ups {
            (wake_ups, since) = (now, Instant::now());
        }
    }
}

/// Drops the handles, and lets the time of all timeouts pass.
fn drop_and_pass(clock: &ManualClock) -> impl FnOnce(Vec<Timeout>) {
    let clock = clock.clone();
    move |timeouts| {
        drop(timeouts);
        clock.advance(Duration::from_secs(120));
    }
}
