//! Returns the memory of free nodes to the operating system after a burst.
//!
//! Only the worker does it, when it is idle otherwise; or, if it is never idle, after a long time
//! and in single steps. It returns pages of which it owns all nodes, so no other thread can read
//! them. Such a page waits in the queue `returned`. The thread that takes it writes its nodes
//! first, as those of a new page. The head of [`arena`](super::arena) says why the worker knows
//! that it owns them.
//!
//! Work is done in steps of bounded length, in two phases:
//!
//! | phase | each step |
//! |---|---|
//! | `Take` | pops some pages from `pages`, takes those of which all nodes are free, and pushes the others again |
//! | `Return` | returns some of the pages that were taken, in the order of their addresses |
//!
//! A *reserve* stays: the pages with the lowest numbers. A search begins only if the pages with
//! free nodes are twice the reserve, so a steady load keeps its memory. While no page is available,
//! callers need the pages that were taken, which are given out again.
//!
//! A page in `pages` has some free nodes, not necessarily all, so a search may find nothing. Its
//! cost is paid for by the nodes that were recycled since the last search: one for
//! [`PAGES_PER_RECYCLED`] pages. If there are fewer, the worker waits longer, and searches then.
//! Otherwise the pages of which few nodes were in use at the last search would stay permanently.
//!
//! **Large pages.** Pages of nodes are returned one by one, because a few timeouts that live long
//! are enough to keep each large page in use. If all of a large page was taken, it is returned
//! whole, and is large again later. Otherwise its memory uses small pages from then on: the
//! operating system would merge what is left into a large page, which takes up as much memory as
//! before.

#![allow(unsafe_code)]

use std::mem::{needs_drop, size_of};

use super::arena::{ALL_FREE, Arena, FIRST_CHUNK, PAGE, PAGE_SIZE};
use super::free_list::FreeList;
use super::layout::Node;
use super::task::TaskContext;
use crate::platform::{
    CAN_RETURN_MEMORY, LARGE_PAGE, allow_large_pages, memory_page_size, return_memory,
};

/// How many pages of nodes a large page of the operating system has.
const REGION: usize = LARGE_PAGE / PAGE_SIZE;

/// Each page has a *place*: those of a large page have adjacent places, from a multiple of
/// [`REGION`] on. The first page of the arena has this place, and the others follow.
const FIRST_PLACE: usize = FIRST_CHUNK / PAGE;

/// The fewest pages in reserve: 256 kB.
const MIN_RESERVE: u64 = if cfg!(miri) { 4 } else { 64 };

/// The reserve is one in this many of the pages that are in use, if these are many.
const RESERVE: u64 = 8;

/// A search of this many pages costs one recycled node.
const PAGES_PER_RECYCLED: u64 = 8;

/// How many pages a step of `Take` looks at.
const PAGES_PER_STEP: usize = 512;

/// When a step of `Return` ends: a call of the operating system costs as much as about 32 pages.
const COST_PER_STEP: usize = 512;
const COST_OF_CALL: usize = 32;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    Idle,
    /// This many pages are left to be looked at.
    Take(usize),
    /// The next place in `taken`.
    Return(usize),
}

pub(super) struct Reclaimer {
    phase: Phase,
    /// How many nodes had been recycled when the last search began.
    recycled: i64,
    /// How many must be recycled since then to pay for the next one.
    price: i64,
    /// Pages before this place stay.
    first: usize,
    /// Pages from this place on were not written.
    unwritten: usize,
    /// By place, whether the page was taken to be returned.
    taken: Vec<bool>,
    /// How many pages of nodes a page of the operating system has.
    unit: usize,
    /// The operating system has refused a call, and is not asked again.
    is_refused: bool,
}

/// Whether memory can be returned: nodes drop nothing, and a page of nodes has this size.
fn is_possible<S: TaskContext>() -> bool {
    CAN_RETURN_MEMORY && !needs_drop::<Node<S>>() && PAGE * size_of::<Node<S>>() == PAGE_SIZE
}

/// The number of pages that stay while this many are in use.
fn reserve(in_use: u64) -> u64 {
    MIN_RESERVE.max(in_use / RESERVE)
}

/// The end of the large page with this place, or of its chunk if that is smaller.
fn end_of_region(place: usize) -> usize {
    // Each chunk begins at a power of two.
    (2 << place.ilog2()).min(place / REGION * REGION + REGION)
}

impl Reclaimer {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Idle,
            recycled: 0,
            price: MIN_RESERVE as i64,
            first: FIRST_PLACE,
            unwritten: 0,
            taken: Vec::new(),
            unit: memory_page_size().div_ceil(PAGE_SIZE),
            is_refused: false,
        }
    }

    /// Does one step. Returns whether there is more to do.
    ///
    /// # Safety
    ///
    /// The list and this value are used with no other arena.
    pub(super) unsafe fn return_memory<S: TaskContext>(
        &mut self,
        list: &mut FreeList,
        arena: &Arena<S>,
    ) -> bool {
        if !is_possible::<S>() {
            return false;
        }
        self.phase = match self.phase {
            Phase::Idle => self.begin(list, arena),
            // SAFETY: the caller uses both with no other arena.
            Phase::Take(left) => unsafe { self.take(list, arena, left) },
            // SAFETY: the caller uses both with no other arena.
            Phase::Return(place) => unsafe { self.return_taken(arena, place) },
        };
        self.phase != Phase::Idle
    }

    /// Whether a search may find memory to return: there are enough pages with free nodes, and some
    /// nodes were recycled since the last search.
    #[inline]
    pub(super) fn has_surplus<S: TaskContext>(&self, list: &FreeList, arena: &Arena<S>) -> bool {
        list.recycled() > self.recycled && self.has_many_pages(arena)
    }

    #[cold]
    fn has_many_pages<S: TaskContext>(&self, arena: &Arena<S>) -> bool {
        // Most turns find few pages.
        if arena.pages.len() as u64 <= 2 * MIN_RESERVE || self.is_refused || !is_possible::<S>() {
            return false;
        }
        let (queued, in_use) = queued_and_in_use(arena);
        queued > 2 * reserve(in_use)
    }

    /// Whether enough nodes were recycled since the last search to pay for the next one.
    pub(super) fn is_search_paid(&self, list: &FreeList) -> bool {
        list.recycled() - self.recycled >= self.price
    }

    /// Begins a search, if there is a surplus.
    fn begin<S: TaskContext>(&mut self, list: &FreeList, arena: &Arena<S>) -> Phase {
        if !self.has_surplus(list, arena) {
            return Phase::Idle;
        }
        let (queued, in_use) = queued_and_in_use(arena);
        self.recycled = list.recycled();
        self.price = MIN_RESERVE.max(queued / PAGES_PER_RECYCLED) as i64;
        self.first = FIRST_PLACE + reserve(in_use) as usize;
        let made = arena.made();
        self.unwritten = FIRST_PLACE + made as usize / PAGE;
        self.taken = vec![false; self.unwritten];
        // The operating system has provided all of the last large page.
        let end = self.unwritten.next_multiple_of(REGION);
        if self.unwritten > REGION
            && arena.make_unwritten(made, ((end - FIRST_PLACE) * PAGE) as u64)
        {
            self.taken.resize(end, true);
        }
        Phase::Take(queued as usize)
    }

    /// # Safety
    ///
    /// The list and this value are used with no other arena.
    unsafe fn take<S: TaskContext>(
        &mut self,
        list: &mut FreeList,
        arena: &Arena<S>,
        left: usize,
    ) -> Phase {
        for _ in 0..left.min(PAGES_PER_STEP) {
            let Some((page, free)) = arena.take_available() else {
                break;
            };
            let free = free | list.take_held(page as usize);
            let place = page as usize + FIRST_PLACE;
            let is_taken = place >= self.first && free == ALL_FREE;
            // A page that was made since `begin` is left for the next search.
            match self.taken.get_mut(place).filter(|_| is_taken) {
                Some(is_taken) => *is_taken = true,
                // SAFETY: the nodes were just taken from this page of the arena.
                None => unsafe { arena.give_out(page, free) },
            }
        }
        if left > PAGES_PER_STEP {
            Phase::Take(left - PAGES_PER_STEP)
        } else {
            Phase::Return(self.first)
        }
    }

    /// Returns pages that were taken, from `place` on.
    ///
    /// # Safety
    ///
    /// The list and this value are used with no other arena.
    unsafe fn return_taken<S: TaskContext>(&mut self, arena: &Arena<S>, mut place: usize) -> Phase {
        let mut cost = 0;
        while cost < COST_PER_STEP {
            if place >= self.taken.len() {
                self.taken = Vec::new();
                return Phase::Idle;
            }
            let region = &self.taken[place..end_of_region(place).min(self.taken.len())];
            let count_of =
                |taken: &[bool], sought| taken.iter().take_while(|&&is| is == sought).count();
            let others = count_of(region, false);
            let mut count = count_of(&region[others..], true);
            if arena.pages.is_empty() {
                // Callers need some, or those in reserve are in use: give out no more than these.
                // At least one, so that the loop goes on in the models, which have no reserve.
                count = count.min((self.first - FIRST_PLACE).max(1));
            }
            place += others;
            if count > 0 {
                // SAFETY: the worker owns all nodes of these pages.
                unsafe { self.return_pages(arena, place, count) };
                cost += count + COST_OF_CALL;
            }
            place += count;
            cost += 1;
        }
        Phase::Return(place)
    }

    /// Returns the memory of pages from `place` on, or gives them out: those that callers need, or
    /// that the operating system refuses, or that are not whole pages of it.
    ///
    /// # Safety
    ///
    /// The worker owns all nodes of these pages, which are pages of `arena`, and gives them up.
    /// They lie in one region and in one chunk.
    unsafe fn return_pages<S: TaskContext>(
        &mut self,
        arena: &Arena<S>,
        place: usize,
        count: usize,
    ) {
        let address = |place: usize| arena.at(((place - FIRST_PLACE) * PAGE) as u32).cast();
        let mut whole = place.next_multiple_of(self.unit)..(place + count) / self.unit * self.unit;
        if self.is_refused || arena.pages.is_empty() {
            whole = 0..0;
        }
        if !whole.is_empty() && place >= REGION {
            // SAFETY: a region is as large as a large page and aligned like one, so it is part of
            // one chunk.
            unsafe {
                allow_large_pages(
                    address(place / REGION * REGION),
                    LARGE_PAGE,
                    count == REGION,
                );
            };
        }
        // SAFETY: the caller owns the nodes, so no other thread reads them. They are written before
        // they are given out: by the thread that pops the page from `returned`, or below.
        let is_returned = whole.is_empty()
            || unsafe { return_memory(address(whole.start), whole.len() * PAGE_SIZE) };
        self.is_refused |= !is_returned;
        for place in place..place + count {
            let page = (place - FIRST_PLACE) as u32;
            if is_returned && whole.contains(&place) {
                arena.returned.push(page);
                continue;
            }
            if !is_returned || place >= self.unwritten {
                // The call may have failed after it had returned some of the pages. SAFETY: the
                // page was made, the caller owns its nodes, and `is_possible` says that they have
                // nothing to drop.
                unsafe { arena.write_page(page) };
            }
            // SAFETY: the caller owns all nodes of the page, and gives them up.
            unsafe { arena.give_out(page, ALL_FREE) };
        }
    }
}

/// How many pages have available nodes, and how many others have memory. The numbers are those of
/// one moment only if no other thread takes pages meanwhile.
fn queued_and_in_use<S: TaskContext>(arena: &Arena<S>) -> (u64, u64) {
    let returned = arena.returned.len() as u64;
    let with_memory = (arena.made() / PAGE as u64).saturating_sub(returned);
    let queued = (arena.pages.len() as u64).min(with_memory);
    (queued, with_memory - queued)
}

#[cfg(test)]
mod tests;
