//! Finds places of a source file.

use std::ops::Range;

/// Returns the bytes of `text` that a place stands for.
///
/// The place is a part of the text that occurs exactly once in it, or in the function. White space,
/// comments and commas before a closing bracket are ignored. `…` stands for the rest up to the
/// closing bracket: `wake(…);` is a call with any arguments. `«` and `»` enclose the part that is
/// returned; without them it is all of the place.
///
/// # Errors
///
/// If there is no such place, or more than one.
pub fn find(place: &str, text: &str, function: Option<&str>) -> Result<Range<usize>, &'static str> {
    let scopes = match function {
        None => std::iter::once(0..text.len()).collect(),
        Some(name) => functions(text, name),
    };
    if scopes.is_empty() {
        return Err("the file has no such function");
    }
    if place.contains('«') != place.contains('»') {
        return Err("« or » is missing");
    }
    let pattern: Vec<_> = significant(place)
        .into_iter()
        .map(|(_, char)| char)
        .collect();
    let mut found = Vec::new();
    for scope in scopes {
        let chars = significant(&text[scope.clone()]);
        let matches = (0..chars.len()).filter_map(|first| part(&pattern, &chars, first));
        found.extend(matches.map(|part| {
            let at = |index: usize| chars.get(index).map_or(scope.len(), |(at, _)| *at);
            let begin = scope.start + at(part.start);
            match part.len() {
                0 => begin..begin,
                _ => begin..scope.start + at(part.end - 1) + chars[part.end - 1].1.len_utf8(),
            }
        }));
    }
    match found.len() {
        0 => Err("it is not there"),
        1 => Ok(found.swap_remove(0)),
        _ => Err("it is there more than once"),
    }
}

/// Returns the part that the pattern encloses, if it matches the characters from `first` on.
fn part(pattern: &[char], chars: &[(usize, char)], first: usize) -> Option<Range<usize>> {
    let (mut at, mut begin, mut end) = (first, first, None);
    for &expected in pattern {
        match expected {
            '«' => begin = at,
            '»' => end = Some(at),
            '…' => at = closing_bracket(chars, at)?,
            _ if chars.get(at)?.1 == expected => at += 1,
            _ => return None,
        }
    }
    Some(begin..end.unwrap_or(at))
}

/// Returns where the bracket is closed that is open at this place.
fn closing_bracket(chars: &[(usize, char)], from: usize) -> Option<usize> {
    let mut depth = 0;
    (from..chars.len()).find(|&index| match chars[index].1 {
        '(' | '[' | '{' => {
            depth += 1;
            false
        }
        ')' | ']' | '}' => {
            depth -= 1;
            depth < 0
        }
        _ => false,
    })
}

/// Returns the characters of a text without those that its layout decides, with their positions: no
/// white space, no comments, and no comma before a closing bracket.
fn significant(text: &str) -> Vec<(usize, char)> {
    let mut chars: Vec<(usize, char)> = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let code = line.split("//").next().unwrap_or_default();
        for (at, char) in code
            .char_indices()
            .filter(|(_, char)| !char.is_whitespace())
        {
            if matches!(char, ')' | ']' | '}') && chars.last().is_some_and(|last| last.1 == ',') {
                chars.pop();
            }
            chars.push((start + at, char));
        }
        start += line.len();
    }
    chars
}

/// Returns the functions with this name in the layout of rustfmt: from the line of their `fn` to
/// that of their last brace.
pub fn functions(text: &str, name: &str) -> Vec<Range<usize>> {
    let begins = [format!("fn {name}("), format!("fn {name}<")];
    let mut functions = Vec::new();
    // The beginning, and the last line.
    let mut open: Option<(usize, String)> = None;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let (code, end) = (line.trim_end(), start + line.len());
        if open.is_none() && begins.iter().any(|begin| code.contains(begin)) {
            let indentation = &code[..code.len() - code.trim_start().len()];
            open = Some((start, format!("{indentation}}}")));
        }
        open = match open {
            Some((begin, last)) if code == last || begin == start && code.ends_with([';', '}']) => {
                functions.push(begin..end);
                None
            }
            open => open,
        };
        start = end;
    }
    functions
}
