//! A new project beside a checkout, as a README tells its reader to make it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the first code block whose line of the opening fence is `fence`.
///
/// # Panics
///
/// If there is none.
pub fn block<'a>(text: &'a str, fence: &str) -> &'a str {
    let (_, rest) = text
        .split_once(&format!("```{fence}\n"))
        .expect("the page has such a block");
    rest.split_once("```").expect("the block ends").0
}

/// Returns the text with one occurrence of `from` replaced.
///
/// # Panics
///
/// If there is none, or more than one.
pub fn replace_once(text: &str, from: &str, to: &str) -> String {
    assert_eq!(
        text.matches(from).count(),
        1,
        "{from} occurs once in:\n{text}"
    );
    text.replace(from, to)
}

/// A package outside of the workspace, with the versions of its Cargo.lock.
#[derive(Debug)]
pub struct NewProject {
    name: &'static str,
    folder: PathBuf,
    /// The target folder of the tests, where the dependencies are already.
    built: PathBuf,
}

impl NewProject {
    /// Writes the project. `temporary` is `CARGO_TARGET_TMPDIR` of the test, and `dependencies` are
    /// the lines of its Cargo.toml with their heading.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn new(name: &'static str, temporary: &str, dependencies: &str, program: &str) -> Self {
        let temporary = Path::new(temporary);
        let project = Self {
            name,
            folder: temporary.join(name),
            built: temporary.join(".."),
        };
        let manifest = format!(
            "[package]\nname = \"{name}\"\nedition = \"2024\"\n\n{dependencies}\n[workspace]\n"
        );
        fs::create_dir_all(project.folder.join("src")).expect("the folder can be created");
        let write = |name, text| {
            fs::write(project.folder.join(name), text).expect("the file can be written")
        };
        write("Cargo.toml", &*manifest);
        write("src/main.rs", program);
        let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
        fs::copy(lock, project.folder.join("Cargo.lock")).expect("the file can be copied");
        project
    }

    /// Runs cargo in the project, and returns what it prints. The options are separated by spaces.
    ///
    /// # Panics
    ///
    /// If cargo fails.
    pub fn cargo(&self, options: &str) -> String {
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(options.split(' '))
            .arg("--offline")
            .current_dir(&self.folder);
        let output = cargo
            .env("CARGO_TARGET_DIR", &self.built)
            .output()
            .expect("cargo starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("cargo prints text")
    }

    /// Returns the program that `cargo build` makes.
    pub fn program(&self) -> PathBuf {
        self.built.join("debug").join(self.name)
    }
}
