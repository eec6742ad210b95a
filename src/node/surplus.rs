//! Returns the memory of free nodes to the operating system after a burst.
//!
//! Only the worker does it, when it is idle otherwise; or, if it is never idle, after a long time
//! and in single steps. It returns pages of which it owns all nodes, so no other thread can read
//! them. Such a page waits in the queue `returned`. The thread that takes it writes its nodes
//! first, as those of a new page. The head of [`arena`](super::arena) says why the worker knows
//! that it owns them.
//!
//! The worker takes the available pages, and from then on holds pages until all of their nodes are
//! free ([`FreeList::keep`]). So no page is searched for: the last node makes it whole. Work is
//! done in steps of bounded length:
//!
//! | phase | each step |
//! |---|---|
//! | `Take` | takes some of the available pages |
//! | `Return` | gives out a *reserve*, the pages with the lowest numbers; then returns runs of whole pages, in the order of their addresses |
//!
//! It begins only if the pages that are available or whole are twice the reserve, so a steady load
//! keeps its memory. It ends when callers have few pages ([`FreeList::refill`]).
//!
//! **Large pages.** Pages of nodes are returned one by one, because a few timeouts that live long
//! are enough to keep each large page in use. If all of a large page is whole, it is returned
//! whole, and is large again later. Otherwise its memory uses small pages from then on: the
//! operating system would merge what is left into a large page, which takes up as much memory as
//! before.

#![allow(unsafe_code)]

use std::mem::{needs_drop, size_of};

use super::arena::{Arena, FIRST_CHUNK, PAGE, PAGE_SIZE};
use super::free_list::{FreeList, MIN_FREE_PER_PAGE, WHOLE};
use super::task::{Node, TaskContext};
use crate::platform::{
    CAN_RETURN_MEMORY, LARGE_PAGE, allow_large_pages, memory_page_size, return_memory,
};

/// How many pages of nodes a large page of the operating system has.
const REGION: usize = LARGE_PAGE / PAGE_SIZE;

/// Each page has a *place*: those of a large page have adjacent places, from a multiple of
/// [`REGION`] on. The first page of the arena has this place, and the others follow.
const FIRST_PLACE: usize = FIRST_CHUNK / PAGE;

/// The fewest pages in reserve: 256 kB.
const MIN_RESERVE: usize = if cfg!(miri) { 4 } else { 64 };

/// The reserve is one in this many of the pages that are in use, if these are many.
const RESERVE: usize = 8;

/// How many pages a step of `Take` takes.
const PAGES_PER_STEP: usize = 512;

/// When a step of `Return` ends: a call of the operating system costs as much as about 32 pages.
const COST_PER_STEP: usize = 512;
const COST_OF_CALL: usize = 32;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    Idle,
    Take,
    /// The next place that is looked at.
    Return(usize),
}

/// The free nodes, and how far the return of their memory is.
pub(super) struct Reclaimer {
    pub(super) list: FreeList,
    phase: Phase,
    /// This many available pages stay.
    reserve: usize,
    /// How many pages of nodes a page of the operating system has.
    unit: usize,
    /// The operating system has refused a call, and is not asked again.
    is_refused: bool,
}

/// Whether memory can be returned: nodes drop nothing, and a page of nodes has this size.
fn is_possible<S: TaskContext>() -> bool {
    CAN_RETURN_MEMORY && !needs_drop::<Node<S>>() && PAGE * size_of::<Node<S>>() == PAGE_SIZE
}

/// How many pages are free, available or whole, and how many of the available ones stay.
fn free_and_reserve<S: TaskContext>(list: &FreeList, arena: &Arena<S>) -> (usize, usize) {
    let with_memory = (arena.made() as usize / PAGE).saturating_sub(arena.returned.len());
    let free = (arena.pages.len() + list.whole).min(with_memory);
    (free, MIN_RESERVE.max((with_memory - free) / RESERVE))
}

/// The end of the large page with this place, or of its chunk if that is smaller.
fn end_of_region(place: usize) -> usize {
    // Each chunk begins at a power of two.
    (2 << place.ilog2()).min(place / REGION * REGION + REGION)
}

/// The page with this place.
fn page_at(place: usize) -> usize {
    place - FIRST_PLACE
}

impl Reclaimer {
    pub(super) fn new() -> Self {
        Self {
            list: FreeList::default(),
            phase: Phase::Idle,
            reserve: 0,
            unit: memory_page_size().div_ceil(PAGE_SIZE),
            is_refused: false,
        }
    }

    /// Whether there is memory to return. Most turns find that nothing was freed.
    #[inline]
    pub(super) fn has_surplus<S: TaskContext>(&mut self, arena: &Arena<S>) -> bool {
        if self.list.has_news {
            self.list.has_news = self.has_many_pages(arena);
        }
        self.list.has_news
    }

    #[cold]
    fn has_many_pages<S: TaskContext>(&self, arena: &Arena<S>) -> bool {
        let (free, reserve) = free_and_reserve(&self.list, arena);
        free > 2 * reserve && !self.is_refused && is_possible::<S>()
    }

    /// Does one step. Returns whether there is more to do.
    ///
    /// # Safety
    ///
    /// This value is used with no other arena.
    pub(super) unsafe fn return_memory<S: TaskContext>(&mut self, arena: &Arena<S>) -> bool {
        let phase = self.phase;
        self.phase = match phase {
            Phase::Idle if !self.has_surplus(arena) => Phase::Idle,
            Phase::Idle => {
                self.reserve = free_and_reserve(&self.list, arena).1;
                self.list.has_news = false;
                return_rest_of_region(arena);
                Phase::Take
            }
            Phase::Take if arena.pages.len() > 2 * PAGES_PER_STEP => {
                // SAFETY: the caller uses this value with no other arena.
                unsafe { self.list.keep(arena, PAGES_PER_STEP) };
                Phase::Take
            }
            Phase::Take => {
                // In the same step, so that callers find pages after it. SAFETY: the caller uses
                // this value with no other arena.
                unsafe {
                    self.list.keep(arena, usize::MAX);
                    self.return_whole(arena, FIRST_PLACE)
                }
            }
            // SAFETY: the caller uses this value with no other arena.
            Phase::Return(place) => unsafe { self.return_whole(arena, place) },
        };
        self.phase != Phase::Idle
    }

    /// Returns whole pages, from `place` on.
    ///
    /// # Safety
    ///
    /// This value is used with no other arena.
    unsafe fn return_whole<S: TaskContext>(&mut self, arena: &Arena<S>, from: usize) -> Phase {
        let (mut place, end) = (from, FIRST_PLACE + self.list.pages());
        let mut cost = 0;
        while cost < COST_PER_STEP {
            if place >= end || !self.list.keeps {
                return Phase::Idle;
            }
            let is_whole = |&place: &usize| self.list.held(page_at(place)) == WHOLE;
            let mut count = (place..end_of_region(place)).take_while(is_whole).count();
            let is_half = self.list.held(page_at(place)) >= MIN_FREE_PER_PAGE;
            if is_half && arena.pages.len() < self.reserve {
                count = 1;
                // SAFETY: nodes of this page are held, and the list is used with no other arena.
                unsafe { self.list.give_out(arena, page_at(place)) };
            } else if count > 0 {
                // SAFETY: all nodes of these pages are held. They lie in one region, which is part
                // of one chunk.
                unsafe { self.return_run(arena, place, count) };
                cost += COST_OF_CALL;
            }
            place += count.max(1);
            cost += count.max(1);
        }
        Phase::Return(place)
    }

    /// Returns the memory of pages from `place` on, as far as they are whole pages of the operating
    /// system.
    ///
    /// # Safety
    ///
    /// All nodes of these pages are held by the list, which is used with no other arena. They lie
    /// in one region and in one chunk.
    unsafe fn return_run<S: TaskContext>(&mut self, arena: &Arena<S>, place: usize, count: usize) {
        let run = place.next_multiple_of(self.unit)..(place + count) / self.unit * self.unit;
        if run.is_empty() {
            return;
        }
        run.clone()
            .for_each(|place| _ = self.list.take_held(page_at(place)));
        let large = (place >= REGION).then(|| address(arena, page_at(place / REGION * REGION)));
        if let Some(large) = large {
            // SAFETY: a region is as large as a large page and aligned like one, so it is part of
            // one chunk.
            unsafe { allow_large_pages(large, LARGE_PAGE, count == REGION) };
        }
        // SAFETY: the worker owns the nodes, so no other thread reads them. The thread that pops a
        // page from `returned` writes them, also if the call fails, perhaps after it has returned
        // some of the pages.
        let is_returned =
            unsafe { return_memory(address(arena, page_at(run.start)), run.len() * PAGE_SIZE) };
        run.for_each(|place| arena.returned.push(page_at(place) as u32));
        self.is_refused |= !is_returned;
        self.list.keeps &= is_returned;
    }
}

/// The operating system has provided all of the last large page. Makes its other pages, without
/// memory.
fn return_rest_of_region<S: TaskContext>(arena: &Arena<S>) {
    let made = arena.made();
    let first = FIRST_PLACE + made as usize / PAGE;
    let end = first.next_multiple_of(REGION);
    if first <= REGION || first == end || !arena.make_unwritten(made, (page_at(end) * PAGE) as u64)
    {
        return;
    }
    // SAFETY: these pages were just made, and no other thread knows of them. A thread that takes
    // one from `returned` writes its nodes first. If the call fails they stay as they are.
    unsafe {
        allow_large_pages(address(arena, page_at(end - REGION)), LARGE_PAGE, false);
        return_memory(address(arena, page_at(first)), (end - first) * PAGE_SIZE);
    }
    (first..end).for_each(|place| arena.returned.push(page_at(place) as u32));
}

/// The address of a page.
fn address<S: TaskContext>(arena: &Arena<S>, page: usize) -> std::ptr::NonNull<u8> {
    arena.at((page * PAGE) as u32).cast()
}

#[cfg(test)]
mod tests;
