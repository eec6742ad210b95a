//! What the worker knows and does.

use super::shared::Shared;
use super::sleep::Idle;

pub use super::timeouts::inside::{Lane, Lanes};

impl Shared {
    pub(crate) fn could_sleep(&self) -> bool {
        let worker = self.worker.lock();
        self.pending_counts.ever_registered() == worker.intake.taken
    }

    pub(crate) fn falls_asleep(self: &std::sync::Arc<Self>) -> bool {
        matches!(self.idle(), Idle::Parked(_))
    }

    pub(crate) fn reclaims_soon(&self) -> bool {
        !self.state.snapshot().wakes_to_reclaim()
    }

    pub(crate) fn misses_messages(&self) -> bool {
        self.state.snapshot().is_asleep() && !self.worker.lock().intake.queue.is_empty(&self.new_lanes)
    }
}
