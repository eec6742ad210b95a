//! The memory of chunks in the models of pages.

use std::alloc::Layout;
use std::cell::RefCell;
use std::ops::Range;
use std::ptr::NonNull;

use super::FreeNode;
use crate::node::task::{Node, TaskContext};
use crate::sync::inside::Access;

std::thread_local! {
    /// The chunks of the current execution: loom runs all its threads on one.
    static CHUNKS: RefCell<Vec<(Range<usize>, Access)>> = const { RefCell::new(Vec::new()) };
}

/// There are no chunks any more, because another execution begins.
pub(crate) fn forget_chunks() {
    CHUNKS.take();
}

/// A chunk was allocated. loom sees this as a change of it.
pub(crate) fn allocated(chunk: NonNull<u8>, layout: Layout) {
    if crate::node::surplus::inside::returns_memory() {
        let first = chunk.addr().get();
        CHUNKS.with_borrow_mut(|chunks| chunks.push((first..first + layout.size(), Access::new())));
    }
}

/// A chunk is about to be freed.
pub(crate) fn freed<T>(chunk: NonNull<T>) {
    CHUNKS.with_borrow_mut(|chunks| {
        let place = chunks
            .iter()
            .position(|(range, _)| range.start == chunk.addr().get());
        if let Some(place) = place {
            chunks.swap_remove(place).1.change();
        }
    });
}

/// A part of a chunk is about to be used. loom reports it if nothing orders that after the
/// allocation.
#[track_caller]
pub(crate) fn used<T>(part: *const T) {
    if crate::node::surplus::inside::returns_memory() {
        CHUNKS.with_borrow(|chunks| {
            let chunk = chunks
                .iter()
                .find(|(range, _)| range.contains(&part.addr()));
            chunk.expect("the memory is allocated").1.look();
        });
    }
}

impl<S: TaskContext> FreeNode<S> {
    /// The node is where its number leads to.
    #[track_caller]
    pub(crate) fn assert_is_at(&self, place: NonNull<Node<S>>) {
        assert_eq!(self.0, place, "all threads find a node at the same address");
        used(place.as_ptr());
    }
}
