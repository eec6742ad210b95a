//! Copies sources with mutants.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::change::apply;
use crate::mutant::Mutant;

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
