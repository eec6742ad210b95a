//! A copy of the lock in which each safeguard can be omitted: see `build.rs`.

// Where `build.rs` inserts a condition.
#![allow(unused_parens, clippy::all)]

#[path = "../sabotages/mod.rs"]
pub mod sabotages;

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));

/// Returns whether the environment selects this sabotage.
fn sabotage(name: &str) -> bool {
    static SELECTED: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var(sabotages::VARIABLE).ok());
    SELECTED.as_deref() == Some(name)
}

/// Returns a script with the change of the selected sabotage.
fn sabotaged_script(script: String) -> String {
    let row = sabotages::rows().find(|row| row.file == sabotages::LUA && sabotage(row.name));
    row.map_or(script.clone(), |row| {
        script.replace(row.original, row.wrong)
    })
}
