//! Examples, programs and packages that comments, pages and manifests name exist.

use std::collections::HashSet;
use std::fs;

use crate::files::{files, root};

/// The options of cargo before the name of a package or of a target.
const OPTIONS: [&str; 5] = ["-p ", "--example ", "--bin ", "--bench ", "--test "];

/// Returns the text as one line, without the marks of comments.
fn flat(text: &str) -> String {
    text.split_whitespace()
        .filter(|word| !["//", "///", "//!", "#"].contains(word))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the name at the beginning of the text, which may be empty.
fn name(text: &str) -> &str {
    let end =
        text.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c)));
    &text[..end.unwrap_or(text.len())]
}

/// Returns the names after an option, and those in "the examples `a` and `b`".
fn named(text: &str) -> HashSet<String> {
    let after_options = OPTIONS
        .iter()
        .flat_map(|option| text.split(option).skip(1))
        .map(name);
    let mut found: HashSet<_> = after_options.map(str::to_owned).collect();
    for word in ["example `", "examples `"] {
        for (at, _) in text.match_indices(word) {
            if text[..at].ends_with("for ") {
                continue;
            }
            let mut rest = &text[at + word.len()..];
            while let Some((name, after)) = rest.split_once('`') {
                found.insert(name.to_owned());
                let next = [", `", " and `"]
                    .iter()
                    .find_map(|and| after.strip_prefix(and));
                rest = next.unwrap_or_default();
            }
        }
    }
    found.remove("");
    found
}

/// Returns the names of all packages and targets of the repository.
fn existing() -> HashSet<String> {
    let mut names = HashSet::new();
    for manifest in files(root(), "toml") {
        let text = fs::read_to_string(manifest).unwrap();
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("name = \""));
        names.extend(lines.map(|line| line.trim_end_matches('"').to_owned()));
    }
    for path in files(root(), "rs") {
        let is_root = path.ends_with("main.rs");
        let file = if is_root {
            path.parent().unwrap()
        } else {
            &*path
        };
        let folder = file.parent().and_then(|folder| folder.file_name());
        let is_target = folder.is_some_and(|folder| {
            ["examples", "bin", "benches", "tests"]
                .iter()
                .any(|name| folder == *name)
        });
        if is_target {
            names.insert(file.file_stem().unwrap().to_str().unwrap().to_owned());
        }
    }
    names
}

#[test]
fn every_named_target_exists() {
    let existing = existing();
    let (mut checked, mut missing) = (HashSet::new(), Vec::new());
    for path in ["rs", "md", "toml"]
        .iter()
        .flat_map(|extension| files(root(), extension))
    {
        // This file has the patterns.
        if path.ends_with("tests/repo/names.rs") {
            continue;
        }
        for name in named(&flat(&fs::read_to_string(&path).unwrap())) {
            if !existing.contains(&name) {
                missing.push(format!("{}: {name}", path.display()));
            }
            checked.insert(name);
        }
    }
    assert!(checked.len() > 30, "too few names were found: {checked:?}");
    assert!(missing.is_empty(), "these do not exist: {missing:#?}");
}

#[test]
fn names_are_found() {
    let text = "/// The examples `one` and\n/// `two`, for example `three`. `cargo run -p four\n/// --example five`";
    let mut found: Vec<_> = named(&flat(text)).into_iter().collect();
    found.sort();
    assert_eq!(found, ["five", "four", "one", "two"]);
}
