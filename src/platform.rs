//! All platform-dependent code, behind a platform-independent interface. No other module tests
//! which platform it is on.
//!
//! | | available on | elsewhere |
//! |---|---|---|
//! | large pages | Linux | the operating system's default |
//! | heavy fence | Linux | not available: `heavy_fence` returns false |
//! | prefetch | x86-64 | no effect |
//! | processor counter | platforms where `quanta` finds a reliable one | the operating system's clock only |
//! | clock, threads | platforms where `std` has them | the timer needs a clock from its user, and must be driven |
//!
//! Under Miri the first four are not available. All platforms need 64-bit atomics.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ptr::NonNull;

/// The size of a large page in bytes, on platforms that have them.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

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

/// Makes each thread of the process that runs execute a full memory fence, including this one.
/// Returns false if that is not possible.
///
/// Takes some microseconds. The first call in a process registers it with the kernel, which may
/// take some ten milliseconds.
pub(crate) fn heavy_fence() -> bool {
    #[cfg(all(target_os = "linux", not(miri), not(hashed_wheel_loom)))]
    {
        use crate::sync::unmodelled::OnceLock;

        // <linux/membarrier.h>
        const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
        const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
        static IS_REGISTERED: OnceLock<bool> = OnceLock::new();

        // SAFETY: `membarrier` takes two numbers and neither reads nor writes memory. A kernel that
        // does not know the call or the command returns an error.
        let membarrier =
            |command: libc::c_int| unsafe { libc::syscall(libc::SYS_membarrier, command, 0) } == 0;
        *IS_REGISTERED.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED)) && membarrier(PRIVATE_EXPEDITED)
    }
    #[cfg(not(all(target_os = "linux", not(miri), not(hashed_wheel_loom))))]
    false
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

/// Whether [`Counter`] counts. If not, its value never changes.
pub(crate) const HAS_COUNTER: bool = cfg!(not(any(miri, target_family = "wasm")));

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
    /// The first call in a process takes about a millisecond, because `quanta` calibrates the
    /// counter's frequency.
    pub(crate) fn new() -> Self {
        Self::of(if HAS_COUNTER { quanta::Clock::new() } else { quanta::Clock::mock().0 })
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

/// The counter of a platform that has none: see [`HAS_COUNTER`].
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
