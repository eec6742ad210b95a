//! The structure of the sources: which file may name what, and how comments are written.
//!
//! These are rules for the people who change the code; CONTRIBUTING.md has them in prose.

use std::fs;

use crate::files::{Source, root, rust_files, sources};

/// The lines below these folders for which `is_found`, in files that are not exempt.
fn lines(folders: &[&str], is_exempt: fn(&str) -> bool, is_found: fn(&str) -> bool) -> Vec<String> {
    let sources = folders.iter().flat_map(|folder| sources(folder));
    let found = |source: Source| {
        let lines = source.lines().filter(|(_, line)| is_found(line));
        lines
            .map(|(number, line)| format!("{}:{number}: {line}", source.path.display()))
            .collect::<Vec<_>>()
    };
    sources
        .filter(|source| !is_exempt(&source.module))
        .flat_map(found)
        .collect()
}

#[test]
fn only_sync_names_synchronisation_primitives() {
    const CRATES: [&str; 4] = ["crossbeam_queue", "crossbeam_utils", "loom::", "shuttle::"];
    const STD: [&str; 3] = ["std::sync", "std::thread", "core::sync"];

    let found = lines(
        &["src", "crates/util/src"],
        |module| module.starts_with("sync"),
        |line| {
            let in_braces = line.split_once("std::{").map_or("", |(_, names)| names);
            CRATES
                .into_iter()
                .chain(STD)
                .any(|name| line.contains(name))
                || in_braces
                    .split([' ', ',', ':', '}'])
                    .any(|name| name == "sync" || name == "thread")
        },
    );
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn only_platform_depends_on_the_platform() {
    const KEYS: [&str; 7] = [
        "os",
        "arch",
        "family",
        "env",
        "vendor",
        "pointer_width",
        "feature",
    ];
    const CRATES: [&str; 2] = ["libc::", "quanta::"];

    let found = lines(
        &["src"],
        |module| module.starts_with("platform"),
        |line| {
            let is_cfg = ["cfg(", "cfg!(", "cfg_attr("]
                .iter()
                .any(|cfg| line.contains(cfg));
            let words: Vec<_> = line
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .collect();
            let is_key = |word: &&str| {
                word.strip_prefix("target_")
                    .is_some_and(|key| KEYS.contains(&key))
            };
            words.iter().any(is_key)
                || is_cfg
                    && words
                        .iter()
                        .any(|word| ["unix", "windows", "target_has_atomic"].contains(word))
                || CRATES.iter().any(|name| line.contains(name))
        },
    );
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn product_code_has_no_hooks_for_models() {
    for Source { path, module, text } in sources("src") {
        let words = [
            "Fault",
            "is_broken",
            "mutant",
            "come_and_go",
            "load_of_another",
            "load_count",
            "Access::",
            "accesses:",
            "cfg(loom)",
            "feature = \"loom\"",
            "hashed_wheel_models",
        ];
        for word in words {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
        // Elsewhere only a constant may have another value in the models.
        if module.starts_with("platform") {
            continue;
        }
        for line in text.lines().filter(|line| {
            line.contains("hashed_wheel_loom") || line.contains("hashed_wheel_shuttle")
        }) {
            let is_value = line.contains("cfg!(hashed_wheel_loom)") && !line.contains("not(");
            assert!(is_value, "{}: {line}", path.display());
        }
    }
}

#[test]
fn unsafe_code_is_in_node_and_platform_and_each_block_has_its_own_reason() {
    for source in sources("src") {
        let Source { path, module, text } = &source;
        let is_allowed = module.starts_with("node::") || module.starts_with("platform");
        for (number, line) in (1..).zip(source.code().lines()) {
            let is_unsafe = [
                "unsafe {",
                "unsafe fn",
                "unsafe impl",
                "unsafe trait",
                "allow(unsafe_code",
            ]
            .iter()
            .any(|what| line.contains(what));
            assert!(
                is_allowed || !is_unsafe,
                "{}:{number}: {line}",
                path.display()
            );
        }
        for (number, line) in (1..).zip(text.lines()) {
            let Some((_, reason)) = line.split_once("// SAFETY: ") else {
                continue;
            };
            let refers_elsewhere = [
                "as above", "as below", "as of", "as there", "as in", "see ", "the same",
            ]
            .iter()
            .any(|start| reason.to_lowercase().starts_with(start));
            assert!(!refers_elsewhere, "{}:{number}: {line}", path.display());
        }
        // The lint demands a comment at each block; a function says what it requires.
        for (at, _) in text.match_indices("unsafe fn ") {
            let is_type = text[..at].ends_with(": ") || text[..at].ends_with("= ");
            let docs = text[..at]
                .rfind("\n\n")
                .map_or(&text[..at], |start| &text[start..at]);
            assert!(
                is_type || docs.contains("# Safety"),
                "{}: no `# Safety`: {docs}",
                path.display()
            );
        }
    }
}

#[test]
fn no_file_names_types_of_tokio() {
    for source in sources("src") {
        for (number, line) in (1..).zip(source.code().lines()) {
            let names_it = line.match_indices("tokio::").any(|(at, _)| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':'))
            });
            assert!(!names_it, "{}:{number}: {line}", source.path.display());
        }
    }
}

/// The packages that are built on the timer use its public API. So there is no other door.
#[test]
fn nothing_is_public_and_hidden() {
    let folders = [
        "src",
        "crates/timing-wheels/src",
        "crates/util/src",
        "crates/redis-lock/src",
        "crates/job-scheduler/src",
        "crates/job-scheduler/cli/src",
    ];
    for source in folders.into_iter().flat_map(sources) {
        assert!(
            !source.text.contains("doc(hidden)"),
            "{}",
            source.path.display()
        );
    }
}

/// Tables, links and code in comments are not wrapped.
#[test]
fn comment_lines_end_at_column_100() {
    const COLUMNS: usize = 100;

    let folders = [
        "src",
        "tests",
        "loom-tests",
        "benches",
        "examples",
        "crates/timing-wheels",
        "crates/util",
    ];
    let mut too_long = Vec::new();
    for path in folders
        .iter()
        .flat_map(|folder| rust_files(&root().join(folder)))
    {
        let mut is_code = false;
        for (number, line) in (1..).zip(fs::read_to_string(&path).unwrap().lines()) {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                is_code = false;
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!']).trim();
            is_code ^= comment.starts_with("```");
            let cannot_be_wrapped = is_code || comment.starts_with('|') || !comment.contains(' ');
            let columns = line.chars().count();
            if columns > COLUMNS && !cannot_be_wrapped {
                too_long.push(format!("{}:{number}: {columns}", path.display()));
            }
        }
    }
    assert!(too_long.is_empty(), "{}", too_long.join("\n"));
}

/// An import from `lib.rs` would hide which module depends on which.
#[test]
fn modules_do_not_import_through_the_root() {
    let found = lines(
        &["crates/redis-lock/src", "crates/wheel-top/src"],
        |module| module == "lib",
        |line| {
            let names = line.split("crate::").skip(1);
            let first = |name: &str| name.trim_start_matches('{').chars().next();
            names.filter_map(first).any(char::is_uppercase)
        },
    );
    assert!(found.is_empty(), "{found:#?}");
}

/// At most one heading is above the first example of a crate or of a public type.
#[test]
fn examples_are_at_the_top_of_the_documentation() {
    const FOLDERS: [&str; 6] = [
        "src",
        "crates/timing-wheels/src",
        "crates/util/src",
        "crates/wheel-top/src",
        "crates/redis-lock/src",
        "crates/job-scheduler/src",
    ];
    let is_late = |docs: &[&str]| {
        let example = docs.iter().position(|line| line.contains("```"));
        let headings = |above: &[&str]| {
            above
                .iter()
                .filter(|line| line[3..].starts_with(" # "))
                .count()
        };
        example.is_some_and(|example| headings(&docs[..example]) > 1)
    };
    let (mut checked, mut late) = (0, Vec::new());
    for source in FOLDERS.into_iter().flat_map(sources) {
        let mut docs = Vec::new();
        for line in source.text.lines() {
            if ["//!", "///", "#[", "#!["]
                .iter()
                .any(|start| line.starts_with(start))
            {
                docs.push(line);
                continue;
            }
            let is_type = ["struct ", "enum ", "trait "].iter().any(|kind| {
                line.strip_prefix("pub ")
                    .is_some_and(|rest| rest.starts_with(kind))
            });
            if is_type || docs.iter().any(|line| line.starts_with("//!")) {
                checked += 1;
                if is_late(&docs) {
                    late.push(format!("{}: {line}", source.path.display()));
                }
            }
            docs.clear();
        }
    }
    assert!(
        checked > 100,
        "only {checked} crates, modules and types were found"
    );
    assert!(
        late.is_empty(),
        "two headings are above the first example: {late:#?}"
    );
}
