//! Panics of user code.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the first of some panics, and drops the others.
pub(super) fn first_of(mut panics: impl Iterator<Item = Panic>) -> Option<Panic> {
    let first = panics.next();
    panics.for_each(drop_panic);
    first
}

/// What a panic carries.
pub(super) type Panic = Box<dyn Any + Send>;

/// Its `Drop` may panic too. Then what that one carries is leaked, because this could go on.
pub(super) fn drop_panic(panic: Panic) {
    mem::forget(catch_unwind(AssertUnwindSafe(|| drop(panic))));
}
