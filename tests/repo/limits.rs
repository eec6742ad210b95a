//! How much there may be: lines of code, public types, outcomes, entries of `tests/`.
//!
//! Each bound is near what there is, and a failure prints the number. A commit that raises a bound
//! says why. Lines are counted in rustfmt's default style.

use std::fs;
use std::path::PathBuf;

use crate::files::{pages, root, sources};

/// All lines of these folders that are neither blank nor comments nor tests.
const CODE_LINES: [(&str, usize); 2] = [("src", 8_733), ("crates/job-scheduler/src", 6_494)];

/// The lines of a file, with its comments and tests.
const FILE_LINES: usize = 600;

/// Structs, enums, unions, traits and type aliases. The goal is 30.
const PUBLIC_TYPES: usize = 33;

/// How a transition of a node may end, as the engine sees it.
const NODE_OUTCOMES: usize = 6;

const TEST_ENTRIES: usize = 15;

/// The lines of the pages that a newcomer reads first.
const PAGE_LINES: [(&str, usize); 4] = [
    ("README.md", 120),
    ("docs/benchmarks.md", 90),
    ("docs/alternatives.md", 90),
    ("docs/from-netty.md", 350),
];

/// The words of all pages, the CHANGELOGs included.
const WORDS: usize = 29_800;

#[test]
fn code_of_the_libraries() {
    for (folder, limit) in CODE_LINES {
        let sources = sources(folder)
            .into_iter()
            .filter(|source| !source.path.ends_with("tests.rs"));
        let lines = |code: String| code.lines().filter(|line| !line.trim().is_empty()).count();
        let count: usize = sources.map(|source| lines(source.code())).sum();
        assert!(
            count <= limit,
            "{folder} has {count} lines of code, more than {limit}"
        );
    }
}

#[test]
fn longest_file() {
    for source in [
        "src",
        "crates/job-scheduler/src",
        "crates/timing-wheels/src",
        "crates/util/src",
    ]
    .into_iter()
    .flat_map(sources)
    {
        let (path, count) = (source.path.display(), source.text.lines().count());
        assert!(
            count <= FILE_LINES,
            "{path} has {count} lines, more than {FILE_LINES}"
        );
    }
}

/// `tests/public-api.txt` has one line per item. An associated type is no type of its own.
#[test]
fn public_types_of_the_library() {
    let listing = fs::read_to_string(root().join("tests/public-api.txt")).unwrap();
    let name = |line: &str| {
        let (kind, name) = line
            .split_once("pub ")?
            .1
            .trim_start_matches("unsafe ")
            .split_once(' ')?;
        ["struct", "enum", "union", "trait", "type"]
            .contains(&kind)
            .then(|| name.to_owned())
    };
    let is_associated = |name: &String| {
        let owner = name
            .split(" = ")
            .next()
            .unwrap()
            .rsplit_once("::")
            .unwrap()
            .0;
        name.contains(" = ")
            && owner
                .rsplit("::")
                .next()
                .unwrap()
                .starts_with(char::is_uppercase)
    };
    let types: Vec<_> = listing
        .lines()
        .filter_map(name)
        .filter(|name| !is_associated(name))
        .collect();
    let count = types.len();
    assert!(count > 20, "too few types were found: {types:#?}");
    assert!(
        count <= PUBLIC_TYPES,
        "{count} public types, more than {PUBLIC_TYPES}: {types:#?}"
    );
}

/// An enum of `src/node` that the engine can name is the outcome of a transition.
#[test]
fn outcomes_of_transitions_of_a_node() {
    let sources = sources("src/node");
    let enums = sources
        .iter()
        .flat_map(|source| source.lines())
        .filter_map(|(_, line)| {
            line.trim_start()
                .strip_prefix("pub(crate) enum ")
                .map(|rest| rest.trim_end_matches(" {"))
        });
    let enums: Vec<_> = enums.collect();
    assert!(enums.len() > 2, "too few enums were found: {enums:?}");
    assert!(
        enums.len() <= NODE_OUTCOMES,
        "{} outcomes, more than {NODE_OUTCOMES}: {enums:?}",
        enums.len()
    );
}

#[test]
fn entries_of_the_tests_folder() {
    let entries = fs::read_dir(root().join("tests"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let entries: Vec<_> = entries.collect();
    let count = entries.len();
    assert!(
        count <= TEST_ENTRIES,
        "tests/ has {count} entries, more than {TEST_ENTRIES}: {entries:?}"
    );
}

#[test]
fn lines_and_words_of_the_pages() {
    for (page, limit) in PAGE_LINES {
        let lines = fs::read_to_string(root().join(page))
            .unwrap()
            .lines()
            .count();
        assert!(
            lines <= limit,
            "{page} has {lines} lines, more than {limit}"
        );
    }
    let words = |page: PathBuf| fs::read_to_string(page).unwrap().split_whitespace().count();
    let words: usize = pages().into_iter().map(words).sum();
    assert!(
        words <= WORDS,
        "the pages have {words} words, more than {WORDS}"
    );
}
