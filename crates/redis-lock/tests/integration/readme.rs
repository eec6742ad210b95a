//! A new package with the dependency lines and the program of the README compiles and runs. It is a
//! build of its own, so only `.ci/deep` makes it.

use std::fs;
use std::path::Path;

use hashed_wheel_trial::new_project::{NewProject, block, replace_once};
use hashed_wheel_trial::redis_server::RedisServer;
use hashed_wheel_trial::testing;

#[test]
fn the_quick_start_runs_as_printed() {
    if !testing::is_deep() {
        return;
    }
    let Some(server) = testing::server_or_skip(RedisServer::start("lock-readme")) else {
        return;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();

    // The repository is not next to this package.
    let here = root.to_str().unwrap().replace('\\', "/");
    let dependencies = replace_once(
        block(&readme, "toml"),
        "../hashed-wheel/crates/redis-lock",
        &here,
    );
    let program = replace_once(
        block(&readme, "rust,no_run"),
        "redis://127.0.0.1/",
        &server.url(),
    );
    let temporary = env!("CARGO_TARGET_TMPDIR");
    let project = NewProject::new("lock-quick-start", temporary, &dependencies, &program);
    let printed = project.cargo("run --quiet");
    assert!(printed.contains("token"), "{printed}");
}
