//! Measurements of this process by the operating system. If the system does not provide a value, it
//! is not checked.

use std::fmt;
use std::time::Duration;

/// Starts this program again with one heap for all threads, unless it has one.
///
/// By default glibc has several heaps, and each one keeps its maximum size. That growth continues
/// for hours and would hide a leak.
#[cfg(target_os = "linux")]
pub(crate) fn share_one_heap() {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    const HEAPS: &str = "MALLOC_ARENA_MAX";
    if let (None, Ok(program)) = (std::env::var_os(HEAPS), std::env::current_exe()) {
        // Returns only if it fails. In that case the program continues with several heaps.
        let _ = Command::new(program).args(std::env::args_os().skip(1)).env(HEAPS, "1").exec();
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn share_one_heap() {}

/// The payload of intentional panics of tasks and executors.
#[derive(Debug)]
pub(crate) struct IntentionalPanic;

/// Silences intentional panics. All other panics are reported as usual.
pub(crate) fn silence_intentional_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<IntentionalPanic>() {
            usual(info);
        }
    }));
}

#[cfg(target_os = "linux")]
pub(crate) fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn threads() -> Option<usize> {
    None
}

#[cfg(target_os = "linux")]
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

#[cfg(not(target_os = "linux"))]
fn resident() -> Option<u64> {
    None
}

/// Resident memory over time. The first fifth of the time is the warm-up.
#[derive(Debug)]
pub(crate) struct Memory {
    time: Duration,
    samples: Vec<u64>,
    /// The number of samples during the warm-up.
    warm: usize,
}

impl Memory {
    pub(crate) fn new(time: Duration) -> Self {
        Self { time, samples: Vec::new(), warm: 0 }
    }

    pub(crate) fn sample(&mut self, at: Duration) {
        self.samples.extend(resident());
        if at < self.time / 5 {
            self.warm = self.samples.len();
        }
    }

    fn last(&self) -> &[u64] {
        let warm = &self.samples[self.warm..];
        &warm[warm.len() - warm.len() / 4..]
    }

    fn first(&self) -> &[u64] {
        let warm = &self.samples[self.warm..];
        &warm[..warm.len() / 4]
    }

    /// Returns the growth from the first quarter after the warm-up to the last quarter. It compares
    /// medians, because a short peak is not growth.
    pub(crate) fn growth(&self) -> Option<u64> {
        Some(median(self.last())?.saturating_sub(median(self.first())?))
    }
}

fn median(samples: &[u64]) -> Option<u64> {
    let mut samples = samples.to_vec();
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied()
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let Some(now) = self.samples.last() else { return f.write_str("unknown") };
        let max = self.samples.iter().max().unwrap_or(now);
        match (median(self.first()), median(self.last())) {
            (Some(first), Some(last)) => write!(
                f,
                "{:.1} MiB after warm-up, {:.1} MiB at the end, {:.1} MiB maximum",
                mib(first),
                mib(last),
                mib(*max)
            ),
            _ => write!(f, "{:.1} MiB", mib(*now)),
        }
    }
}
