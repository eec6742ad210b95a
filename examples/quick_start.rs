//! Two timeouts: one fires, and one is cancelled because the answer arrives in time.
//!
//! ```text
//! the answer has arrived: true
//! fired after 100 ms
//! ```

use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, NewTimeoutError};

fn main() -> Result<(), NewTimeoutError> {
    let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
    timer.new_timeout(
        |_| println!("fired after 100 ms"),
        Duration::from_millis(100),
    )?;

    let no_answer = timer.new_timeout(|_| println!("no answer"), Duration::from_secs(5))?;
    println!("the answer has arrived: {}", no_answer.cancel());

    // Waits for the timeouts that are due within a second. Dropping the timer would cancel them.
    timer.shutdown(Duration::from_secs(1));
    Ok(())
}
