//! `docs/design.md` names only items that exist, so an outdated name fails a test.
//! `CONTRIBUTING.md` names only files that exist, and `docs/ported-tests.md` only tests that exist.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use crate::files::{root, rust_files};

/// The folders that contain the code, the models and the tests that pages name.
const FOLDERS: [&str; 6] = [
    "src",
    "crates/timing-wheels",
    "crates/util",
    "tests",
    "loom-tests/tests",
    "loom-tests/shuttle/tests",
];

/// The section whose tables map Netty's class to files and their items.
const NETTY: &str = "From Netty's class to this code";

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn page() -> String {
    read(&root().join("docs/design.md"))
}

/// The name and the text of each Rust file of [`FOLDERS`].
fn sources() -> Vec<(String, String)> {
    let paths = FOLDERS
        .iter()
        .flat_map(|folder| rust_files(&root().join(folder)));
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    paths.map(|path| (name(&path), read(&path))).collect()
}

/// Whether a name is that of a file, of a test or a model (`file::function`), or of items.
fn exists(name: &str, sources: &[(String, String)], words: &HashSet<&str>) -> bool {
    match name.split_once("::") {
        _ if name.contains(['/', '.']) => root().join(name).exists(),
        Some((file, function)) if file.starts_with(char::is_lowercase) => {
            let function = format!("fn {function}(");
            sources
                .iter()
                .any(|(name, text)| name == file && text.contains(&function))
        }
        _ => name.split("::").all(|word| words.contains(word)),
    }
}

/// Returns the names in backticks.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the section with this heading.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let mut sections = page
        .split("\n## ")
        .filter_map(|section| section.strip_prefix(heading));
    sections
        .next()
        .unwrap_or_else(|| panic!("no section {heading:?}"))
}

/// Returns the cells of each row of the section's tables, without the heads of the tables.
fn rows(section: &str) -> impl Iterator<Item = Vec<&str>> {
    let mut after_head = false;
    section.lines().filter_map(move |line| {
        let Some(row) = line.strip_prefix("| ") else {
            after_head = line.starts_with("|---");
            return None;
        };
        after_head.then(|| row.trim_end_matches(" |").split(" | ").collect())
    })
}

/// Whether the text declares a function, a type, a constant or a field of this name.
fn declares(text: &str, name: &str) -> bool {
    const WORDS: [&str; 7] = ["fn", "struct", "enum", "trait", "type", "const", "static"];
    let ends_here = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let is_item = |line: &str| {
        WORDS.iter().any(|word| {
            line.split_once(&format!("{word} {name}"))
                .is_some_and(|(before, rest)| {
                    ends_here(rest) && !before.ends_with(|c: char| c.is_alphanumeric())
                })
        })
    };
    let is_field = |line: &str| {
        let line = line.trim_start();
        let line = match line.strip_prefix("pub") {
            Some(rest) => rest
                .trim_start_matches("(super)")
                .trim_start_matches("(crate)")
                .trim_start(),
            None => line,
        };
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(": "))
    };
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .any(|line| is_item(line) || is_field(line))
}

#[test]
fn names_in_the_design_document_exist() {
    let (sources, page) = (sources(), page());
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words: HashSet<_> = sources
        .iter()
        .flat_map(|(_, text)| text.split(|c| !is_word(c)))
        .collect();
    // The first cell of a row of Netty's tables has names of Netty's.
    let of_netty: HashSet<_> = rows(section(&page, NETTY))
        .flat_map(|row| names(row[0]))
        .collect();
    // A text with a space is no name.
    let names: Vec<_> = names(&page)
        .filter(|name| !name.contains(' ') && !of_netty.contains(name))
        .collect();
    assert!(names.len() > 300, "too few names were found: {names:?}");
    let gone: Vec<_> = names
        .into_iter()
        .filter(|name| !exists(name, &sources, &words))
        .collect();
    assert!(
        gone.is_empty(),
        "docs/design.md names items that do not exist: {gone:?}"
    );
}

/// A row of these tables names files, and after each file some of its items.
#[test]
fn items_in_the_map_of_nettys_class_are_in_their_files() {
    let page = page();
    let mut items = 0;
    for row in rows(section(&page, NETTY)) {
        let (netty, here) = (row[0], row[1]);
        let mut file: Option<(&str, String)> = None;
        for name in names(here) {
            if name.contains('/') {
                file = Some((name, read(&root().join(name))));
                continue;
            }
            let Some((path, text)) = &file else {
                panic!("{netty}: `{name}` comes before any file")
            };
            assert!(
                declares(text, name),
                "docs/design.md, {netty}: {path} does not declare `{name}`"
            );
            items += 1;
        }
        assert!(
            file.is_some(),
            "docs/design.md, {netty}: the row names no file"
        );
    }
    assert!(items > 80, "too few items were found: {items}");
}

#[test]
fn files_in_the_contribution_guide_exist() {
    let page = read(&root().join("CONTRIBUTING.md"));
    let is_path = |name: &&str| {
        let folders = ["src/", "loom-tests/", "tests/", "docs/", "benches/", ".ci/"];
        folders.iter().any(|folder| name.starts_with(folder)) && !name.contains([' ', '*'])
    };
    let gone: Vec<_> = names(&page)
        .filter(is_path)
        .filter(|name| !root().join(name).exists())
        .collect();
    assert!(
        gone.is_empty(),
        "CONTRIBUTING.md names files that do not exist: {gone:?}"
    );
}

/// `file::function` is a test, in the file itself or in a module of it.
#[test]
fn tests_that_show_a_difference_exist() {
    let page = read(&root().join("docs/ported-tests.md"));
    let differences = section(&page, "What is different");
    let is_test = |name: &&str| name.contains("::") && name.starts_with(char::is_lowercase);
    let named: Vec<_> = names(differences).filter(is_test).collect();
    assert!(named.len() > 15, "too few tests were found: {named:?}");
    let sources = sources();
    let gone: Vec<_> = named
        .into_iter()
        .filter(|name| !exists(name, &sources, &HashSet::new()))
        .collect();
    assert!(
        gone.is_empty(),
        "docs/ported-tests.md names tests that do not exist: {gone:?}"
    );
}

/// Files are named from the folder on; `file::function` is a test.
#[test]
fn names_in_the_page_of_the_models_exist() {
    let sources = sources();
    let page = read(&root().join("loom-tests/README.md"));
    let is_name = |name: &&str| name.starts_with("tests/") || name.starts_with("explore::");
    let named: Vec<_> = names(&page).filter(is_name).collect();
    assert!(named.len() > 3, "too few names were found: {named:?}");
    for name in named {
        let path = if name.contains('/') {
            format!("loom-tests/{name}")
        } else {
            name.to_owned()
        };
        assert!(
            exists(&path, &sources, &HashSet::new()),
            "loom-tests/README.md: {name}"
        );
    }
}
