//! New packages with the dependencies and the programs of READMEs compile and run. (Their other
//! code is a doc test.)
// It runs cargo, and Miri starts no processes.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{files, pages, root};

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

/// Returns the code blocks in this language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    let blocks = text.split(&begin).skip(1);
    blocks
        .map(|rest| rest.split_once("```").expect("the block ends").0)
        .collect()
}

/// Runs a new package. All packages have the same target folder, so the library is built once.
fn run(name: &str, dependencies: &str, program: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme");
    let package = folder.join(name);
    fs::create_dir_all(package.join("src")).unwrap();

    // The repository is not next to this package.
    let here = root().to_str().unwrap().replace('\\', "/");
    let found = dependencies.replace("../hashed-wheel", &here);
    assert_ne!(found, dependencies, "the README names another path");
    let manifest =
        format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n\n{found}\n[workspace]\n");
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    fs::write(package.join("src/main.rs"), program).unwrap();
    // The same versions, which are there already.
    fs::copy(root().join("Cargo.lock"), package.join("Cargo.lock")).unwrap();

    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["run", "--quiet", "--offline"])
        .current_dir(&package);
    let output = cargo
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .output()
        .expect("cargo starts");
    assert!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Tables and pictures cannot be wrapped.
#[test]
fn lines_of_the_readme_end_at_column_100() {
    let readme = read("README.md");
    let too_long: Vec<_> = readme
        .lines()
        .filter(|line| !line.starts_with('|') && !line.starts_with("!["))
        .filter(|line| line.chars().count() > 100)
        .collect();
    assert!(too_long.is_empty(), "{too_long:#?}");
}

/// Doc tests compile the pages that a `#[doc = include_str!(…)]` names.
#[test]
fn rust_in_pages_is_a_complete_program_and_a_doc_test() {
    let included = |source: PathBuf| {
        let (text, folder) = (
            fs::read_to_string(&source).unwrap(),
            source.parent().unwrap(),
        );
        let pages = text.split("#[doc = include_str!(\"").skip(1);
        let page = |rest: &str| {
            folder
                .join(rest.split('"').next().unwrap())
                .canonicalize()
                .ok()
        };
        pages.filter_map(page).collect::<Vec<_>>()
    };
    let sources = files(&root().join("crates"), "rs");
    let included: HashSet<_> = sources.into_iter().flat_map(included).collect();
    let (mut checked, mut wrong) = (0, Vec::new());
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let programs = text.split("\n```rust").skip(1);
        let programs: Vec<_> = programs
            .map(|rest| rest.split("\n```").next().unwrap())
            .collect();
        if programs.is_empty() {
            continue;
        }
        checked += programs.len();
        let is_included = included.contains(&page.canonicalize().unwrap());
        if !is_included || !programs.iter().all(|program| program.contains("fn main()")) {
            wrong.push(page);
        }
    }
    assert!(checked > 30, "only {checked} programs were found");
    assert!(
        wrong.is_empty(),
        "pages with a part of a program, or that no doc test names: {wrong:#?}"
    );
}

#[test]
fn programs_of_the_readmes_run_as_printed() {
    let (readme, util) = (read("README.md"), read("crates/util/README.md"));
    let (dependencies, programs) = (blocks(&readme, "toml")[0], blocks(&readme, "rust"));
    for (name, program) in ["quick-start", "one-line", "expiring-map"]
        .into_iter()
        .zip(programs)
    {
        run(name, dependencies, program);
    }
    run(
        "sessions",
        blocks(&util, "toml")[0],
        blocks(&util, "rust")[0],
    );
}
