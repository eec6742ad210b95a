//! Copies the library's source to `OUT_DIR/src` and applies the rows of `mutants.rs`. The source of
//! hashed-wheel-util becomes the module `util` of the copy, so that one set of mutants serves both.
//! It is also the build script of `shuttle/`.

#[path = "mutants.rs"]
mod list;

use std::fs;
use std::path::{Path, PathBuf};

use mutants::{Copy, files, includable};

/// The module that hashed-wheel-util becomes.
const UTIL: &str = "util";

/// The files that are replaced by those of the same name in `inside`: the primitives. To all other
/// files the one in `inside` is added, as a module of that name.
const REPLACED: [&str; 2] = ["sync/backend.rs", "util/sync.rs"];

pub fn main() {
    println!("cargo::rustc-cfg=hashed_wheel_loom");
    let package = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    // For the package of shuttle, this is the parent folder.
    let here = Path::new(&package)
        .ancestors()
        .find(|folder| folder.join("mutants.rs").exists())
        .unwrap();
    let [source, util] =
        ["../src", "../crates/util/src"].map(|path| here.join(path).canonicalize().unwrap());
    let inside = here.join("inside");
    let scripts = ["build.rs", "mutants.rs"].map(|file| here.join(file));
    for path in [&source, &util, &inside].into_iter().chain(&scripts) {
        println!("cargo::rerun-if-changed={}", path.display());
    }

    let mut copy = Copy::new(list::MUTANTS);
    let modules = files(&inside);
    let in_util = files(&util)
        .into_iter()
        .map(|file| Path::new(UTIL).join(file));
    let files: Vec<PathBuf> = files(&source).into_iter().chain(in_util).collect();
    for module in &modules {
        assert!(
            files.contains(module),
            "there is no src/{}",
            module.display()
        );
    }
    for file in &files {
        let is_replaced = REPLACED.iter().any(|replaced| file == Path::new(replaced));
        let text = match file.strip_prefix(UTIL) {
            _ if is_replaced => fs::read_to_string(inside.join(file)),
            Ok(file) => fs::read_to_string(util.join(file)),
            Err(_) => fs::read_to_string(source.join(file)),
        };
        let mut text = text.unwrap();
        if file.starts_with(UTIL) {
            text = text
                .replace("crate::", "crate::util::")
                .replace("hashed_wheel::", "crate::");
        }
        // No model or mutant depends on the profile.
        text = copy.mutate(file, &text).replace("debug_assert", "assert");
        if file.ends_with("lib.rs") {
            text = includable(&text);
        }
        if file == Path::new("lib.rs") {
            let root = copy.path(&Path::new(UTIL).join(file));
            text += &format!("#[path = {root:?}]\npub mod util;\n");
        }
        if modules.contains(file) && !is_replaced {
            text += &format!("#[path = {:?}]\npub mod inside;\n", inside.join(file));
        }
        copy.write(file, &text);
    }
    copy.end();
}
