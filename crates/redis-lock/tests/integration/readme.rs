//! A new package with the dependency lines and the program of the README compiles and runs.

use std::fs;
use std::path::Path;
use std::process::Command;

use hashed_wheel_trial::redis_server::RedisServer;
use hashed_wheel_trial::testing;

/// Returns the first code block whose line of the opening fence is `fence`.
fn block<'a>(text: &'a str, fence: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("```{fence}\n")).expect("the README has such a block");
    rest.split_once("```").expect("the block ends").0
}

/// Returns the text with one occurrence of `from` replaced.
fn replace_once(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from} occurs once in the README's block:\n{text}");
    text.replace(from, to)
}

#[test]
fn the_quick_start_runs_as_printed() {
    let Some(server) = testing::server_or_skip(RedisServer::start("lock-readme")) else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lock-quick-start");
    fs::create_dir_all(package.join("src")).unwrap();

    // The repository is not next to this package.
    let here = root.to_str().unwrap().replace('\\', "/");
    let dependencies = replace_once(block(&readme, "toml"), "../hashed-wheel/crates/redis-lock", &here);
    let manifest = format!(
        "[package]\nname = \"lock-quick-start\"\nedition = \"2024\"\n\n{dependencies}\n[workspace]\n"
    );
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    let program = replace_once(block(&readme, "rust,no_run"), "redis://127.0.0.1/", &server.url());
    fs::write(package.join("src/main.rs"), program).unwrap();
    // The same versions, which are there already.
    fs::copy(root.join("../../Cargo.lock"), package.join("Cargo.lock")).unwrap();

    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--offline"]).current_dir(&package);
    // In the folder of this build, where the dependencies are already.
    cargo.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join(".."));
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("token"), "{output:?}");
}
