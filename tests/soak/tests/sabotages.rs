//! Runs the program as a user would, also with intentional errors.

use hashed_wheel_trial::testing::{self, RunResult};

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_soak"), options)
}

/// Two bursts: one is cancelled, one fires. Large limits, because memory use does not reach its
/// plateau in so short a time, and a busy machine delays what is left before the last pause. The
/// bursts are larger in `.ci/deep`.
#[test]
fn each_timeout_is_accounted_for_and_memory_returns() {
    let burst_size = if testing::is_deep() {
        1_000_000
    } else {
        250_000
    };
    let bursts = format!("--bursts 2 --burst-size {burst_size}");
    let limits = "--max-growth 400 --reserve 200 --max-late 60s";
    let options = format!("--duration 5s --producers 3 {bursts} --quiet 6s {limits}");
    let RunResult { status, text } = run(&options);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("PASS"), "{text}");
}

#[track_caller]
fn fails(sabotage: &str, options: &str, why: &str) {
    fails_for_all(sabotage, options, &[why]);
}

#[track_caller]
fn fails_for_all(sabotage: &str, options: &str, reasons: &[&str]) {
    let options = format!("--producers 2 --sabotage {sabotage} --bursts 0 --quiet 1s {options}");
    let RunResult {
        mut status,
        mut text,
    } = run(&options);
    // On a busy machine, a second may be too short for what is wrong to happen.
    if !reasons.iter().all(|why| text.contains(why)) {
        RunResult { status, text } = run(&options.replace("--duration 1s", "--duration 10s"));
    }
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL"), "{text}");
    reasons
        .iter()
        .for_each(|why| assert!(text.contains(why), "{why}: {text}"));
}

#[test]
fn lost_cancel_is_detected() {
    fails(
        "lost-cancel",
        "--duration 1s --max-growth 400",
        "Plain: [(Expired, 0), (Cancelled, 0)",
    );
}

#[test]
fn lost_task_is_detected() {
    fails(
        "lost-task",
        "--duration 1s --max-growth 400",
        "not accounted for: Plain",
    );
}

#[test]
fn lost_value_is_detected() {
    fails(
        "lost-value",
        "--duration 1s --max-growth 400",
        "not accounted for: Queue",
    );
}

#[test]
#[cfg(target_os = "linux")]
fn timer_that_does_not_sleep_is_detected() {
    fails(
        "busy",
        "--duration 1s --max-growth 400",
        "wake-ups per second in the last pause",
    );
}

#[test]
#[cfg(target_os = "linux")]
fn leak_is_detected() {
    fails("leak", "--duration 3s --max-growth 10", "memory grew");
}

#[test]
#[cfg(target_os = "linux")]
fn memory_that_does_not_return_is_detected() {
    let options = "--producers 2 --sabotage hoard --duration 2s --bursts 1 --burst-size 500000 --quiet 5s --max-growth 400";
    let RunResult { status, text } = run(options);
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("more than 32 MiB were not returned after the last pause"),
        "{text}"
    );
}

#[test]
#[cfg(target_os = "linux")]
fn leftover_thread_is_detected() {
    fails(
        "thread",
        "--duration 1s --max-growth 400",
        "threads are left",
    );
}

#[test]
fn late_timeouts_are_detected() {
    fails(
        "stall",
        "--duration 2s --max-growth 400 --max-late 200ms",
        "Plain: expired",
    );
}

#[test]
fn waker_that_is_not_called_is_detected() {
    let reasons = ["Sleep: has not expired", "Interval: has not expired"];
    fails_for_all(
        "lost-wake",
        "--duration 1s --max-growth 400 --max-late 500ms",
        &reasons,
    );
}

/// The checks do not rely on the deadlines that the timer reports.
#[test]
fn early_runs_and_values_are_detected() {
    let reasons = [
        "Periodic: expired early",
        "Interval: expired early",
        "Queue: expired early",
    ];
    fails_for_all("half", "--duration 1s --max-growth 400", &reasons);
}

/// Of each kind of map with keys, of a queue, and of schedules.
#[test]
fn entry_that_does_not_expire_is_detected() {
    let reasons = [
        "Map: has not expired",
        "Batched: has not expired",
        "Received: has not expired",
        "due values were not received",
        "Periodic: has not expired",
        "Interval: has not expired",
    ];
    fails_for_all(
        "late",
        "--duration 1s --max-growth 400 --max-late 500ms",
        &reasons,
    );
}

#[test]
fn overlapping_runs_are_detected() {
    fails(
        "overlap",
        "--duration 1s --max-growth 400",
        "overlapping runs",
    );
}

#[test]
fn wrong_number_of_runs_is_detected() {
    fails(
        "extra-run",
        "--duration 1s --max-growth 400",
        "end: Expired",
    );
}

#[test]
#[cfg(target_os = "linux")]
fn too_many_threads_are_detected() {
    fails(
        "threads",
        "--duration 1s --max-growth 400",
        "threads at once",
    );
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [
        ("--duration 0s", "'--duration <TIME>'"),
        ("--producers 0", "'--producers <N>'"),
        ("--burst-size 0", "'--burst-size <N>'"),
        ("--quiet -1", "'-1'"),
        ("--bursts 2000", "'--bursts <N>': 2000 is not in 0..=1000"),
    ] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
