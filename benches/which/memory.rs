//! A global allocator that counts the allocated bytes.
//!
//! The existing crates do not fit. allocation-counter and peak_alloc turn `realloc` into an
//! allocation and a copy, which would change the measured time of a growing vector. cap cannot
//! reset its peak.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Updated with loads and stores instead of read-modify-write operations, which are slower: there
/// is only one thread.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

pub struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

impl Counting {
    fn allocated(size: usize) {
        let live = LIVE.load(Relaxed).wrapping_add(size);
        LIVE.store(live, Relaxed);
        if live > PEAK.load(Relaxed) {
            PEAK.store(live, Relaxed);
        }
    }

    fn freed(size: usize) {
        LIVE.store(LIVE.load(Relaxed).wrapping_sub(size), Relaxed);
    }
}

// SAFETY: all methods forward to `System` with the same arguments. The counting neither allocates
// nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::allocated(layout.size());
        // SAFETY: the caller of this method guarantees the requirements of `System.alloc`: a layout
        // of non-zero size.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::allocated(layout.size());
        // SAFETY: the caller guarantees a layout of non-zero size, as `System.alloc_zeroed`
        // requires.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::freed(layout.size());
        Self::allocated(size);
        // SAFETY: the caller guarantees a valid `size`, and a `pointer` that this allocator
        // returned for `layout`. This allocator returned it from `System`, so it is valid for
        // `System.realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::freed(layout.size());
        // SAFETY: the caller guarantees a `pointer` that this allocator returned for `layout`. This
        // allocator returned it from `System`, so `System.dealloc` may free it.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Returns the number of bytes that are allocated now.
pub fn live() -> usize {
    LIVE.load(Relaxed)
}

/// Returns the largest number of bytes that were allocated at the same time since `reset_peak`.
pub fn peak() -> usize {
    PEAK.load(Relaxed)
}

pub fn reset_peak() {
    PEAK.store(live(), Relaxed);
}
