//! Measurements of this process by the operating system. If the system does not provide a value, it
//! is not checked.

use std::fmt;
use std::fs::{read_dir, read_to_string};
use std::sync::Mutex;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// The names of the threads that turn timers begin like this.
pub(crate) const WORKERS: &str = "hashed-wheel";

/// Starts this program again with one heap for all threads, unless it has one.
///
/// By default glibc has several heaps, and each one keeps its maximum size. That growth continues
/// for hours and would hide a leak.
pub(crate) fn share_one_heap() {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt;

        const HEAPS: &str = "MALLOC_ARENA_MAX";
        if let (None, Ok(program)) = (std::env::var_os(HEAPS), std::env::current_exe()) {
            let mut again = std::process::Command::new(program);
            // Returns only if it fails. In that case the program continues with several heaps.
            let _ = again.args(std::env::args_os().skip(1)).env(HEAPS, "1").exec();
        }
    }
}

/// Returns to the operating system what the allocator keeps of memory that was freed. The timers
/// are to be measured, and not the allocator.
#[allow(unsafe_code, reason = "a call of the C library")]
pub(crate) fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the signature is that of <malloc.h>, and every argument is valid.
        unsafe extern "C" {
            safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        malloc_trim(0);
    }
}

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

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// Returns the runtime on which some timers run.
pub(crate) fn runtime() -> Handle {
    let start = || {
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(2).thread_name(format!("{WORKERS}-rt")).enable_time();
        builder.build().expect("the runtime starts")
    };
    RUNTIME.lock().expect("the runtime starts").get_or_insert_with(start).handle().clone()
}

/// Ends the threads of the runtime. Each of them may keep memory of a stopped timer that its tasks
/// have used.
pub(crate) fn end_runtime() {
    let runtime = RUNTIME.lock().expect("the runtime starts").take();
    runtime.into_iter().for_each(|runtime| runtime.shutdown_timeout(Duration::from_secs(20)));
}

pub(crate) fn threads() -> Option<usize> {
    Some(read_dir("/proc/self/task").ok()?.count())
}

/// Returns how often the threads that turn timers have gone to sleep, in total.
pub(crate) fn sleeps() -> Option<u64> {
    let threads = read_dir("/proc/self/task").ok()?.flatten();
    // A thread that has just ended has no file.
    let statuses = threads.filter_map(|thread| read_to_string(thread.path().join("status")).ok());
    let sleeps_of = |status: String| match field(&status, "Name:") {
        Some(name) if name.starts_with(WORKERS) => field(&status, "voluntary_ctxt_switches:")?.parse().ok(),
        _ => Some(0_u64),
    };
    statuses.map(sleeps_of).sum()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn resident() -> Option<u64> {
    let status = read_to_string("/proc/self/status").ok()?;
    Some(field(&status, "VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Resident memory over time, in bytes. The first fifth of the time is the warm-up.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The samples during steady traffic, and the number of these during the warm-up.
    steady: Vec<u64>,
    warm: usize,
    max: u64,
    before_bursts: Option<u64>,
    after_last_pause: Option<u64>,
}

impl Memory {
    pub(crate) fn sample(&mut self, is_steady: bool, is_warm_up: bool) {
        let now = resident();
        self.max = self.max.max(now.unwrap_or(0));
        self.steady.extend(now.filter(|_| is_steady));
        if is_warm_up {
            self.warm = self.steady.len();
        }
    }

    /// The steady traffic before the first burst is over.
    pub(crate) fn end_warm_up(&mut self) {
        self.before_bursts = self.before_bursts.or(median(&self.steady[self.steady.len() / 2..]));
    }

    pub(crate) fn end(&mut self) {
        self.after_last_pause = resident();
    }

    /// Returns the growth during steady traffic, from the first to the last quarter after the
    /// warm-up. It compares medians, because a short peak is not growth.
    pub(crate) fn growth(&self) -> u64 {
        let samples = &self.steady[self.warm..];
        let quarter = samples.len() / 4;
        let [first, last] = [&samples[..quarter], &samples[samples.len() - quarter..]].map(median);
        last.unwrap_or(0).saturating_sub(first.unwrap_or(0))
    }

    /// Returns by how much more is in use after the last pause than before the first burst.
    pub(crate) fn left(&self) -> u64 {
        self.after_last_pause.unwrap_or(0).saturating_sub(self.before_bursts.unwrap_or(0))
    }
}

fn median(samples: &[u64]) -> Option<u64> {
    let mut samples = samples.to_vec();
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied()
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [warm, end] = [self.before_bursts, self.after_last_pause].map(|bytes| bytes.unwrap_or(0) >> 20);
        let [growth, max] = [self.growth(), self.max].map(|bytes| bytes >> 20);
        write!(
            f,
            "{warm} MiB after warm-up, {growth} more in steady traffic, {max} at most, {end} at the end"
        )
    }
}
