//! Reads the pages.

use std::fs;
use std::path::Path;

/// Returns the text of a page of this crate.
pub(crate) fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("the page exists")
}

/// Returns all code blocks whose line of the opening fence is `fence`.
pub(crate) fn blocks<'a>(text: &'a str, fence: &str) -> Vec<&'a str> {
    let parts = text.split(&format!("```{fence}\n")).skip(1).collect::<Vec<_>>();
    parts.into_iter().map(|rest| rest.split_once("```").expect("the block ends").0).collect()
}

/// Returns the text with one occurrence of `from` replaced.
pub(crate) fn replace_once(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from} occurs once in:\n{text}");
    text.replace(from, to)
}
