//! A service whose timers can be watched: connections that are idle for ten seconds are closed.
//!
//! ```sh
//! cargo run --example service --no-default-features    # in one terminal
//! cargo run -- 127.0.0.1:7070                          # in another one: wheel-top
//! ```
//!
//! It runs until Enter is pressed, or the end of its input.

use std::error::Error;
use std::io;
use std::thread;
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout};

const IDLE: Duration = Duration::from_secs(10);

/// The connections. Each has a timeout, which a packet re-arms.
const COUNT: usize = 3_000;

fn main() -> Result<(), Box<dyn Error>> {
    let connections = HashedWheelTimer::default();
    let address = wheel_top::watch("connections", &connections)?;
    let builder = HashedWheelTimer::builder().tick(Duration::from_millis(10));
    let requests = builder.hierarchical(true).ticks_per_wheel(64).build()?;
    wheel_top::watch("requests", &requests)?;
    println!("To watch the timers: wheel-top {address}");

    thread::spawn({
        let (connections, requests) = (connections.clone(), requests.clone());
        move || work(&connections, &requests)
    });
    io::stdin().read_line(&mut String::new())?;
    let closed = connections.stop().len();
    println!("{closed} connections were open");
    Ok(())
}

/// Ends with an error when the timers have been stopped.
fn work(
    connections: &HashedWheelTimer,
    requests: &HashedWheelTimer,
) -> Result<(), NewTimeoutError> {
    let connect = |_| connections.new_timeout(|_| (), IDLE);
    let mut open = (0..COUNT).map(connect).collect::<Result<Vec<_>, _>>()?;
    for step in 0.. {
        // A packet on a connection. One that fell silent is closed; a new one takes its place.
        let packet = &mut open[step * 7_919 % COUNT];
        if !packet.reset(IDLE) {
            *packet = connect(step)?;
        }
        // A request with a deadline. Nearly all are answered in time.
        let late = |_: &Timeout| ();
        let request =
            requests.new_timeout(late, Duration::from_millis(step as u64 * 1_237 % 5_000))?;
        if step % 16 != 0 {
            request.cancel();
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
