//! The worker's record of free nodes: which of them are given out again, and when.
//!
//! A page is given out once half of its nodes are free, so that timeouts that are scheduled
//! together lie together. Until then its free nodes are *held*. In the worst case this would hold
//! almost half of all nodes. So while callers have few pages, and more than one in [`MAX_HELD`] of
//! the nodes that were made are held, pages with fewer free nodes are given out too, from
//! [`MIN_FREE_AT_LIMIT`] on ([`refill`](FreeList::refill)). This is the mean at the limit, so there
//! are such pages.
//!
//! If callers do not need the free nodes, the list *keeps* them ([`keep`](FreeList::keep)): it
//! holds each page until it is *whole*, with all of its nodes free, and then the memory is returned
//! ([`surplus`](super::surplus)). That ends as soon as callers have few pages.

#![allow(unsafe_code)]

use super::arena::{Arena, FreeNode, PAGE};
use super::task::TaskContext;

/// A page with this many free nodes is given out again.
pub(super) const MIN_FREE_PER_PAGE: u32 = PAGE.div_ceil(2) as u32;

/// A page with this many free nodes is whole.
pub(super) const WHOLE: u32 = PAGE as u32;

/// One in this many of the nodes that were made are held at most, while callers have few pages.
const MAX_HELD: u64 = 8;

/// While more nodes are held, a page with this many free nodes is given out.
const MIN_FREE_AT_LIMIT: u32 = (PAGE as u64).div_ceil(MAX_HELD) as u32;

/// Callers have few pages if there are fewer. They get as many more.
const MIN_AVAILABLE: usize = if cfg!(miri) { 2 } else { 32 };

/// How many pages are looked at when callers have few.
const PAGES_PER_REFILL: usize = 1_024;

/// The nodes of a page that are held.
#[derive(Clone, Copy, Default)]
struct Held {
    /// One bit per node.
    free: u64,
    /// The number of bits, which would take longer to count.
    count: u32,
}

/// The worker's record of free nodes that are in no thread's cache.
#[derive(Default)]
pub(super) struct FreeList {
    /// For each page, the nodes that are held.
    held: Vec<Held>,
    /// How many nodes are held.
    count: u64,
    /// How many pages are whole.
    pub(super) whole: usize,
    /// The page that was last looked at because callers had few.
    last: usize,
    /// Pages are held until they are whole.
    pub(super) keeps: bool,
    /// A page was given out, or has become whole, since this was set to false.
    pub(super) has_news: bool,
}

impl FreeList {
    /// Recycles a node.
    ///
    /// # Safety
    ///
    /// The node is one of `arena`, which is the only arena that this list is used with.
    #[inline]
    pub(super) unsafe fn put<S: TaskContext>(&mut self, arena: &Arena<S>, node: FreeNode<S>) {
        // SAFETY: the caller has the arena of the node.
        let number = unsafe { node.number() };
        // SAFETY: the number is that of a free node of `arena`, which is given up here.
        unsafe { self.put_number(arena, number) };
    }

    /// # Safety
    ///
    /// `number` is that of a free node of `arena`, which the caller gives up. The list is used with
    /// no other arena.
    #[inline]
    unsafe fn put_number<S: TaskContext>(&mut self, arena: &Arena<S>, number: u32) {
        let page = number as usize / PAGE;
        let count = self.hold(page, 1 << (number as usize - page * PAGE), 1);
        if matches!(count, MIN_FREE_PER_PAGE | WHOLE) {
            // SAFETY: the caller uses the list with no other arena.
            unsafe { self.give_out_or_keep(arena, page) };
        }
    }

    /// Holds `count` more nodes of a page. Returns how many of that page are held.
    #[inline]
    fn hold(&mut self, page: usize, free: u64, count: u32) -> u32 {
        let Some(held) = self.held.get_mut(page) else {
            self.held
                .resize((page + 1).next_power_of_two(), Held::default());
            return self.hold(page, free, count);
        };
        self.count += u64::from(count);
        held.free |= free;
        held.count += count;
        held.count
    }

    /// # Safety
    ///
    /// Nodes of this page are held. The list is used with no other arena.
    #[inline(never)]
    unsafe fn give_out_or_keep<S: TaskContext>(&mut self, arena: &Arena<S>, page: usize) {
        let is_whole = self.held(page) == WHOLE;
        self.whole += usize::from(is_whole);
        self.has_news |= is_whole || !self.keeps;
        if !self.keeps {
            // SAFETY: the caller vouches for this.
            unsafe { self.give_out(arena, page) };
        }
    }

    /// Gives out the nodes of a page that are held, of which there is at least one.
    ///
    /// # Safety
    ///
    /// The list is used with no other arena.
    pub(super) unsafe fn give_out<S: TaskContext>(&mut self, arena: &Arena<S>, page: usize) {
        let free = self.take_held(page);
        // SAFETY: nodes that are held are free nodes of this arena, and are not held any more.
        unsafe { arena.give_out(page as u32, free) };
    }

    /// Takes the nodes of a page that are held.
    pub(super) fn take_held(&mut self, page: usize) -> u64 {
        let Held { free, count } = self
            .held
            .get_mut(page)
            .map_or_else(Held::default, std::mem::take);
        self.count -= u64::from(count);
        self.whole -= usize::from(count == WHOLE);
        free
    }

    /// How many nodes of a page are held.
    pub(super) fn held(&self, page: usize) -> u32 {
        self.held.get(page).map_or(0, |held| held.count)
    }

    /// The number of pages that may have nodes that are held.
    pub(super) fn pages(&self) -> usize {
        self.held.len()
    }

    /// From now on pages are held until they are whole, or callers have few. Takes at most `most`
    /// of the available pages.
    ///
    /// # Safety
    ///
    /// The list is used with no other arena.
    pub(super) unsafe fn keep<S: TaskContext>(&mut self, arena: &Arena<S>, most: usize) {
        self.keeps = true;
        for (page, free) in std::iter::from_fn(|| arena.take_available()).take(most) {
            let count = self.hold(page as usize, free, free.count_ones());
            self.whole += usize::from(count == WHOLE);
        }
    }

    /// Gives out pages that are held if callers have few, and keeps none.
    ///
    /// # Safety
    ///
    /// The list is used with no other arena.
    #[inline]
    pub(super) unsafe fn refill<S: TaskContext>(&mut self, arena: &Arena<S>) {
        let has_many = self.whole > 0 || self.count > arena.made() / MAX_HELD;
        if (self.keeps || has_many) && arena.pages.len() < MIN_AVAILABLE {
            // SAFETY: the caller uses the list with no other arena.
            unsafe { self.give_out_held(arena) };
        }
    }

    /// # Safety
    ///
    /// The list is used with no other arena.
    #[cold]
    unsafe fn give_out_held<S: TaskContext>(&mut self, arena: &Arena<S>) {
        (self.keeps, self.has_news) = (false, true);
        let pages = self.held.len();
        for _ in 0..pages.min(PAGES_PER_REFILL) {
            self.last = (self.last + 1) % pages;
            if self.held(self.last) >= MIN_FREE_AT_LIMIT {
                // SAFETY: the caller uses the list with no other arena.
                unsafe { self.give_out(arena, self.last) };
                if arena.pages.len() >= 2 * MIN_AVAILABLE {
                    return;
                }
            }
        }
    }

    /// Takes in what threads have freed. Returns whether there was anything.
    ///
    /// # Safety
    ///
    /// The list is used with no other arena.
    #[inline]
    pub(super) unsafe fn collect_remote_frees<S: TaskContext>(&mut self, arena: &Arena<S>) -> bool {
        // Most turns find none, and a `pop` that finds none executes a fence.
        let has_any = !arena.remote_frees.is_empty() || !arena.single_remote_frees.is_empty();
        if has_any {
            // SAFETY: the caller uses the list with no other arena.
            unsafe { self.collect_all(arena) };
        }
        has_any
    }

    /// # Safety
    ///
    /// The list is used with no other arena.
    #[cold]
    unsafe fn collect_all<S: TaskContext>(&mut self, arena: &Arena<S>) {
        let lots = std::iter::from_fn(|| arena.remote_frees.pop());
        let single = std::iter::from_fn(|| arena.single_remote_frees.pop());
        lots.flatten().chain(single).for_each(|number| {
            // SAFETY: threads have put only numbers of free nodes of this arena there.
            unsafe { self.put_number(arena, number) };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::NoTasks;

    fn put(list: &mut FreeList, arena: &Arena<NoTasks>, nodes: Vec<FreeNode<NoTasks>>) {
        for node in nodes {
            // SAFETY: the list is used with one arena, of which this is a free node.
            unsafe { list.put(arena, node) };
        }
    }

    fn take_page(arena: &Arena<NoTasks>) -> Vec<FreeNode<NoTasks>> {
        let mut page = arena.take_page();
        std::iter::from_fn(|| page.next()).collect()
    }

    /// More pages than callers need.
    const PAGES: usize = 2 * MIN_AVAILABLE;

    #[test]
    fn pages_are_kept_until_callers_have_few() {
        let (arena, mut list) = (Arena::<NoTasks>::new(), FreeList::default());
        let mut pages: Vec<_> = (0..2 * PAGES).map(|_| take_page(&arena)).collect();
        let mut last = pages.pop().unwrap();
        let half = last.split_off(PAGE / 2);
        for page in pages.drain(..PAGES) {
            put(&mut list, &arena, page);
        }
        assert_eq!((arena.pages.len(), list.whole), (PAGES, 0));
        // SAFETY: the list is used with one arena.
        unsafe { list.keep(&arena, PAGES / 4) };
        assert_eq!((arena.pages.len(), list.whole), (PAGES * 3 / 4, PAGES / 4));
        put(&mut list, &arena, half);
        assert_eq!(list.whole, PAGES / 4);
        put(&mut list, &arena, last);
        put(&mut list, &arena, pages.pop().unwrap());
        assert_eq!(
            (arena.pages.len(), list.whole),
            (PAGES * 3 / 4, PAGES / 4 + 2)
        );
        for pages in [PAGES * 3 / 4, MIN_AVAILABLE] {
            while arena.pages.len() > pages {
                take_page(&arena);
            }
            // SAFETY: the list is used with one arena.
            unsafe { list.refill(&arena) };
            assert!(list.keeps && arena.pages.len() == pages);
        }
        take_page(&arena);
        // SAFETY: the list is used with one arena.
        unsafe { list.refill(&arena) };
        assert!(!list.keeps && arena.pages.len() > MIN_AVAILABLE);
        // What was given out is counted no more.
        let held = || list.held.iter().map(|held| held.count);
        assert_eq!(list.whole, held().filter(|&count| count == WHOLE).count());
        assert_eq!(list.count, held().map(u64::from).sum::<u64>());
    }

    #[test]
    fn all_that_threads_have_freed_is_collected_at_once() {
        let (arena, mut list) = (Arena::<NoTasks>::new(), FreeList::default());
        let mut page = arena.take_page();
        let mut take = |count| Vec::from_iter(std::iter::from_fn(|| page.next()).take(count));
        for _ in 0..2 {
            let (lot, single) = (take(5), take(1));
            // SAFETY: these are free nodes of this arena.
            unsafe {
                arena.free_remotely(lot.into_iter());
                single
                    .into_iter()
                    .for_each(|node| arena.free_one_remotely(node));
            }
        }
        // SAFETY: the list is used with one arena.
        assert!(unsafe { list.collect_remote_frees(&arena) });
        let given_out = arena.take_available().map_or(0, |(_, free)| free);
        assert_eq!((list.take_held(0) | given_out).count_ones(), 12);
        // SAFETY: the list is used with one arena.
        assert!(!unsafe { list.collect_remote_frees(&arena) });
    }
}
