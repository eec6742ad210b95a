//! What the worker knows and does.

use super::shared::Shared;
use super::sleep::Idle;
use crate::sync::Ordering;

pub use super::timeouts::inside::{Lane, Lanes};

impl Shared {
    pub(crate) fn could_sleep(&self) -> bool {
        let worker = self.worker.lock();
        self.pending_counts.ever_registered() == worker.intake.taken
    }

    pub(crate) fn falls_asleep(self: &std::sync::Arc<Self>) -> bool {
        matches!(self.idle(), Idle::Parked(_))
    }

    pub(crate) fn sleeps_past(&self, tick: u64) -> bool {
        self.state.announced.load(Ordering::Relaxed) > self.ticks.first_deadline_of(tick)
    }

    pub(crate) fn set_light(&self) {
        self.state.set_light();
    }

    pub(crate) fn misses_messages(&self) -> bool {
        self.state.snapshot().is_asleep() && !self.worker.lock().intake.queue.is_empty(&self.new_lanes)
    }
}
