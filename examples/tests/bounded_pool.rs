//! Runs the program as a user would.

use hashed_wheel_examples::testing::{self, Ran};

fn run(options: &str) -> Ran {
    testing::run(env!("CARGO_BIN_EXE_bounded_pool"), options)
}

/// Of a line of the table: refusals, ran in the pool, on the worker, dropped, cancelled, stopped, sum.
fn counts(text: &str, way: &str) -> [u64; 7] {
    let line = text.lines().find_map(|line| line.strip_prefix(way)).expect(way);
    let counts: Vec<_> = line.split_whitespace().map(|count| count.parse().unwrap()).collect();
    counts.try_into().unwrap()
}

#[test]
fn whatever_the_pool_refuses_is_accounted_for() {
    let Ran { status, text } = run("--timeouts 500 --queue 10");
    assert_eq!(status, Some(0), "{text}");
    assert!(text.ends_with("PASS\n"), "{text}");

    for way in ["drop it", "run it on the worker", "ask again later"] {
        let [refusals, in_pool, on_worker, dropped, cancelled, stopped, sum] = counts(&text, way);
        assert!(refusals > 0, "{text}");
        assert_eq!((cancelled, stopped, sum), (50, 50, 500), "{text}");
        assert_eq!(in_pool + on_worker + dropped, 400, "{text}");
        match way {
            "drop it" => assert_eq!((on_worker, dropped), (0, refusals), "{text}"),
            "run it on the worker" => assert_eq!((on_worker, dropped), (refusals, 0), "{text}"),
            _ => assert_eq!(in_pool, 400, "{text}"),
        }
    }
}

/// It would show nothing.
#[test]
fn a_pool_that_takes_all_is_a_failure() {
    let Ran { status, text } = run("--timeouts 10 --queue 100 --work 1");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAIL") && text.contains("drop it: the pool refused nothing"), "{text}");
}

#[test]
fn bad_options_get_a_reason_and_status_2() {
    for (options, reason) in [("--timeouts 9", "'--timeouts <N>'"), ("--queue 0", "'--queue <N>'")] {
        let Ran { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
