//! Measurements of this process by the operating system. If the system does not provide a value, it
//! is not checked.

use std::fmt;
use std::fs::{read_dir, read_to_string};
use std::sync::Mutex;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// The names of the threads that turn timers begin like this.
pub(crate) const WORKERS: &str = "hashed-wheel";

/// Starts this program again, unless it was started so before, with an allocator whose memory
/// [`in_use`] can tell from that of the timers: one heap for all threads, and a mapping of its own
/// for each large block.
pub(crate) fn start_with_one_heap() {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt;

        const HEAPS: &str = "MALLOC_ARENA_MAX";
        const MAPPED_FROM: &str = "MALLOC_MMAP_THRESHOLD_";
        if let (None, Ok(program)) = (std::env::var_os(HEAPS), std::env::current_exe()) {
            let mut again = std::process::Command::new(program);
            // Returns only if it fails. In that case the program continues with several heaps.
            let _ = again
                .args(std::env::args_os().skip(1))
                .env(HEAPS, "1")
                .env(MAPPED_FROM, "131072")
                .exec();
        }
    }
}

/// Returns how many bytes of the heap are allocated.
#[allow(unsafe_code, reason = "a call of the C library")]
fn allocated_in_heap() -> Option<u64> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// `struct mallinfo2`, whose field `uordblks` is the eighth of ten.
        #[repr(C)]
        struct MallInfo([usize; 10]);
        // SAFETY: the signature is that of <malloc.h>.
        unsafe extern "C" {
            safe fn mallinfo2() -> MallInfo;
        }
        return Some(mallinfo2().0[7] as u64);
    }
    #[allow(unreachable_code, reason = "another C library does not tell")]
    None
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
        let builder = builder
            .worker_threads(2)
            .thread_name(format!("{WORKERS}-rt"))
            .enable_time();
        builder.build().expect("the runtime starts")
    };
    RUNTIME
        .lock()
        .expect("the runtime starts")
        .get_or_insert_with(start)
        .handle()
        .clone()
}

/// Ends the threads of the runtime. Each of them may keep memory of a stopped timer that its tasks
/// have used.
pub(crate) fn end_runtime() {
    let runtime = RUNTIME.lock().expect("the runtime starts").take();
    runtime
        .into_iter()
        .for_each(|runtime| runtime.shutdown_timeout(Duration::from_secs(20)));
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
        Some(name) if name.starts_with(WORKERS) => {
            field(&status, "voluntary_ctxt_switches:")?.parse().ok()
        }
        _ => Some(0_u64),
    };
    statuses.map(sleeps_of).sum()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

/// Returns the memory in use: what is allocated in the heap, and what is resident outside of it.
///
/// Free memory in the heap is not in use, although most of it is resident: after a burst, a few
/// live blocks keep each of its pages. The timers are to be measured, and not the allocator.
fn in_use() -> Option<u64> {
    let [mut heap, mut other] = [0, 0];
    let mut is_heap = false;
    for line in read_to_string("/proc/self/smaps").ok()?.lines() {
        if let Some(resident) = field(line, "Rss:") {
            let of = if is_heap { &mut heap } else { &mut other };
            *of += resident.split_whitespace().next()?.parse::<u64>().ok()? << 10;
        } else if line
            .split_once(' ')
            .is_some_and(|(range, _)| range.contains('-'))
        {
            is_heap = line.ends_with("[heap]");
        }
    }
    Some(other + allocated_in_heap().unwrap_or(heap))
}

/// [Memory in use](in_use) over time, in bytes. The first fifth of the time is the warm-up.
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
        let now = in_use();
        self.max = self.max.max(now.unwrap_or(0));
        self.steady.extend(now.filter(|_| is_steady));
        if is_warm_up {
            self.warm = self.steady.len();
        }
    }

    /// The steady traffic before the first burst is over.
    pub(crate) fn end_warm_up(&mut self) {
        self.before_bursts = self
            .before_bursts
            .or(median(&self.steady[self.steady.len() / 2..]));
    }

    pub(crate) fn end(&mut self) {
        self.after_last_pause = in_use();
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
        self.after_last_pause
            .unwrap_or(0)
            .saturating_sub(self.before_bursts.unwrap_or(0))
    }
}

fn median(samples: &[u64]) -> Option<u64> {
    let mut samples = samples.to_vec();
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied()
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [warm, end] =
            [self.before_bursts, self.after_last_pause].map(|bytes| bytes.unwrap_or(0) >> 20);
        let [growth, max] = [self.growth(), self.max].map(|bytes| bytes >> 20);
        write!(
            f,
            "{warm} MiB after warm-up, {growth} more in steady traffic, {max} at most, {end} at the end"
        )
    }
}
