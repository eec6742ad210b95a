//! Runs the program as a user would, also with intentional errors.

use hashed_wheel_examples::testing::{self, RunResult};

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_soak"), options)
}

/// A large growth limit, because memory use does not reach its plateau in so short a time.
#[test]
fn each_timeout_is_accounted_for() {
    let RunResult { status, text } = run("--seconds 3 --producers 3 --max-growth 400 --max-late 60000");
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("PASS"), "{text}");
}

#[track_caller]
fn fails(sabotage: &str, options: &str, why: &str) {
    let RunResult { status, text } = run(&format!("--producers 2 --sabotage {sabotage} {options}"));
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL") && text.contains(why), "{why}: {text}");
}

#[test]
fn lost_cancel_is_detected() {
    fails("lost-cancel", "--seconds 1 --max-growth 400", "a timeout ended 0 times");
}

#[test]
fn lost_task_is_detected() {
    fails("lost-task", "--seconds 1 --max-growth 400", "scheduled and ended");
}

#[test]
#[cfg(target_os = "linux")]
fn leak_is_detected() {
    fails("leak", "--seconds 3 --max-growth 10", "memory grew");
}

#[test]
#[cfg(target_os = "linux")]
fn leftover_thread_is_detected() {
    fails("thread", "--seconds 1 --max-growth 400", "threads are left");
}

#[test]
fn late_timeouts_are_detected() {
    fails("stall", "--seconds 2 --max-growth 400 --max-late 200", "late");
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [("--seconds 0", "'--seconds <S>'"), ("--producers 0", "'--producers <N>'")] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
