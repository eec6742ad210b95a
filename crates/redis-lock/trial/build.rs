//! Copies the source of the lock, with the mutants of `mutants.rs`.

#[allow(dead_code, reason = "the test needs more")]
#[path = "mutants.rs"]
mod list;

use std::fs;
use std::path::Path;

use list::{LUA, ROWS};
use mutants::{Copy, Mutant, always, files, includable};

/// The files with scripts.
const LUA_FILES: [&str; 1] = ["protocol.rs"];

/// Where all scripts pass.
const SCRIPT: Mutant = always(
    "scripts.rs new",
    "new(text: String) -> Self {«»",
    "let text = crate::mutated_script(text);",
);

fn main() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=mutants.rs");
    let (lua, rust): (Vec<_>, _) = ROWS
        .iter()
        .map(|row| &row.mutant)
        .partition(|mutant| mutant.file == LUA);
    let scripts = LUA_FILES
        .map(|file| fs::read_to_string(source.join(file)).unwrap())
        .concat();
    for Mutant { name, place, .. } in lua {
        assert_eq!(scripts.matches(place).count(), 1, "{name:?}: {place}");
    }
    let mut copy = Copy::new(rust.into_iter().chain([&SCRIPT]));
    for file in files(&source) {
        let text = fs::read_to_string(source.join(&file)).unwrap();
        let mut text = copy.mutate(&file, &text);
        if file == Path::new("lib.rs") {
            // Rustdoc would look for the README beside the copy.
            text = includable(&text).replace("#[cfg(doctest)]", "#[cfg(any())]");
        }
        // The examples of the documentation are tests of the lock itself.
        copy.write(&file, &text.replace("///", "//"));
    }
    copy.end();
}
