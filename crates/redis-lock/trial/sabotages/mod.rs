//! The sabotages: each omits one safeguard of the lock, and a test of `../../tests` must fail.

mod leases;
mod owners;
mod redis;
mod shared;
mod waiting;

/// The environment variable that selects a sabotage by name.
pub const VARIABLE: &str = "REDIS_LOCK_SABOTAGE";

/// Stands for the file of a row that changes a script.
pub const LUA: &str = "Lua";

/// A change of one place in one file of the lock.
pub struct Row {
    /// The name of the sabotage.
    pub name: &'static str,
    /// The file in `../../src`, or [`LUA`].
    pub file: &'static str,
    /// A text that occurs exactly once in the file: an expression, or statements that end with a
    /// semicolon.
    pub original: &'static str,
    /// Its replacement.
    pub wrong: &'static str,
    /// The test that must fail: of `lock.rs`, or `FILE::TEST`.
    pub test: &'static str,
}

const fn row(
    name: &'static str,
    file: &'static str,
    original: &'static str,
    wrong: &'static str,
    test: &'static str,
) -> Row {
    Row {
        name,
        file,
        original,
        wrong,
        test,
    }
}

/// Returns all sabotages.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [
        owners::ROWS,
        shared::ROWS,
        leases::ROWS,
        waiting::ROWS,
        redis::ROWS,
    ]
    .into_iter()
    .flatten()
}
