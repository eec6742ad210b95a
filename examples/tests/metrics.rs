//! Runs the program as a user would.

use std::process::{Command, Output};

fn run(options: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_metrics")).args(options.split_whitespace()).output().unwrap()
}

fn text(output: &Output) -> String {
    let [said, complained] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{said}{complained}")
}

#[test]
fn the_page_says_what_the_timer_does() {
    let output = run("--requests 12000 --connections 3 --page");
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for line in [
        "# TYPE hashed_wheel_pending gauge",
        "hashed_wheel_reset_total{timer=\"requests\"} 36000",
        "hashed_wheel_lateness_seconds_bucket{timer=\"requests\",le=\"+Inf\"}",
        "PASS",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn bad_options_get_a_reason_and_status_2() {
    for (options, reason) in
        [("--requests 0", "'--requests <N>'"), ("--connections 65", "'--connections <N>'")]
    {
        let output = run(options);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}
