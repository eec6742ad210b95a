//! `docs/design.md` names only items that exist, so an outdated name fails a test.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// The folders that contain models and tests.
const FOLDERS: [&str; 5] =
    ["loom-tests/tests/models", "loom-tests/shuttle/tests", "tests", "src", "src/wheel"];

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the text of all Rust files in and below a folder.
fn sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| match path.extension() {
            _ if path.is_dir() => sources(&path),
            Some(rs) if rs == "rs" => read(&path),
            _ => String::new(),
        })
        .collect()
}

#[test]
#[cfg_attr(miri, ignore = "it reads files, and runs nothing of the library")]
fn names_in_the_design_document_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = read(&root.join("docs/design.md"));
    let code = sources(&root.join("src")) + &sources(&root.join("loom-tests/tests"));
    let words: HashSet<_> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    // `module::function`, a test or a model of that file.
    let is_test = |module: &str, function: &str| {
        let files = FOLDERS.map(|folder| root.join(folder).join(format!("{module}.rs")));
        files.iter().filter(|file| file.exists()).any(|file| read(file).contains(&format!("fn {function}(")))
    };
    let is_there = |name: &str| match name.split_once("::") {
        _ if name.contains(['/', '.']) => root.join(name).exists(),
        Some((module, function)) if module.starts_with(char::is_lowercase) => is_test(module, function),
        _ => name.split("::").all(|word| words.contains(word)),
    };
    let names: Vec<_> = page.split('`').skip(1).step_by(2).collect();
    assert!(names.len() > 100, "too few names were found: {names:?}");
    let gone: Vec<_> = names.into_iter().filter(|name| !is_there(name)).collect();
    assert!(gone.is_empty(), "docs/design.md names items that do not exist: {gone:?}");

    let links = page.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    for (link, _) in links.filter(|(link, _)| !link.starts_with('#')) {
        assert!(root.join("docs").join(link).exists(), "docs/design.md: no {link}");
    }
}
