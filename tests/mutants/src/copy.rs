//! Copies sources with changes.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::Mutant;

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
    /// Replaces an expression where the condition holds. If the range is empty, inserts a statement.
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
    // In this order at one position: ends of parts (inner parts first), what is inserted, beginnings
    // of parts (outer parts first).
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

/// A copy of sources with mutants, which a build script makes in `OUT_DIR/src`.
pub struct Copy {
    folder: PathBuf,
    /// Each with whether its file was there.
    mutants: Vec<(&'static Mutant, bool)>,
    errors: Vec<String>,
}

impl Copy {
    /// Begins a copy, without the files of an earlier one.
    pub fn new(mutants: impl IntoIterator<Item = &'static Mutant>) -> Self {
        let folder = Path::new(&env::var_os("OUT_DIR").expect("a build script")).join("src");
        let _ = fs::remove_dir_all(&folder);
        Self {
            folder,
            mutants: mutants.into_iter().map(|mutant| (mutant, false)).collect(),
            errors: Vec::new(),
        }
    }

    /// Returns the path of a file of the copy.
    pub fn path(&self, file: &Path) -> PathBuf {
        self.folder.join(file)
    }

    /// Returns a text with the mutants of this file.
    pub fn mutate(&mut self, file: &Path, text: &str) -> String {
        let mut changes = Vec::new();
        for (mutant, is_there) in &mut self.mutants {
            if Path::new(mutant.path()) == file {
                *is_there = true;
                match mutant.change(text) {
                    Ok(change) => changes.push(change),
                    Err(why) => self.errors.push(why),
                }
            }
        }
        apply(text, &changes)
    }

    /// Writes a file of the copy.
    pub fn write(&self, file: &Path, text: &str) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder for the copy");
        fs::write(path, text).expect("a file of the copy");
    }

    /// Ends the build if a place was not found, or a file.
    pub fn end(mut self) {
        let missing = self.mutants.iter().filter(|(_, is_there)| !is_there);
        self.errors
            .extend(missing.map(|(mutant, _)| format!("there is no file {}", mutant.path())));
        if !self.errors.is_empty() {
            self.errors
                .iter()
                .for_each(|why| println!("cargo::error={why}"));
            std::process::exit(1);
        }
    }
}

/// Returns a text without inner attributes and inner documentation: an included file cannot have
/// them. Each line keeps its number.
pub fn includable(text: &str) -> String {
    let mut is_left_out = false;
    let mut result = String::new();
    for line in text.lines() {
        is_left_out |= line.starts_with("#![") || line.starts_with("//!");
        if !is_left_out {
            result.push_str(line);
        }
        result.push('\n');
        is_left_out &= !line.starts_with("//!") && !line.ends_with(']');
    }
    result
}

/// Returns all files in and below a folder, by their paths relative to it.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(under) = folders.pop() {
        for entry in fs::read_dir(folder.join(&under)).expect("a folder") {
            let path = under.join(entry.expect("an entry").file_name());
            if folder.join(&path).is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files
}
