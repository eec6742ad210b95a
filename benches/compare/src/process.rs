//! What this process has used: CPU time, memory, wake-ups.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};

fn clock(id: ClockId) -> Duration {
    Duration::try_from(clock_gettime(id)).unwrap_or_default()
}

/// CPU time of all threads.
pub(crate) fn cpu() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// CPU time of all threads but the calling one: of the timer's, while nobody else is there.
pub(crate) fn others_cpu() -> Duration {
    cpu().saturating_sub(clock(ClockId::ThreadCPUTime))
}

/// Returns when the other threads do next to nothing, or after so long.
pub(crate) fn wait_until_quiet(at_most: Duration) {
    const WINDOW: Duration = Duration::from_millis(30);
    const BUSY: Duration = Duration::from_millis(3);

    let start = Instant::now();
    let mut before = others_cpu();
    while start.elapsed() < at_most {
        sleep(WINDOW);
        let after = others_cpu();
        if after.saturating_sub(before) < BUSY {
            return;
        }
        before = after;
    }
}

/// Resident memory, in bytes.
pub(crate) fn resident() -> Result<usize, String> {
    let sizes = fs::read_to_string("/proc/self/statm").map_err(|error| error.to_string())?;
    let pages = sizes.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    Ok(pages.ok_or("no resident size in statm")? * page_size())
}

/// How often threads other than the main one, which measures, have gone to sleep.
pub(crate) fn sleeps() -> Result<u64, String> {
    let main = std::process::id().to_string();
    let mut sum = 0;
    for thread in fs::read_dir("/proc/self/task").map_err(|error| error.to_string())?.flatten() {
        // One that has just ended sleeps no more.
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        if thread.file_name() != *main {
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            sum += line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(sum)
}
