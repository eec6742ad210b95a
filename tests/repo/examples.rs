//! Each example prints the text that its documentation shows, and is short enough to be read.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::files::{root, rust_files};

/// The lines of an example, besides the output that it shows.
const LINES: usize = 60;

/// The lines of `idle_connections`, a demonstration that checks itself.
const LINES_OF_THE_DEMONSTRATION: usize = 123;

/// Returns the text that the documentation of an example shows as its output.
fn shown(source: &str) -> Option<String> {
    let (_, rest) = source.split_once("//! ```text\n")?;
    let lines = rest.lines().take_while(|&line| line != "//! ```");
    Some(
        lines
            .map(|line| line.trim_start_matches("//! ").to_owned() + "\n")
            .collect(),
    )
}

#[test]
#[cfg_attr(miri, ignore = "it starts processes")]
fn examples_print_what_they_show() {
    // `target/debug/deps/repo-…` beside `target/debug/examples/…`.
    let test = env::current_exe().unwrap();
    let built = test.parent().unwrap().with_file_name("examples");
    let sources = [
        "examples",
        "crates/timing-wheels/examples",
        "crates/util/examples",
    ]
    .map(|folder| rust_files(&root().join(folder)));
    let start = |source: &PathBuf| {
        let name = source.file_stem().unwrap();
        let program = built.join(name).with_extension(env::consts::EXE_EXTENSION);
        let build = "run `cargo build --workspace --all-features --examples` first";
        let child = Command::new(program)
            .stdout(Stdio::piped())
            .spawn()
            .expect(build);
        (source.clone(), child)
    };
    let sources: Vec<_> = sources.into_iter().flatten().collect();
    assert!(
        sources.len() >= 13,
        "only {} examples were found",
        sources.len()
    );
    // Most of them wait. More at a time would delay each other by more than what some wait for.
    let running = sources
        .chunks(4)
        .flat_map(|some| some.iter().map(start).collect::<Vec<_>>());
    for (source, child) in running {
        let output = child.wait_with_output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let text = fs::read_to_string(&source).unwrap();
        assert!(output.status.success(), "{}: {printed}", source.display());
        let lines = text.lines().count();
        let (lines, limit) = match shown(&text) {
            Some(shown) => {
                assert_eq!(printed, shown, "{}", source.display());
                // With the two lines around it.
                (lines - shown.lines().count() - 2, LINES)
            }
            None => {
                assert!(
                    printed.ends_with("PASS\n"),
                    "{}: {printed}",
                    source.display()
                );
                (lines, LINES_OF_THE_DEMONSTRATION)
            }
        };
        assert!(
            lines <= limit,
            "{} has {lines} lines, more than {limit}",
            source.display()
        );
    }
}
