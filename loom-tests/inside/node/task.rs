//! The uses of the task in a cell, which loom sees.

use crate::sync::inside::Access;

/// The accesses to a `TaskCell` that loom checks.
pub(super) struct Observed {
    operations: Access,
    space: Access,
}

impl Observed {
    pub(super) fn new() -> Self {
        Self {
            operations: Access::new(),
            space: Access::new(),
        }
    }

    /// A task is put in.
    #[track_caller]
    pub(super) fn put(&self) {
        self.operations.change();
        self.space.change();
        self.space.fill();
    }

    /// A thread asks for the type of the task.
    #[track_caller]
    pub(super) fn look(&self) {
        self.operations.look();
    }

    /// The owner of the task uses it where it is.
    #[track_caller]
    pub(super) fn use_task(&self) {
        self.operations.look();
        self.space.change();
    }

    /// The owner of the task takes it out.
    #[track_caller]
    pub(super) fn take(&self) {
        self.use_task();
        self.space.empty();
    }
}
