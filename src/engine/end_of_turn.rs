//! What tasks leave for the end of the turn in which they run.
//!
//! Only the worker uses it, in a turn, so the worker lock orders all accesses.

use std::mem;

use crate::sync::Ordering;
use crate::sync::unmodelled::{AtomicBool, Mutex, PoisonError};

#[derive(Default)]
pub(crate) struct EndOfTurn {
    /// Whether there are any calls. Most turns read only this.
    is_set: AtomicBool,
    calls: Mutex<Vec<EndCall>>,
}

/// A call, which may panic.
pub(crate) struct EndCall {
    /// For reports.
    pub(crate) name: &'static str,
    pub(crate) call: Box<dyn FnOnce() + Send>,
}

impl EndOfTurn {
    /// Adds a call for the end of this turn. A task may do this only if it [runs on the
    /// worker](crate::node::Task::RUNS_ON_WORKER).
    pub(crate) fn push(&self, call: EndCall) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        self.is_set.store(true, Ordering::Relaxed);
    }

    /// Takes all calls.
    pub(super) fn take(&self) -> Vec<EndCall> {
        if !self.is_set.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.is_set.store(false, Ordering::Relaxed);
        mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
