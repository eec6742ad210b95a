//! The Rust files of the repository, for the checks that read them.

use std::fs;
use std::path::{Path, PathBuf};

/// A Rust file below a root of modules.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// The path of its module, without `crate`: `node::word`.
    pub(crate) module: String,
    pub(crate) text: String,
}

impl Source {
    /// The lines that are no comments, with their numbers.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..)
            .zip(self.text.lines())
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// The code: without comments and without unit tests.
    pub(crate) fn code(&self) -> String {
        let text = self.text.split("#[cfg(test)]\nmod tests").next().unwrap();
        text.lines()
            .map(|line| line.split("//").next().unwrap().to_owned() + "\n")
            .collect()
    }
}

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below a folder of the repository whose modules have their root there.
pub(crate) fn sources(folder: &str) -> Vec<Source> {
    let folder = root().join(folder);
    let sources = rust_files(&folder).into_iter().map(|path| {
        let relative = path.strip_prefix(&folder).unwrap().with_extension("");
        let parts: Vec<_> = relative.iter().map(|part| part.to_str().unwrap()).collect();
        let module = parts.join("::");
        let module = module.strip_suffix("::mod").unwrap_or(&module).to_owned();
        let text = fs::read_to_string(&path).unwrap();
        Source { path, module, text }
    });
    sources.collect()
}

/// All Markdown files of the repository.
pub(crate) fn pages() -> Vec<PathBuf> {
    files(root(), "md")
}

/// All Rust files in a folder of the project and in the folders below it.
pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    files(folder, "rs")
}

/// All files with this extension in a folder and in the folders below it.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if path.is_dir() {
                if !path.ends_with("target") && !path.ends_with(".git") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}
