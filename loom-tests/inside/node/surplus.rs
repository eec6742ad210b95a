//! The accounting of pages without a timer: callers take pages while the worker returns memory.

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{Phase, Reclaimer};
use crate::node::arena::inside::forget_chunks;
use crate::node::arena::{Arena, FreeNode, PAGE};
use crate::node::task::TaskContext;
use crate::sync::Arc;
use crate::sync::inside::{Access, model_chunks, model_page_words};

struct NoTasks;

impl TaskContext for NoTasks {
    type Timeout = ();
}

/// The pages of a model. loom sees each use of a node, each write of a page, and each return of its
/// memory.
struct Observed {
    has_memory: AtomicBool,
    nodes: [(AtomicBool, Access); PAGE],
}

// SAFETY: an `Access` stores nothing. loom reports accesses that are concurrent.
unsafe impl Sync for Observed {}
// SAFETY: as for `Sync`, an `Access` stores nothing.
unsafe impl Send for Observed {}

/// More pages than a model makes.
const PAGES: usize = 6;

type AllObserved = Arc<[Observed; PAGES]>;

std::thread_local! {
    /// Those of the current execution: loom runs all its threads on one.
    static OBSERVED: RefCell<Option<AllObserved>> = const { RefCell::new(None) };
}

impl Observed {
    fn new() -> Self {
        let nodes = std::array::from_fn(|_| (AtomicBool::new(false), Access::new()));
        Self {
            has_memory: AtomicBool::new(false),
            nodes,
        }
    }

    fn change(&self, has_memory: bool) {
        for (is_used, access) in &self.nodes {
            assert!(!is_used.load(Relaxed), "no node of the page is in use");
            access.change();
        }
        self.has_memory.store(has_memory, Relaxed);
    }

    fn use_node(&self, node: usize, is_used: bool) {
        let (was_used, access) = &self.nodes[node];
        assert!(
            self.has_memory.load(Relaxed),
            "the page was written since its memory was returned"
        );
        assert_ne!(
            was_used.swap(is_used, Relaxed),
            is_used,
            "a node has one owner"
        );
        access.change();
    }
}

/// Whether the current model returns memory.
pub(crate) fn returns_memory() -> bool {
    OBSERVED.with_borrow(Option::is_some)
}

/// The nodes of a page are written.
pub(crate) fn write_page(page: u32) {
    OBSERVED.with_borrow(|all| all.iter().for_each(|all| all[page as usize].change(true)));
}

/// Which nodes of a page are given out. In all other models it is one, so that the node that the
/// worker frees is soon used again.
pub(crate) fn given_out(all: u64) -> u64 {
    if returns_memory() { all } else { 1 }
}

/// The memory of pages is returned. Returns false if the current model does not do that.
pub(crate) fn return_pages(page: usize, count: usize) -> bool {
    OBSERVED.with_borrow(|all| {
        all.iter().for_each(|all| {
            all[page..page + count]
                .iter()
                .for_each(|page| page.change(false))
        });
    });
    returns_memory()
}

/// An arena, and what the worker has of it.
pub struct Pages {
    arena: Arena<NoTasks>,
    worker: Mutex<Reclaimer>,
    observed: AllObserved,
}

/// Nodes that a thread uses.
pub struct UsedNodes(Vec<FreeNode<NoTasks>>);

impl UsedNodes {
    pub fn split_off(&mut self, at: usize) -> Self {
        Self(self.0.split_off(at))
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl Pages {
    #[allow(clippy::new_without_default, reason = "only models use it")]
    pub fn new() -> Self {
        let observed: AllObserved = Arc::new(std::array::from_fn(|_| Observed::new()));
        OBSERVED.set(Some(Arc::clone(&observed)));
        forget_chunks();
        let arena = Arena::new();
        model_page_words(true);
        Self {
            arena,
            worker: Mutex::new(Reclaimer::new()),
            observed,
        }
    }

    /// loom also sees the pointers to chunks, and the count of nodes.
    pub fn with_chunks() -> Self {
        model_page_words(true);
        model_chunks(true);
        let pages = Self::new();
        model_chunks(false);
        pages
    }

    /// Takes the nodes of a page, and uses them.
    pub fn take(&self) -> UsedNodes {
        let mut page = self.arena.take_page();
        let nodes: Vec<_> = std::iter::from_fn(|| page.next()).collect();
        assert!(
            !nodes.is_empty(),
            "a page is given out when it has free nodes"
        );
        nodes.iter().for_each(|node| self.use_node(node, true));
        UsedNodes(nodes)
    }

    /// Gives nodes up, as a thread does.
    pub fn free(&self, UsedNodes(nodes): UsedNodes) {
        nodes.iter().for_each(|node| self.use_node(node, false));
        // SAFETY: the nodes are of this arena.
        unsafe { self.arena.free_remotely(nodes.into_iter()) };
    }

    fn use_node(&self, node: &FreeNode<NoTasks>, is_used: bool) {
        // SAFETY: the arena exists.
        let number = unsafe { node.number() };
        node.assert_is_at(self.arena.at(number));
        let number = number as usize;
        self.observed[number / PAGE].use_node(number % PAGE, is_used);
    }

    /// Gives nodes up, as the worker does.
    pub fn recycle(&self, UsedNodes(nodes): UsedNodes) {
        let mut worker = self.worker.try_lock().expect("there is one worker");
        for node in nodes {
            self.use_node(&node, false);
            // SAFETY: the node is of the only arena of this list.
            unsafe { worker.list.put(&self.arena, node) };
        }
    }

    /// The worker takes in what threads have freed.
    pub fn collect(&self) {
        let mut worker = self.worker.try_lock().expect("there is one worker");
        // SAFETY: the list is used with one arena.
        unsafe { worker.list.collect_remote_frees(&self.arena) };
    }

    /// The worker returns the memory of all pages that are free, without a reserve.
    pub fn return_memory(&self) {
        let mut reclaimer = self.worker.try_lock().expect("there is one worker");
        (reclaimer.reserve, reclaimer.phase) = (0, Phase::Take);
        // SAFETY: the list is used with one arena.
        while unsafe { reclaimer.return_memory(&self.arena) } {}
        assert_eq!(reclaimer.phase, Phase::Idle);
    }

    /// The worker makes a page that has no memory, unless other threads make one meanwhile.
    pub fn make_unwritten(&self) {
        let made = self.arena.made();
        if self.arena.make_unwritten(made, made + PAGE as u64) {
            self.arena.returned.push(made as u32 / PAGE as u32);
        }
    }

    /// How many pages have no memory.
    pub fn returned(&self) -> usize {
        self.arena.returned.len()
    }

    /// How many nodes were made.
    pub fn made(&self) -> usize {
        assert!(
            self.arena.made() as usize <= PAGES * PAGE,
            "a model makes few pages"
        );
        self.arena.made() as usize
    }

    /// Takes all nodes that no thread has, without making any. Returns how many.
    pub fn take_all(&self) -> usize {
        self.collect();
        let mut worker = self.worker.try_lock().expect("there is one worker");
        // SAFETY: the list is used with one arena.
        unsafe { worker.list.refill(&self.arena) };
        let mut count = 0;
        while self.arena.pages.len() + self.arena.returned.len() > 0 {
            count += self.take().count();
        }
        count
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        OBSERVED.set(None);
        forget_chunks();
        model_page_words(false);
    }
}
