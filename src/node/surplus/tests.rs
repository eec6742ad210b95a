//! The return of memory, without a timer.

use crate::sync::Ordering;
use crate::sync::thread;

use super::*;
use crate::node::arena::FreeNode;
use crate::node::tests::NoTasks;
use crate::platform::lock_memory;

/// An arena, and what the worker has of it.
struct Memory {
    arena: Arena<NoTasks>,
    reclaimer: Reclaimer,
}

impl Memory {
    fn new() -> Self {
        Self {
            arena: Arena::new(),
            reclaimer: Reclaimer::new(),
        }
    }

    /// Takes nodes as a thread does.
    fn take(&mut self, count: usize) -> Vec<FreeNode<NoTasks>> {
        let Self { arena, reclaimer } = self;
        let pages = std::iter::repeat_with(|| {
            // SAFETY: the list is used with one arena.
            unsafe { reclaimer.list.refill(arena) };
            arena.take_page()
        });
        let nodes = pages.flat_map(|mut page| std::iter::from_fn(move || page.next()));
        nodes.take(count.next_multiple_of(PAGE)).collect()
    }

    fn put(&mut self, nodes: impl IntoIterator<Item = FreeNode<NoTasks>>) {
        for node in nodes {
            // SAFETY: the node is one of the only arena of this list.
            unsafe { self.reclaimer.list.put(&self.arena, node) };
        }
    }

    /// Does one step.
    fn step(&mut self) -> bool {
        // SAFETY: the list is used with one arena.
        unsafe { self.reclaimer.return_memory(&self.arena) }
    }

    /// Returns all memory that is not needed. Returns in how many steps.
    fn return_all(&mut self) -> usize {
        (0..).take_while(|_| self.step()).count()
    }

    fn pages(&self) -> usize {
        self.arena.made() as usize / PAGE
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

/// All places of several regions.
const BURST: usize = (if cfg!(miri) { 2 } else { 4 }) * REGION * PAGE - FIRST_CHUNK;

/// Pages that may have memory when all nodes are free, because no return begins for them.
const KEPT: usize = 2 * MIN_RESERVE;

#[test]
fn memory_of_a_burst_is_returned_and_used_again() {
    if !is_possible::<NoTasks>() {
        return;
    }
    for is_random in if cfg!(miri) {
        &[true][..]
    } else {
        &[false, true]
    } {
        let mut memory = Memory::new();
        for _ in 0..2 {
            let mut nodes = memory.take(BURST);
            let pages = memory.pages();
            assert_eq!(
                different(&nodes),
                nodes.len(),
                "each node is given out once"
            );
            assert_eq!(pages, BURST / PAGE, "the same pages are used again");
            assert_eq!(memory.arena.returned.len(), 0);
            if *is_random {
                fastrand::Rng::with_seed(1).shuffle(&mut nodes);
            }
            memory.put(nodes);
            // Under Miri, one step is enough for all pages.
            assert!(memory.return_all() > if cfg!(miri) { 0 } else { 2 });
            assert_eq!(pages - memory.arena.returned.len(), MIN_RESERVE);
            assert!(!memory.step() && memory.reclaimer.phase == Phase::Idle);
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
    let own = Reclaimer::new().unit;
    let units = if cfg!(miri) { &[1][..] } else { &[1, 4, 16] };
    for &unit in units.iter().filter(|&&unit| unit % own == 0) {
        check_page_with_a_node_in_use_is_not_returned(unit);
    }
}

fn check_page_with_a_node_in_use_is_not_returned(unit: usize) {
    const MARK: u64 = 0x5EED;

    let mut memory = Memory::new();
    memory.reclaimer.unit = unit;
    let mut random = fastrand::Rng::with_seed(1);
    let (mut used, mut free) = (Vec::new(), Vec::new());
    for node in memory.take(BURST) {
        let number = number(&node) as usize;
        if number / PAGE % (9 * unit) == 3 && number % PAGE == 7 {
            let pointer = node.into_ptr();
            // SAFETY: this is the only reference to the node.
            unsafe { pointer.as_ref() }
                .tick
                .store(MARK, Ordering::Relaxed);
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
    assert!(
        (used.len()..=most).contains(&left),
        "{left} pages, {} used",
        used.len()
    );
    for node in used {
        let pointer = node.into_ptr();
        // SAFETY: this is the only reference to the node.
        let tick = unsafe { pointer.as_ref() }.tick.load(Ordering::Relaxed);
        assert_eq!(tick, MARK);
        // SAFETY: this is the only reference to the node, which has no task.
        memory.put([unsafe { FreeNode::new(pointer) }]);
    }
    // The rest of the regions is returned too, although few nodes were recycled.
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
    // In the middle of a region. This region and the pages before it count as returned.
    let page = REGION + REGION / 2 - FIRST_PLACE;
    let locked = memory.arena.at((page * PAGE) as u32).cast();
    // SAFETY: the pages are pages of the arena.
    if !unsafe { lock_memory(locked, memory_page_size(), true) } {
        return;
    }
    memory.put(nodes);
    memory.return_all();
    assert!(memory.reclaimer.is_refused);
    assert_eq!(
        memory.arena.returned.len(),
        2 * REGION - FIRST_PLACE - MIN_RESERVE
    );
    assert_eq!(different(&memory.take(BURST)), BURST);
    assert_eq!(memory.pages(), pages, "all pages were given out again");
    // SAFETY: the pages are pages of the arena.
    unsafe { lock_memory(locked, memory_page_size(), false) };
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
    assert!(
        ratio <= 1.25,
        "{ratio} times the most nodes that were in use at a time"
    );
}

/// Threads take nodes, mark them as theirs, and free them, while the worker returns memory.
#[test]
fn threads_never_get_the_same_node() {
    let threads = if cfg!(miri) { 2 } else { 3 };
    let rounds = if cfg!(miri) { 2 } else { 60 };
    let mut memory = Memory::new();
    let Memory { arena, reclaimer } = &mut memory;
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
                            nodes
                                .extend(std::iter::from_fn(|| page.next()).map(FreeNode::into_ptr));
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
            unsafe { reclaimer.list.collect_remote_frees(arena) };
            // SAFETY: the list is used with one arena.
            unsafe { reclaimer.return_memory(arena) };
        }
    });
    // SAFETY: the list is used with one arena.
    unsafe { memory.reclaimer.list.collect_remote_frees(&memory.arena) };
    while memory.reclaimer.phase != Phase::Idle {
        memory.step();
    }
    let pages = memory.pages();
    for page in 0..pages {
        let free = memory.reclaimer.list.take_held(page);
        if free != 0 {
            // SAFETY: these nodes were held.
            unsafe { memory.arena.give_out(page as u32, free) };
        }
    }
    let nodes = memory.take(pages * PAGE);
    assert_eq!(different(&nodes), pages * PAGE);
    assert_eq!(memory.pages(), pages, "no node is lost");
}

/// Takes this many pages from a new arena, and frees the nodes of the first of them.
fn memory_with(pages: usize, free: usize) -> (Memory, Vec<FreeNode<NoTasks>>) {
    let mut memory = Memory::new();
    let mut nodes = memory.take(pages * PAGE);
    let used = nodes.split_off(free * PAGE);
    memory.put(nodes);
    assert_eq!((memory.pages(), memory.arena.pages.len()), (pages, free));
    (memory, used)
}

fn has_surplus(memory: &mut Memory) -> bool {
    memory.reclaimer.has_surplus(&memory.arena)
}

#[test]
fn memory_is_returned_on_each_platform_that_can() {
    assert_eq!(is_possible::<NoTasks>(), CAN_RETURN_MEMORY);
}

#[test]
fn return_needs_more_than_twice_the_reserve() {
    if !is_possible::<NoTasks>() {
        return;
    }
    let least = 2 * MIN_RESERVE;
    assert!(!has_surplus(&mut memory_with(least, least).0));
    assert!(has_surplus(&mut memory_with(least + 1, least + 1).0));
    // Three times as many pages are in use, which is not enough for a larger reserve.
    assert!(has_surplus(&mut memory_with(4 * (least + 1), least + 1).0));
    // The reserve is one in eight of the pages in use.
    let (used, reserve) = (RESERVE * (MIN_RESERVE + 100), MIN_RESERVE + 100);
    for free in [2 * reserve, 2 * reserve + 1] {
        let (mut memory, _used) = memory_with(used + free, free);
        assert_eq!(has_surplus(&mut memory), free > 2 * reserve);
    }
}

#[test]
fn whole_pages_count_as_surplus_until_the_operating_system_refuses() {
    if !is_possible::<NoTasks>() {
        return;
    }
    let pages = 2 * MIN_RESERVE + 8;
    let (mut memory, _used) = memory_with(pages, pages);
    // SAFETY: the list is used with one arena.
    unsafe { memory.reclaimer.list.keep(&memory.arena, pages) };
    assert!(memory.arena.pages.is_empty() && has_surplus(&mut memory));
    memory.reclaimer.is_refused = true;
    assert!(!has_surplus(&mut memory));
}

/// The operating system provides large pages as a whole.
#[test]
fn rest_of_the_last_large_page_is_returned_too() {
    if !is_possible::<NoTasks>() {
        return;
    }
    let mut memory = Memory::new();
    let nodes = memory.take(BURST + PAGE);
    memory.put(nodes);
    memory.return_all();
    let all = BURST / PAGE + REGION;
    assert_eq!(
        (memory.pages(), memory.arena.returned.len()),
        (all, all - MIN_RESERVE)
    );
    assert_eq!(different(&memory.take(all * PAGE)), all * PAGE);
    assert_eq!(
        memory.pages(),
        all,
        "these pages are used before others are made"
    );
}

/// The first chunks are smaller than a large page.
#[test]
fn region_ends_with_its_chunk() {
    for chunk in 0..10 {
        let (first, end) = (FIRST_PLACE << chunk, FIRST_PLACE << (chunk + 1));
        for place in [first, first + 1, end - 1] {
            let region = (place / REGION + 1) * REGION;
            assert_eq!(end_of_region(place), region.min(end), "{place}");
        }
    }
}

/// All pages of the reserve are in use, so none is available once others were taken.
#[test]
fn reserve_stays_also_if_its_first_pages_are_in_use() {
    if !is_possible::<NoTasks>() {
        return;
    }
    let mut memory = Memory::new();
    let mut nodes = memory.take(BURST);
    let free = nodes.split_off(2 * MIN_RESERVE * PAGE);
    memory.put(free);
    memory.return_all();
    assert_eq!(memory.arena.pages.len(), MIN_RESERVE);
    assert_eq!(
        memory.pages() - memory.arena.returned.len(),
        3 * MIN_RESERVE
    );
}
