//! Copies the source of the lock to `OUT_DIR/src`, and applies the rows of `sabotages`: each
//! place becomes `if crate::sabotage("Name") { wrong } else { right }`. The environment selects one
//! when the program runs, so one build serves all.

// The tests use the rest.
#[allow(dead_code)]
mod sabotages;
// Finds a text in a file, whatever its layout.
#[allow(dead_code)]
#[path = "../../../loom-tests/mutate.rs"]
mod mutate;

use std::path::Path;
use std::{env, fs};

use sabotages::{LUA, Row};

/// The files with scripts.
const LUA_FILES: [&str; 2] = ["scripts.rs", "shared.rs"];

/// Where all scripts pass, and what that becomes.
const SCRIPT: (&str, &str) = (
    "fn new(text: String) -> Self {",
    "fn new(text: String) -> Self { let text = crate::sabotaged_script(text);",
);
fn main() {
    let source = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap()).join("../src");
    let copy = Path::new(&env::var("OUT_DIR").unwrap()).join("src");
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=sabotages");
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir_all(&copy).unwrap();
    let scripts = LUA_FILES
        .map(|file| fs::read_to_string(source.join(file)).unwrap())
        .concat();
    for row in sabotages::rows().filter(|row| row.file == LUA) {
        row.check(&scripts);
    }
    for entry in fs::read_dir(&source).unwrap().map(Result::unwrap) {
        let (name, mut text) = (entry.file_name(), fs::read_to_string(entry.path()).unwrap());
        for row in sabotages::rows().filter(|row| name == row.file) {
            text = row.apply(&text);
        }
        if name == "scripts.rs" {
            let (original, changed) = SCRIPT;
            assert_eq!(text.matches(original).count(), 1, "{original}");
            text = text.replace(original, changed);
        }
        if name == "lib.rs" {
            // An included file cannot have inner attributes, and the README is elsewhere.
            let is_kept = |line: &&str| !line.starts_with("#!") && !line.contains("include_str!");
            text = text
                .lines()
                .filter(is_kept)
                .flat_map(|line| [line, "\n"])
                .collect();
        }
        // The examples of the documentation are tests of the lock itself.
        text = text.replace("///", "//").replace("//!", "//");
        fs::write(copy.join(name), text).unwrap();
    }
}

impl Row {
    fn check(&self, text: &str) {
        let count = text.matches(self.original).count();
        assert_eq!(
            count, 1,
            "sabotage {}: the text occurs {count} times",
            self.name
        );
    }

    fn apply(&self, text: &str) -> String {
        let Self { name, wrong, .. } = self;
        let range = mutate::find(self.original, text).unwrap_or_else(|why| panic!("{name}: {why}"));
        let original = &text[range.clone()];
        let changed = if original.ends_with(';') {
            format!("if crate::sabotage(\"{name}\") {{ {wrong} }} else {{ {original} }}")
        } else {
            format!("(if crate::sabotage(\"{name}\") {{ {wrong} }} else {{ {original} }})")
        };
        [&text[..range.start], &changed, &text[range.end..]].concat()
    }
}
