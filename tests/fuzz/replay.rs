//! Replays the corpus of a fuzzer without a fuzzer.

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
pub(crate) fn replay(corpus: &'static str, lines: &str, run: fn(&[u8])) {
    let mut report = Report { corpus, line: 0 };
    for line in lines.lines() {
        report.line += 1;
        let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        let input: Vec<u8> = (0..line.len()).step_by(2).map(byte).collect();
        run(&input);
    }
    assert!(report.line > 0, "{corpus} is empty");
}
