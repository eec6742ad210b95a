//! Copies the library's source to `OUT_DIR/src`, changed by the rows of `mutants.rs`. Also the build script of `shuttle/`.

mod mutants;
mod mutate;

use std::path::{Path, PathBuf};
use std::{env, fs};

use mutants::ROWS;

pub fn main() {
    println!("cargo:rustc-cfg=hashed_wheel_loom");
    let here = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap()).to_owned();
    // Of shuttle's package it is the folder above.
    let here = here.ancestors().find(|folder| folder.join("mutants.rs").exists()).unwrap().to_owned();
    let (source, inside) = (here.join("../src").canonicalize().unwrap(), here.join("inside"));
    for path in [&source, &inside, &here.join("build.rs"), &here.join("mutants.rs"), &here.join("mutate.rs")]
    {
        println!("cargo:rerun-if-changed={}", path.display());
    }

    let copy = Path::new(&env::var("OUT_DIR").unwrap()).join("src");
    let _ = fs::remove_dir_all(&copy);
    let (files, modules) = (files(&source), files(&inside));
    for file in modules.iter().chain(&ROWS.iter().map(|row| row.file.into()).collect::<Vec<_>>()) {
        assert!(files.contains(file), "{}: there is no such file in src", file.display());
    }
    for file in &files {
        let text = fs::read_to_string(source.join(file)).unwrap();
        let rows = ROWS.iter().filter(|row| Path::new(row.file) == file);
        let mut text = mutate::apply(&text, rows).unwrap_or_else(|stale| panic!("{stale}"));
        // No model or mutant depends on the profile.
        text = text.replace("debug_assert", "assert");
        // The pages of the documentation are not beside the copy, and what is included has no inner attributes.
        let is_left_out = |line: &str| {
            line.starts_with("#![doc =") || file == Path::new("lib.rs") && line.starts_with("#![")
        };
        text = text
            .lines()
            .map(|line| if is_left_out(line) { "\n".into() } else { format!("{line}\n") })
            .collect();
        if modules.contains(file) {
            let path = inside.join(file);
            text += &format!("#[path = {path:?}]\npub mod inside;\n");
        }
        let path = copy.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// All files in and under a folder, by their path in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(under) = folders.pop() {
        for entry in fs::read_dir(folder.join(&under)).unwrap().map(Result::unwrap) {
            let path = under.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}
