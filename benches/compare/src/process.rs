//! The resources that this process has used: CPU time, memory, wake-ups.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

fn clock(id: ClockId) -> Duration {
    Duration::try_from(clock_gettime(id)).unwrap_or_default()
}

/// Returns the CPU time of all threads.
pub(crate) fn cpu() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// Returns the CPU time of the calling thread.
pub(crate) fn this_cpu() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// Returns the CPU time of all threads except the calling one. While there are no other callers,
/// that is the CPU time of the timer's threads.
pub(crate) fn others_cpu() -> Duration {
    cpu().saturating_sub(this_cpu())
}

/// Waits until the other threads use almost no CPU time, for at most `max_wait`.
pub(crate) fn wait_until_idle(max_wait: Duration) {
    const WINDOW: Duration = Duration::from_millis(30);
    const BUSY: Duration = Duration::from_millis(3);

    let start = Instant::now();
    let mut before = others_cpu();
    while start.elapsed() < max_wait {
        sleep(WINDOW);
        let after = others_cpu();
        if after.saturating_sub(before) < BUSY {
            return;
        }
        before = after;
    }
}

/// Returns a number of a thread's or of this process's status.
fn status(of: impl AsRef<Path>, name: &str) -> Result<usize, String> {
    let status =
        fs::read_to_string(of.as_ref().join("status")).map_err(|error| error.to_string())?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
    line.and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("no {name} in status"))
}

/// Returns the resident memory in bytes.
pub(crate) fn resident() -> Result<usize, String> {
    Ok(status("/proc/self", "VmRSS:")? * 1024)
}

/// Returns the largest resident memory of this process so far, in bytes.
pub(crate) fn peak_resident() -> Result<usize, String> {
    Ok(status("/proc/self", "VmHWM:")? * 1024)
}

/// Returns how often threads have gone to sleep. The main thread does not count, because it
/// measures. Neither does a thread that has ended since the directory was listed.
pub(crate) fn sleeps() -> Result<usize, String> {
    let main = std::process::id().to_string();
    let threads = fs::read_dir("/proc/self/task")
        .map_err(|error| error.to_string())?
        .flatten();
    let others = threads.filter(|thread| thread.file_name() != *main);
    Ok(others
        .filter_map(|thread| status(thread.path(), "voluntary_ctxt_switches:").ok())
        .sum())
}
