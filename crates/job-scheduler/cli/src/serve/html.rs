//! HTML text. Only literals of this program become markup: everything else is escaped.

use std::fmt::{self, Display, Write};

use hashed_wheel_job_scheduler::RunState;
use hashed_wheel_job_scheduler::jiff::Timestamp;

use crate::time::Rounded;

/// A part of a page.
#[derive(Debug, Default)]
pub(crate) struct Html(String);

/// Appends to a part of a page: literals as they are, and values in braces escaped.
macro_rules! put {
    ($html:expr, $($part:tt)+) => {{ $(put!(@ $html, $part);)+ }};
    (@ $html:expr, { $text:expr }) => { $html.text($text) };
    (@ $html:expr, $markup:literal) => { $html.markup($markup) };
}
pub(crate) use put;

impl Html {
    /// Appends markup. It must not contain data, therefore it is static.
    pub(crate) fn markup(&mut self, markup: &'static str) {
        self.0.push_str(markup);
    }

    /// Appends a text for the content of an element, or for an attribute in double quotes.
    pub(crate) fn text(&mut self, text: impl Display) {
        write!(Escape(&mut self.0), "{text}").expect("a string takes all texts");
    }

    /// Appends another part.
    pub(crate) fn part(&mut self, part: &Self) {
        self.0.push_str(&part.0);
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

struct Escape<'a>(&'a mut String);

impl Write for Escape<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                _ => self.0.push(character),
            }
        }
        Ok(())
    }
}

/// A value in the query of a URL.
pub(crate) struct InQuery<'a>(pub(crate) &'a str);

impl Display for InQuery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                f.write_char(byte.into())
            }
            _ => write!(f, "%{byte:02X}"),
        })
    }
}

/// At most `length` characters of a text, with a mark where it is cut. The rest is not even written:
/// a document of some megabytes may need a hundred times as much with its indentation.
pub(crate) struct Cut<T>(pub(crate) T, pub(crate) usize);

impl<T: Display> Display for Cut<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cutter = Cutter {
            target: f,
            left: self.1,
            is_cut: false,
        };
        match write!(cutter, "{}", self.0) {
            Err(_) if cutter.is_cut => f.write_char('…'),
            result => result,
        }
    }
}

/// Fails at the first character that is too much.
struct Cutter<'a, 'b> {
    target: &'a mut fmt::Formatter<'b>,
    left: usize,
    is_cut: bool,
}

impl Write for Cutter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if let Some((end, _)) = text.char_indices().nth(self.left) {
            self.is_cut = true;
            self.target.write_str(&text[..end])?;
            return Err(fmt::Error);
        }
        self.left -= text.chars().count();
        self.target.write_str(text)
    }
}

/// Appends how far a time is from `now`, with the time itself as a tip.
pub(crate) fn put_time(html: &mut Html, time: Timestamp, now: Timestamp) {
    let distance = time.duration_since(now);
    put!(html, "<time datetime=\"" {time} "\" title=\"" {format_args!("{time:.3}")} "\">");
    let rounded = Rounded(distance.unsigned_abs());
    if distance.is_negative() {
        put!(html, {rounded} " ago");
    } else {
        put!(html, "in " {rounded});
    }
    put!(html, "</time>");
}

/// Appends how far a time is from `now`, and the time itself.
pub(crate) fn put_exact_time(html: &mut Html, time: Timestamp, now: Timestamp) {
    put_time(html, time, now);
    put!(html, " <span class=\"faint\">" {format_args!("{time:.3}")} "</span>");
}

/// Appends a time that may not exist.
pub(crate) fn put_time_or_none(html: &mut Html, time: Option<Timestamp>, now: Timestamp) {
    match time {
        Some(time) => put_time(html, time, now),
        None => put!(html, "<span class=\"faint\">none</span>"),
    }
}

/// Appends the state of a run as a badge.
pub(crate) fn put_run_state(html: &mut Html, state: RunState) {
    let class = match state {
        RunState::Running => " active",
        RunState::Blocked => " warn",
        RunState::Done => " good",
        RunState::Failed | RunState::Abandoned => " bad",
        _ => "",
    };
    put!(html, "<b class=\"badge" {class} "\">" {state} "</b>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_markup_is_not() {
        let mut html = Html::default();
        put!(html, "<p title=\"" {"\"'&"} "\">" {"<script>"} "</p>");
        assert_eq!(
            html.into_string(),
            "<p title=\"&quot;&#39;&amp;\">&lt;script&gt;</p>"
        );
    }

    #[test]
    fn values_in_queries_are_escaped() {
        assert_eq!(
            InQuery("a b&c=ö/\"").to_string(),
            "a%20b%26c%3D%C3%B6%2F%22"
        );
    }

    #[test]
    fn text_is_cut_at_a_character() {
        assert_eq!(Cut("äöü", 2).to_string(), "äö…");
        assert_eq!(Cut("äö", 2).to_string(), "äö");
    }

    /// It has no end.
    struct Endless;

    impl Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            loop {
                f.write_str("äö")?;
            }
        }
    }

    #[test]
    fn text_is_not_written_after_its_cut() {
        assert_eq!(Cut(Endless, 3).to_string(), "äöä…");
        assert_eq!(Cut(Endless, 4).to_string(), "äöäö…");
    }
}
