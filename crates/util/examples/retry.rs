//! A call with a deadline and retries: the server refuses twice, and then answers.
//! hashed-wheel-util needs `features = ["client"]`, and tokio `["macros", "rt"]`.
//!
//! ```text
//! First: refused
//! Retry: refused
//! Retry: answered
//! the call: Ok("answer")
//! a server that never answers: Err("the deadline of the call has passed")
//! ```

use std::cell::Cell;
use std::future::pending;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::client::{Client, Policy};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    // All clients of one server share a budget, so that retries cannot overload it.
    let client = Client::new(&timer, Policy::new(Duration::from_secs(30)).retries(2));

    let requests = Cell::new(0);
    let answer = client.call(async |reason| {
        requests.set(requests.get() + 1);
        if requests.get() < 3 {
            println!("{reason:?}: refused");
            return Err("refused");
        }
        println!("{reason:?}: answered");
        Ok("answer")
    });
    println!("the call: {:?}", answer.await);

    let impatient = Client::new(&timer, Policy::new(Duration::from_millis(50)));
    let answer = impatient
        .call(async |_| pending::<Result<(), &str>>().await)
        .await;
    println!(
        "a server that never answers: {:?}",
        answer.map_err(|error| error.to_string())
    );
}
