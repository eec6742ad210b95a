//! What tasks leave for the end of the turn in which they run.
//!
//! Only the worker uses it, in a turn. The worker lock orders all accesses, and has a bit that says
//! whether there are any calls.

use std::mem;

use crate::sync::unmodelled::{Mutex, PoisonError};

#[derive(Default)]
pub(super) struct EndOfTurn(Mutex<Vec<EndCall>>);

/// A call, which may panic.
pub(crate) struct EndCall {
    /// For reports.
    pub(crate) name: &'static str,
    pub(crate) call: Box<dyn FnOnce() + Send>,
}

impl EndOfTurn {
    pub(super) fn push(&self, call: EndCall) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// Takes all calls.
    pub(super) fn take(&self) -> Vec<EndCall> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
