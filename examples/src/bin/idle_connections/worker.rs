//! What the timer's worker thread costs, as the operating system counts it.

use std::time::Duration;

/// The thread's name. Linux keeps 15 bytes of it.
pub(crate) const NAME: &str = "idle-timer";

/// The processor time of the worker thread. `None` where the system does not say.
#[cfg(target_os = "linux")]
pub(crate) fn cpu_time() -> Option<Duration> {
    use std::fs;

    let threads = fs::read_dir("/proc/self/task").ok()?;
    let worker = threads
        .filter_map(|thread| Some(thread.ok()?.path()))
        .find(|thread| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim_end() == NAME))?;
    // Nanoseconds on a processor, nanoseconds of waiting for one, number of slices.
    let schedstat = fs::read_to_string(worker.join("schedstat")).ok()?;
    Some(Duration::from_nanos(schedstat.split_whitespace().next()?.parse().ok()?))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn cpu_time() -> Option<Duration> {
    None
}
