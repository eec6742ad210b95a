//! The memory of a timer's nodes.
//!
//! Memory is allocated in chunks and handed out in pages of [`PAGE`] nodes, one cache line each.
//! Nodes are recycled; their memory is freed when the timer's is. A node is named by its number,
//! which takes half the space of an address.
//!
//! Timeouts that are scheduled together lie together, also in recycled nodes: the worker's
//! [`FreeList`] sorts free nodes by page, and gives a page out once half of it is free. A thread
//! fills a page in order. If threads used free nodes in the order in which they become free, almost
//! every later access would miss the cache and the page tables.
//!
//! A node is never freed while there is a reference to it; [`refs`](super::refs) counts them.

#![allow(unsafe_code)]

use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::needs_drop;
use std::ptr;
use std::ptr::NonNull;

use super::layout::Node;
use super::task::TaskContext;
use crate::platform::{LARGE_PAGE, prefer_large_pages, prefetch};
use crate::sync::unmodelled::{AtomicPtr, AtomicU64};
use crate::sync::{Ordering, SegQueue};

/// How many nodes a page has: as many as a word has bits.
pub(super) const PAGE: usize = if cfg!(hashed_wheel_loom) { 1 } else { 64 };

/// A page with so many free nodes is given out again.
const MIN_FREE_PER_PAGE: u32 = PAGE.div_ceil(2) as u32;

/// The number of nodes in the first chunk. Each further chunk has twice as many as the one before.
/// (The operating system provides memory when it is first used.)
const FIRST_CHUNK: usize = if cfg!(hashed_wheel_loom) { 2 } else { 1_024 };

/// So many chunks use up all numbers.
const CHUNKS: usize = (u32::BITS - FIRST_CHUNK.trailing_zeros()) as usize;

/// How many nodes ahead of the one that is filled are fetched into the cache.
const NODES_AHEAD: usize = 6;

/// A node to which there is no other reference, and which has no task.
pub(crate) struct FreeNode<S: TaskContext>(NonNull<Node<S>>);

// SAFETY: a node consists of atomics and of a task, which is `Send`.
unsafe impl<S: TaskContext> Send for FreeNode<S> {}

impl<S: TaskContext> FreeNode<S> {
    /// # Safety
    ///
    /// The caller has the only reference to the node, which has no task, and gives it to this
    /// value.
    #[inline]
    pub(super) unsafe fn new(node: NonNull<Node<S>>) -> Self {
        Self(node)
    }

    #[inline]
    pub(super) fn into_ptr(self) -> NonNull<Node<S>> {
        self.0
    }

    /// # Safety
    ///
    /// The arena of this node exists.
    unsafe fn number(&self) -> u32 {
        // SAFETY: the arena exists, and nodes of an arena are never freed before it.
        unsafe { self.0.as_ref() }.number
    }
}

/// The free nodes of one page.
pub(crate) struct Page<S: TaskContext> {
    first: NonNull<Node<S>>,
    /// One bit per node.
    free: u64,
}

// SAFETY: it stands for the `FreeNode`s that its bits name, which are `Send`.
unsafe impl<S: TaskContext> Send for Page<S> {}

impl<S: TaskContext> Page<S> {
    pub(super) const EMPTY: Self = Self { first: NonNull::dangling(), free: 0 };

    /// Takes the next node, and fetches one that is needed soon into the cache.
    #[inline]
    pub(super) fn next(&mut self) -> Option<FreeNode<S>> {
        if self.free == 0 {
            return None;
        }
        let at = self.free.trailing_zeros() as usize;
        self.free &= self.free - 1;
        let address = |at| self.first.as_ptr().wrapping_add(at);
        prefetch(address(at + NODES_AHEAD));
        NonNull::new(address(at)).map(FreeNode)
    }
}

/// The memory of all nodes of a timer.
pub(super) struct Arena<S: TaskContext> {
    chunks: [AtomicPtr<Node<S>>; CHUNKS],
    /// How many nodes were ever made, in whole pages.
    made: AtomicU64,
    /// Pages with enough free nodes.
    pages: SegQueue<Page<S>>,
    /// Numbers of nodes that threads have freed, on their way to the [`FreeList`]. (Numbers: the
    /// worker need not touch the nodes, which are in no cache of its own by then.)
    remote_frees: SegQueue<Vec<u32>>,
    /// The same, one by one, for threads that have no cache.
    single_remote_frees: SegQueue<u32>,
    owns: PhantomData<Node<S>>,
}

/// The worker's record of free nodes that are in no thread's cache.
pub(super) struct FreeList {
    /// One bit per node, one word per page.
    free: Vec<u64>,
}

impl FreeList {
    pub(super) fn new() -> Self {
        Self { free: Vec::new() }
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
        let at = number as usize - page * PAGE;
        if page >= self.free.len() {
            self.free.resize((page + 1).next_power_of_two(), 0);
        }
        let bits = &mut self.free[page];
        *bits |= 1 << at;
        if bits.count_ones() >= MIN_FREE_PER_PAGE {
            let free = std::mem::take(bits);
            arena.pages.push(Page { first: arena.at(number - at as u32), free });
        }
    }

    /// Takes in what threads have freed.
    ///
    /// # Safety
    ///
    /// The list is used with no other arena.
    pub(super) unsafe fn collect_remote_frees<S: TaskContext>(&mut self, arena: &Arena<S>) {
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

/// Returns the chunk of the node with this number, and its place there.
fn location(number: u32) -> (usize, usize) {
    let number = number as usize + FIRST_CHUNK;
    let chunk = number.ilog2() - FIRST_CHUNK.ilog2();
    (chunk as usize, number - (FIRST_CHUNK << chunk))
}

fn chunk_layout<S: TaskContext>(chunk: usize) -> Layout {
    let nodes = Layout::array::<Node<S>>(FIRST_CHUNK << chunk);
    let aligned = nodes
        .and_then(|nodes| if nodes.size() < LARGE_PAGE { Ok(nodes) } else { nodes.align_to(LARGE_PAGE) });
    aligned.unwrap_or_else(|_| out_of_nodes())
}

/// Ends the process. The timeout is counted as pending already: if this unwound, `stop` would never
/// return, because it waits until the count is zero.
#[cold]
fn out_of_nodes() -> ! {
    eprintln!(
        "hashed-wheel: a timer has no room for more timeouts (fewer than 2^32, including ended ones that have a handle)"
    );
    std::process::abort()
}

impl<S: TaskContext> Arena<S> {
    pub(super) fn new() -> Self {
        Self {
            chunks: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            made: AtomicU64::new(0),
            pages: SegQueue::new(),
            remote_frees: SegQueue::new(),
            single_remote_frees: SegQueue::new(),
            owns: PhantomData,
        }
    }

    /// Takes a page with free nodes: a recycled one if there is any.
    pub(super) fn take_page(&self) -> Page<S> {
        self.pages.pop().unwrap_or_else(|| self.make_page())
    }

    /// Gives up nodes that a thread does not need.
    ///
    /// # Safety
    ///
    /// The nodes are of this arena.
    pub(super) unsafe fn free_remotely(&self, nodes: impl Iterator<Item = FreeNode<S>>) {
        // SAFETY: the nodes are of this arena, which therefore exists.
        let numbers: Vec<_> = nodes.map(|node| unsafe { node.number() }).collect();
        if !numbers.is_empty() {
            self.remote_frees.push(numbers);
        }
    }

    /// Gives up a node of a thread that has no cache.
    ///
    /// # Safety
    ///
    /// The node is of this arena.
    pub(super) unsafe fn free_one_remotely(&self, node: FreeNode<S>) {
        // SAFETY: the node is of this arena, which therefore exists.
        self.single_remote_frees.push(unsafe { node.number() });
    }

    /// How many nodes were ever made.
    pub(super) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    fn make_page(&self) -> Page<S> {
        let number = self.made.fetch_add(PAGE as u64, Ordering::Relaxed);
        let limit = u32::MAX - (FIRST_CHUNK + PAGE) as u32;
        let number = u32::try_from(number).ok().filter(|&number| number < limit);
        let number = number.unwrap_or_else(|| out_of_nodes());
        let (chunk, place) = location(number);
        let first = self.chunk(chunk).as_ptr().wrapping_add(place);
        for at in 0..PAGE {
            // SAFETY: the length of a page and of each chunk is a power of two, so the page lies in
            // one chunk. No other thread has got these numbers.
            unsafe { first.add(at).write(Node::unused(number + at as u32)) };
        }
        Page { first: NonNull::new(first).expect("the chunk exists"), free: u64::MAX >> (64 - PAGE) }
    }

    fn chunk(&self, chunk: usize) -> NonNull<Node<S>> {
        // Acquire, here and below: pairs with the release by the thread that has allocated it.
        if let Some(known) = NonNull::new(self.chunks[chunk].load(Ordering::Acquire)) {
            return known;
        }
        let layout = chunk_layout::<S>(chunk);
        // SAFETY: the layout is not of size zero.
        let new = unsafe { std::alloc::alloc(layout) };
        let Some(new) = NonNull::new(new) else { handle_alloc_error(layout) };
        prefer_large_pages(new, layout);
        let new = new.cast::<Node<S>>();
        let null = ptr::null_mut();
        match self.chunks[chunk].compare_exchange(null, new.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: allocated above with this layout, and no other thread has seen it.
                unsafe { std::alloc::dealloc(new.as_ptr().cast(), layout) };
                NonNull::new(other).expect("another thread has set it")
            }
        }
    }

    /// Returns the address of the node with this number. If none was made, the address is not that
    /// of a node.
    #[inline]
    pub(super) fn at(&self, number: u32) -> NonNull<Node<S>> {
        let (chunk, place) = location(number);
        let node = self.chunks[chunk].load(Ordering::Acquire).wrapping_add(place);
        NonNull::new(node).expect("the number is that of a node")
    }

    /// Returns a node of which only the number was kept.
    ///
    /// # Safety
    ///
    /// A node with this number was made, and is not filled while the result is used, because there
    /// is a counted reference to it.
    #[inline]
    pub(super) unsafe fn node(&self, number: u32) -> &Node<S> {
        // SAFETY: the node was made, nodes are not freed before the arena, and there is never a
        // `&mut Node`.
        unsafe { self.at(number).as_ref() }
    }

    /// Fetches the cache line of a node that is needed soon. Does nothing on platforms without such
    /// an instruction.
    #[inline]
    pub(super) fn prefetch(&self, number: u32) {
        prefetch(self.at(number).as_ptr());
    }
}

impl<S: TaskContext> Drop for Arena<S> {
    fn drop(&mut self) {
        // Only loom's atomics have anything to drop.
        if needs_drop::<Node<S>>() {
            for number in 0..*self.made.get_mut() as u32 {
                // SAFETY: the node was made, and no reference to it is used any more: a handle
                // would keep the arena, and the wheel's references are used only with the pool
                // borrowed.
                unsafe { ptr::drop_in_place(self.at(number).as_ptr()) };
            }
        }
        for (chunk, first) in self.chunks.iter_mut().enumerate() {
            if !first.get_mut().is_null() {
                // SAFETY: the chunk was allocated with this layout, and none of its nodes is used
                // any more.
                unsafe { std::alloc::dealloc((*first.get_mut()).cast(), chunk_layout::<S>(chunk)) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_location_of_its_own() {
        let mut expected = (0, 0);
        for number in 0..10_000 {
            assert_eq!(location(number), expected);
            expected.1 += 1;
            if expected.1 == FIRST_CHUNK << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(location(u32::MAX - FIRST_CHUNK as u32).0, CHUNKS - 1);
    }
}
