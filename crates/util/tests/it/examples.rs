//! The examples, which check what they show.

#[path = "../../examples/idle_pool.rs"]
mod idle_pool;
#[path = "../../examples/retry_sleeper.rs"]
mod retry_sleeper;

#[test]
fn idle_pool_takes_the_last_and_closes_the_others() {
    idle_pool::main().unwrap();
}

#[test]
fn retry_crate_sleeps_on_the_timer() {
    retry_sleeper::main().unwrap();
}
