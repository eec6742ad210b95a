//! How many bytes are allocated.
//!
//! The crates that count them (allocation-counter, peak_alloc) turn `realloc` into an allocation and a copy, or (cap)
//! cannot forget the last peak. Here a vector grows as it does elsewhere, and the time of it is measured.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Loads and stores, no read-modify-write: there is one thread, and counting is not to cost it anything.
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

// SAFETY: all is done by `System`, in the same way; nothing here allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::allocated(layout.size());
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::allocated(layout.size());
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::freed(layout.size());
        Self::allocated(size);
        // SAFETY: the caller's promises are the same.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::freed(layout.size());
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What is allocated now.
pub fn live() -> usize {
    LIVE.load(Relaxed)
}

/// The most that was allocated at a time since `forget_peak`.
pub fn peak() -> usize {
    PEAK.load(Relaxed)
}

pub fn forget_peak() {
    PEAK.store(live(), Relaxed);
}
