//! Text for a terminal: that of users, and counts.

use std::fmt::{self, Display};
use std::io::{self, ErrorKind, Write};
use std::process;

/// Returns the text with escapes instead of the characters that a terminal may obey, or that would
/// look like the next line: all control characters, and those that change the direction of text.
pub(crate) fn escaped(text: &str) -> String {
    let is_obeyed = |character: char| {
        character.is_control()
            || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_obeyed(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// A number of runs.
pub(crate) struct Runs(pub(crate) u64);

impl Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} run{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// Prints a line. If the reader has ended, as in `job-scheduler runs | head -1`, so does this: what
/// it had to change is changed before it prints.
pub(crate) fn print(line: &str) {
    let Err(error) = writeln!(io::stdout(), "{}", escaped(line)) else {
        return;
    };
    if error.kind() == ErrorKind::BrokenPipe {
        process::exit(0);
    }
    let _ = writeln!(io::stderr(), "cannot write the output: {error}");
    process::exit(1)
}

/// Prints a line.
macro_rules! print_line {
    ($($argument:tt)*) => {
        $crate::text::print(&format!($($argument)*))
    };
}

pub(crate) use print_line;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_terminal_obeys_is_escaped() {
        for (text, shown) in [
            ("send-mail, größer, 宛先, 🙂", "send-mail, größer, 宛先, 🙂"),
            (r#"{"a":"\n"}"#, r#"{"a":"\n"}"#),
            ("\u{1b}[31mred\u{7}", r"\u{1b}[31mred\u{7}"),
            ("one\r\ntwo\tthree\0\u{7f}", r"one\r\ntwo\tthree\u{0}\u{7f}"),
            ("\u{9b}2J", r"\u{9b}2J"),
            (
                "\u{61c}\u{2028}\u{202e}abc\u{2069}",
                r"\u{61c}\u{2028}\u{202e}abc\u{2069}",
            ),
        ] {
            assert_eq!(escaped(text), shown);
        }
    }
}
