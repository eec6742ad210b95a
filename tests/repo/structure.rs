//! The structure of the sources: who imports whom, where `unsafe` code is, how comments are
//! written.
//!
//! These are rules for the people who change the code; CONTRIBUTING.md has them in prose.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders and files of `src`, from the top layer to the bottom one. Imports lead downwards.
const LAYERS: [&[&str]; 4] = [
    &[
        "builder", "cancel", "clock", "driver", "ending", "executor", "error", "future", "lib", "periodic",
        "stats", "task", "timeout", "timer", "tokio", "weak",
    ],
    &["engine"],
    &["node"],
    &["platform", "report", "sync", "ticks", "wheel"],
];

/// The files that may import each other: see `src/engine/mod.rs`.
const CYCLE: [&str; 3] = ["engine::shared", "engine::thread", "engine::worker"];

const MAX_UPWARD_IMPORTS: usize = 10;

/// A file of `src`.
struct Source {
    path: PathBuf,
    /// The path of its module, without `crate`: `node::word`.
    module: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let paths = rust_files(&root);
    let sources = paths.into_iter().map(|path| {
        let relative = path.strip_prefix(&root).unwrap().with_extension("");
        let parts: Vec<_> = relative.iter().map(|part| part.to_str().unwrap()).collect();
        let module = parts.join("::");
        let module = module.strip_suffix("::mod").unwrap_or(&module).to_owned();
        let text = fs::read_to_string(&path).unwrap();
        Source { path, module, text }
    });
    sources.collect()
}

/// All Rust files in a folder of the project and in the folders below it.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The code of a file: without comments and without its unit tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    text.lines().map(|line| line.split("//").next().unwrap().to_owned() + "\n").collect()
}

/// The paths that the `use` items and the `crate::` paths of a module name, without `crate`.
fn imported_paths(source: &Source) -> BTreeSet<String> {
    let code = code(&source.text);
    let mut paths = BTreeSet::new();
    for item in code.split(';') {
        let Some(at) = item.rfind("use ") else { continue };
        let tree: String = item[at + 4..].split_whitespace().filter(|word| *word != "as").collect();
        expand(&tree, "", &mut paths);
    }
    for rest in code.split("crate::").skip(1) {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len());
        paths.insert(format!("crate::{}", &rest[..end]));
    }
    paths.iter().filter_map(|path| absolute(path, &source.module)).collect()
}

/// Expands `a::{b, c::{d}}` to `a::b` and `a::c::d`.
fn expand(tree: &str, prefix: &str, paths: &mut BTreeSet<String>) {
    let Some((before, inside)) = tree.split_once('{') else {
        paths.insert(format!("{prefix}{tree}"));
        return;
    };
    let inside = inside.strip_suffix('}').unwrap_or(inside);
    let (mut depth, mut part) = (0, String::new());
    for c in inside.chars().chain([',']) {
        match c {
            ',' if depth == 0 => expand(&std::mem::take(&mut part), &format!("{prefix}{before}"), paths),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                part.push(c);
            }
        }
    }
}

/// The path from the root of the crate; `None` for a path into another crate.
fn absolute(path: &str, module: &str) -> Option<String> {
    let mut base: Vec<_> = module.split("::").collect();
    let parts: Vec<_> = path.split("::").collect();
    match parts[0] {
        "crate" => Some(parts[1..].join("::")),
        "super" | "self" => {
            let supers = parts.iter().take_while(|part| matches!(**part, "super" | "self")).count();
            base.truncate(base.len() - parts[..supers].iter().filter(|part| **part == "super").count());
            base.extend(&parts[supers..]);
            Some(base.join("::"))
        }
        _ => None,
    }
}

/// For each module the modules that it imports.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let sources = sources();
    let modules: BTreeSet<_> = sources.iter().map(|source| source.module.clone()).collect();
    let owner = |path: String| {
        let mut path = path.as_str();
        loop {
            if modules.contains(path) {
                return Some(path.to_owned());
            }
            path = path.rsplit_once("::")?.0;
        }
    };
    let imported = |source: &Source| {
        imported_paths(source).into_iter().filter_map(owner).filter(|to| *to != source.module).collect()
    };
    sources.iter().map(|source| (source.module.clone(), imported(source))).collect()
}

fn reachable(from: &str, imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(module) = next.pop() {
        for to in &imports[&module] {
            if seen.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    seen
}

#[test]
fn the_only_import_cycle_is_the_documented_one_of_the_engine() {
    let imports = imports();
    assert!(imports.len() > 40 && imports["engine::worker"].contains("node"), "imports are found");
    let in_cycles: Vec<_> =
        imports.keys().filter(|module| reachable(module, &imports).contains(*module)).collect();
    assert_eq!(in_cycles, CYCLE, "modules that import themselves through others");
}

/// The head of `lib.rs`, and of each `mod.rs`, has the map of its folder: a table whose first
/// column has each file and each folder once.
#[test]
fn each_file_is_named_once_in_the_map_of_its_folder() {
    let is_map = |path: &&PathBuf| path.ends_with("lib.rs") || path.ends_with("mod.rs");
    let paths = rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    for map in paths.iter().filter(is_map) {
        let mut files: Vec<_> = fs::read_dir(map.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file() || path.join("mod.rs").exists())
            .map(|path| {
                let name = path.file_stem().unwrap().to_str().unwrap();
                if path.is_dir() { format!("{name}/") } else { name.to_owned() }
            })
            .filter(|name| !["lib", "mod", "tests"].contains(&name.as_str()))
            .collect();
        let text = fs::read_to_string(map).unwrap();
        let lines = text.lines().map(|line| line.trim_start_matches(['/', '!']).trim_start());
        let rows = lines.skip_while(|line| *line != "| file | content |").skip(2);
        let cells = rows.take_while(|row| row.starts_with('|')).map(|row| row.split('|').nth(1).unwrap());
        let mut named: Vec<_> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        files.sort();
        named.sort();
        assert_eq!(named, files, "{}: what the map names, and what there is", map.display());
    }
}

#[test]
fn imports_lead_from_upper_layers_to_lower_ones() {
    let layer = |module: &str| {
        let top = module.split("::").next().unwrap();
        LAYERS.iter().position(|layer| layer.contains(&top)).unwrap_or_else(|| panic!("{top}: no layer"))
    };
    let imports = imports();
    let upward: Vec<_> = imports
        .iter()
        .filter(|(from, _)| *from != "must_not_compile")
        .flat_map(|(from, all)| all.iter().map(move |to| (from, to)))
        .filter(|(from, to)| layer(to) < layer(from))
        .collect();
    assert!(upward.len() <= MAX_UPWARD_IMPORTS, "{} imports lead upwards: {upward:?}", upward.len());
}

#[test]
fn product_code_has_no_hooks_for_models() {
    for Source { path, module, text } in sources() {
        let words =
            ["Fault", "is_broken", "mutant", "come_and_go", "load_of_another", "load_count", "Access::"];
        for word in words {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
        // Elsewhere only a constant may have another value in the models.
        if module.starts_with("sync") || module.starts_with("platform") {
            continue;
        }
        for line in text
            .lines()
            .filter(|line| line.contains("hashed_wheel_loom") || line.contains("hashed_wheel_shuttle"))
        {
            let is_value = line.contains("cfg!(hashed_wheel_loom)") && !line.contains("not(");
            assert!(is_value, "{}: {line}", path.display());
        }
    }
}

#[test]
fn unsafe_code_is_in_node_and_platform_and_each_block_has_its_own_reason() {
    for Source { path, module, text } in sources() {
        let is_allowed = module.starts_with("node::") || module.starts_with("platform");
        for (number, line) in (1..).zip(code(&text).lines()) {
            let is_unsafe = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait", "allow(unsafe_code"]
                .iter()
                .any(|what| line.contains(what));
            assert!(is_allowed || !is_unsafe, "{}:{number}: {line}", path.display());
        }
        for (number, line) in (1..).zip(text.lines()) {
            let Some((_, reason)) = line.split_once("// SAFETY: ") else { continue };
            let refers_elsewhere = ["as above", "as below", "as of", "as there", "as in", "see ", "the same"]
                .iter()
                .any(|start| reason.to_lowercase().starts_with(start));
            assert!(!refers_elsewhere, "{}:{number}: {line}", path.display());
        }
        // The lint demands a comment at each block; a function says what it requires.
        for (at, _) in text.match_indices("unsafe fn ") {
            let is_type = text[..at].ends_with(": ") || text[..at].ends_with("= ");
            let docs = text[..at].rfind("\n\n").map_or(&text[..at], |start| &text[start..at]);
            assert!(is_type || docs.contains("# Safety"), "{}: no `# Safety`: {docs}", path.display());
        }
    }
}

#[test]
fn only_one_file_names_types_of_tokio() {
    for source in sources().iter().filter(|source| source.module != "tokio") {
        for (number, line) in (1..).zip(code(&source.text).lines()) {
            let names_it = line.match_indices("tokio::").any(|(at, _)| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':'))
            });
            assert!(!names_it, "{}:{number}: {line}", source.path.display());
        }
    }
}

/// What is built on the timer uses its public API. So there is no other door.
#[test]
fn nothing_is_public_and_hidden() {
    for source in sources() {
        assert!(!source.text.contains("doc(hidden)"), "{}", source.path.display());
    }
}

/// Tables, links and code in comments are not wrapped.
#[test]
fn comment_lines_end_at_column_100() {
    const COLUMNS: usize = 100;

    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src", "tests", "loom-tests", "benches", "examples", "crates/util"];
    let mut too_long = Vec::new();
    for path in folders.iter().flat_map(|folder| rust_files(&root.join(folder))) {
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
