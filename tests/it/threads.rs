//! Tests that need the real worker thread and the real clock. Lower bounds are strict. Upper bounds
//! allow for a busy machine.

use std::cell::RefCell;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::common::{
    Ends, Gate, STOPPED, Schedules, TEST_TIMEOUT, built, ends, eventually, ms, quietly,
    wait_until_idle,
};
use hashed_wheel::{Clock, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout};

/// Reads the state of a thread of this process by its name. (Miri has no `/proc`.)
#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    use std::fs;
    use std::path::PathBuf;

    pub(crate) fn find(name: &str) -> Option<PathBuf> {
        let tasks = fs::read_dir("/proc/self/task")
            .unwrap()
            .map(|task| task.unwrap().path());
        // A thread may end while the list is read.
        tasks.into_iter().find(|task| {
            fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        })
    }

    /// Returns the number of voluntary context switches of the thread.
    pub(crate) fn sleeps(name: &str) -> u64 {
        let status = fs::read_to_string(find(name).expect(name).join("status")).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("voluntary_ctxt_switches"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Returns the same number, after it has not changed for a while.
    pub(crate) fn asleep(name: &str) -> u64 {
        super::eventually("the thread runs", || find(name).is_some());
        loop {
            let before = sleeps(name);
            super::sleep(super::ms(200));
            if sleeps(name) == before {
                return before;
            }
        }
    }
}

fn timer(name: &str, tick: Duration) -> HashedWheelTimer {
    built(|builder| builder.tick(tick).thread_name(name))
}

/// Checks that a test in a child process passed, and that the name matched exactly one test.
#[track_caller]
fn assert_passed(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

// --- the worker thread ---------------------------------------------------------------------------

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn the_thread_starts_with_the_first_timeout_and_ends_with_stop() {
    let timer = timer("hw-lazy", ms(1));
    assert_eq!(linux::find("hw-lazy"), None);
    timer.schedule(|_| (), ms(1));
    eventually("the thread has its name", || {
        linux::find("hw-lazy").is_some()
    });
    timer.stop();
    // The system lists the thread for a moment after its end.
    eventually("stop waits for the end of the thread", || {
        linux::find("hw-lazy").is_none()
    });
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn start_starts_the_thread_once() {
    let timer = timer("hw-start", ms(1));
    timer.start().unwrap();
    timer.start().unwrap();
    eventually("the thread runs", || linux::find("hw-start").is_some());
    drop(timer);
    eventually(
        "the drop of the last handle waits for the end of the thread",
        || linux::find("hw-start").is_none(),
    );
}

#[test]
fn threads_have_names_by_default() {
    let timer = HashedWheelTimer::new(ms(1), 8);
    let (name, names) = channel();
    let task = move |_: &Timeout| {
        name.send(thread::current().name().map(str::to_owned))
            .unwrap();
    };
    timer.schedule(task, ms(0));
    let name = names.recv_timeout(TEST_TIMEOUT).unwrap().unwrap();
    assert!(
        name.strip_prefix("hashed-wheel-")
            .is_some_and(|number| number.parse::<u32>().is_ok()),
        "{name}"
    );
}

/// By default the kernel may wake a thread 50 µs late. A timer with a short tick asks for less.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn the_worker_sleeps_more_exactly_if_its_tick_is_short() {
    let slack = |name: &str, tick| -> Option<u64> {
        let timer = timer(name, tick);
        timer.start().unwrap();
        linux::asleep(name);
        // (The file is in the folder that a process of this number would have.)
        let thread = linux::find(name).expect(name);
        let file = std::path::Path::new("/proc")
            .join(thread.file_name().unwrap())
            .join("timerslack_ns");
        std::fs::read_to_string(file).ok()?.trim_end().parse().ok()
    };
    let Some(default) = slack("slack-long", ms(60_000)) else {
        return;
    };
    assert_eq!(slack("slack-short", ms(1)), Some(default.min(1_000)));
    assert_eq!(slack("slack-middle", ms(10)), Some(default.min(10_000)));
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn a_timer_with_nothing_pending_does_not_wake() {
    let timer = timer("hw-idle", ms(1));
    timer.schedule(|_| (), ms(5));
    timer.schedule(|_| (), ms(500)).cancel();
    eventually("the timeout fired", || timer.pending_timeouts() == 0);
    // If this thread was interrupted before the cancel, the worker has received the timeout.
    eventually("the other one is reclaimed", || {
        timer.stats().cancelled_not_reclaimed == 0
    });
    // Then it looks again a second later.
    sleep(ms(1_500));
    let before = linux::asleep("hw-idle");
    sleep(ms(2_000));
    assert_eq!(linux::sleeps("hw-idle") - before, 0, "wake-ups in 2 s");
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn a_thread_that_was_only_started_does_not_wake() {
    let timer = timer("hw-started", ms(1));
    timer.start().unwrap();
    let before = linux::asleep("hw-started");
    sleep(ms(2_000));
    assert_eq!(linux::sleeps("hw-started") - before, 0, "wake-ups in 2 s");
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn a_timer_with_one_far_timeout_wakes_only_for_work() {
    let timer = timer("hw-far", ms(1));
    let far = timer.schedule(|_| (), Duration::from_secs(3_600));
    let before = linux::asleep("hw-far");
    // Four rounds of the wheel.
    sleep(ms(2_048));
    assert_eq!(linux::sleeps("hw-far") - before, 0, "wake-ups in 2 s");

    // The worker does wake for an earlier timeout.
    let (fired, wait) = channel();
    timer.schedule(move |_| fired.send(()).unwrap(), ms(20));
    wait.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(far.cancel());
}

/// Whatever the tick, and however much traffic there is.
#[test]
fn steady_traffic_with_far_deadlines_wakes_the_worker_rarely() {
    // The last number is the shortest time between two wake-ups. Without a pause there are millions
    // of messages per second.
    for (tick, pause, apart) in [
        (ms(1), ms(1), 50),
        (ms(1), Duration::ZERO, 5),
        (ms(1_000), Duration::ZERO, 5),
    ] {
        let timer = timer("hw-steady", tick);
        let begin = Instant::now();
        let (mut scheduled, mut previous) = (0, None::<Timeout>);
        while begin.elapsed() < ms(500) {
            for _ in 0..3 {
                // Some messages are taken back, others come too late for that.
                timer.schedule(|_| (), ms(5_000)).cancel();
                let timeout = timer.schedule(|_| (), ms(60_000));
                if let Some(previous) = previous.replace(timeout) {
                    assert!(previous.cancel());
                }
                scheduled += 2;
            }
            if !pause.is_zero() {
                sleep(pause);
            }
        }
        let wake_ups = timer.stats().wake_ups;
        let most = 5 + begin.elapsed().as_millis() as u64 / apart;
        assert!(
            wake_ups <= most,
            "{wake_ups} wake-ups at a tick of {tick:?}, {scheduled} timeouts"
        );
    }
}

/// Each timeout has an earlier deadline than all before. The worker wakes for the first two in a
/// tick.
#[test]
fn earlier_and_earlier_deadlines_wake_the_worker_twice_per_tick_at_most() {
    let timer = timer("hw-earlier", ms(20));
    let begin = Instant::now();
    for earlier in 0..400 {
        timer.schedule(|_| (), ms(60_000 - earlier));
        while begin.elapsed() < Duration::from_micros(250) * earlier as u32 {
            thread::yield_now();
        }
    }
    let (wake_ups, ticks) = (
        timer.stats().wake_ups,
        begin.elapsed().as_millis() as u64 / 20,
    );
    // A nap to the next tick counts too.
    assert!(wake_ups <= 3 * (ticks + 2), "{wake_ups} in {ticks} ticks");
}

/// A timeout that was cancelled in the wheel is reclaimed soon, although the next tick is far away.
#[test]
fn the_worker_reclaims_what_was_cancelled_within_seconds() {
    let timer = timer("hw-reclaim", Duration::from_secs(3_600));
    timer.start().unwrap();
    for _ in 0..3 {
        let timeouts: Vec<_> = (0..100)
            .map(|_| timer.schedule(|_| (), Duration::from_secs(7_200)))
            .collect();
        sleep(ms(20));
        // On another thread, which cannot take messages back.
        thread::spawn(move || assert!(timeouts.iter().all(Timeout::cancel)))
            .join()
            .unwrap();
        eventually("they are reclaimed", || {
            timer.stats().cancelled_not_reclaimed == 0
        });
    }
}

#[test]
#[cfg_attr(windows, ignore = "the test harness needs a thread for the test there")]
#[cfg_attr(miri, ignore = "Miri starts no processes")]
fn a_thread_that_cannot_be_started_is_an_error_each_time() {
    const CHILD: &str = "HASHED_WHEEL_TEST_NO_THREADS";
    if std::env::var_os(CHILD).is_none() {
        // The child process demands a thread stack that is larger than the address space. (The
        // harness then runs the test itself on the main thread.)
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "threads::a_thread_that_cannot_be_started_is_an_error_each_time",
                "--exact",
                "--test-threads=1",
            ])
            .env(
                "RUST_MIN_STACK",
                if usize::BITS < 64 {
                    3_u64 << 30
                } else {
                    1 << 50
                }
                .to_string(),
            )
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_passed(&output);
        return;
    }
    let timer = timer("hw-none", ms(1));
    let task_ends = Ends::new();
    for attempt in 1..=3 {
        let error = timer.new_timeout_task(task_ends.task(), ms(1)).unwrap_err();
        assert!(matches!(error, NewTimeoutError::Spawn { .. }), "{error}");
        assert_ne!(
            std::io::Error::from(error).kind(),
            std::io::ErrorKind::Other
        );
        let counts = (timer.pending_timeouts(), task_ends.drops());
        assert_eq!(counts, (0, attempt), "a rejection changes nothing");
        assert!(matches!(timer.start(), Err(NewTimeoutError::Spawn { .. })));
    }
    assert!(timer.stop().is_empty(), "stop does not hang");
}

#[test]
fn a_clock_that_panics_stops_the_timer() {
    struct BreakableClock(Arc<AtomicBool>, Instant);
    impl Clock for BreakableClock {
        fn now(&self) -> Duration {
            if thread::current().name() == Some("hw-broken") && self.0.load(SeqCst) {
                panic!("the clock is broken");
            }
            self.1.elapsed()
        }
    }
    ends(|| {
        let is_broken = Arc::new(AtomicBool::new(false));
        let clock = BreakableClock(Arc::clone(&is_broken), Instant::now());
        let timer = HashedWheelTimer::builder()
            .tick(ms(1))
            .thread_name("hw-broken")
            .clock(clock)
            .build()
            .unwrap();
        let never = timer.schedule(|_| (), Duration::from_secs(3_600));
        is_broken.store(true, SeqCst);
        // Wakes the worker, unless it has read the clock and stopped the timer already.
        _ = timer.new_timeout(|_| (), ms(1));
        eventually("the timer is stopped", || timer.is_stopped());
        eventually("the rest is cancelled", || never.is_cancelled());
        assert_eq!(timer.new_timeout(|_| (), ms(1)), Err(STOPPED));
        assert!(timer.stop().is_empty());
        assert!(timer.stats().panics > 0);
    });
}

// --- on time -------------------------------------------------------------------------------------

#[test]
fn timeouts_are_never_early_by_the_real_clock() {
    let timer = timer("hw-early", ms(1));
    let (fired, lateness) = channel();
    let mut random = fastrand::Rng::with_seed(3);
    const MANY: usize = if cfg!(miri) { 100 } else { 3_000 };
    for _ in 0..MANY {
        let (delay, fired) = (Duration::from_micros(random.u64(0..300_000)), fired.clone());
        let begin = Instant::now();
        let task = move |_: &Timeout| fired.send((delay, begin.elapsed())).unwrap_or(());
        timer.schedule(task, delay);
    }
    for _ in 0..MANY {
        let (delay, took) = lateness.recv_timeout(TEST_TIMEOUT).unwrap();
        assert!(took >= delay, "asked for {delay:?}, fired after {took:?}");
    }
}

#[test]
fn a_reset_timeout_is_never_early_by_the_real_clock() {
    let timer = timer("hw-reset", ms(1));
    let (fired, lateness) = channel();
    let last = Arc::new(Mutex::new(Instant::now()));
    let seen = last.clone();
    let task = move |_: &Timeout| fired.send(seen.lock().unwrap().elapsed()).unwrap();
    let timeout = timer.schedule(task, ms(20));
    // Resets to later and to earlier deadlines, in no particular order.
    for delay in [25, 30, 10, 40, 5, 35, 30, 20].map(ms) {
        // Under the lock, because the timeout may fire before `last` is written.
        let mut last = last.lock().unwrap();
        let begin = Instant::now();
        if !timeout.reset(delay) {
            break;
        }
        *last = begin + delay - ms(20);
        drop(last);
        sleep(ms(3));
    }
    assert!(lateness.recv_timeout(TEST_TIMEOUT).unwrap() >= ms(20));
}

#[test]
fn a_tick_of_one_microsecond_works() {
    const COUNT: u64 = if cfg!(miri) { 100 } else { 1_000 };

    let timer = timer("hw-micro", Duration::from_micros(1));
    let (fired, lateness) = channel();
    for delay in (0..COUNT).map(|n| Duration::from_micros(n * 7)) {
        let (fired, begin) = (fired.clone(), Instant::now());
        let task = move |_: &Timeout| fired.send((delay, begin.elapsed())).unwrap();
        timer.schedule(task, delay);
    }
    for _ in 0..COUNT {
        let (delay, took) = lateness.recv_timeout(TEST_TIMEOUT).unwrap();
        assert!(took >= delay, "asked for {delay:?}, fired after {took:?}");
    }
    // It wakes to reclaim what has ended, and then no more.
    wait_until_idle(&timer);
}

#[test]
fn the_worker_sleeps_when_the_clock_is_at_its_maximum() {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1));
    let builder = HashedWheelTimer::builder()
        .tick(Duration::from_micros(1))
        .clock(clock.clone());
    let timer = builder.build().unwrap();
    clock.advance(Duration::MAX);
    let late = timer.schedule(|_| (), ms(5));
    sleep(ms(200));
    assert!(timer.stats().wake_ups < 100, "{:?}", timer.stats());
    assert_eq!(ends(move || timer.stop()), [late]);
}

#[test]
fn many_timeouts_due_at_once_all_fire() {
    let timer = timer("hw-many", ms(10));
    let fired = Arc::new(AtomicUsize::new(0));
    const MANY: usize = if cfg!(miri) { 100 } else { 350_000 };
    let begin = Instant::now();
    for _ in 0..MANY {
        let fired = fired.clone();
        let delay = ms(500).saturating_sub(begin.elapsed());
        let task = move |_: &Timeout| {
            fired.fetch_add(1, SeqCst);
        };
        timer.schedule(task, delay);
    }
    eventually("all timeouts fire", || fired.load(SeqCst) == MANY);
    assert!(begin.elapsed() >= ms(500));
    assert_eq!(timer.pending_timeouts(), 0);
}

#[test]
fn the_worker_catches_up_after_a_slow_task() {
    let clock = ManualClock::new();
    let timer = built(|builder| builder.tick(ms(1)).clock(clock.clone()));
    let (fired, order) = channel();
    let (gate, wait) = Gate::new();
    timer.schedule(move |_| wait(), Duration::ZERO);
    // Its tick has to come.
    clock.advance(ms(1));
    gate.wait_for_arrival();
    for name in (1..20).rev() {
        let fired = fired.clone();
        timer.schedule(move |_| fired.send(name).unwrap(), ms(4 * name));
    }
    // All of them become due while the task runs.
    clock.advance(ms(100));
    gate.open();
    let order: Vec<_> = (1..20)
        .map(|_| order.recv_timeout(TEST_TIMEOUT).unwrap())
        .collect();
    assert!(order.is_sorted(), "{order:?}");
}

// --- a worker that a task blocks -----------------------------------------------------------------

#[test]
fn cancel_does_not_wait_for_the_worker() {
    let timer = built(|builder| builder.tick(ms(1)).max_pending_timeouts(Some(2)));
    let (gate, wait) = Gate::new();
    timer.schedule(move |_| wait(), ms(0));
    let in_wheel = Ends::new();
    let timeout = timer.schedule_task(in_wheel.task(), ms(3_600_000));
    gate.wait_for_arrival();
    let in_lane = Ends::new();
    let other = timer.schedule_task(in_lane.task(), ms(3_600_000));
    assert!(timer.new_timeout(|_| (), ms(1)).is_err(), "limit reached");

    for (timeout, task_ends) in [(timeout, in_wheel), (other, in_lane)] {
        let before = timer.pending_timeouts();
        assert!(timeout.cancel());
        assert_eq!(timer.pending_timeouts(), before - 1);
        let counts = (task_ends.hooks(), task_ends.drops());
        assert_eq!(counts, (1, 1), "the task is dropped");
        assert!(
            timer.new_timeout(|_| (), ms(3_600_000)).is_ok(),
            "the cancel frees its place"
        );
    }
    gate.open();
}

#[test]
fn a_timeout_due_in_a_blocked_tick_can_still_be_cancelled() {
    let timer = timer("hw-blocked", ms(50));
    let (gate, wait) = Gate::new();
    let task_ends = Ends::new();
    // Both are scheduled within microseconds. If a tick boundary falls between them, the second is
    // due later and the test still holds.
    timer.schedule(move |_| wait(), ms(100));
    let second = timer.schedule_task(task_ends.task(), ms(100));
    gate.wait_for_arrival();
    assert!(second.cancel());
    gate.open();
    assert!(timer.stop().is_empty());
    assert_eq!((task_ends.runs(), task_ends.hooks()), (0, 1));
}

#[test]
fn stop_waits_for_the_task_that_is_running_and_returns_the_rest() {
    let timer = timer("hw-stop", ms(1));
    let (gate, wait) = Gate::new();
    let finished = Arc::new(AtomicBool::new(false));
    let done = finished.clone();
    let task = move |_: &Timeout| {
        wait();
        sleep(ms(50));
        done.store(true, SeqCst);
    };
    timer.schedule(task, ms(0));
    gate.wait_for_arrival();
    let due: Vec<_> = (0..10).map(|_| timer.schedule(|_| (), ms(0))).collect();
    sleep(ms(5));
    gate.open();
    let rest = timer.stop();
    assert!(finished.load(SeqCst), "a running task is never interrupted");
    assert_eq!(
        rest.len(),
        due.iter().filter(|timeout| timeout.is_cancelled()).count()
    );
    assert_eq!(timer.pending_timeouts(), 0);
}

#[test]
fn stop_returns_timeouts_due_behind_the_running_task() {
    let timer = timer("hw-behind", ms(50));
    let (gate, wait) = Gate::new();
    timer.schedule(move |_| wait(), ms(100));
    let task_ends = Ends::new();
    let behind: Vec<_> = (0..10)
        .map(|_| timer.schedule_task(task_ends.task(), ms(100)))
        .collect();
    gate.wait_for_arrival();
    let stopper = {
        let timer = timer.clone();
        thread::spawn(move || timer.stop())
    };
    eventually("stop was called in time", || timer.is_stopped());
    gate.open();
    assert_eq!(stopper.join().unwrap().len(), behind.len());
    let counts = (task_ends.runs(), task_ends.hooks());
    assert_eq!(counts, (0, 10), "stop took effect within a tick");
}

// --- stop and drop -------------------------------------------------------------------------------

#[test]
fn one_of_two_concurrent_stops_returns_all_and_the_other_waits() {
    for _ in 0..if cfg!(miri) { 3 } else { 50 } {
        let timer = timer("hw-two", ms(1));
        let timeouts: Vec<_> = (0..if cfg!(miri) { 10 } else { 100 })
            .map(|_| timer.schedule(|_| (), ms(60_000)))
            .collect();
        let stoppers: Vec<_> = (0..2)
            .map(|_| {
                let timer = timer.clone();
                thread::spawn(move || {
                    let rest = timer.stop();
                    assert_eq!(timer.pending_timeouts(), 0, "the timer has ended");
                    rest
                })
            })
            .collect();
        let mut rests: Vec<_> = stoppers
            .into_iter()
            .map(|stopper| stopper.join().unwrap())
            .collect();
        rests.sort_by_key(Vec::len);
        let [nothing, rest] = &rests[..] else {
            unreachable!()
        };
        assert_eq!((nothing.len(), rest.len()), (0, timeouts.len()));
        assert!(timeouts.iter().all(|timeout| rest.contains(timeout)));
    }
}

/// A value that a task stores in a thread-local of the worker is dropped after the worker's last
/// turn.
#[test]
fn a_thread_local_of_the_worker_may_stop_the_timer() {
    struct Leftover(HashedWheelTimer);

    impl Drop for Leftover {
        fn drop(&mut self) {
            assert!(self.0.stop().is_empty(), "the first has returned all");
            assert_eq!(self.0.pending_timeouts(), 0, "the timer has ended");
            // On Windows a thread cannot begin while another one drops its thread-locals.
            if cfg!(windows) {
                return;
            }
            // The same from another thread. The worker waits for that thread while the first stop
            // waits for the worker.
            let timer = self.0.clone();
            assert!(
                thread::spawn(move || timer.stop())
                    .join()
                    .unwrap()
                    .is_empty()
            );
            assert!(self.0.begin_stop().wait().is_empty());
        }
    }

    thread_local!(static LEFTOVER: RefCell<Option<Leftover>> = const { RefCell::new(None) });

    ends(|| {
        let timer = timer("hw-leftover", ms(1));
        let (handle, (stored, is_stored)) = (timer.clone(), channel());
        let task = move |_: &Timeout| {
            LEFTOVER.set(Some(Leftover(handle)));
            stored.send(()).unwrap();
        };
        timer.schedule(task, ms(1));
        is_stored.recv().unwrap();
        let far = timer.schedule(|_| (), ms(60_000));
        assert_eq!(timer.stop(), [far]);
    });
}

/// The stack of a thread that is neither joined nor detached stays mapped as long as its handle
/// exists.
#[test]
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[cfg_attr(miri, ignore = "Miri starts no processes")]
fn a_timeout_does_not_keep_the_worker_that_a_task_has_stopped() {
    const STACK: usize = 1 << 28;
    const TIMERS: usize = 50;
    const CHILD: &str = "HASHED_WHEEL_TEST_STACKS";
    if std::env::var_os(CHILD).is_none() {
        // The child process uses thread stacks large enough to be visible in its memory.
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "threads::a_timeout_does_not_keep_the_worker_that_a_task_has_stopped",
                "--exact",
                "--test-threads=1",
            ])
            .env("RUST_MIN_STACK", STACK.to_string())
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_passed(&output);
        return;
    }
    let mapped = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmSize"))
            .unwrap();
        1024 * line
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<usize>()
            .unwrap()
    };
    // Compare with the value before, because a sanitizer maps terabytes at the start.
    let before = mapped();
    let kept: Vec<_> = (0..TIMERS)
        .map(|_| {
            let timer = timer("hw-kept", ms(1));
            let handle = timer.clone();
            let timeout = timer.schedule(move |_| drop(handle), ms(1));
            drop(timer);
            timeout
        })
        .collect();
    eventually("all tasks have run", || {
        kept.iter().all(Timeout::is_expired)
    });
    // The C library keeps some stacks, and heaps for threads. They take less than half of this.
    eventually("the stacks are unmapped", || {
        mapped() < before + STACK * TIMERS / 2
    });
    drop(kept);
}

#[test]
fn an_idle_timer_with_a_long_tick_stops_immediately() {
    ends(|| {
        let started = timer("hw-60s", Duration::from_secs(60));
        started.start().unwrap();
        sleep(ms(20));
        assert!(started.stop().is_empty());

        // A worker that has processed messages and therefore sleeps until the next tick.
        let busy = timer("hw-60s-busy", Duration::from_secs(60));
        busy.schedule(|_| (), ms(1));
        sleep(ms(20));
        assert_eq!(busy.stop().len(), 1);

        let dropped = timer("hw-60s-drop", Duration::from_secs(60));
        dropped.schedule(|_| (), ms(1));
        drop(dropped);
    });
}

#[test]
fn stop_inside_a_task_panics_and_the_worker_continues() {
    let timer = timer("hw-inside", ms(1));
    quietly(|| {
        let (panicked, wait) = channel();
        let task = move |timeout: &Timeout| {
            let timer = timeout.timer();
            let outcome = quietly(|| std::panic::catch_unwind(|| timer.stop()));
            panicked.send(outcome.is_err()).unwrap();
        };
        timer.schedule(task, ms(1));
        assert!(wait.recv_timeout(TEST_TIMEOUT).unwrap());
    });
    let (fired, wait) = channel();
    timer.schedule(move |_| fired.send(()).unwrap(), ms(1));
    wait.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(!timer.is_stopped());
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn the_last_handle_dropped_inside_a_task_ends_the_thread() {
    let timer = timer("hw-last", ms(1));
    let task_ends = Ends::new();
    let far = timer.schedule_task(task_ends.task(), ms(3_600_000));
    let last = timer.clone();
    let (dropped, wait) = channel();
    let task = move |_: &Timeout| {
        drop(last);
        dropped.send(()).unwrap();
    };
    timer.schedule(task, ms(5));
    drop(timer);
    wait.recv_timeout(TEST_TIMEOUT)
        .expect("the drop does not wait for the worker itself");
    eventually("the worker thread ends", || {
        linux::find("hw-last").is_none()
    });
    assert!(far.is_cancelled());
    assert_eq!((task_ends.hooks(), task_ends.drops()), (1, 1));
}

#[test]
fn a_timeout_outlives_its_timer() {
    let timeout = timer("hw-outlived", ms(1)).schedule(|_| (), ms(60_000));
    assert!(timeout.is_cancelled());
    assert!(!timeout.cancel() && !timeout.reset(ms(1)));
    assert!(timeout.timer().stop().is_empty());
}
