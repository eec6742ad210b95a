//! All synchronisation primitives. No other module names `std::sync`, `std::thread`, crossbeam,
//! loom or shuttle.
//!
//! | file | content |
//! |---|---|
//! | `backend` | the primitives of std and crossbeam. The models replace this file by those of loom or shuttle: `loom-tests/README.md` |

use std::task::Wake;

mod backend;
pub(crate) use backend::*;

// The models use std's `Arc` too. loom's does not support unsized types, and it would only check
// std's own code: that the last owner drops the value.
pub(crate) use std::sync::atomic::Ordering;
pub(crate) use std::sync::{Arc, Weak};

/// Primitives that loom does not explore. Most are part of no protocol, such as counters for
/// statistics. The exceptions have models of their own, in which loom explores them: in
/// `src/node/arena.rs` the pointers to chunks and the words `available`; in `src/engine/pending.rs`
/// the once-cells by which a thread lists its counts; in `src/engine/counters.rs` the counters; in
/// `src/clock/` the words of the clocks.
pub(crate) mod unmodelled {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
    pub(crate) use std::sync::{Mutex, OnceLock};
}

/// Drops the items of a linked list one after the other, up to the first one that has another
/// owner. (If each item dropped the next one, a long list could overflow the stack.)
pub(crate) fn drop_list<T>(
    first: Option<Arc<T>>,
    mut take_next: impl FnMut(&mut T) -> Option<Arc<T>>,
) {
    let mut next = first;
    while let Some(item) = next {
        next = Arc::into_inner(item).and_then(|mut item| take_next(&mut item));
    }
}

/// A waker for a thread that parks.
pub(crate) struct Unpark(pub(crate) Unparker);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Threads that wait until something is over.
#[derive(Default)]
pub(crate) struct WaitList(Mutex<Vec<(usize, Unparker)>>);

impl WaitList {
    /// Waits until `is_over` returns true. Otherwise that has seen to it that the end calls
    /// [`wake_all`](Self::wake_all).
    pub(crate) fn wait_until(&self, is_over: impl Fn() -> bool) {
        let parker = Parker::default();
        // Unique among the waiters.
        let itself = std::ptr::from_ref(&parker).addr();
        loop {
            self.0.lock().push((itself, parker.unparker().clone()));
            if is_over() {
                self.0.lock().retain(|&(waiter, _)| waiter != itself);
                return;
            }
            parker.park();
        }
    }

    /// Something is over for which threads wait. Those that wait for something else list themselves
    /// again.
    #[cold]
    pub(crate) fn wake_all(&self) {
        let waiters = std::mem::take(&mut *self.0.lock());
        waiters.iter().for_each(|(_, waiter)| waiter.unpark());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    std::thread_local! {
        /// How many items are being dropped at present, and the most so far.
        static NESTED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }

    #[test]
    fn a_waiter_that_waits_no_more_unlists_only_itself() {
        let (list, another) = (WaitList::default(), Parker::default());
        list.0.lock().push((1, another.unparker().clone()));
        list.wait_until(|| true);
        assert!(list.0.lock().iter().map(|(waiter, _)| *waiter).eq([1]));
    }

    struct Item(Option<Arc<Item>>);

    impl Drop for Item {
        fn drop(&mut self) {
            let (nested, most) = NESTED.get();
            NESTED.set((nested + 1, most.max(nested + 1)));
            drop_list(self.0.take(), |item| item.0.take());
            NESTED.set((nested, NESTED.get().1));
        }
    }

    #[test]
    fn items_of_a_list_are_not_dropped_by_each_other() {
        let list = (0..100).fold(Item(None), |next, _| Item(Some(Arc::new(next))));
        drop(list);
        assert_eq!(
            NESTED.get(),
            (0, 2),
            "the first one drops each of the others"
        );
    }
}
