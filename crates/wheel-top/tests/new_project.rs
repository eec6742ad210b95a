//! A new project with the dependencies and the code of the README compiles, and depends on little.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns the first code block in this language, without the lines that only a doc test needs.
fn block(text: &str, language: &str) -> String {
    let (_, rest) = text.split_once(&format!("```{language}\n")).expect("the README has such a block");
    let block = rest.split_once("```").expect("the block ends").0;
    block.lines().filter(|line| !line.starts_with("# ")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn readme_is_complete() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(here.join("README.md")).expect("README.md can be read");
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join("watched");
    fs::create_dir_all(project.join("src")).expect("the folder can be created");

    // The checkout is not beside this project.
    let printed = block(&readme, "toml");
    let repository = here.join("../..").to_str().expect("the path is text").replace('\\', "/");
    let dependencies = printed.replace("../hashed-wheel", &repository);
    assert_ne!(dependencies, printed, "the README names another path");
    let manifest =
        format!("[package]\nname = \"watched\"\nedition = \"2024\"\n\n{dependencies}\n[workspace]\n");
    let lines = block(&readme, "rust,no_run");
    let program = format!("fn main() -> std::io::Result<()> {{\n{lines}Ok(())\n}}\n");
    let write = |name, text| fs::write(project.join(name), text).expect("the file can be written");
    write("Cargo.toml", manifest);
    write("src/main.rs", program);
    // The same versions, which are there already.
    fs::copy(here.join("../../Cargo.lock"), project.join("Cargo.lock")).expect("the file can be copied");

    let cargo = |options: &str| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(options.split(' ')).current_dir(&project).env("CARGO_TARGET_DIR", project.join("target"));
        let output = cargo.output().expect("cargo starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("cargo prints text")
    };
    let tree = cargo("tree --offline --package wheel-top --edges normal --depth 1 --prefix none");
    let names: Vec<_> = tree.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["hashed-wheel", "serde", "serde_json"]);
    cargo("check --quiet --offline");
}
