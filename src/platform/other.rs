//! The platforms other than Linux, Miri, and the models. `linux.rs` says what each function is for.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

/// Miri simulates it.
pub(crate) const CAN_RETURN_MEMORY: bool = cfg!(miri);

pub(crate) fn limit_timer_slack(_nanos: u64) {}

pub(crate) fn call_after_fork(_child: extern "C" fn()) {}

/// # Safety
///
/// The `size` bytes at `start` are part of one allocation.
pub(crate) unsafe fn allow_large_pages(_start: NonNull<u8>, _size: usize, _allowed: bool) {}

/// # Safety
///
/// The `size` bytes at `start` are part of one allocation, and both are multiples of
/// [`memory_page_size`]. The contents are not read before they are written again, by no thread.
pub(crate) unsafe fn return_memory(start: NonNull<u8>, size: usize) -> bool {
    // Miri reports each read of memory that is not initialised.
    if cfg!(miri) {
        for at in (0..size).step_by(4_096) {
            let page = start.as_ptr().wrapping_add(at).cast();
            // SAFETY: the page is part of an allocation whose contents the caller does not need.
            unsafe { ptr::write(page, MaybeUninit::<[u8; 4_096]>::uninit()) };
        }
    }
    cfg!(miri)
}

/// # Safety
///
/// None.
#[cfg(test)]
pub(crate) unsafe fn lock_memory(_start: NonNull<u8>, _size: usize, _locks: bool) -> bool {
    false
}

pub(crate) fn memory_page_size() -> usize {
    4_096
}

/// The models have a counter of their own.
pub(crate) fn counters_agree() -> bool {
    cfg!(not(any(miri, hashed_wheel_loom, target_family = "wasm")))
}
