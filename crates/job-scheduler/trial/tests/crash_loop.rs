//! Runs the crash loop as a user would, on a PostgreSQL that it starts. That takes minutes, so only
//! `.ci/deep` does; `promises/interruptions.rs` has each rule by itself.

use std::thread;

use hashed_wheel_trial::testing;

#[test]
fn guilty_run_is_found_in_a_crash_loop() {
    if !testing::is_deep() {
        return;
    }
    let run = |options| move || testing::run(env!("CARGO_BIN_EXE_crash_loop"), options);
    let [passed, sabotaged] = thread::scope(|scope| {
        [run(""), run("--sabotage")]
            .map(|run| scope.spawn(run))
            .map(|run| run.join().expect("it is waited for"))
    });
    if passed.was_skipped() {
        return;
    }
    assert_eq!(passed.status, Some(0), "{}", passed.text);
    assert!(passed.text.contains("\nPASS\n"), "{}", passed.text);
    assert_eq!(sabotaged.status, Some(1), "{}", sabotaged.text);
    assert!(
        sabotaged.text.contains("counts for an innocent run"),
        "{}",
        sabotaged.text
    );
}
