//! What depends on the platform, behind a face that does not: nothing else in the crate asks which one it is.
//!
//! | | where | elsewhere |
//! |---|---|---|
//! | large pages | Linux | as the operating system likes |
//! | fetching ahead | x86-64 | nothing |
//! | the processor's counter | wherever `quanta` knows one | the operating system's clock alone |
//! | a clock, threads | wherever `std` has them | a timer has to be given a clock, and to be driven |
//!
//! Miri counts as a platform with none of the first three. All need atomics of 64 bits.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ptr::NonNull;

/// The size of a large page, where there are any.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// Asks the operating system for large pages, where what was allocated has room for them. That is a hint.
pub(crate) fn prefer_large_pages(allocated: NonNull<u8>, layout: Layout) {
    #[cfg(all(target_os = "linux", not(miri), not(hashed_wheel_loom)))]
    if layout.align() >= LARGE_PAGE {
        // SAFETY: what is there, if anything, stays as it is, whatever comes of it.
        unsafe { libc::madvise(allocated.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(all(target_os = "linux", not(miri), not(hashed_wheel_loom))))]
    let _ = (allocated, layout);
}

/// Fetches a cache line, for it will be needed soon.
#[inline]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, for whatever address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

/// Whether `std::time::Instant` can be asked. (On `wasm32-unknown-unknown` it panics.)
pub(crate) const HAS_CLOCK: bool = cfg!(not(all(target_family = "wasm", target_os = "unknown")));

/// Whether [`Counter`] counts.
pub(crate) const HAS_COUNTER: bool = cfg!(not(any(miri, target_family = "wasm")));

/// The processor's counter.
#[cfg(not(target_family = "wasm"))]
pub(crate) struct Counter {
    clock: quanta::Clock,
    zero: u64,
}

#[cfg(not(target_family = "wasm"))]
impl Counter {
    /// The first one takes a millisecond: it measures how fast it runs.
    pub(crate) fn new() -> Self {
        Self::of(if HAS_COUNTER { quanta::Clock::new() } else { quanta::Clock::mock().0 })
    }

    fn of(clock: quanta::Clock) -> Self {
        Self { zero: clock.raw(), clock }
    }

    /// Nanoseconds since this was made.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.clock.delta_as_nanos(self.zero, self.clock.raw())
    }

    /// One that a test moves.
    #[cfg(test)]
    pub(crate) fn mock() -> (Self, crate::sync::Arc<quanta::Mock>) {
        let (clock, mock) = quanta::Clock::mock();
        mock.increment(5_000_000_000);
        (Self::of(clock), mock)
    }
}

/// Nothing counts here, and nobody asks.
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
