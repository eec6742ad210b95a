//! Panics of user code.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The first panic of several calls of user code. The others are dropped, and so is this one unless
/// it goes on: the panic hook has reported each.
#[derive(Default)]
pub(super) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    /// Returns what the call returns; `None` if it panics.
    pub(super) fn catch<R>(&mut self, call: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(result) => return Some(result),
            Err(panic) if self.0.is_none() => self.0 = Some(panic),
            Err(panic) => drop(Self(Some(panic))),
        }
        None
    }

    /// Goes on with the panic, if there is one.
    pub(super) fn resume(mut self) {
        if let Some(panic) = self.0.take() {
            resume_unwind(panic);
        }
    }
}

/// The `Drop` of what a panic carries may panic too. Then what that one carries is leaked, because
/// this could go on.
impl Drop for Panics {
    fn drop(&mut self) {
        if let Some(panic) = self.0.take() {
            mem::forget(catch_unwind(AssertUnwindSafe(|| drop(panic))));
        }
    }
}
