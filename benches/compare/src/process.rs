//! The resources that this process has used: CPU time, memory, wake-ups.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};

fn clock(id: ClockId) -> Duration {
    Duration::try_from(clock_gettime(id)).unwrap_or_default()
}

/// Returns the CPU time of all threads.
pub(crate) fn cpu() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// Returns the CPU time of all threads except the calling one. While there are no other callers,
/// that is the CPU time of the timer's threads.
pub(crate) fn others_cpu() -> Duration {
    cpu().saturating_sub(clock(ClockId::ThreadCPUTime))
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

/// Returns the resident memory in bytes.
pub(crate) fn resident() -> Result<usize, String> {
    let sizes = fs::read_to_string("/proc/self/statm").map_err(|error| error.to_string())?;
    let pages = sizes.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    Ok(pages.ok_or("no resident size in statm")? * page_size())
}

/// Returns the largest resident memory of this process so far, in bytes.
pub(crate) fn peak_resident() -> Result<usize, String> {
    let status = fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let kilobytes = kilobytes.and_then(|number| number.parse::<usize>().ok());
    Ok(kilobytes.ok_or("no peak of the resident size in status")? * 1024)
}

/// Returns how often threads have gone to sleep. The main thread does not count, because it
/// measures.
pub(crate) fn sleeps() -> Result<u64, String> {
    let main = std::process::id().to_string();
    let mut sum = 0;
    for thread in fs::read_dir("/proc/self/task").map_err(|error| error.to_string())?.flatten() {
        // The file is missing if the thread has ended since the directory was listed.
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        if thread.file_name() != *main {
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            sum += line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(sum)
}
