//! The waker of a driver: the user's function that wakes the loop that turns it.

use std::mem;

use crate::report;
use crate::sync::Ordering;
use crate::sync::unmodelled::AtomicBool;

/// Wakes the loop that turns a driver.
pub(crate) struct Waker {
    wake: Box<dyn Fn() + Send + Sync>,
    /// Set once, when the driver is dropped. `Relaxed`: a call at that moment is as good as one
    /// before it.
    is_unused: AtomicBool,
}

impl Waker {
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            wake: Box::new(wake),
            is_unused: AtomicBool::new(false),
        }
    }

    /// There is no loop any more.
    pub(crate) fn set_unused(&self) {
        self.is_unused.store(true, Ordering::Relaxed);
    }

    pub(super) fn wake(&self) {
        if !self.is_unused.load(Ordering::Relaxed) {
            (self.wake)();
        }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        report::guard_drop("(the waker)", mem::replace(&mut self.wake, Box::new(|| ())));
    }
}
