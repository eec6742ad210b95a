//! All platform-dependent code, behind a platform-independent interface. No other module tests
//! which platform it is on.
//!
//! | | available on | elsewhere |
//! |---|---|---|
//! | large pages | Linux | the operating system's default |
//! | timer slack | Linux | the operating system's default |
//! | notice of a fork | Linux | none: the child learns of it from the number of its process |
//! | return of memory | Linux; simulated under Miri | memory stays allocated until it is freed |
//! | prefetch | x86-64 | no effect |
//! | processor counter | platforms where `quanta` finds a reliable one; on x86 Linux, if the kernel uses it too | the operating system's clock only |
//! | clock, threads | platforms where `std` has them | the timer needs a clock from its user, and must be driven |
//!
//! | file | content |
//! |---|---|
//! | `linux` | Linux |
//! | `other` | the other platforms, Miri and the models |
//!
//! Under Miri large pages, prefetch and the processor counter are not available.
//! All platforms need 64-bit atomics.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

#[cfg(all(target_os = "linux", not(miri), not(hashed_wheel_loom)))]
mod linux;
#[cfg(all(target_os = "linux", not(miri), not(hashed_wheel_loom)))]
use linux as os;
#[cfg(not(all(target_os = "linux", not(miri), not(hashed_wheel_loom))))]
mod other;
#[cfg(not(all(target_os = "linux", not(miri), not(hashed_wheel_loom))))]
use other as os;

#[cfg(test)]
pub(crate) use os::lock_memory;
pub(crate) use os::{
    CAN_RETURN_MEMORY, allow_large_pages, call_after_fork, counters_agree, limit_timer_slack,
    memory_page_size, return_memory,
};

/// The size of a large page in bytes, on platforms that have them. (Under Miri it is smaller, so
/// that tests need fewer nodes.)
pub(crate) const LARGE_PAGE: usize = if cfg!(miri) { 256 << 10 } else { 2 << 20 };

/// Whether `std::time::Instant::now` works. On `wasm32-unknown-unknown` it panics.
pub(crate) const HAS_CLOCK: bool = cfg!(not(all(target_family = "wasm", target_os = "unknown")));

/// Prefetches the cache line at `place`. This is a hint.
#[inline]
pub(crate) fn prefetch<T>(place: *const T) {
    prefetch_word(MaybeUninit::new(place.addr()));
}

/// Prefetches the cache line at the address in `word`, which may be anything. This is a hint.
#[inline]
pub(crate) fn prefetch_word(word: MaybeUninit<usize>) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction. It is a hint: it never faults, also for
    // an invalid address, and changes no memory. `asm!` takes a word that is not initialised.
    unsafe {
        std::arch::asm!("prefetcht0 [{0:r}]", in(reg) word, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = word;
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
        Self {
            zero: clock.raw(),
            clock,
        }
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

#[cfg(all(test, not(target_family = "wasm")))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn a_counter_counts_from_zero() {
        let (counter, mock) = Counter::mock();
        assert_eq!(counter.nanos(), 0);
        mock.increment(7);
        assert_eq!(counter.nanos(), 7);
    }
}
