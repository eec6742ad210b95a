//! Several timers of one thread. Each has a model of its own, and all follow the same bytes. So a
//! task of one timer uses the other one, also while that one is in a turn.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Script, WeakScript};
use crate::bytes::Bytes;

/// The bytes that the models share.
#[derive(Clone)]
pub(super) struct SharedBytes(Arc<Mutex<Bytes>>);

impl SharedBytes {
    pub(super) fn new(input: &[u8]) -> Self {
        Self(Arc::new(Mutex::new(Bytes::new(input))))
    }

    fn bytes(&self) -> MutexGuard<'_, Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    pub(super) fn up_to(&self, max: u64) -> u64 {
        self.bytes().up_to(max)
    }

    pub(super) fn below(&self, end: usize) -> usize {
        self.bytes().below(end)
    }

    pub(super) fn any(&self) -> u64 {
        self.bytes().any()
    }

    pub(super) fn one_of<T: Copy>(&self, choices: &[T]) -> T {
        self.bytes().one_of(choices)
    }
}

impl Script {
    /// Makes two scripts use each other's timer.
    pub(super) fn introduce(&self, other: &Self) {
        self.model().other = Some(other.downgrade());
        other.model().other = Some(self.downgrade());
    }

    /// Uses the other timer, if there is one. On the thread of an `Ending`, the other timer may be
    /// in a turn that waits for this thread.
    pub(super) fn use_other_timer(&self) {
        let model = self.model();
        let other = model
            .other
            .as_ref()
            .filter(|_| !model.is_on_another_thread)
            .and_then(WeakScript::upgrade);
        let choice = model.bytes.up_to(255);
        drop(model);
        let Some(other) = other else { return };
        // A choice that would come back here does something else.
        other.act(if Self::is_for_other_timer(choice) {
            0
        } else {
            choice
        });
        other.check();
    }
}
