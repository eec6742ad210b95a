//! Applies rows of `mutants.rs` to the text of a source file. The build script and its tests use
//! it.

use std::ops::Range;

/// A change of one place in one file of the library.
pub struct Row {
    /// The mutant that the change belongs to. `None`: the change is always applied.
    pub mutant: Option<&'static str>,
    /// The path of the file, relative to `../src`.
    pub file: &'static str,
    /// A text that occurs exactly once in the file. Comments, white space and trailing commas are
    /// ignored. `«` and `»` enclose the part that changes; without them, the whole text changes.
    pub original: &'static str,
    /// The code that replaces that part. If the part is empty, the code is inserted there.
    pub wrong: &'static str,
}

/// Makes the row of a mutant: `if mutant("Name") { wrong } else { right }`.
pub const fn mutant(
    name: &'static str,
    file: &'static str,
    original: &'static str,
    wrong: &'static str,
) -> Row {
    Row {
        mutant: Some(name),
        file,
        original,
        wrong,
    }
}

/// Makes a row that is always applied.
pub const fn always(file: &'static str, original: &'static str, wrong: &'static str) -> Row {
    Row {
        mutant: None,
        file,
        original,
        wrong,
    }
}

impl Row {
    /// Returns the text to insert before and after the part that changes. `part` is that part.
    fn around(&self, part: &str) -> (String, String) {
        // On one line, so that the copy has the same lines as the original.
        let wrong = self.wrong.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some(name) = self.mutant else {
            return (wrong, String::new());
        };
        let branch = format!("if crate::inside::mutant(\"{name}\") {{ {wrong} }}");
        match part.trim_end().chars().last() {
            None => (format!("{branch}; "), String::new()),
            // Statements.
            Some(';' | '}') => (format!("{branch} else {{ "), " }".to_owned()),
            // An expression.
            Some(_) => (format!("({branch} else {{ "), " })".to_owned()),
        }
    }

    /// Returns the range of bytes of `text` that changes.
    fn range(&self, text: &str) -> Result<Range<usize>, String> {
        let name = self.mutant.unwrap_or("(always)");
        find(self.original, text).map_err(|why| {
            let Self { file, original, .. } = self;
            format!("loom-tests/mutants.rs, {name} in {file}: {why}: {original}")
        })
    }
}

/// Returns the range of bytes of `text` that `original` selects: see [`Row::original`].
pub fn find(original: &str, text: &str) -> Result<Range<usize>, &'static str> {
    let (before, part, after) = match original.split_once('«') {
        None => ("", original, ""),
        Some((before, rest)) => {
            let (part, after) = rest.split_once('»').ok_or("there is no »")?;
            (before, part, after)
        }
    };
    let [before, part, after] = [before, part, after].map(significant);
    let sought: Vec<_> = [&before[..], &part, &after]
        .concat()
        .iter()
        .map(|(_, char)| *char)
        .collect();
    let chars = significant(text);
    let is_here = |window: &[(usize, char)]| window.iter().map(|(_, char)| char).eq(&sought);
    let mut found = (0..)
        .zip(chars.windows(sought.len().max(1)))
        .filter(|(_, window)| is_here(window));
    let (first, _) = found.next().ok_or("the text is not in the file")?;
    if found.next().is_some() {
        return Err("the text is in the file more than once");
    }
    let at = |index: usize| chars.get(index).map_or(text.len(), |(at, _)| *at);
    let begin = first + before.len();
    Ok(match part.len() {
        0 => at(begin)..at(begin),
        length => {
            let (last, char) = chars[begin + length - 1];
            at(begin)..last + char.len_utf8()
        }
    })
}

/// Returns the characters of a text without those that its layout decides, with their positions: no
/// white space, no comments, and no comma before a closing bracket.
fn significant(text: &str) -> Vec<(usize, char)> {
    let mut chars: Vec<(usize, char)> = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let code = line.split("//").next().unwrap_or_default();
        let visible = code
            .char_indices()
            .filter(|(_, char)| !char.is_whitespace());
        chars.extend(visible.map(|(at, char)| (start + at, char)));
        start += line.len();
    }
    let is_kept = |index: usize| {
        let next = chars.get(index + 1).map(|(_, char)| *char);
        chars[index].1 != ',' || !matches!(next, Some(')' | ']' | '}'))
    };
    (0..chars.len())
        .filter(|&index| is_kept(index))
        .map(|index| chars[index])
        .collect()
}

/// Applies rows to the text of a file. Each line keeps its number. Several rows may change the same
/// part, or one row a part of what another row changes.
///
/// # Errors
///
/// One error for each row whose text does not occur exactly once: the file was edited, and the row
/// has to be adapted.
pub fn apply<'a>(
    text: &str,
    rows: impl IntoIterator<Item = &'a Row>,
) -> Result<String, Vec<String>> {
    // The insertions, in this order at one position: ends of parts (inner parts first), code for
    // empty parts, beginnings of parts (outer parts first).
    let mut inserts = Vec::new();
    let (mut removed, mut stale) = (Vec::new(), Vec::new());
    for (number, row) in rows.into_iter().enumerate() {
        let range = match row.range(text) {
            Ok(range) => range,
            Err(why) => {
                stale.push(why);
                continue;
            }
        };
        let (open, close) = row.around(&text[range.clone()]);
        let (length, number) = (range.len() as isize, number as isize);
        if range.is_empty() {
            inserts.push((range.start, 1, 0, number, open));
        } else {
            inserts.push((range.start, 2, -length, number, open));
            inserts.push((range.end, 0, length, -number, close));
        }
        if row.mutant.is_none() {
            removed.push(range);
        }
    }
    if !stale.is_empty() {
        return Err(stale);
    }
    inserts.sort();
    let mut result = String::new();
    let mut done = 0;
    let kept = |from: usize, to: usize| {
        let is_kept = |at: &usize| !removed.iter().any(|range| range.contains(at));
        text[from..to]
            .char_indices()
            .filter(move |(at, char)| *char == '\n' || is_kept(&(from + at)))
            .map(|(_, char)| char)
    };
    for (at, _, _, _, insert) in inserts {
        result.extend(kept(done, at));
        result.push_str(&insert);
        done = at;
    }
    result.extend(kept(done, text.len()));
    Ok(result)
}
