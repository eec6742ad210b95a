//! The cost of the timer's worker thread, as counted by the operating system.

use std::time::Duration;

/// The name of the thread. Linux keeps 15 bytes of it.
pub(crate) const NAME: &str = "idle-timer";

/// Returns the CPU time of the worker thread. `None` if the system does not provide it.
#[cfg(target_os = "linux")]
pub(crate) fn cpu_time() -> Option<Duration> {
    use std::fs;

    let threads = fs::read_dir("/proc/self/task").ok()?;
    let worker = threads
        .filter_map(|thread| Some(thread.ok()?.path()))
        .find(|thread| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim_end() == NAME))?;
    // The fields: nanoseconds on a CPU, nanoseconds of waiting for one, number of time slices.
    //
    let schedstat = fs::read_to_string(worker.join("schedstat")).ok()?;
    Some(Duration::from_nanos(schedstat.split_whitespace().next()?.parse().ok()?))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn cpu_time() -> Option<Duration> {
    None
}
