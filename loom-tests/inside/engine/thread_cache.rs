//! The end of a thread, at a moment that the model chooses.

use super::CACHES;

/// Does what the end of this thread does: drops all that it caches.
pub fn end_thread() {
    let caches = CACHES.with(|caches| std::mem::take(&mut caches.borrow_mut().by_index));
    drop(caches);
}
