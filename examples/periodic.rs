//! A periodic task at a fixed rate, one that ends itself, and what becomes of missed ticks.
//!
//! ```text
//! alive
//! alive
//! alive
//! countdown: 2
//! countdown: 1
//! lift-off
//! ```

use std::ops::ControlFlow;
use std::sync::mpsc;
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, MissedTick, NewTimeoutError, Schedule};

fn main() -> Result<(), NewTimeoutError> {
    let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    let period = Duration::from_millis(20);

    // As Java's `scheduleAtFixedRate`: the first run now, and then every 20 ms.
    let (sender, runs) = mpsc::channel();
    let heartbeat = timer.schedule_at_fixed_rate(
        move || sender.send(()).unwrap_or(()),
        Duration::ZERO,
        period,
    )?;
    for () in runs.iter().take(3) {
        println!("alive");
    }
    heartbeat.cancel();

    // After a stall, one run stands for all that were missed.
    let schedule = Schedule::at_fixed_rate(period).missed_tick(MissedTick::Skip);
    let (sender, done) = mpsc::channel();
    let mut left = 3;
    timer.schedule_periodic(schedule, move |_| {
        left -= 1;
        if left == 0 {
            sender.send("lift-off").unwrap_or(());
            return ControlFlow::Break(());
        }
        println!("countdown: {left}");
        ControlFlow::Continue(())
    })?;
    println!("{}", done.recv().expect("the task ends with a message"));
    Ok(())
}
