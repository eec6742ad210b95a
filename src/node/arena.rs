//! The memory of a timer's nodes.
//!
//! Memory is allocated in chunks and handed out in pages of [`PAGE`] nodes, one cache line each.
//! Nodes are recycled. A node is named by its number, which takes half the space of an address. The
//! addresses stay the arena's until it is dropped. The memory behind them goes back to the
//! operating system while it is not needed: see [`surplus`](super::surplus).
//!
//! Timeouts that are scheduled together lie together, also in recycled nodes: free nodes are given
//! out by page, by the worker's [`FreeList`](super::free_list::FreeList). A thread fills a page in
//! order. If threads used free nodes in the order in which they become free, almost every later
//! access would miss the cache and the page tables.
//!
//! A node is never recycled while there is a reference to it; [`refs`](super::refs) counts them. A
//! free node is in exactly one of these places, whose owner alone may read or write it:
//!
//! | place | owner | leaves it by |
//! |---|---|---|
//! | the cache of a thread: `free` and `page` of [`LocalNodes`](super::LocalNodes) | that thread | `fill`, `free_remotely` |
//! | `remote_frees`, `single_remote_frees` | none | the worker, `collect_remote_frees` |
//! | `held` of the `FreeList` | the worker | `give_out`, or the return of the memory |
//! | a bit of `available` | none | the thread that has popped the page from `pages` |
//! | a page in `returned`: its nodes are not written | none | the thread that has popped the page, which writes its nodes |
//!
//! Each page has a word `available` with a bit per node, and is in the queue `pages` at most once:
//!
//! | `available` | to | by | order | pairs with |
//! |---|---|---|---|---|
//! | – | 0 | a thread that allocates the chunk, `allocate` | plain write: no other thread knows the chunk | – |
//! | 0 | bits | the worker, `give_out`, which then pushes the page to `pages` | `Release` | the swap |
//! | bits | more bits | the worker, `give_out`; the page is in `pages`, or was popped and not swapped yet | `Release` | the swap |
//! | bits | 0 | a thread that has popped the page, `take_available` | `Acquire`: what was done with the nodes is over | `give_out` |
//!
//! So the worker, which takes a page like any other thread, knows whether it has all nodes of it.
//!
//! A thread that adds pages to `made` owns them: by an addition, `make_page`; or the worker by
//! compare-exchange, `make_unwritten`. Both are `Relaxed`, because the number publishes nothing.
//!
//! The pointer to a chunk is changed once, from null to the address. If two threads allocate the
//! same chunk, one compare-exchange fails, and that thread frees its own.
//!
//! | pointer to a chunk | to | by | order | pairs with |
//! |---|---|---|---|---|
//! | null | address | a thread that needs the chunk, `allocate` | `Release` | the `Acquire` of a thread that reads the pointer: the memory was allocated before |

#![allow(unsafe_code)]

use std::alloc::{Layout, LayoutError, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::needs_drop;
use std::ptr;
use std::ptr::NonNull;

use super::task::{Node, TaskContext};
use super::timer_ref::SharedCount;
use crate::platform::{LARGE_PAGE, allow_large_pages, memory_page_size, prefetch};
use crate::sync::unmodelled::{AtomicPtr, AtomicU64};
use crate::sync::{Arc, Ordering, SegQueue, Weak, unmodelled};

/// How many nodes a page has: as many as a word has bits.
pub(super) const PAGE: usize = if cfg!(hashed_wheel_loom) { 2 } else { 64 };

/// The bits of a page whose nodes are all free.
pub(super) const ALL_FREE: u64 = u64::MAX >> (64 - PAGE);

/// The size of a page of nodes in bytes. (In the models, nodes are larger.)
pub(super) const PAGE_SIZE: usize = 4_096;

/// The number of nodes in the first chunk. Each further chunk has twice as many as the one before.
/// (The operating system provides memory when it is first used.)
pub(super) const FIRST_CHUNK: usize = if cfg!(hashed_wheel_loom) { 2 } else { 1_024 };

/// One more than use up all node numbers. So each number names one of them, and no look-up checks
/// the bound.
const CHUNKS: usize = (u32::BITS - FIRST_CHUNK.trailing_zeros()) as usize + 1;

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
    pub(super) unsafe fn number(&self) -> u32 {
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
    pub(super) const EMPTY: Self = Self {
        first: NonNull::dangling(),
        free: 0,
    };

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
    /// The pages that have available nodes, by number.
    pub(super) pages: SegQueue<u32>,
    /// The pages whose memory was returned to the operating system, by number.
    pub(super) returned: SegQueue<u32>,
    /// Numbers of nodes that threads have freed, on their way to the `FreeList`. (Numbers: the
    /// worker need not touch the nodes, which are in no cache of its own by then.)
    pub(super) remote_frees: SegQueue<Vec<u32>>,
    /// The same, one by one, for threads that have no cache.
    pub(super) single_remote_frees: SegQueue<u32>,
    owns: PhantomData<Node<S>>,
}

/// Returns the chunk of the node with this number, and its place there.
fn location(number: u32) -> (usize, usize) {
    let number = number as usize + FIRST_CHUNK;
    // The highest bit names the chunk, and the bits below it the place. (`ilog2` would be two
    // subtractions more where a processor finds the highest bit.)
    let bit = (number.leading_zeros() ^ (usize::BITS - 1)) as usize;
    (bit - FIRST_CHUNK.ilog2() as usize, number ^ (1 << bit))
}

/// Returns the layout of a chunk, and that of the nodes at its beginning, aligned so that their
/// memory can be returned. The words `available` of the pages follow.
fn chunk_layout<S: TaskContext>(chunk: usize) -> Result<(Layout, Layout), LayoutError> {
    let nodes = Layout::array::<Node<S>>(FIRST_CHUNK << chunk)?;
    let nodes = nodes.align_to(match nodes.size() < LARGE_PAGE {
        true => memory_page_size(),
        false => LARGE_PAGE,
    })?;
    let words = Layout::array::<AtomicU64>((FIRST_CHUNK << chunk) / PAGE)?;
    Ok((nodes.extend(words)?.0, nodes))
}

/// Returns the number of the first node of the next page after this many nodes, if there is room:
/// all nodes of the page have a location.
fn next_number(made: u64) -> Option<u32> {
    let limit = u32::MAX - (FIRST_CHUNK + PAGE) as u32;
    u32::try_from(made).ok().filter(|&number| number < limit)
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
            returned: SegQueue::new(),
            remote_frees: SegQueue::new(),
            single_remote_frees: SegQueue::new(),
            owns: PhantomData,
        }
    }

    /// How many nodes were ever made.
    pub(super) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Takes a page with free nodes: a recycled one if there is any.
    pub(super) fn take_page(&self) -> Page<S> {
        if let Some((page, free)) = self.take_available() {
            let first = self.at(page * PAGE as u32);
            return Page { first, free };
        }
        let page = self.returned.pop().unwrap_or_else(|| self.make_page());
        // SAFETY: this thread has just made the page. Or the worker, which had all nodes of it, has
        // put it into `returned`, and no other thread has popped it.
        unsafe { self.write_page(page) }
    }

    /// Takes the available nodes of a page. Returns its number, and one bit per node.
    pub(super) fn take_available(&self) -> Option<(u32, u64)> {
        let page = self.pages.pop()?;
        // SAFETY: `give_out` has pushed the number of a page that was made.
        let available = unsafe { self.available(page) };
        // Acquire: pairs with the release in `give_out`.
        Some((page, available.swap(0, Ordering::Acquire)))
    }

    /// Makes nodes of a page available to all threads.
    ///
    /// # Safety
    ///
    /// The caller is the worker, owns the free nodes of this page that `free` names, of which there
    /// is at least one, and gives them up.
    pub(super) unsafe fn give_out(&self, page: u32, free: u64) {
        // SAFETY: the caller owns nodes of the page, so it was made.
        let available = unsafe { self.available(page) };
        // Release: pairs with the acquire in `take_available`.
        if available.fetch_or(free, Ordering::Release) == 0 {
            self.pages.push(page);
        }
    }

    /// Returns the word with the available nodes of a page.
    ///
    /// # Safety
    ///
    /// The page was made.
    unsafe fn available(&self, page: u32) -> &AtomicU64 {
        let (chunk, place) = location(page * PAGE as u32);
        let words = self.chunks[chunk]
            .load(Ordering::Acquire)
            .wrapping_add(FIRST_CHUNK << chunk);
        // SAFETY: `allocate` has written a word for each page of the chunk behind the nodes.
        unsafe { &*words.cast::<AtomicU64>().add(place / PAGE) }
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

    /// Makes a page, whose nodes are not written. Returns its number.
    fn make_page(&self) -> u32 {
        let made = self.made.fetch_add(PAGE as u64, Ordering::Relaxed);
        let number = next_number(made).unwrap_or_else(|| out_of_nodes());
        self.allocate(location(number).0);
        number / PAGE as u32
    }

    /// Makes the nodes from number `made` up to `end`, which are of one chunk, without writing
    /// them. The caller owns them. Returns false if another thread has made a page since `made`
    /// nodes were made.
    pub(super) fn make_unwritten(&self, made: u64, end: u64) -> bool {
        let is_made = self
            .made
            .compare_exchange(made, end, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if is_made {
            self.allocate(location(made as u32).0);
        }
        is_made
    }

    /// Writes all nodes of a page, which are free then.
    ///
    /// # Safety
    ///
    /// The chunk of the page was allocated. The caller owns all nodes of the page, none of which
    /// has anything to drop.
    pub(super) unsafe fn write_page(&self, page: u32) -> Page<S> {
        let number = page * PAGE as u32;
        let first = self.at(number);
        for at in 0..PAGE {
            // SAFETY: the length of a page and of each chunk is a power of two, so the page lies in
            // one chunk. The caller owns its nodes.
            unsafe { first.add(at).write(Node::unused(number + at as u32)) };
        }
        Page {
            first,
            free: ALL_FREE,
        }
    }

    /// Allocates a chunk, unless a thread has. Its nodes are not written.
    fn allocate(&self, chunk: usize) {
        // Relaxed: whoever uses the chunk reads the pointer again.
        if !self.chunks[chunk].load(Ordering::Relaxed).is_null() {
            return;
        }
        let (layout, nodes) = chunk_layout::<S>(chunk).unwrap_or_else(|_| out_of_nodes());
        // SAFETY: the layout is not of size zero.
        let new = unsafe { std::alloc::alloc(layout) };
        let Some(new) = NonNull::new(new) else {
            handle_alloc_error(layout)
        };
        if nodes.align() >= LARGE_PAGE {
            // SAFETY: the allocation begins with the nodes.
            unsafe { allow_large_pages(new, nodes.size(), true) };
        }
        let words = new.as_ptr().wrapping_add(nodes.size()).cast::<AtomicU64>();
        for page in 0..(FIRST_CHUNK << chunk) / PAGE {
            // SAFETY: the layout has a word for each page behind the nodes.
            unsafe { words.add(page).write(AtomicU64::new(0)) };
        }
        let (null, first) = (ptr::null_mut(), new.as_ptr().cast());
        // Release: pairs with the acquire of a thread that reads the pointer.
        if self.chunks[chunk]
            .compare_exchange(null, first, Ordering::Release, Ordering::Relaxed)
            .is_err()
        {
            // SAFETY: allocated above with this layout, and no other thread has seen it.
            unsafe { std::alloc::dealloc(new.as_ptr(), layout) };
        }
    }

    /// Returns the address of the node with this number. If none was made, the address is not that
    /// of a node.
    #[inline]
    pub(super) fn at(&self, number: u32) -> NonNull<Node<S>> {
        let (chunk, place) = location(number);
        // Acquire: pairs with the release in `allocate`.
        let node = self.chunks[chunk]
            .load(Ordering::Acquire)
            .wrapping_add(place);
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
                let (layout, _) = chunk_layout::<S>(chunk).expect("it was allocated");
                // SAFETY: the chunk was allocated with this layout, and none of its nodes is used
                // any more.
                unsafe { std::alloc::dealloc((*first.get_mut()).cast(), layout) };
            }
        }
    }
}

/// Identifies a [`Pool`]: no other pool of the process has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolId(u64);

impl PoolId {
    pub(super) fn new() -> Self {
        static NEXT: unmodelled::AtomicU64 = unmodelled::AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The field of a timer `S` for its nodes: their memory, and the count of their references to the
/// timer.
///
/// A timer is in an `Arc`. Each [`Handle`](super::Handle) has a reference to it, so the memory of
/// the nodes lives as long as any of them.
pub(crate) struct Pool<S: TaskContext> {
    id: PoolId,
    /// The timer that has this pool.
    pub(super) timer: Weak<S>,
    pub(super) references: SharedCount,
    pub(super) arena: Arena<S>,
}

impl<S: TaskContext> Pool<S> {
    pub(super) fn new(id: PoolId, timer: Weak<S>) -> Self {
        Self {
            id,
            timer,
            references: SharedCount::default(),
            arena: Arena::new(),
        }
    }

    pub(crate) fn id(&self) -> PoolId {
        self.id
    }

    /// The timer that has this pool.
    ///
    /// # Panics
    ///
    /// If it is being dropped.
    pub(crate) fn timer(&self) -> Arc<S> {
        self.timer.upgrade().expect("the caller has the timer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::NoTasks;

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
        assert_eq!(location(u32::MAX - FIRST_CHUNK as u32).0, CHUNKS - 2);
    }

    /// All numbers that have a location are used, except those of the last page.
    #[test]
    fn page_has_numbers_while_its_nodes_have_locations() {
        let end = (1 << u32::BITS) - FIRST_CHUNK as u64;
        assert_eq!(next_number(0), Some(0));
        let last = end - 2 * PAGE as u64;
        assert_eq!(next_number(last), Some(last as u32));
        for made in [end, 1 << u32::BITS, (1 << u32::BITS) + PAGE as u64] {
            assert_eq!(next_number(made), None);
        }
    }

    /// A chunk as large as a large page is aligned like one, others like a page of the operating
    /// system. The words of its pages follow.
    #[test]
    fn chunk_has_its_nodes_and_a_word_for_each_page() {
        for chunk in 0..10 {
            let count = FIRST_CHUNK << chunk;
            let (all, nodes) = chunk_layout::<NoTasks>(chunk).unwrap();
            assert_eq!(nodes.size(), count * size_of::<Node<NoTasks>>());
            let align = if nodes.size() < LARGE_PAGE {
                memory_page_size()
            } else {
                LARGE_PAGE
            };
            assert_eq!((nodes.align(), all.align()), (align, align));
            assert_eq!(
                all.size(),
                nodes.size() + count / PAGE * size_of::<AtomicU64>()
            );
        }
    }

    #[test]
    fn available_nodes_of_a_page_are_taken_together() {
        let arena = Arena::<NoTasks>::new();
        let numbers = |mut page: Page<NoTasks>| {
            // SAFETY: the arena exists.
            let numbers =
                std::iter::from_fn(move || page.next()).map(|node| unsafe { node.number() });
            numbers.collect::<Vec<_>>()
        };
        let page = PAGE as u32;
        assert!(numbers(arena.take_page()).into_iter().eq(0..page));
        assert!(numbers(arena.take_page()).into_iter().eq(page..2 * page));
        assert_eq!(arena.made(), 2 * PAGE as u64);
        assert_eq!(arena.take_available(), None);
        // SAFETY: the nodes were taken above.
        unsafe { arena.give_out(1, 0b101) };
        // SAFETY: the node was taken above.
        unsafe { arena.give_out(1, 0b10_000) };
        assert_eq!(numbers(arena.take_page()), [page, page + 2, page + 4]);
        assert_eq!(arena.take_available(), None);
    }
}
