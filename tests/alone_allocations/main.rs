//! Allocations and their release. A process of its own, because it counts allocations.

#![allow(unsafe_code, reason = "a global allocator is unsafe code")]

mod timer;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes allocated by all threads.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Locked exclusively by a test that counts the bytes of all threads, and shared by the others.
static EXCLUSIVE: RwLock<()> = RwLock::new(());

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    fn count(layout: Layout) {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE.fetch_add(layout.size(), Relaxed);
    }
}

// SAFETY: every call is forwarded to the system's allocator. Counting does not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for the system's
        // allocator.
        unsafe { System.alloc(layout) }
    }

    /// Not implemented with `alloc`, which would touch all of the memory.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(layout);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same for the
        // system's allocator.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `memory` came from the system's allocator with this layout, because `alloc` and
        // `alloc_zeroed` forward to it.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
