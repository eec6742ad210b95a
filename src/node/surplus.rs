//! Returns the memory of free nodes to the operating system after a burst.
//!
//! Only the worker does it, when it is idle otherwise; or, if it is never idle, after a long time
//! and in single steps. It returns pages of which it owns all nodes, so no other thread can read
//! them. Such a page waits in the queue `returned`. The thread that takes it writes its nodes
//! first, as those of a new page. The head of [`arena`](super::arena) says why the worker knows
//! that it owns them.
//!
//! The pages form *regions*, each as large as a large page of the operating system. If all of a
//! region is free, it is returned as a whole. Otherwise its free pages are returned one by one, and
//! the region uses small pages from then on: the operating system would merge what is left into a
//! large page again, which takes up as much memory as before. The first region, whose chunks are
//! smaller than a large page, is never returned.
//!
//! Work is done in steps of bounded length, in three phases:
//!
//! | phase | each step |
//! |---|---|
//! | `Count` | pops some pages from `pages`, counts those of which all nodes are free, by region, and pushes them again |
//! | `Take` | pops some pages from `pages`, takes those of which all nodes are free, and pushes the others again |
//! | `Return` | returns some of the pages that were taken, in the order of their addresses |
//!
//! A *reserve* of free pages stays: those in the first regions. So a steady load finds the pages
//! that it needs, and so do callers during the three phases. A search begins only if the free pages
//! are twice the reserve, and ends where they are the reserve. It also ends if no page is available
//! any more: then callers need the pages that were taken, which are given out again.
//!
//! A page in `pages` has some free nodes, not necessarily all, so a search may find nothing. Its
//! cost is paid for by the nodes that were recycled since the last search: one for
//! [`PAGES_PER_RECYCLED`] pages. After each search that has returned nothing the price doubles, up
//! to one node for [`MIN_PAGES_PER_RECYCLED`] pages.

#![allow(unsafe_code)]

use std::mem::{needs_drop, size_of, take};
use std::ops::Range;

use super::arena::{ALL_FREE, Arena, FIRST_CHUNK, PAGE};
use super::free_list::FreeList;
use super::layout::Node;
use super::task::TaskContext;
use crate::platform::{CAN_RETURN_MEMORY, LARGE_PAGE, allow_large_pages, memory_page_size, return_memory};

/// The size of a page of nodes in bytes.
const PAGE_SIZE: usize = 4_096;

/// How many pages a region has.
const REGION: usize = LARGE_PAGE / PAGE_SIZE;

/// Pages are numbered so that those of a region have adjacent numbers, from a multiple of
/// [`REGION`] on. The first page of the arena has this number.
const FIRST_PAGE: usize = FIRST_CHUNK / PAGE;

/// The fewest pages in reserve: one megabyte.
const MIN_RESERVE: u64 = if cfg!(miri) { 4 } else { 256 };

/// The reserve is one in so many of the pages that are in use, if these are many.
const RESERVE: u64 = 8;

/// A search that looks at so many pages costs one recycled node, if the last one has returned
/// memory.
const PAGES_PER_RECYCLED: u64 = 8;

/// The same after searches that have returned nothing. A page with a node that was recycled since
/// may be free, so at most half of the pages are free and not searched for.
const MIN_PAGES_PER_RECYCLED: u64 = 2;

/// How many pages a step of `Count` and `Take` looks at.
const PAGES_PER_STEP: usize = 512;

/// When a step of `Return` ends: a call of the operating system costs as much as about 32 pages.
const COST_PER_STEP: usize = 512;
const COST_OF_CALL: usize = 32;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    Idle,
    /// This many pages are left to be looked at.
    Count(usize),
    Take(usize),
    /// The next word of `taken`.
    Return(usize),
    /// The same, but the pages are given out again.
    GiveOut(usize),
}

pub(super) struct Surplus {
    phase: Phase,
    /// How many nodes had been recycled when the last search began.
    recycled: i64,
    /// How many must be recycled until the next one begins.
    price: i64,
    /// How many pages this search looks at.
    looked_at: u64,
    /// Whether this search has returned memory.
    has_returned: bool,
    /// For each region, how many of its pages are free.
    free: Vec<u32>,
    /// Pages in this region and in later ones are returned.
    first_region: usize,
    /// One bit per page: those that were taken to be returned.
    taken: Vec<u64>,
    /// For each region, whether it uses small pages.
    is_split: Vec<bool>,
    /// How many pages of nodes a page of the operating system has.
    unit: usize,
    /// The operating system has refused a call, and is not asked again.
    is_refused: bool,
}

impl Surplus {
    pub(super) fn new() -> Self {
        let page_size = memory_page_size();
        Self {
            phase: Phase::Idle,
            recycled: 0,
            price: MIN_RESERVE as i64,
            looked_at: 0,
            has_returned: false,
            free: Vec::new(),
            first_region: 0,
            taken: Vec::new(),
            is_split: Vec::new(),
            unit: page_size.div_ceil(PAGE_SIZE),
            is_refused: LARGE_PAGE % page_size != 0,
        }
    }
}

/// Whether memory can be returned: nodes drop nothing, and a page of nodes has this size.
fn is_possible<S: TaskContext>() -> bool {
    CAN_RETURN_MEMORY && !needs_drop::<Node<S>>() && PAGE * size_of::<Node<S>>() == PAGE_SIZE
}

/// How many free pages stay, if so many are in use.
fn reserve(in_use: u64) -> u64 {
    MIN_RESERVE.max(in_use / RESERVE)
}

/// Returns those of the pages that form whole units of `unit` pages.
fn whole_units(pages: u64, unit: usize) -> u64 {
    if unit > u64::BITS as usize / 2 {
        return 0;
    }
    let one = (1 << unit) - 1;
    let units = (0..u64::BITS as usize).step_by(unit).map(|at| one << at);
    units.filter(|unit| pages & unit == *unit).fold(0, |all, unit| all | unit)
}

/// All pages of a word of `taken`.
const ALL_PAGES: u64 = u64::MAX;

/// Returns the positions of the set bits.
fn bits(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(first)
    })
}

/// Returns the first run of set bits.
fn first_run(bits: u64) -> Range<usize> {
    let start = bits.trailing_zeros() as usize;
    start..start + (bits >> start).trailing_ones() as usize
}

impl Surplus {
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
        const { assert!(LARGE_PAGE % (64 * PAGE_SIZE) == 0) };
        if !is_possible::<S>() {
            return false;
        }
        self.phase = match self.phase {
            Phase::Idle => self.begin(list, arena),
            // SAFETY: the caller uses both with no other arena.
            Phase::Count(left) => unsafe { self.count(list, arena, left) },
            // SAFETY: the caller uses both with no other arena.
            Phase::Take(left) => unsafe { self.take(list, arena, left) },
            // SAFETY: the caller uses both with no other arena.
            Phase::Return(word) => unsafe { self.return_taken(arena, word, true) },
            // SAFETY: the caller uses both with no other arena.
            Phase::GiveOut(word) => unsafe { self.return_taken(arena, word, false) },
        };
        self.phase != Phase::Idle
    }

    /// Whether a search may find memory to return: there are enough pages with free nodes, and
    /// enough nodes were recycled since the last search to pay for this one.
    #[inline]
    pub(super) fn has_surplus<S: TaskContext>(&self, list: &FreeList, arena: &Arena<S>) -> bool {
        if list.recycled() - self.recycled < self.price || self.is_refused || !is_possible::<S>() {
            return false;
        }
        let (queued, has_memory) = queued_and_with_memory(arena);
        queued > 2 * reserve(has_memory - queued)
    }

    /// Begins a search, if there is a surplus.
    fn begin<S: TaskContext>(&mut self, list: &FreeList, arena: &Arena<S>) -> Phase {
        if !self.has_surplus(list, arena) {
            return Phase::Idle;
        }
        let (queued, _) = queued_and_with_memory(arena);
        self.recycled = list.recycled();
        (self.looked_at, self.has_returned) = (queued, false);
        let regions = (arena.made() as usize / PAGE + FIRST_PAGE) / REGION + 1;
        self.free = vec![0; regions];
        self.is_split.resize(regions, false);
        Phase::Count(queued as usize)
    }

    /// Ends a search.
    fn end(&mut self) -> Phase {
        let price = |pages| MIN_RESERVE.max(self.looked_at / pages) as i64;
        let (least, most) = (price(PAGES_PER_RECYCLED), price(MIN_PAGES_PER_RECYCLED));
        self.price = if self.has_returned { least } else { most.min(2 * least.max(self.price)) };
        Phase::Idle
    }

    /// # Safety
    ///
    /// The list and this value are used with no other arena.
    unsafe fn count<S: TaskContext>(&mut self, list: &mut FreeList, arena: &Arena<S>, left: usize) -> Phase {
        for _ in 0..left.min(PAGES_PER_STEP) {
            let Some((page, free)) = arena.take_available() else { break };
            let free = free | list.take_held(page as usize);
            if free == ALL_FREE {
                // A region that was made since `begin` is left for the next search.
                if let Some(count) = self.free.get_mut((page as usize + FIRST_PAGE) / REGION) {
                    *count += 1;
                }
            }
            // SAFETY: the nodes were just taken from this page of the arena.
            unsafe { arena.give_out(page, free) };
        }
        if left > PAGES_PER_STEP { Phase::Count(left - PAGES_PER_STEP) } else { self.plan(arena) }
    }

    /// Decides which pages are returned.
    fn plan<S: TaskContext>(&mut self, arena: &Arena<S>) -> Phase {
        let counts = take(&mut self.free);
        let free: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let (queued, has_memory) = queued_and_with_memory(arena);
        let reserve = reserve(has_memory - free.min(has_memory));
        if free <= 2 * reserve {
            return self.end();
        }
        let (mut kept, mut first_region) = (0, 0);
        // Region 0 cannot be returned. A reserve is never zero, so it is kept.
        while kept < reserve {
            kept += u64::from(counts[first_region]);
            first_region += 1;
        }
        self.first_region = first_region;
        self.taken = vec![0; counts.len() * REGION / 64];
        Phase::Take(queued as usize)
    }

    /// # Safety
    ///
    /// The list and this value are used with no other arena.
    unsafe fn take<S: TaskContext>(&mut self, list: &mut FreeList, arena: &Arena<S>, left: usize) -> Phase {
        for _ in 0..left.min(PAGES_PER_STEP) {
            let Some((page, free)) = arena.take_available() else { break };
            let free = free | list.take_held(page as usize);
            let place = page as usize + FIRST_PAGE;
            let Surplus { first_region, taken, .. } = self;
            let word = taken.get_mut(place / 64).filter(|_| place >= *first_region * REGION);
            match word {
                Some(word) if free == ALL_FREE => *word |= 1 << (place % 64),
                // SAFETY: the nodes were just taken from this page of the arena.
                _ => unsafe { arena.give_out(page, free) },
            }
        }
        if left > PAGES_PER_STEP { Phase::Take(left - PAGES_PER_STEP) } else { Phase::Return(0) }
    }

    /// Returns pages that were taken, or gives them out.
    ///
    /// # Safety
    ///
    /// The list and this value are used with no other arena.
    unsafe fn return_taken<S: TaskContext>(
        &mut self,
        arena: &Arena<S>,
        mut word: usize,
        mut returns: bool,
    ) -> Phase {
        const WORDS: usize = REGION / 64;

        let mut cost = 0;
        while cost < COST_PER_STEP {
            let Some(&pages) = self.taken.get(word) else {
                self.taken = Vec::new();
                return self.end();
            };
            cost += 1;
            // Without an available page, callers would make new pages.
            returns &= !self.is_refused && !arena.pages.is_empty();
            let (region, in_region) = (word / WORDS, word % WORDS);
            let words = &mut self.taken[word - in_region..][..WORDS];
            if returns && in_region == 0 && words.iter().all(|&word| word == ALL_PAGES) {
                words.fill(0);
                // SAFETY: the worker owns all nodes of these pages.
                unsafe { self.return_pages(arena, region * REGION, REGION, true) };
                cost += REGION + COST_OF_CALL;
                word += WORDS;
                continue;
            }
            words[in_region] = 0;
            word += 1;
            let mut whole = if returns { whole_units(pages, self.unit) } else { 0 };
            for page in bits(pages & !whole) {
                let page = (word - 1) * 64 + page - FIRST_PAGE;
                cost += 1;
                // SAFETY: the worker owns all nodes of this page, which was taken.
                unsafe { arena.give_out(page as u32, ALL_FREE) };
            }
            while whole != 0 {
                let run = first_run(whole);
                // SAFETY: the worker owns all nodes of these pages.
                unsafe { self.return_pages(arena, (word - 1) * 64 + run.start, run.len(), false) };
                cost += run.len() + COST_OF_CALL;
                whole &= !(ALL_PAGES >> (64 - run.len()) << run.start);
            }
        }
        if returns { Phase::Return(word) } else { Phase::GiveOut(word) }
    }

    /// Returns the memory of pages from `place` on: a whole region, or some of its pages. If the
    /// operating system refuses, the pages are given out.
    ///
    /// # Safety
    ///
    /// The worker owns all nodes of these pages, which are pages of `arena`, and gives them up.
    /// They lie in one region, and are whole pages of the operating system.
    unsafe fn return_pages<S: TaskContext>(
        &mut self,
        arena: &Arena<S>,
        place: usize,
        count: usize,
        is_region: bool,
    ) {
        let address = |place: usize| arena.at(((place - FIRST_PAGE) * PAGE) as u32).cast();
        let is_split = &mut self.is_split[place / REGION];
        if *is_split == is_region && !self.is_refused {
            *is_split = !is_region;
            // SAFETY: a region is as large as a large page and aligned like one, so it is part of
            // one chunk.
            unsafe { allow_large_pages(address(place / REGION * REGION), LARGE_PAGE, is_region) };
        }
        // SAFETY: the caller owns the nodes, so no other thread reads them. They are written before
        // they are given out: by the thread that pops the page from `returned`, or below.
        let is_returned = !self.is_refused && unsafe { return_memory(address(place), count * PAGE_SIZE) };
        self.has_returned |= is_returned;
        self.is_refused |= !is_returned;
        for place in place..place + count {
            let page = (place - FIRST_PAGE) as u32;
            if is_returned {
                arena.returned.push(page);
                continue;
            }
            // The call may have failed after it had returned some of the pages. SAFETY: the page
            // was made, the caller owns its nodes, and `is_possible` says that they have nothing to
            // drop.
            unsafe { arena.write_page(page) };
            // SAFETY: the caller owns all nodes of the page, and gives them up.
            unsafe { arena.give_out(page, ALL_FREE) };
        }
    }
}

/// How many pages have available nodes, and how many were made and not returned. The numbers are
/// those of one moment only if no other thread takes pages meanwhile.
fn queued_and_with_memory<S: TaskContext>(arena: &Arena<S>) -> (u64, u64) {
    let returned = arena.returned.len() as u64;
    let with_memory = (arena.made() / PAGE as u64).saturating_sub(returned);
    ((arena.pages.len() as u64).min(with_memory), with_memory)
}

#[cfg(test)]
mod tests {
    use crate::sync::Ordering;
    use crate::sync::thread;

    use super::*;
    use crate::node::arena::FreeNode;
    use crate::node::tests::NoTasks;
    use crate::platform::lock_memory;

    /// An arena, and what the worker has of it.
    struct Memory {
        arena: Arena<NoTasks>,
        list: FreeList,
        surplus: Surplus,
    }

    impl Memory {
        fn new() -> Self {
            Self { arena: Arena::new(), list: FreeList::new(), surplus: Surplus::new() }
        }

        /// Takes nodes as a thread does.
        fn take(&self, count: usize) -> Vec<FreeNode<NoTasks>> {
            let pages = std::iter::repeat_with(|| self.arena.take_page());
            let nodes = pages.flat_map(|mut page| std::iter::from_fn(move || page.next()));
            nodes.take(count.next_multiple_of(PAGE)).collect()
        }

        fn put(&mut self, nodes: impl IntoIterator<Item = FreeNode<NoTasks>>) {
            for node in nodes {
                // SAFETY: the node is one of the only arena of this list.
                unsafe { self.list.put(&self.arena, node) };
            }
        }

        /// Does one step.
        fn step(&mut self) -> bool {
            // SAFETY: the list is used with one arena.
            unsafe { self.surplus.return_memory(&mut self.list, &self.arena) }
        }

        /// Returns all memory that is not needed. Returns in how many steps.
        fn return_all(&mut self) -> usize {
            (0..).take_while(|_| self.step()).count()
        }

        fn pages(&self) -> usize {
            self.arena.made() as usize / PAGE
        }
    }

    /// Does steps until memory is to be returned.
    fn step_until_return(memory: &mut Memory) {
        while !matches!(memory.surplus.phase, Phase::Return(_)) {
            assert!(memory.step());
        }
    }

    fn number(node: &FreeNode<NoTasks>) -> u32 {
        // SAFETY: the arena exists in each of these tests.
        unsafe { node.number() }
    }

    /// Returns how many different nodes these are.
    fn different(nodes: &[FreeNode<NoTasks>]) -> usize {
        let mut numbers: Vec<_> = nodes.iter().map(number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.len()
    }

    /// Several regions.
    const BURST: usize = (if cfg!(miri) { 2 } else { 4 }) * REGION * PAGE;

    /// Pages that may have memory when all nodes are free: the first region, and what a search does
    /// not begin for.
    const KEPT: usize = REGION + 2 * MIN_RESERVE as usize;

    #[test]
    fn memory_of_a_burst_is_returned_and_used_again() {
        if !is_possible::<NoTasks>() {
            return;
        }
        for is_random in if cfg!(miri) { &[true][..] } else { &[false, true] } {
            let mut memory = Memory::new();
            for _ in 0..2 {
                let mut nodes = memory.take(BURST);
                let pages = memory.pages();
                assert_eq!(different(&nodes), nodes.len(), "each node is given out once");
                assert_eq!(pages, BURST / PAGE, "the same pages are used again");
                assert_eq!(memory.arena.returned.len(), 0);
                if *is_random {
                    fastrand::Rng::with_seed(1).shuffle(&mut nodes);
                }
                memory.put(nodes);
                assert!(memory.return_all() > 2);
                let left = pages - memory.arena.returned.len();
                assert!(left <= KEPT, "{left} of {pages} pages");
                assert!(!memory.step() && memory.surplus.phase == Phase::Idle);
            }
        }
    }

    /// Of some pages one node is in use.
    #[test]
    fn page_with_a_node_in_use_is_not_returned() {
        if !is_possible::<NoTasks>() {
            return;
        }
        // In pages of nodes: other page sizes of the operating system, as far as they are multiples
        // of its own.
        let own = Surplus::new().unit;
        let units = if cfg!(miri) { &[1][..] } else { &[1, 4, 16] };
        for &unit in units.iter().filter(|&&unit| unit % own == 0) {
            check_page_with_a_node_in_use_is_not_returned(unit);
        }
    }

    fn check_page_with_a_node_in_use_is_not_returned(unit: usize) {
        const MARK: u64 = 0x5EED;

        let mut memory = Memory::new();
        memory.surplus.unit = unit;
        let mut random = fastrand::Rng::with_seed(1);
        let (mut used, mut free) = (Vec::new(), Vec::new());
        for node in memory.take(BURST) {
            let number = number(&node) as usize;
            if number / PAGE % (8 * unit) == 3 && number % PAGE == 7 {
                let pointer = node.into_ptr();
                // SAFETY: this is the only reference to the node.
                unsafe { pointer.as_ref() }.tick.store(MARK, Ordering::Relaxed);
                // SAFETY: this is the only reference to the node, which has no task.
                used.push(unsafe { FreeNode::new(pointer) });
            } else {
                free.push(node);
            }
        }
        random.shuffle(&mut free);
        memory.put(free);
        memory.return_all();
        let left = memory.pages() - memory.arena.returned.len();
        let most = KEPT + used.len() * unit;
        assert!((used.len()..=most).contains(&left), "{left} pages, {} used", used.len());
        assert!(memory.surplus.is_split.iter().any(|&is_split| is_split));
        for node in used {
            let pointer = node.into_ptr();
            // SAFETY: this is the only reference to the node.
            assert_eq!(unsafe { pointer.as_ref() }.tick.load(Ordering::Relaxed), MARK);
            // SAFETY: this is the only reference to the node, which has no task.
            memory.put([unsafe { FreeNode::new(pointer) }]);
        }
        // What is left of the regions is returned too, once other nodes have paid for a search.
        let nodes = memory.take(memory.surplus.price as usize);
        memory.put(nodes);
        memory.return_all();
        let left = memory.pages() - memory.arena.returned.len();
        assert!(left <= KEPT, "{left} pages");
    }

    /// Linux does not return memory that is locked, but what lies before it in the same call.
    #[test]
    fn refused_pages_are_written_before_they_are_used() {
        if !is_possible::<NoTasks>() {
            return;
        }
        let mut memory = Memory::new();
        let nodes = memory.take(BURST);
        let pages = memory.pages();
        // In the middle of the first region that is returned.
        let page = REGION + REGION / 2 - FIRST_PAGE;
        let locked = memory.arena.at((page * PAGE) as u32).cast();
        // SAFETY: the pages are pages of the arena.
        if !unsafe { lock_memory(locked, memory_page_size(), true) } {
            return;
        }
        memory.put(nodes);
        memory.return_all();
        assert!(memory.surplus.is_refused);
        assert_eq!(memory.arena.returned.len(), 0);
        assert_eq!(different(&memory.take(BURST)), BURST);
        assert_eq!(memory.pages(), pages, "all pages were given out again");
        // SAFETY: the pages are pages of the arena.
        unsafe { lock_memory(locked, memory_page_size(), false) };
    }

    /// Callers take all available pages while the worker has taken others.
    #[test]
    fn pages_that_callers_need_are_not_returned() {
        if !is_possible::<NoTasks>() {
            return;
        }
        let mut memory = Memory::new();
        let nodes = memory.take(BURST);
        let pages = memory.pages();
        memory.put(nodes);
        step_until_return(&mut memory);
        let mut nodes = memory.take(memory.arena.pages.len() * PAGE);
        memory.return_all();
        assert_eq!(memory.arena.returned.len(), 0);
        nodes.extend(memory.take(BURST - nodes.len()));
        assert_eq!(different(&nodes), BURST);
        assert_eq!(memory.pages(), pages, "no page is lost");
    }

    /// Almost all pages have free nodes, and none has only free nodes.
    #[test]
    fn searches_that_find_nothing_are_rare() {
        if !is_possible::<NoTasks>() {
            return;
        }
        let mut memory = Memory::new();
        let mut random = fastrand::Rng::with_seed(1);
        let (used, free): (Vec<_>, Vec<_>) =
            memory.take(BURST).into_iter().partition(|node| number(node) % 64 == 0 || random.u8(..10) < 3);
        memory.put(free);
        let (mut recycled, mut pages) = (0, 0);
        for _ in 0..if cfg!(miri) { 4 } else { 64 } {
            let nodes = memory.take(MIN_RESERVE as usize);
            recycled += nodes.len();
            memory.put(nodes);
            if memory.step() {
                pages += memory.surplus.looked_at as usize;
                memory.return_all();
            }
        }
        assert!(memory.arena.returned.is_empty() && pages > 0);
        // The first searches are cheaper.
        let most = (recycled + BURST / PAGE) * MIN_PAGES_PER_RECYCLED as usize;
        assert!(pages <= most, "{pages} pages were looked at for {recycled} recycled nodes");
        memory.put(used);
        memory.return_all();
        assert!(memory.pages() - memory.arena.returned.len() <= KEPT);
        let least = MIN_RESERVE.max(BURST as u64 / PAGE as u64 / PAGES_PER_RECYCLED);
        assert!(memory.surplus.price <= least as i64, "the search has returned memory");
    }

    #[test]
    fn steady_load_keeps_its_memory() {
        let mut memory = Memory::new();
        let mut nodes = memory.take(BURST);
        for _ in 0..if cfg!(miri) { 5 } else { 50 } {
            let most = nodes.len();
            memory.put(nodes.drain(most - most / 8..));
            assert_eq!(memory.return_all(), 0);
            nodes.extend(memory.take(most / 8));
        }
        assert_eq!(memory.pages(), BURST / PAGE);
    }

    /// The worst case: half of each page but one node is free.
    #[test]
    fn free_nodes_that_are_held_are_limited() {
        let mut memory = Memory::new();
        let mut nodes = memory.take(BURST);
        for _ in 0..if cfg!(miri) { 3 } else { 8 } {
            let mut free_of_page = vec![0; memory.pages()];
            let (free, used): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| {
                let free = &mut free_of_page[number(node) as usize / PAGE];
                *free += 1;
                *free < PAGE / 2
            });
            let count = free.len() / PAGE * PAGE;
            nodes = used;
            memory.put(free);
            nodes.extend(memory.take(count));
            assert!(nodes.len() <= BURST);
        }
        let ratio = memory.pages() as f64 * PAGE as f64 / BURST as f64;
        assert!(ratio <= 1.25, "{ratio} times the most nodes that were in use at a time");
    }

    /// Threads take nodes, mark them as theirs, and free them, while the worker returns memory.
    #[test]
    fn threads_never_get_the_same_node() {
        let threads = if cfg!(miri) { 2 } else { 3 };
        let rounds = if cfg!(miri) { 2 } else { 60 };
        let mut memory = Memory::new();
        let Memory { arena, list, surplus } = &mut memory;
        let arena = &*arena;
        thread::scope(|scope| {
            let running: Vec<_> = (1..=threads)
                .map(|me| {
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(me);
                        for _ in 0..rounds {
                            let mut nodes = Vec::new();
                            for _ in 0..random.usize(..if cfg!(miri) { 6 } else { 2 * REGION }) {
                                let mut page = arena.take_page();
                                nodes.extend(std::iter::from_fn(|| page.next()).map(FreeNode::into_ptr));
                            }
                            for node in &nodes {
                                // SAFETY: this is the only reference to the node.
                                let tick = &unsafe { node.as_ref() }.tick;
                                assert_eq!(tick.swap(me, Ordering::Relaxed), 0);
                            }
                            random.shuffle(&mut nodes);
                            for node in &nodes {
                                // SAFETY: this is the only reference to the node.
                                let tick = &unsafe { node.as_ref() }.tick;
                                assert_eq!(tick.swap(0, Ordering::Relaxed), me);
                            }
                            // SAFETY: this is the only reference to each node, which has no task.
                            let nodes = nodes.into_iter().map(|node| unsafe { FreeNode::new(node) });
                            // SAFETY: the nodes are of this arena.
                            unsafe { arena.free_remotely(nodes) };
                        }
                    })
                })
                .collect();
            while running.iter().any(|thread| !thread.is_finished()) {
                // SAFETY: the list is used with one arena.
                unsafe { list.collect_remote_frees(arena) };
                // SAFETY: the list is used with one arena.
                unsafe { surplus.return_memory(list, arena) };
            }
        });
        // SAFETY: the list is used with one arena.
        unsafe { memory.list.collect_remote_frees(&memory.arena) };
        while memory.surplus.phase != Phase::Idle {
            memory.step();
        }
        let pages = memory.pages();
        for page in 0..pages {
            let free = memory.list.take_held(page);
            if free != 0 {
                // SAFETY: these nodes were held.
                unsafe { memory.arena.give_out(page as u32, free) };
            }
        }
        let nodes = memory.take(pages * PAGE);
        assert_eq!(different(&nodes), pages * PAGE);
        assert_eq!(memory.pages(), pages, "no node is lost");
    }

    /// Takes so many pages from a new arena, and frees the nodes of the first of them.
    fn memory_with(pages: usize, free: usize) -> (Memory, Vec<FreeNode<NoTasks>>) {
        let mut memory = Memory::new();
        let mut nodes = memory.take(pages * PAGE);
        let used = nodes.split_off(free * PAGE);
        memory.put(nodes);
        assert_eq!((memory.pages(), memory.arena.pages.len()), (pages, free));
        (memory, used)
    }

    fn has_surplus(memory: &Memory) -> bool {
        memory.surplus.has_surplus(&memory.list, &memory.arena)
    }

    #[test]
    fn memory_is_returned_on_each_platform_that_can() {
        assert_eq!(is_possible::<NoTasks>(), CAN_RETURN_MEMORY);
    }

    #[test]
    fn reserve_is_one_in_eight_of_the_pages_in_use() {
        assert_eq!(reserve(0), MIN_RESERVE);
        assert_eq!(reserve(RESERVE * MIN_RESERVE), MIN_RESERVE);
        assert_eq!(reserve(RESERVE * (MIN_RESERVE + 100)), MIN_RESERVE + 100);
    }

    #[test]
    fn search_needs_more_than_twice_the_reserve() {
        if !is_possible::<NoTasks>() {
            return;
        }
        let least = 2 * MIN_RESERVE as usize;
        assert!(!has_surplus(&memory_with(least, least).0));
        assert!(has_surplus(&memory_with(least + 1, least + 1).0));
        // Three times as many pages are in use, which is not enough for a larger reserve.
        assert!(has_surplus(&memory_with(4 * (least + 1), least + 1).0));
    }

    #[test]
    fn search_begins_once_it_is_paid_for_and_not_after_a_refusal() {
        if !is_possible::<NoTasks>() {
            return;
        }
        let pages = 2 * MIN_RESERVE as usize + 8;
        let (mut memory, _used) = memory_with(pages, pages);
        memory.surplus.price = memory.list.recycled();
        assert!(has_surplus(&memory));
        memory.surplus.price += 1;
        assert!(!has_surplus(&memory));
        memory.surplus.price = 1;
        memory.surplus.recycled = memory.list.recycled() - 1;
        assert!(has_surplus(&memory));
        memory.surplus.is_refused = true;
        assert!(!has_surplus(&memory));
    }

    /// The last page is the first one of a region.
    #[test]
    fn search_counts_the_pages_of_each_region() {
        if !is_possible::<NoTasks>() {
            return;
        }
        let pages = 2 * REGION - FIRST_PAGE + 1;
        let (mut memory, _used) = memory_with(pages, pages);
        assert!(memory.step());
        assert_eq!(memory.surplus.phase, Phase::Count(pages));
        assert_eq!((memory.surplus.free.len(), memory.surplus.is_split.len()), (3, 3));
        while matches!(memory.surplus.phase, Phase::Count(_)) {
            assert!(memory.step());
        }
        assert_eq!(memory.surplus.first_region, 1);
        assert_eq!(memory.surplus.taken.len(), 3 * REGION / 64);
    }

    /// Those in the first regions stay.
    #[test]
    fn plan_keeps_the_reserve() {
        let reserve = MIN_RESERVE as u32;
        let memory = Memory::new();
        let plan = |free: &[u32]| {
            let mut surplus = Surplus::new();
            surplus.free = free.to_vec();
            (surplus.plan(&memory.arena), surplus.first_region)
        };
        assert_eq!(plan(&[2 * reserve]).0, Phase::Idle);
        assert_eq!(plan(&[2 * reserve + 1]), (Phase::Take(0), 1));
        assert_eq!(plan(&[reserve - 1, 1, 2 * reserve]), (Phase::Take(0), 2));
        assert_eq!(plan(&[reserve - 2, 1, 2 * reserve]), (Phase::Take(0), 3));
    }

    #[test]
    fn large_system_pages_are_returned_whole() {
        assert_eq!(whole_units(0b1011_0111, 1), 0b1011_0111);
        assert_eq!(whole_units(0b1011_0111, 2), 0b0011_0011);
        assert_eq!(whole_units(0b1111_0111, 4), 0b1111_0000);
        assert_eq!(whole_units(u64::MAX, 16), u64::MAX);
        assert_eq!(whole_units(u64::MAX >> 1, 16), u64::MAX >> 16);
        assert_eq!(whole_units(u64::MAX >> 1, 32), u64::MAX >> 32);
        assert_eq!(whole_units(u64::MAX, 64), 0);
        assert_eq!(first_run(0b0110_1110), 1..4);
        assert_eq!(first_run(u64::MAX), 0..64);
        assert!(bits(0b1001).eq([0, 3]));
    }
}
