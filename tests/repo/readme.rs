//! A new package with the dependency and the first program of the README compiles and runs. (The
//! other code of the README is a doc test.)
// It runs cargo, and Miri starts no processes.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns the first code block in this language.
fn block<'a>(text: &'a str, language: &str) -> &'a str {
    let begin = format!("```{language}\n");
    let (_, rest) = text.split_once(&begin).expect("the README has such a block");
    rest.split_once("```").expect("the block ends").0
}

#[test]
fn quick_start_runs_as_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).expect("README.md can be read");
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quick-start");
    fs::create_dir_all(package.join("src")).expect("the folder can be created");

    // The repository is not next to this package.
    let printed = block(&readme, "toml");
    let here = root.to_str().expect("the path is text").replace('\\', "/");
    let dependency = printed.replace("../hashed-wheel", &here);
    assert_ne!(dependency, printed, "the README names another path");
    let manifest =
        format!("[package]\nname = \"quick-start\"\nedition = \"2024\"\n\n{dependency}\n[workspace]\n");
    fs::write(package.join("Cargo.toml"), manifest).expect("the file can be written");
    fs::write(package.join("src/main.rs"), block(&readme, "rust")).expect("the file can be written");
    // The same versions, which are there already.
    fs::copy(root.join("Cargo.lock"), package.join("Cargo.lock")).expect("the file can be copied");

    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--offline"]).current_dir(&package);
    let output = cargo.env("CARGO_TARGET_DIR", package.join("target")).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
