//! Measurements of this process by the operating system. If the system does not provide a value, it
//! is not checked.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};

use crate::ledger::lock;

/// The limit for the end of the runtime.
const RUNTIME_LIMIT: Duration = Duration::from_secs(20);

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

/// Returns to the operating system what the allocator keeps of memory that was freed. The timers
/// are to be measured, and not the allocator.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "a call of the C library")]
pub(crate) fn trim_heap() {
    // SAFETY: the signature is that of <malloc.h>, and every argument is valid.
    unsafe extern "C" {
        safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
    malloc_trim(0);
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn trim_heap() {}

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

/// The names of the threads that turn timers begin like this.
pub(crate) const WORKERS: &str = "hashed-wheel";

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// Returns the runtime on which some timers run.
pub(crate) fn runtime() -> Handle {
    let start = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let builder = builder.worker_threads(2).thread_name(format!("{WORKERS}-rt")).enable_time();
        builder.build().expect("the runtime starts")
    };
    lock(&RUNTIME).get_or_insert_with(start).handle().clone()
}

/// Ends the threads of the runtime. Each of them may keep memory of a stopped timer that its tasks
/// have used.
pub(crate) fn end_runtime() {
    let runtime = lock(&RUNTIME).take();
    runtime.into_iter().for_each(|runtime| runtime.shutdown_timeout(RUNTIME_LIMIT));
}

/// Returns how often the threads that turn timers have gone to sleep, in total.
#[cfg(target_os = "linux")]
pub(crate) fn sleeps() -> Option<u64> {
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().to_owned())
    };
    let of = |status: String| match field(&status, "Name:") {
        Some(name) if name.starts_with(WORKERS) => field(&status, "voluntary_ctxt_switches:")?.parse().ok(),
        _ => Some(0),
    };
    let threads = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    // A thread that has just ended has no file.
    let statuses = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
    statuses.map(of).sum()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn sleeps() -> Option<u64> {
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
    /// The samples during steady traffic.
    steady: Vec<u64>,
    /// The number of these during the first fifth of the time.
    warm: usize,
    now: Option<u64>,
    max: Option<u64>,
    /// Before the first burst.
    warm_up_level: Option<u64>,
    /// After the last pause.
    end_level: Option<u64>,
}

impl Memory {
    pub(crate) fn new(time: Duration) -> Self {
        let (steady, warm) = (Vec::new(), 0);
        Self { time, steady, warm, now: None, max: None, warm_up_level: None, end_level: None }
    }

    pub(crate) fn sample(&mut self, at: Duration, is_steady: bool) {
        self.now = resident();
        self.max = self.max.max(self.now);
        if is_steady {
            self.steady.extend(self.now);
            if at < self.time / 5 {
                self.warm = self.steady.len();
            }
        }
    }

    /// The steady traffic before the first burst is over.
    pub(crate) fn end_warm_up(&mut self) {
        let latest = &self.steady[self.steady.len() / 2..];
        self.warm_up_level = self.warm_up_level.or(median(latest));
    }

    /// The last pause is over.
    pub(crate) fn end(&mut self) {
        self.end_level = resident();
    }

    fn last(&self) -> &[u64] {
        let warm = &self.steady[self.warm..];
        &warm[warm.len() - warm.len() / 4..]
    }

    fn first(&self) -> &[u64] {
        let warm = &self.steady[self.warm..];
        &warm[..warm.len() / 4]
    }

    /// Returns the growth during steady traffic, from the first quarter after the warm-up to the
    /// last quarter. It compares medians, because a short peak is not growth.
    pub(crate) fn growth(&self) -> Option<u64> {
        Some(median(self.last())?.saturating_sub(median(self.first())?))
    }

    /// Returns by how much more memory is in use after the last pause than before the first burst.
    pub(crate) fn left(&self) -> Option<u64> {
        Some(self.end_level?.saturating_sub(self.warm_up_level?))
    }

    pub(crate) fn now(&self) -> Mib {
        Mib(self.now)
    }
}

fn median(samples: &[u64]) -> Option<u64> {
    let mut samples = samples.to_vec();
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied()
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [warm, first, last, max, end] =
            [self.warm_up_level, median(self.first()), median(self.last()), self.max, self.end_level]
                .map(Mib);
        write!(
            f,
            "{warm} after warm-up; {first} and later {last} in steady traffic; {max} maximum; {end} at the end"
        )
    }
}

/// A number of bytes, shown in MiB.
pub(crate) struct Mib(pub(crate) Option<u64>);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
            None => f.write_str("unknown"),
        }
    }
}
