//! Replays the corpus of a fuzzer without a fuzzer.

/// Runs the input in each line, which consists of hexadecimal digits. If one fails, the harness
/// prints the lines up to it.
pub(crate) fn replay(corpus: &'static str, lines: &str, run: fn(&[u8])) {
    assert!(!lines.is_empty(), "{corpus} is empty");
    for (number, line) in (1..).zip(lines.lines()) {
        println!("line {number} of tests/fuzz/{corpus}");
        let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        let input: Vec<u8> = (0..line.len()).step_by(2).map(byte).collect();
        run(&input);
    }
}
