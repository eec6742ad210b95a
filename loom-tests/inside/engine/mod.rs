//! The state and the steps of the worker.

use super::inner::Inner;
use super::sleep_policy::Sleep;
use crate::HashedWheelTimer;
use crate::sync::{Arc, Ordering, Weak};

pub use super::counters::inside::ModelledCounters;
pub use super::thread_cache::inside::end_thread;
pub use super::timeouts::inside::{Lane, Lanes};

/// The memory of a timer.
pub struct TimerMemory(Weak<Inner>);

impl TimerMemory {
    pub fn of(timer: &HashedWheelTimer) -> Self {
        Self(Arc::downgrade(&timer.inner))
    }

    pub fn is_freed(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Queries of the models.
impl Inner {
    pub(crate) fn could_sleep(&self) -> bool {
        let _worker = self.worker.lock();
        self.pending_counts.ever_registered() == self.counters.worker.taken.get()
    }

    pub(crate) fn falls_asleep(self: &Arc<Self>) -> bool {
        matches!(self.after_turn(), Some(Sleep::Parked(_)))
    }

    pub(crate) fn sleeps_past(&self, tick: u64) -> bool {
        self.state.announced.load(Ordering::Relaxed) > self.ticks.first_deadline_of(tick)
    }

    pub(crate) fn misses_messages(&self) -> bool {
        self.state.snapshot().is_asleep()
            && !self.worker.lock().receiver.queue.is_empty(&self.new_lanes)
    }

    pub(crate) fn misses_idle_nodes(&self) -> bool {
        self.state.snapshot().is_asleep() && !self.idle_nodes.is_empty()
    }

    pub(crate) fn lanes(&self) -> usize {
        self.worker.lock().receiver.queue.count()
    }

    pub(crate) fn made_nodes(&self) -> u64 {
        crate::node::inside::made_nodes(self)
    }
}
