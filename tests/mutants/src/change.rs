//! Changes of a text.

use std::ops::Range;

/// A change of a text.
#[derive(Debug)]
pub struct Change {
    /// The bytes that change.
    pub range: Range<usize>,
    /// What comes before and after them.
    pub before: String,
    pub after: &'static str,
    /// Whether they are left out, apart from the ends of lines.
    pub is_removed: bool,
}

impl Change {
    /// Replaces an expression where the condition holds; or inserts a statement, if the range is
    /// empty.
    pub fn switched(range: Range<usize>, condition: &str, replacement: &str) -> Self {
        let branch = format!("if {condition} {{ {replacement} }}");
        let (before, after) = if range.is_empty() {
            (format!("{branch}; "), "")
        } else {
            (format!("({branch} else {{ "), " })")
        };
        Self {
            range,
            before,
            after,
            is_removed: false,
        }
    }
}

/// Makes changes of a text. Each line keeps its number, unless a change adds lines. Several changes
/// may concern the same part, or one of them a part of another one.
pub fn apply(text: &str, changes: &[Change]) -> String {
    // In this order at one position: ends of parts (inner parts first), what is inserted,
    // beginnings of parts (outer parts first).
    let mut inserts = Vec::new();
    for (number, change) in (0..).zip(changes) {
        let (range, length) = (&change.range, change.range.len() as isize);
        let before = change.before.as_str();
        if range.is_empty() {
            inserts.push((range.start, 1, 0, number, before));
        } else {
            inserts.push((range.start, 2, -length, number, before));
            inserts.push((range.end, 0, length, -number, change.after));
        }
    }
    inserts.sort();
    let removed: Vec<_> = changes.iter().filter(|change| change.is_removed).collect();
    let is_kept = |at: usize| !removed.iter().any(|change| change.range.contains(&at));
    let mut result = String::new();
    let mut done = 0;
    for (at, _, _, _, insert) in inserts.into_iter().chain([(text.len(), 0, 0, 0, "")]) {
        let kept = text[done..at].char_indices();
        let kept = kept.filter(|(index, char)| *char == '\n' || is_kept(done + index));
        result.extend(kept.map(|(_, char)| char));
        result.push_str(insert);
        done = at;
    }
    result
}
