//! The worker's record of free nodes: which of them are given out again, and when.
//!
//! A page is given out once half of its nodes are free, so that timeouts that are scheduled
//! together lie together. Until then its free nodes are *held*. In the worst case this would hold
//! almost half of all nodes. So there is a limit: if more than one in [`MAX_HELD`] of the nodes
//! that were made are held, pages with fewer free nodes are given out too, from
//! [`MIN_FREE_AT_LIMIT`] on. This is the mean at the limit, so there are such pages. The worker
//! looks for them in turn, a few for each node that it recycles.

#![allow(unsafe_code)]

use super::arena::{Arena, FreeNode, PAGE};
use super::task::TaskContext;

/// A page with this many free nodes is given out again.
const MIN_FREE_PER_PAGE: u32 = PAGE.div_ceil(2) as u32;

/// One in this many of the nodes that were made are held at most.
const MAX_HELD: u64 = 8;

/// While more nodes are held, a page with this many free nodes is given out.
const MIN_FREE_AT_LIMIT: u32 = (PAGE as u64).div_ceil(MAX_HELD) as u32;

/// How many pages are looked at for each node that is recycled while too many are held.
const PAGES_PER_NODE: usize = 8;

/// The nodes of a page that are held.
#[derive(Clone, Copy, Default)]
struct Held {
    /// One bit per node.
    free: u64,
    /// The number of bits, which would take longer to count.
    count: u32,
}

/// The worker's record of free nodes that are in no thread's cache.
pub(super) struct FreeList {
    /// For each page, the nodes that are held.
    held: Vec<Held>,
    /// How many nodes were ever given out.
    given_out: i64,
    /// How many nodes may be held.
    limit: i64,
    /// How many more than are held now. Negative: too many are held.
    room: i64,
    /// The next page to look at while too many nodes are held.
    next: usize,
}

impl FreeList {
    pub(super) fn new() -> Self {
        Self {
            held: Vec::new(),
            given_out: 0,
            limit: 0,
            room: 0,
            next: 0,
        }
    }

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
        if page >= self.held.len() {
            self.held
                .resize((page + 1).next_power_of_two(), Held::default());
        }
        let held = &mut self.held[page];
        held.free |= 1 << (number as usize - page * PAGE);
        held.count += 1;
        self.room -= 1;
        if held.count >= MIN_FREE_PER_PAGE {
            // SAFETY: the nodes that are held are free nodes of `arena`, which the list owns.
            unsafe { self.give_out(arena, page) };
        } else if self.room < 0 {
            // SAFETY: the caller uses the list with no other arena.
            unsafe { self.enforce_limit(arena) };
        }
    }

    /// Gives out the nodes of a page that are held, of which there is at least one.
    ///
    /// # Safety
    ///
    /// The list is used with no other arena.
    #[inline(never)]
    unsafe fn give_out<S: TaskContext>(&mut self, arena: &Arena<S>, page: usize) {
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
        let count = i64::from(count);
        self.given_out += count;
        self.room += count;
        free
    }

    /// How many nodes were ever recycled: given out, or held.
    pub(super) fn recycled(&self) -> i64 {
        self.given_out + self.limit - self.room
    }

    /// Looks at a few pages if too many nodes are held.
    ///
    /// # Safety
    ///
    /// The list is used with no other arena.
    #[cold]
    #[inline(never)]
    unsafe fn enforce_limit<S: TaskContext>(&mut self, arena: &Arena<S>) {
        let made = arena.made();
        let limit = (made / MAX_HELD) as i64;
        self.room += limit - self.limit;
        self.limit = limit;
        let pages = self.held.len().min(made as usize / PAGE);
        for _ in 0..PAGES_PER_NODE {
            if self.room >= 0 {
                return;
            }
            self.next = if self.next + 1 < pages {
                self.next + 1
            } else {
                0
            };
            if self.held[self.next].count >= MIN_FREE_AT_LIMIT {
                // SAFETY: the caller uses the list with no other arena.
                unsafe { self.give_out(arena, self.next) };
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
        while let Some(numbers) = arena.remote_frees.pop() {
            for number in numbers {
                // SAFETY: `free_remotely` has put the number of a free node of this arena there.
                unsafe { self.put_number(arena, number) };
            }
        }
        while let Some(number) = arena.single_remote_frees.pop() {
            // SAFETY: `free_one_remotely` has put the number of a free node of this arena there.
            unsafe { self.put_number(arena, number) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::NoTasks;

    /// Each second page has too few free nodes to be given out at once, so that the limit matters.
    #[test]
    fn recycled_nodes_are_counted_whether_given_out_or_held() {
        let (arena, mut list) = (Arena::<NoTasks>::new(), FreeList::new());
        let mut recycled = 0;
        for page in 0..40 {
            let mut nodes = arena.take_page();
            let nodes = std::iter::from_fn(|| nodes.next());
            for node in nodes.take(if page % 2 == 0 { PAGE } else { PAGE / 2 - 1 }) {
                // SAFETY: the list is used with one arena, of which this is a free node.
                unsafe { list.put(&arena, node) };
                recycled += 1;
                assert_eq!(list.recycled(), recycled);
            }
        }
        assert!(list.limit > 0 && list.given_out > 0);
    }

    #[test]
    fn all_that_threads_have_freed_is_collected_at_once() {
        let (arena, mut list) = (Arena::<NoTasks>::new(), FreeList::new());
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
        assert_eq!(list.recycled(), 12);
        // SAFETY: the list is used with one arena.
        assert!(!unsafe { list.collect_remote_frees(&arena) });
    }
}
