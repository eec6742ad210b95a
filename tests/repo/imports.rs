//! Which file imports which: the layers of `src`, import cycles, and the map of each folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use crate::files::{Source, root, rust_files, sources};

/// The folders and files of `src`, from the top layer to the bottom one. Imports lead downwards.
const LAYERS: [&[&str]; 4] = [
    &[
        "alarm", "builder", "cancel", "clock", "driver", "ending", "error", "executor", "future",
        "lib", "periodic", "stats", "task", "timeout", "timer", "weak",
    ],
    &["engine"],
    &["node"],
    &["either_wheel", "platform", "report", "sync", "ticks"],
];

/// The files that may import each other: see `src/engine/mod.rs`.
const CYCLE: [&str; 3] = ["engine::inner", "engine::thread", "engine::worker"];

const MAX_UPWARD_IMPORTS: usize = 3;

/// The paths that the `use` items and the `crate::` paths of a module name, without `crate`.
fn imported_paths(source: &Source) -> BTreeSet<String> {
    let code = source.code();
    let mut paths = BTreeSet::new();
    for item in code.split(';') {
        let Some(at) = item.rfind("use ") else {
            continue;
        };
        let tree: String = item[at + 4..]
            .split_whitespace()
            .filter(|word| *word != "as")
            .collect();
        expand(&tree, "", &mut paths);
    }
    for rest in code.split("crate::").skip(1) {
        let end = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
            .unwrap_or(rest.len());
        paths.insert(format!("crate::{}", &rest[..end]));
    }
    paths
        .iter()
        .filter_map(|path| absolute(path, &source.module))
        .collect()
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
            ',' if depth == 0 => expand(
                &std::mem::take(&mut part),
                &format!("{prefix}{before}"),
                paths,
            ),
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
            let supers = parts
                .iter()
                .take_while(|part| matches!(**part, "super" | "self"))
                .count();
            base.truncate(
                base.len()
                    - parts[..supers]
                        .iter()
                        .filter(|part| **part == "super")
                        .count(),
            );
            base.extend(&parts[supers..]);
            Some(base.join("::"))
        }
        _ => None,
    }
}

/// For each module below a folder the modules that it imports.
fn imports(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let sources = sources(folder);
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
        imported_paths(source)
            .into_iter()
            .filter_map(owner)
            .filter(|to| *to != source.module)
            .collect()
    };
    sources
        .iter()
        .map(|source| (source.module.clone(), imported(source)))
        .collect()
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
    let imports = imports("src");
    assert!(
        imports.len() > 40 && imports["engine::worker"].contains("node"),
        "imports are found"
    );
    let in_cycles: Vec<_> = imports
        .keys()
        .filter(|module| reachable(module, &imports).contains(*module))
        .collect();
    assert_eq!(
        in_cycles, CYCLE,
        "modules that import themselves through others"
    );
}

/// A folder with a `lib.rs` or a `main.rs` is a root of modules.
#[test]
fn import_cycles_beside_the_library_have_at_most_two_files() {
    let is_root = |path: &PathBuf| path.ends_with("lib.rs") || path.ends_with("main.rs");
    let files = ["crates", "benches", "examples", "tests"]
        .into_iter()
        .flat_map(|folder| rust_files(&root().join(folder)));
    let folders = files
        .filter(is_root)
        .map(|path| path.parent().unwrap().to_owned());
    let folders: BTreeSet<_> = folders.collect();
    assert!(folders.len() > 15, "too few roots were found: {folders:?}");
    let mut cycles = BTreeSet::new();
    for folder in folders {
        let folder = folder.strip_prefix(root()).unwrap().to_str().unwrap();
        let imports = imports(folder);
        let reached: BTreeMap<_, _> = imports
            .keys()
            .map(|module| (module, reachable(module, &imports)))
            .collect();
        for module in imports.keys() {
            let cycle: Vec<_> = reached[module]
                .iter()
                .filter(|to| reached[to].contains(module))
                .collect();
            if cycle.len() > 2 {
                cycles.insert(format!("{folder}: {cycle:?}"));
            }
        }
    }
    assert!(cycles.is_empty(), "{cycles:#?}");
}

#[test]
fn imports_lead_from_upper_layers_to_lower_ones() {
    let layer = |module: &str| {
        let top = module.split("::").next().unwrap();
        LAYERS
            .iter()
            .position(|layer| layer.contains(&top))
            .unwrap_or_else(|| panic!("{top}: no layer"))
    };
    let imports = imports("src");
    let upward: Vec<_> = imports
        .iter()
        .filter(|(from, _)| *from != "must_not_compile")
        .flat_map(|(from, all)| all.iter().map(move |to| (from, to)))
        .filter(|(from, to)| layer(to) < layer(from))
        .collect();
    assert!(
        upward.len() <= MAX_UPWARD_IMPORTS,
        "{} imports lead upwards: {upward:?}",
        upward.len()
    );
}

/// The head of `lib.rs`, and of each `mod.rs`, has the map of its folder: a table whose first
/// column has each file and each folder once.
#[test]
fn each_file_is_named_once_in_the_map_of_its_folder() {
    let is_map = |path: &&PathBuf| path.ends_with("lib.rs") || path.ends_with("mod.rs");
    let roots = ["src", "crates/timing-wheels/src"];
    let paths: Vec<_> = roots
        .iter()
        .flat_map(|folder| rust_files(&root().join(folder)))
        .collect();
    for map in paths.iter().filter(is_map) {
        let mut files: Vec<_> = fs::read_dir(map.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file() || path.join("mod.rs").exists())
            .map(|path| {
                let name = path.file_stem().unwrap().to_str().unwrap();
                if path.is_dir() {
                    format!("{name}/")
                } else {
                    name.to_owned()
                }
            })
            .filter(|name| !["lib", "mod", "tests"].contains(&name.as_str()))
            .collect();
        let text = fs::read_to_string(map).unwrap();
        let lines = text
            .lines()
            .map(|line| line.trim_start_matches(['/', '!']).trim_start());
        let rows = lines
            .skip_while(|line| *line != "| file | content |")
            .skip(2);
        let cells = rows
            .take_while(|row| row.starts_with('|'))
            .map(|row| row.split('|').nth(1).unwrap());
        let mut named: Vec<_> = cells
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .collect();
        files.sort();
        named.sort();
        assert_eq!(
            named,
            files,
            "{}: what the map names, and what there is",
            map.display()
        );
    }
}
