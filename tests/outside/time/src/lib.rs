//! Programs that were written for `tokio::time`, and the same programs after one line was changed.

/// As they were written.
#[path = "."]
pub mod on_tokio {
    use tokio::time;

    pub mod keep_alive;
    pub mod pool;
    pub mod rpc;
}

/// With the changed line.
#[path = "."]
#[allow(clippy::duplicate_mod, reason = "one source for two modules")]
pub mod on_the_wheel {
    use hashed_wheel_util::time;

    pub mod keep_alive;
    pub mod pool;
    pub mod rpc;
}
