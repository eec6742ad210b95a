//! Applies rows of `mutants.rs` to the text of a source file. Shared by the build script and its tests.

/// One change to one place of one file of the library.
pub struct Row {
    /// The mutant that the change belongs to. `None`: the change is always there.
    pub mutant: Option<&'static str>,
    /// The file, in `../src`.
    pub file: &'static str,
    /// A text that occurs exactly once in the file, comments aside. `«` and `»` enclose the part that changes; without them, all of
    /// it does. White space and line breaks do not matter.
    pub original: &'static str,
    /// What takes the place of that part, or, if that part is empty, comes before what follows.
    pub wrong: &'static str,
}

/// A mutant's row: `if mutant("Name") { wrong } else { right }`.
pub const fn mutant(
    name: &'static str,
    file: &'static str,
    original: &'static str,
    wrong: &'static str,
) -> Row {
    Row { mutant: Some(name), file, original, wrong }
}

/// A row for all mutants and none.
pub const fn always(file: &'static str, original: &'static str, wrong: &'static str) -> Row {
    Row { mutant: None, file, original, wrong }
}

impl Row {
    /// The text before and after the part that changes, in the place of that part. `part` is what is there now.
    fn around(&self, part: &str) -> (String, String) {
        // On one line: the copy has the lines of its original.
        let wrong = self.wrong.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some(name) = self.mutant else { return (wrong, String::new()) };
        let asked = format!("if crate::inside::mutant(\"{name}\") {{ {wrong} }}");
        match part.trim_end().chars().last() {
            None => (format!("{asked}; "), String::new()),
            // Statements.
            Some(';' | '}') => (format!("{asked} else {{ "), " }".to_owned()),
            // An expression.
            Some(_) => (format!("({asked} else {{ "), " })".to_owned()),
        }
    }

    /// The bytes of `text` that change.
    fn range(&self, text: &str) -> Result<std::ops::Range<usize>, String> {
        let Self { file, original, .. } = *self;
        let name = self.mutant.unwrap_or("(always)");
        let stale = |why: &str| format!("loom-tests/mutants.rs, {name} in {file}: {why}: {original}");
        let (before, part, after) = match original.split_once('«') {
            None => ("", original, ""),
            Some((before, rest)) => {
                let (part, after) = rest.split_once('»').ok_or_else(|| stale("there is no »"))?;
                (before, part, after)
            }
        };
        let [before, part, after] = [before, part, after].map(significant);
        let sought: Vec<_> = [&before[..], &part, &after].concat().iter().map(|(_, char)| *char).collect();
        let there = significant(text);
        let is_here = |window: &[(usize, char)]| window.iter().map(|(_, char)| char).eq(&sought);
        let mut found = (0..).zip(there.windows(sought.len().max(1))).filter(|(_, window)| is_here(window));
        let (first, _) = found.next().ok_or_else(|| stale("the text is not in the file"))?;
        if found.next().is_some() {
            return Err(stale("the text is in the file more than once"));
        }
        let at = |index: usize| there.get(index).map_or(text.len(), |(at, _)| *at);
        let begin = first + before.len();
        Ok(match part.len() {
            0 => at(begin)..at(begin),
            length => {
                let (last, char) = there[begin + length - 1];
                at(begin)..last + char.len_utf8()
            }
        })
    }
}

/// All of a text that is neither white space nor comment, and where that is.
fn significant(text: &str) -> Vec<(usize, char)> {
    let mut chars = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let code = line.split("//").next().unwrap_or_default();
        let visible = code.char_indices().filter(|(_, char)| !char.is_whitespace());
        chars.extend(visible.map(|(at, char)| (start + at, char)));
        start += line.len();
    }
    chars
}

/// The text of a file with these rows' changes, line by line where it was before. Rows may change the same part, or a part of it.
///
/// # Errors
///
/// For each row whose text is not in the file, or more than once: the file has changed, and the row has to follow.
pub fn apply<'a>(text: &str, rows: impl IntoIterator<Item = &'a Row>) -> Result<String, Vec<String>> {
    // What is inserted where; at one place first what ends there (the inner ones first), then what is only inserted, then what
    // begins there (the outer ones first).
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
        text[from..to].char_indices().filter(move |(at, _)| is_kept(&(from + at))).map(|(_, char)| char)
    };
    for (at, _, _, _, insert) in inserts {
        result.extend(kept(done, at));
        result.push_str(&insert);
        done = at;
    }
    result.extend(kept(done, text.len()));
    Ok(result)
}
