//! A watchdog for work that is stuck, which says where. Each job reports its steps. One that
//! reports nothing for ten seconds is named, with its step and the line that began it.
//!
//! ```text
//! job 2 is stuck: upload, begun in line 53
//! 1 job is left
//! ```
use std::panic::Location;
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, ManualClock, NewTimeoutError};
use hashed_wheel_util::{Cause, ExpiringMap, Removed};

const LIMIT: Duration = Duration::from_secs(10);

/// The step of each job, and the line that began it.
type Steps = ExpiringMap<u32, (&'static str, u32)>;

fn watchdog(timer: &HashedWheelTimer) -> Steps {
    let builder = ExpiringMap::builder(timer).causes([Cause::Expired]);
    builder.build_with_handler(|Removed { key, value, .. }| {
        let (step, line) = value;
        println!("job {key} is stuck: {step}, begun in line {line}");
    })
}

/// A job under watch. Its drop ends that.
struct Job(Steps, u32);

impl Job {
    /// Begins a step, and gives the job its time again.
    #[track_caller]
    fn step(&self, name: &'static str) -> Result<(), NewTimeoutError> {
        let line = Location::caller().line();
        self.0.insert(self.1, (name, line), LIMIT)?;
        Ok(())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.0.remove(&self.1);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().clock(clock.clone());
    let (timer, mut driver) = builder.build_driven()?;
    let steps = watchdog(&timer);
    let [done, stuck, busy] = [1, 2, 3].map(|id| Job(steps.clone(), id));
    done.step("upload")?;
    stuck.step("upload")?;
    drop(done);
    for _ in 0..3 {
        busy.step("compress")?;
        clock.advance(LIMIT / 2);
        driver.turn();
    }
    println!("{} job is left", steps.len());
    Ok(())
}
