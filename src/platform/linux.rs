//! Linux.

use std::path::Path;
use std::ptr::NonNull;

use super::LARGE_PAGE;

/// Whether [`return_memory`] can return anything.
pub(crate) const CAN_RETURN_MEMORY: bool = true;

/// Calls `child` after each `fork`, in the child process, on its only thread. (A library that is
/// unloaded takes its handlers with it: both C libraries see to that.) If there is no memory for
/// that, nothing is called.
pub(crate) fn call_after_fork(child: extern "C" fn()) {
    // SAFETY: the function is safe and lives as long as this library.
    unsafe { libc::pthread_atfork(None, None, Some(child)) };
}

/// Lets the calling thread wake from a sleep at most `nanos` later than it asked for, as far as the
/// kernel decides that. By default the kernel may take 50 µs more, to wake the processor once for
/// several threads. Never makes it less exact. Threads that it starts later inherit this. It is a
/// hint, and its failure is ignored.
pub(crate) fn limit_timer_slack(nanos: u64) {
    // (The slack of a thread with a real-time policy is zero. To set zero would set the default, so
    // at least one is set.)
    let nanos = nanos.max(1);
    // A slack is not longer than the largest `int`.
    if nanos < timer_slack() {
        // SAFETY: this changes a number of the calling thread and takes no pointer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanos as libc::c_ulong, 0, 0, 0) };
    }
}

/// The timer slack of the calling thread in nanoseconds; zero if it is not known.
fn timer_slack() -> u64 {
    // SAFETY: this reads a number of the calling thread and takes no pointer.
    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
    u64::try_from(slack).unwrap_or(0)
}

/// Asks the operating system to use large pages for a range of an allocation, or small ones only:
/// then a part of a large page can be returned, and the operating system does not merge the rest
/// into a large page later. This is a hint, and its failure is ignored.
///
/// # Safety
///
/// The `size` bytes at `start` are part of one allocation.
pub(crate) unsafe fn allow_large_pages(start: NonNull<u8>, size: usize, allowed: bool) {
    let advice = if allowed {
        libc::MADV_HUGEPAGE
    } else {
        libc::MADV_NOHUGEPAGE
    };
    // SAFETY: the advice only changes which page size the kernel prefers for the range. It
    // neither reads nor writes the memory and does not unmap it.
    unsafe { libc::madvise(start.as_ptr().cast(), size, advice) };
}

/// Returns memory to the operating system; its addresses stay allocated. Returns whether it did.
/// Then the contents are lost, and the memory is provided again when it is written.
///
/// # Safety
///
/// The `size` bytes at `start` are part of one allocation, and both are multiples of
/// [`memory_page_size`]. The contents are not read before they are written again, by no thread.
pub(crate) unsafe fn return_memory(start: NonNull<u8>, size: usize) -> bool {
    // SAFETY: the range is part of an allocation whose contents the caller does not need, and
    // consists of whole pages, so no other memory changes.
    unsafe { libc::madvise(start.as_ptr().cast(), size, libc::MADV_DONTNEED) == 0 }
}

/// Locks memory, so that [`return_memory`] fails for it, or unlocks it. Returns false if that is
/// not possible.
///
/// # Safety
///
/// The `size` bytes at `start` are part of one allocation, and both are multiples of
/// [`memory_page_size`].
#[cfg(test)]
pub(crate) unsafe fn lock_memory(start: NonNull<u8>, size: usize, locks: bool) -> bool {
    let call = if locks { libc::mlock } else { libc::munlock };
    // SAFETY: neither call changes the contents of the memory.
    unsafe { call(start.as_ptr().cast(), size) == 0 }
}

/// The size of the pages in which [`return_memory`] returns memory.
pub(crate) fn memory_page_size() -> usize {
    // SAFETY: `sysconf` only returns a value.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(LARGE_PAGE)
}

/// Whether a [`Counter`](super::Counter) can be used: there is one, and the counters of all cores
/// agree. On x86 the kernel tests that. If it finds that they do not, it uses another source of
/// time for its own clock. Elsewhere it is guaranteed, or cannot be checked.
///
/// If it cannot be found out what the kernel uses, the answer is no. This reads a file.
pub(crate) fn counters_agree() -> bool {
    let folder = Path::new("/sys/devices/system/clocksource/clocksource0");
    cfg!(not(any(target_arch = "x86", target_arch = "x86_64"))) || kernel_uses_counter(folder)
}

/// Whether the files in this folder name the counter as the kernel's source of time.
fn kernel_uses_counter(folder: &Path) -> bool {
    let read = |name| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    is_counter(
        read("current_clocksource").trim_end(),
        &read("available_clocksource"),
    )
}

/// Whether this clock source of Linux is the counter, or is computed from it by a virtual machine
/// that has the counter itself among its `available` ones. Linux removes a counter that is unstable
/// from these, and then uses one that corrects it for each core.
fn is_counter(source: &str, available: &str) -> bool {
    matches!(
        source,
        "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "xen"
    ) && available.split_whitespace().any(|source| source == "tsc")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::HashedWheelTimer;
    use crate::sync::mpsc::channel;
    use crate::sync::spawn;

    #[test]
    fn only_sources_that_are_the_counter_are_trusted() {
        for source in ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen"] {
            assert!(is_counter(source, "tsc kvm-clock\n"));
            assert!(
                !is_counter(source, "kvm-clock acpi_pm\n"),
                "the counter is not stable"
            );
        }
        for source in ["", "hpet", "acpi_pm", "jiffies", "refined-jiffies"] {
            assert!(!is_counter(source, "tsc hpet acpi_pm\n"));
        }
    }

    #[test]
    fn the_counter_is_trusted_if_the_kernel_uses_it() {
        let folder = std::env::temp_dir().join(format!("hashed-wheel-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let current = folder.join("current_clocksource");
        std::fs::write(folder.join("available_clocksource"), "tsc hpet acpi_pm \n").unwrap();
        std::fs::write(&current, "tsc\n").unwrap();
        assert!(kernel_uses_counter(&folder));
        std::fs::write(&current, "hpet\n").unwrap();
        assert!(!kernel_uses_counter(&folder));
        std::fs::remove_file(&current).unwrap();
        assert!(!kernel_uses_counter(&folder), "the source is not known");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    #[test]
    fn the_counters_agree_if_this_kernel_uses_them() {
        let folder = Path::new("/sys/devices/system/clocksource/clocksource0");
        assert_eq!(counters_agree(), kernel_uses_counter(folder));
    }

    #[test]
    fn timer_slack_is_never_raised() {
        let wait = spawn("slack".to_owned(), None, || {
            let before = timer_slack();
            limit_timer_slack(before + 1);
            assert_eq!(timer_slack(), before);
            limit_timer_slack(1_000);
            assert_eq!(timer_slack(), before.min(1_000));
            limit_timer_slack(2_000);
            assert_eq!(timer_slack(), before.min(1_000));
            limit_timer_slack(0);
            assert_eq!(timer_slack(), before.min(1));
        });
        wait.unwrap().join().unwrap();
    }

    #[test]
    fn the_timer_slack_of_a_worker_is_a_small_part_of_its_tick() {
        for tick in [Duration::from_millis(5), Duration::from_millis(100)] {
            let timer = HashedWheelTimer::builder().tick(tick).build().unwrap();
            let (sender, slack) = channel();
            let started = timer.clone();
            // The worker inherits the slack of the thread that starts it.
            let before = timer_slack();
            timer
                .new_timeout(move |_| sender.send(timer_slack()).unwrap(), Duration::ZERO)
                .unwrap();
            let most = u64::try_from(tick.as_nanos() / 1_000).unwrap();
            assert_eq!(slack.recv().unwrap(), before.min(most), "{tick:?}");
            started.stop();
        }
    }

    #[test]
    fn the_slack_that_was_set_is_read() {
        let wait = spawn("slack".to_owned(), None, || {
            // SAFETY: this changes a number of the calling thread and takes no pointer.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 12_345, 0, 0, 0) };
            assert_eq!(timer_slack(), 12_345);
        });
        wait.unwrap().join().unwrap();
    }

    #[test]
    fn memory_pages_are_those_of_the_kernel() {
        let size = memory_page_size();
        assert!(size.is_power_of_two() && size >= 4_096, "{size}");
    }
}
