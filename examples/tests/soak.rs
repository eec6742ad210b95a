//! Runs the program as a user would, and as one who breaks something.

use hashed_wheel_examples::testing::{self, Ran};

fn run(options: &str) -> Ran {
    testing::run(env!("CARGO_BIN_EXE_soak"), options)
}

/// In so short a time it does not get warm.
#[test]
fn each_timeout_is_accounted_for() {
    let Ran { status, text } = run("--seconds 3 --producers 3 --max-growth 400 --max-late 60000");
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("PASS"), "{text}");
}

#[track_caller]
fn fails(sabotage: &str, options: &str, why: &str) {
    let Ran { status, text } = run(&format!("--producers 2 --sabotage {sabotage} {options}"));
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL") && text.contains(why), "{why}: {text}");
}

#[test]
fn a_lost_cancel_is_noticed() {
    fails("lost-cancel", "--seconds 1 --max-growth 400", "one that ended 0 times");
}

#[test]
fn a_lost_task_is_noticed() {
    fails("lost-task", "--seconds 1 --max-growth 400", "opened and ended");
}

#[test]
#[cfg(target_os = "linux")]
fn a_leak_is_noticed() {
    fails("leak", "--seconds 3 --max-growth 10", "memory grew");
}

#[test]
#[cfg(target_os = "linux")]
fn a_thread_that_is_left_is_noticed() {
    fails("thread", "--seconds 1 --max-growth 400", "threads are left");
}

#[test]
fn what_is_late_is_noticed() {
    fails("stall", "--seconds 2 --max-growth 400 --max-late 200", "late");
}

#[test]
fn bad_options_get_a_reason_and_status_2() {
    for (options, reason) in [("--seconds 0", "'--seconds <S>'"), ("--producers 0", "'--producers <N>'")] {
        let Ran { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
