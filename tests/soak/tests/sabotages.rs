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
    let options = format!("--duration 5s --producers 3 {bursts} --quiet 12s {limits}");
    let RunResult { status, text } = run(&options);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("PASS"), "{text}");
}

/// Runs with this sabotage for a time, perhaps with more options. An option that is given twice has
/// its last value.
#[track_caller]
fn fails(sabotage: &str, time_and_options: &str, reasons: &[&str]) {
    let options = format!(
        "--producers 2 --bursts 0 --quiet 1s --max-growth 400 --sabotage {sabotage} --duration "
    );
    let run = |time_and_options: &str| run(&(options.clone() + time_and_options));
    let RunResult {
        mut status,
        mut text,
    } = run(time_and_options);
    // On a busy machine, a second may be too short for what is wrong to happen.
    if !reasons.iter().all(|why| text.contains(why)) {
        RunResult { status, text } = run(&time_and_options.replacen("1s", "10s", 1));
    }
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL"), "{text}");
    reasons
        .iter()
        .for_each(|why| assert!(text.contains(why), "{why}: {text}"));
}

macro_rules! sabotages {
    ($($(#[$cfg:meta])? $name:ident: $sabotage:literal, $options:literal => [$($why:literal),+];)*) => {$(
        #[test]
        $(#[$cfg])?
        fn $name() {
            fails($sabotage, $options, &[$($why),+]);
        }
    )*};
}

sabotages! {
    lost_cancel_is_detected: "lost-cancel", "1s" => ["Plain: [(Expired, 0), (Cancelled, 0)"];
    lost_task_is_detected: "lost-task", "1s" => ["not accounted for: Plain"];
    lost_value_is_detected: "lost-value", "1s" => ["not accounted for: Queue"];
    #[cfg(target_os = "linux")]
    timer_that_does_not_sleep_is_detected: "busy", "1s" => ["wake-ups per second in the last pause"];
    #[cfg(target_os = "linux")]
    leak_is_detected: "leak", "3s --max-growth 10" => ["memory grew"];
    #[cfg(target_os = "linux")]
    memory_that_does_not_return_is_detected:
        "hoard", "2s --bursts 1 --burst-size 500000 --quiet 5s"
        => ["more than 32 MiB were not returned after the last pause"];
    #[cfg(target_os = "linux")]
    leftover_thread_is_detected: "thread", "1s" => ["threads are left"];
    late_timeouts_are_detected: "stall", "2s --max-late 200ms" => ["Plain: expired"];
    waker_that_is_not_called_is_detected: "lost-wake", "1s --max-late 500ms"
        => ["Sleep: has not expired", "Interval: has not expired"];
    // The checks do not rely on the deadlines that the timer reports.
    early_runs_and_values_are_detected: "half", "1s"
        => ["Periodic: expired early", "Interval: expired early", "Queue: expired early"];
    // Of each kind of map with keys, of a queue, and of schedules.
    entry_that_does_not_expire_is_detected: "late", "1s --max-late 500ms"
        => ["Map: has not expired", "Batched: has not expired", "Received: has not expired",
            "due values were not received", "Periodic: has not expired",
            "Interval: has not expired"];
    overlapping_runs_are_detected: "overlap", "1s" => ["overlapping runs"];
    wrong_number_of_runs_is_detected: "extra-run", "1s" => ["end: Expired"];
    #[cfg(target_os = "linux")]
    too_many_threads_are_detected: "threads", "1s" => ["threads at once"];
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
