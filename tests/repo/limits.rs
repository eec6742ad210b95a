//! How much there may be: lines of code, public types and methods, outcomes, entries of `tests/`.
//!
//! Each bound is near what there is, and a failure prints the number. A commit that raises a bound
//! says why. Lines are counted in rustfmt's default style.

use std::fs;
use std::path::PathBuf;

use crate::files::{Source, pages, root, rust_files, sources};

/// All lines of these folders that are neither blank nor comments nor tests.
const CODE_LINES: [(&str, usize); 5] = [
    ("src", 8_265),
    ("crates/timing-wheels/src", 2_330),
    ("crates/util/src", 4_849),
    ("crates/redis-lock/src", 3_411),
    ("crates/job-scheduler/src", 6_505),
];

/// The lines of a file of these folders, with its comments and tests.
const FILE_LINES: usize = 600;

/// What is a product, and what is around it besides the unit tests.
const PRODUCT: [&str; 2] = ["src", "crates/timing-wheels/src"];
const AROUND: [&str; 7] = [
    "tests",
    "loom-tests",
    "benches",
    "examples",
    "crates/timing-wheels/tests",
    "crates/timing-wheels/examples",
    "crates/ledger",
];

/// Lines around the product per line of it, neither blank nor comments: the goal.
const LINES_AROUND: usize = 5;

/// Structs, enums, unions, traits and type aliases in a listing. The goal for the timer is 30.
const PUBLIC_TYPES: [(&str, usize); 2] = [
    ("tests/public-api.txt", 33),
    ("crates/util/tests/public-api.txt", 53),
];

/// Methods of `HashedWheelTimer` itself. The goal is 32.
const TIMER_METHODS: usize = 37;

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
const WORDS: usize = 29_900;

/// The lines that are neither blank nor comments.
fn lines(text: &str) -> usize {
    let code = |line: &str| line.split("//").next().unwrap().trim().to_owned();
    text.lines().filter(|line| !code(line).is_empty()).count()
}

/// The lines of a folder's code, without tests.
fn code_lines(folder: &str) -> usize {
    let is_code = |source: &Source| !source.path.ends_with("tests.rs");
    let sources = sources(folder).into_iter().filter(is_code);
    sources.map(|source| lines(&source.code())).sum()
}

#[test]
fn code_of_the_libraries() {
    for (folder, limit) in CODE_LINES {
        let count = code_lines(folder);
        assert!(
            count <= limit,
            "{folder} has {count} lines of code, more than {limit}"
        );
    }
}

#[test]
fn longest_file() {
    for source in CODE_LINES.iter().flat_map(|(folder, _)| sources(folder)) {
        let (path, count) = (source.path.display(), source.text.lines().count());
        assert!(
            count <= FILE_LINES,
            "{path} has {count} lines, more than {FILE_LINES}"
        );
    }
}

#[test]
fn lines_around_the_product() {
    let all = |folder: &&str| -> usize {
        let files = rust_files(&root().join(folder)).into_iter();
        files
            .map(|file| lines(&fs::read_to_string(file).unwrap()))
            .sum()
    };
    let product: usize = PRODUCT.into_iter().map(code_lines).sum();
    let around = AROUND.iter().chain(&PRODUCT).map(all).sum::<usize>() - product;
    assert!(
        around <= LINES_AROUND * product,
        "{around} lines around {product} lines, more than {LINES_AROUND} times as many"
    );
}

/// A listing has one line per item. An associated type is no type of its own.
#[test]
fn public_types_of_the_libraries() {
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
    for (listing, limit) in PUBLIC_TYPES {
        let text = fs::read_to_string(root().join(listing)).unwrap();
        let types: Vec<_> = text
            .lines()
            .filter_map(name)
            .filter(|name| !is_associated(name))
            .collect();
        let count = types.len();
        assert!(
            count > 20,
            "{listing}: too few types were found: {types:#?}"
        );
        assert!(
            count <= limit,
            "{listing}: {count} public types, more than {limit}: {types:#?}"
        );
    }
}

/// Methods of traits follow the line of another `impl`.
#[test]
fn methods_of_the_timer() {
    let listing = fs::read_to_string(root().join("tests/public-api.txt")).unwrap();
    let impls = listing
        .split("impl hashed_wheel::HashedWheelTimer\n")
        .skip(1);
    let methods = impls.flat_map(|rest| rest.lines().take_while(|line| !line.starts_with("impl")));
    let methods: Vec<_> = methods
        .filter(|line| line.contains("fn hashed_wheel::HashedWheelTimer::"))
        .collect();
    let count = methods.len();
    assert!(count > 20, "too few methods were found: {methods:#?}");
    assert!(
        count <= TIMER_METHODS,
        "{count} methods, more than {TIMER_METHODS}: {methods:#?}"
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
