//! A deadline for each request, in async code on tokio. Any other runtime works too, because the
//! timer has its own thread. It needs hashed-wheel with `features = ["async"]`, and tokio with
//! `features = ["macros", "rt"]`.
//!
//! ```text
//! fast: Ok("answer")
//! slow: Err(Elapsed)
//! ```

use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, TimeoutError};

/// A request that the server answers after some time.
async fn request(timer: &HashedWheelTimer, time: Duration) -> Result<&'static str, TimeoutError> {
    timer.sleep(time).await?;
    Ok("answer")
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    let limit = Duration::from_secs(1);
    for (name, time) in [
        ("fast", Duration::from_millis(5)),
        ("slow", Duration::from_secs(60)),
    ] {
        // Dropping the request cancels what it waits for, at once.
        let answer = timer.timeout(limit, request(&timer, time)).await;
        println!("{name}: {:?}", answer.and_then(|answer| answer));
    }
    assert_eq!(timer.pending_timeouts(), 0);
}
