//! The nodes that threads have left.

use super::{IdleNodes, Owner};

impl<S: Owner> IdleNodes<S> {
    /// Whether there is nothing that a thread has left and no other has taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
