//! Runs the program as a user would.

use hashed_wheel_trial::testing::{self, RunResult};

fn run(options: &str) -> RunResult {
    testing::run(env!("CARGO_BIN_EXE_bounded_pool"), options)
}

/// Returns the counts in a line of the table: rejections, run in the pool, run on the worker,
/// dropped, cancelled, stopped, sum.
fn counts(text: &str, way: &str) -> [u64; 7] {
    let line = text.lines().find_map(|line| line.strip_prefix(way)).expect(way);
    let counts: Vec<_> = line.split_whitespace().map(|count| count.parse().unwrap()).collect();
    counts.try_into().unwrap()
}

#[test]
fn all_rejected_tasks_are_counted() {
    let RunResult { status, text } = run("--timeouts 500 --queue 10");
    assert_eq!(status, Some(0), "{text}");
    assert!(text.ends_with("PASS\n"), "{text}");

    for way in ["drop it", "run it on the worker", "try again later"] {
        let [rejections, in_pool, on_worker, dropped, cancelled, stopped, sum] = counts(&text, way);
        assert!(rejections > 0, "{text}");
        assert_eq!((cancelled, stopped, sum), (50, 50, 500), "{text}");
        assert_eq!(in_pool + on_worker + dropped, 400, "{text}");
        match way {
            "drop it" => assert_eq!((on_worker, dropped), (0, rejections), "{text}"),
            "run it on the worker" => assert_eq!((on_worker, dropped), (rejections, 0), "{text}"),
            _ => assert_eq!(in_pool, 400, "{text}"),
        }
    }
}

/// A test without rejections would show nothing.
#[test]
fn run_without_rejections_fails() {
    let RunResult { status, text } = run("--timeouts 10 --queue 100 --work 1ms");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL") && text.contains("drop it: the pool rejected nothing"), "{text}");
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [("--timeouts 9", "'--timeouts <N>'"), ("--queue 0", "'--queue <N>'")] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
