//! A global allocator that counts the allocations of each thread.
//!
//! The count is not shared between threads and only `alloc` adds to it, so that it costs the
//! competitors that allocate next to nothing. The existing crates count with shared atomics.

#![allow(unsafe_code, reason = "a global allocator is unsafe code")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local!(static COUNT: Cell<u64> = const { Cell::new(0) });

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: each method forwards to `System` with the same arguments. Counting neither allocates nor
// panics: the variable of the thread needs no initialisation and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get().wrapping_add(1));
        // SAFETY: the caller guarantees what `System.alloc` requires, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get().wrapping_add(1));
        // SAFETY: the caller guarantees what `System.alloc_zeroed` requires, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.set(COUNT.get().wrapping_add(1));
        // SAFETY: `memory` came from `System` with this layout, because all methods forward to it.
        // The caller guarantees a valid `size`.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `System` with this layout, because all methods forward to it.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Returns how often this thread has allocated memory.
pub(crate) fn of_this_thread() -> u64 {
    COUNT.get()
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::of_this_thread;

    #[test]
    fn each_allocation_counts() {
        let before = of_this_thread();
        drop(black_box(Box::new(7)));
        assert_eq!(of_this_thread() - before, 1);
    }
}
