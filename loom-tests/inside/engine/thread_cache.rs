//! The end of a thread, at a moment that the model chooses.

/// Does what the end of this thread does: drops all that it caches.
pub fn end_thread() {
    drop(super::take_all());
}
