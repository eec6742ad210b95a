//! The accounting of pages of nodes: each node has one owner, and memory is returned only of pages
//! of which the worker has all nodes.

use hashed_wheel::inside::{Pages, UsedNodes};

use super::*;

/// How many nodes a page has in a model.
const PAGE: usize = 2;

/// Makes pages, of which one has a node in use, and all others are free.
fn pages(free: usize) -> (Arc<Pages>, UsedNodes) {
    let pages = Arc::new(Pages::new());
    let taken: Vec<_> = (0..free).map(|_| pages.take()).collect();
    let mut used = pages.take();
    pages.recycle(used.split_off(1));
    taken.into_iter().for_each(|nodes| pages.recycle(nodes));
    (pages, used)
}

/// The thread pops the page before or after the worker adds a node to it.
#[test]
fn page_is_taken_while_a_node_comes_back() {
    explore(
        None,
        [
            no_release("node/arena.rs give_out"),
            no_acquire("node/arena.rs take_available"),
            mutant("PageQueuedTwice"),
            mutant("AvailableTakenInTwoSteps"),
        ],
        || {
            let (pages, used) = pages(0);
            let other = Arc::clone(&pages);
            let caller = thread::spawn(move || other.free(other.take()));
            pages.recycle(used);
            caller.join().unwrap();
            assert_eq!(pages.take_all(), PAGE, "no node is lost");
            assert_eq!(pages.made(), PAGE);
        },
    );
}

/// A thread takes pages, and gives them up, while the worker returns memory.
#[test]
fn memory_of_free_pages_is_returned() {
    explore(
        None,
        [
            mutant("PageInUseReturned"),
            mutant("ReturnedBeforeItsMemory"),
            mutant("ReturnedPageNotWritten"),
        ],
        || {
            let (pages, used) = pages(2);
            let other = Arc::clone(&pages);
            let caller = thread::spawn(move || {
                let taken = [other.take(), other.take()];
                taken.into_iter().for_each(|nodes| other.free(nodes));
            });
            pages.return_memory();
            pages.collect();
            pages.return_memory();
            caller.join().unwrap();
            assert_eq!(
                pages.take_all() + used.count(),
                pages.made(),
                "no node is lost"
            );
        },
    );
}

/// Two threads take pages while the worker returns memory. (The chunk of the pages that they may
/// make is allocated before.)
#[test]
fn page_of_returned_memory_is_taken_by_one_of_two() {
    explore(
        Some(3),
        [
            mutant("ReturnedPageNotWritten"),
            mutant("PageInUseReturned"),
        ],
        || {
            let (pages, used) = pages(3);
            let callers = [(); 2].map(|()| {
                let other = Arc::clone(&pages);
                thread::spawn(move || other.take())
            });
            pages.return_memory();
            let taken = callers.map(|caller| caller.join().unwrap());
            let taken: usize = taken.iter().map(UsedNodes::count).sum();
            assert_eq!(
                taken + pages.take_all() + used.count(),
                pages.made(),
                "no node is lost"
            );
        },
    );
}

/// A thread makes a page while the worker makes one that has no memory.
#[test]
fn page_is_made_by_one_of_two() {
    explore(None, [mutant("MadeWithoutCompare")], || {
        let pages = Arc::new(Pages::with_chunks());
        let other = Arc::clone(&pages);
        let caller = thread::spawn(move || other.take());
        pages.make_unwritten();
        let taken = caller.join().unwrap();
        assert_eq!(
            pages.take_all() + taken.count(),
            pages.made(),
            "no node is lost"
        );
    });
}

/// Two threads need the second chunk. The worker takes in what one of them has freed.
#[test]
fn chunk_is_allocated_by_one_of_two() {
    explore(
        bound(5, None),
        [
            no_release("node/arena.rs allocate"),
            no_acquire("node/arena.rs at"),
            mutant("ChunkSetWithoutCompare"),
        ],
        || {
            let pages = Arc::new(Pages::with_chunks());
            let first = pages.take();
            let other = Arc::clone(&pages);
            let caller = thread::spawn(move || other.free(other.take()));
            let used = pages.take();
            pages.collect();
            caller.join().unwrap();
            pages.recycle(used);
            pages.recycle(first);
            assert_eq!(pages.take_all(), pages.made(), "no node is lost");
        },
    );
}
