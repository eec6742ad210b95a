//! All platform-dependent code, behind a platform-independent interface. No other module tests
//! which platform it is on.
//!
//! | | available on | elsewhere |
//! |---|---|---|
//! | large pages | Linux | the operating system's default |
//! | timer slack | Linux | the operating system's default |
//! | return of memory | Linux; simulated under Miri | memory stays allocated until it is freed |
//! | prefetch | x86-64 | no effect |
//! | processor counter | platforms where `quanta` finds a reliable one; on x86 Linux, if the kernel uses it too | the operating system's clock only |
//! | clock, threads | platforms where `std` has them | the timer needs a clock from its user, and must be driven |
//!
//! Under Miri large pages, prefetch and the processor counter are not available.
//! All platforms need 64-bit atomics.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ptr::NonNull;

/// The size of a large page in bytes, on platforms that have them. (Under Miri it is smaller, so
/// that tests need fewer nodes.)
pub(crate) const LARGE_PAGE: usize = if cfg!(miri) { 256 << 10 } else { 2 << 20 };

/// Whether [`return_memory`] can return anything.
pub(crate) const CAN_RETURN_MEMORY: bool = cfg!(any(all(target_os = "linux", not(hashed_wheel_loom)), miri));

/// Asks the operating system to use large pages for an allocation, if its alignment permits them.
/// This is a hint, and its failure is ignored.
pub(crate) fn prefer_large_pages(allocated: NonNull<u8>, layout: Layout) {
    #[cfg(all(target_os = "linux", not(miri), not(hashed_wheel_loom)))]
    if layout.align() >= LARGE_PAGE {
        // SAFETY: `MADV_HUGEPAGE` only changes which page size the kernel prefers for the range. It
        // neither reads nor writes the memory and does not unmap it. For a range that is not
        // mapped, `madvise` returns an error.
        unsafe { libc::madvise(allocated.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(all(target_os = "linux", not(miri), not(hashed_wheel_loom))))]
    let _ = (allocated, layout);
}

/// Lets the calling thread wake from a sleep at most `nanos` later than it asked for, as far as the
/// kernel decides that: by default it may take 50 µs more, to wake the processor once for several
/// threads. Never makes it less exact. Threads that it starts later inherit this. It is a hint, and
/// its failure is ignored.
pub(crate) fn limit_timer_slack(nanos: u64) {
    #[cfg(all(target_os = "linux", not(miri), not(hashed_wheel_loom)))]
    // (The slack of a thread with a real-time policy is zero. To set zero would set the default, so
    // at least one is set.)
    if let Some(nanos) = Some(nanos.max(1))
        .filter(|&nanos| nanos < timer_slack())
        .and_then(|nanos| libc::c_ulong::try_from(nanos).ok())
    {
        // SAFETY: this changes a number of the calling thread and takes no pointer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanos, 0, 0, 0) };
    }
    #[cfg(not(all(target_os = "linux", not(miri), not(hashed_wheel_loom))))]
    let _ = nanos;
}

/// The timer slack of the calling thread in nanoseconds; zero if it is not known.
#[cfg(all(target_os = "linux", not(miri), not(hashed_wheel_loom)))]
fn timer_slack() -> u64 {
    // SAFETY: this reads a number of the calling thread and takes no pointer.
    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
    u64::try_from(slack).unwrap_or(0)
}

/// Whether the range of the allocation may use large pages again, or is to use small ones only:
/// then a part of a large page can be returned, and the operating system does not merge the rest
/// into a large page later. This is a hint, and its failure is ignored.
///
/// # Safety
///
/// The `size` bytes at `start` are part of one allocation.
pub(crate) unsafe fn allow_large_pages(start: NonNull<u8>, size: usize, allowed: bool) {
    #[cfg(all(target_os = "linux", not(miri), not(hashed_wheel_loom)))]
    {
        let advice = if allowed { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: the advice only changes which page size the kernel prefers for the range. It
        // neither reads nor writes the memory and does not unmap it.
        unsafe { libc::madvise(start.as_ptr().cast(), size, advice) };
    }
    #[cfg(not(all(target_os = "linux", not(miri), not(hashed_wheel_loom))))]
    let _ = (start, size, allowed);
}

/// Returns memory to the operating system; its addresses stay allocated. Returns whether it did.
/// Then the contents are lost, and the memory is provided again when it is written.
///
/// # Safety
///
/// The `size` bytes at `start` are part of one allocation, and both are multiples of
/// [`memory_page_size`]. The contents are not read before they are written again, by no thread.
pub(crate) unsafe fn return_memory(start: NonNull<u8>, size: usize) -> bool {
    #[cfg(all(target_os = "linux", not(miri), not(hashed_wheel_loom)))]
    {
        // SAFETY: the range is part of an allocation whose contents the caller does not need, and
        // consists of whole pages, so no other memory changes.
        unsafe { libc::madvise(start.as_ptr().cast(), size, libc::MADV_DONTNEED) == 0 }
    }
    #[cfg(miri)]
    {
        // Miri reports each read of memory that is not initialised.
        for at in (0..size).step_by(4_096) {
            let page = start.as_ptr().wrapping_add(at).cast::<std::mem::MaybeUninit<[u8; 4_096]>>();
            // SAFETY: the page is part of an allocation whose contents the caller does not need.
            unsafe { page.write(std::mem::MaybeUninit::uninit()) };
        }
        true
    }
    #[cfg(not(any(all(target_os = "linux", not(hashed_wheel_loom)), miri)))]
    {
        let _ = (start, size);
        false
    }
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
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let call = if locks { libc::mlock } else { libc::munlock };
        // SAFETY: neither call changes the contents of the memory.
        unsafe { call(start.as_ptr().cast(), size) == 0 }
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    {
        let _ = (start, size, locks);
        false
    }
}

/// The size of the pages in which [`return_memory`] returns memory.
pub(crate) fn memory_page_size() -> usize {
    #[cfg(all(target_os = "linux", not(miri), not(hashed_wheel_loom)))]
    {
        // SAFETY: `sysconf` only returns a value.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).unwrap_or(LARGE_PAGE)
    }
    #[cfg(not(all(target_os = "linux", not(miri), not(hashed_wheel_loom))))]
    4_096
}

/// Prefetches the cache line at `place`. This is a hint.
#[inline]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction. It is a hint: it never faults, also for
    // an invalid address, and changes no memory.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

/// Whether `std::time::Instant::now` works. On `wasm32-unknown-unknown` it panics.
pub(crate) const HAS_CLOCK: bool = cfg!(not(all(target_family = "wasm", target_os = "unknown")));

/// Whether a [`Counter`] can be used: there is one, and the counters of all cores agree. On x86 the
/// kernel tests that. If it finds that they do not, it uses another source of time for its own
/// clock.
///
/// If it cannot be found out what the kernel uses, the answer is no. This reads a file.
pub(crate) fn counters_agree() -> bool {
    #[cfg(all(target_os = "linux", any(target_arch = "x86", target_arch = "x86_64"), not(miri)))]
    return kernel_uses_counter(std::path::Path::new("/sys/devices/system/clocksource/clocksource0"));
    // Elsewhere it is guaranteed, or cannot be checked.
    #[cfg(not(all(target_os = "linux", any(target_arch = "x86", target_arch = "x86_64"), not(miri))))]
    cfg!(not(any(miri, target_family = "wasm")))
}

/// Whether the files in this folder name the counter as the kernel's source of time.
#[cfg(all(target_os = "linux", any(target_arch = "x86", target_arch = "x86_64"), not(miri)))]
fn kernel_uses_counter(folder: &std::path::Path) -> bool {
    let read = |name| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    is_counter(read("current_clocksource").trim_end(), &read("available_clocksource"))
}

/// Whether this clock source of Linux is the counter, or is computed from it by a virtual machine
/// that has the counter itself among its `available` ones. Linux removes a counter that is unstable
/// from these, and then uses one that corrects it for each core.
#[cfg(all(target_os = "linux", any(target_arch = "x86", target_arch = "x86_64"), not(miri)))]
fn is_counter(source: &str, available: &str) -> bool {
    matches!(source, "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "xen")
        && available.split_whitespace().any(|source| source == "tsc")
}

/// The processor's counter (the TSC on x86-64), in nanoseconds.
#[cfg(not(target_family = "wasm"))]
pub(crate) struct Counter {
    clock: quanta::Clock,
    zero: u64,
}

#[cfg(not(target_family = "wasm"))]
impl Counter {
    /// Makes a counter that starts at zero.
    ///
    /// The first call in a process blocks, because `quanta` calibrates the counter's frequency. As
    /// a rule this takes a millisecond, and on a busy machine up to 200 ms. Calls on other threads
    /// wait for it.
    pub(crate) fn new() -> Self {
        Self::of(quanta::Clock::new())
    }

    fn of(clock: quanta::Clock) -> Self {
        Self { zero: clock.raw(), clock }
    }

    /// Returns the nanoseconds since [`new`](Self::new).
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.clock.delta_as_nanos(self.zero, self.clock.raw())
    }

    /// Makes a counter that a test controls.
    #[cfg(test)]
    pub(crate) fn mock() -> (Self, crate::sync::Arc<quanta::Mock>) {
        let (clock, mock) = quanta::Clock::mock();
        mock.increment(5_000_000_000);
        (Self::of(clock), mock)
    }
}

/// The counter of a platform that has none: see [`counters_agree`].
#[cfg(target_family = "wasm")]
pub(crate) struct Counter;

#[cfg(target_family = "wasm")]
impl Counter {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn nanos(&self) -> u64 {
        0
    }
}

#[cfg(all(test, target_os = "linux", not(miri), not(hashed_wheel_loom)))]
mod tests {
    use super::*;
    use crate::HashedWheelTimer;
    use crate::sync::mpsc::channel;
    use crate::sync::spawn;
    use std::time::Duration;

    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    #[test]
    fn only_sources_that_are_the_counter_are_trusted() {
        use super::is_counter;
        for source in ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen"] {
            assert!(is_counter(source, "tsc kvm-clock\n"));
            assert!(!is_counter(source, "kvm-clock acpi_pm\n"), "the counter is not stable");
        }
        for source in ["", "hpet", "acpi_pm", "jiffies", "refined-jiffies"] {
            assert!(!is_counter(source, "tsc hpet acpi_pm\n"));
        }
    }

    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
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
        let folder = std::path::Path::new("/sys/devices/system/clocksource/clocksource0");
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
            timer.new_timeout(move |_| sender.send(timer_slack()).unwrap(), Duration::ZERO).unwrap();
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

    #[test]
    fn a_counter_counts_from_zero() {
        let (counter, mock) = Counter::mock();
        assert_eq!(counter.nanos(), 0);
        mock.increment(7);
        assert_eq!(counter.nanos(), 7);
    }
}
