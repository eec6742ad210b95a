//! Replays the corpora of the fuzzers without a fuzzer. Each input of a corpus covers code that no
//! other input covers. `tests/fuzz/run` finds more inputs.

#[path = "../../../tests/fuzz/bytes.rs"]
mod bytes;
#[path = "../../../tests/it/common/mod.rs"]
mod common;
#[path = "../../../tests/fuzz/timer.rs"]
mod timer;
#[path = "../../../tests/fuzz/wheels.rs"]
mod wheels;

use std::thread;

/// Prints the input if the test fails.
struct Report {
    corpus: &'static str,
    line: usize,
}

impl Drop for Report {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self { corpus, line } = self;
            eprintln!("The input in line {line} of tests/fuzz/{corpus} has failed.");
        }
    }
}

/// Runs the input in each line, which consists of hexadecimal digits.
fn replay(corpus: &'static str, lines: &str, run: fn(&[u8])) {
    let mut report = Report { corpus, line: 0 };
    for line in lines.lines() {
        report.line += 1;
        let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        let input: Vec<u8> = (0..line.len()).step_by(2).map(byte).collect();
        run(&input);
    }
    assert!(report.line > 0, "{corpus} is empty");
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn the_wheels_agree_with_a_model() {
    replay(
        "wheels.hex",
        include_str!("../../../tests/fuzz/wheels.hex"),
        wheels::run,
    );
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn a_driven_timer_agrees_with_a_model() {
    replay(
        "timer.hex",
        include_str!("../../../tests/fuzz/timer.hex"),
        timer::run,
    );
}
