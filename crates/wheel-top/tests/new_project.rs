//! A new project with the lines of the README compiles, and depends on little. It is a build of its
//! own, so only `.ci/deep` makes it.

use std::fs;
use std::path::Path;

use hashed_wheel_trial::new_project::{NewProject, block};
use hashed_wheel_trial::testing::is_deep;

#[test]
fn readme_is_complete() {
    if !is_deep() {
        return;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(here.join("README.md")).expect("README.md can be read");

    // The checkout is not beside this project.
    let printed = block(&readme, "toml");
    let repository = here
        .join("../..")
        .to_str()
        .expect("the path is text")
        .replace('\\', "/");
    let dependencies = printed.replace("../hashed-wheel", &repository);
    assert_ne!(dependencies, printed, "the README names another path");
    let program = block(&readme, "rust,no_run");
    let project = NewProject::new(
        "watched",
        env!("CARGO_TARGET_TMPDIR"),
        &dependencies,
        program,
    );

    let tree =
        project.cargo("tree --package wheel-top --edges normal,features --depth 1 --prefix none");
    let mut names: Vec<_> = tree
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next())
        .collect();
    // A dependency has a line per feature.
    names.dedup();
    assert_eq!(names, ["hashed-wheel", "serde", "serde_json"]);
    assert!(
        !tree.contains("hashed-wheel feature"),
        "the features of the timer are not left to the service:\n{tree}"
    );
    project.cargo("check --quiet");
}
