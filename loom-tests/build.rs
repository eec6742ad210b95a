//! Copies the library's source to `OUT_DIR/src` and applies the rows of `mutants.rs`. The source of
//! hashed-wheel-util becomes the module `util` of the copy, so that one set of mutants serves both.
//! It is also the build script of `shuttle/`.

mod mutants;
mod mutate;

use std::path::{Path, PathBuf};
use std::{env, fs};

use mutants::ROWS;

/// The module that hashed-wheel-util becomes.
const UTIL: &str = "util";

/// The files that are replaced by those of the same name in `inside`: the primitives. To all other
/// files the one in `inside` is added, as a module of that name.
const REPLACED: [&str; 2] = ["sync/backend.rs", "util/sync.rs"];

pub fn main() {
    println!("cargo::rustc-cfg=hashed_wheel_loom");
    let package = env::var("CARGO_MANIFEST_DIR").unwrap();
    // For the package of shuttle, this is the parent folder.
    let here = Path::new(&package)
        .ancestors()
        .find(|folder| folder.join("mutants.rs").exists())
        .unwrap();
    let [source, util] =
        ["../src", "../crates/util/src"].map(|path| here.join(path).canonicalize().unwrap());
    let inside = here.join("inside");
    let scripts = ["build.rs", "mutants.rs", "mutate.rs"].map(|file| here.join(file));
    for path in [&source, &util, &inside].into_iter().chain(&scripts) {
        println!("cargo::rerun-if-changed={}", path.display());
    }

    let copy = Path::new(&env::var("OUT_DIR").unwrap()).join("src");
    let _ = fs::remove_dir_all(&copy);
    let in_util = files(&util)
        .into_iter()
        .map(|file| Path::new(UTIL).join(file));
    let (files, modules): (Vec<_>, _) = (
        files(&source).into_iter().chain(in_util).collect(),
        files(&inside),
    );
    let named = ROWS
        .iter()
        .map(|row| Path::new(row.file))
        .chain(modules.iter().map(PathBuf::as_path));
    let missing = named.filter(|&name| !files.iter().any(|file| file == name));
    let mut stale: Vec<_> = missing
        .map(|name| format!("there is no src/{}", name.display()))
        .collect();
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
        let text = mutate::apply(&text, ROWS.iter().filter(|row| Path::new(row.file) == file));
        let mut text = text.unwrap_or_else(|rows| {
            stale.extend(rows);
            String::new()
        });
        // No model or mutant depends on the profile.
        text = text.replace("debug_assert", "assert");
        // The copy is not next to the pages of the documentation. An included file cannot have
        // inner attributes or inner documentation.
        let is_root = file.file_name().unwrap() == "lib.rs";
        let begins = |line: &str| {
            if is_root {
                line.starts_with("#![") || line.starts_with("//!")
            } else {
                line.starts_with("#![doc =")
            }
        };
        let ends = |line: &str| line.starts_with("//!") || line.ends_with(']');
        let mut is_left_out = false;
        text = text
            .lines()
            .map(|line| {
                is_left_out |= begins(line);
                let kept = if is_left_out {
                    "\n".into()
                } else {
                    line.to_owned() + "\n"
                };
                is_left_out &= !ends(line);
                kept
            })
            .collect();
        if file == Path::new("lib.rs") {
            text += &format!(
                "#[path = {:?}]\npub mod util;\n",
                copy.join(UTIL).join("lib.rs")
            );
        }
        if modules.contains(file) && !is_replaced {
            text += &format!("#[path = {:?}]\npub mod inside;\n", inside.join(file));
        }
        let path = copy.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    if !stale.is_empty() {
        stale.iter().for_each(|why| println!("cargo::error={why}"));
        std::process::exit(1);
    }
}

/// Returns all files in and below a folder, by their paths relative to it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(under) = folders.pop() {
        for entry in fs::read_dir(folder.join(&under))
            .unwrap()
            .map(Result::unwrap)
        {
            let path = under.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path)
            } else {
                files.push(path)
            }
        }
    }
    files
}
