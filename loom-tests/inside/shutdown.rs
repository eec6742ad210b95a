use crate::core::Core;
use crate::sync::Arc;

impl Core {
    pub(crate) fn keeps_a_shutdown_waiting(self: &Arc<Self>, last: u64) -> bool {
        self.next_due(last).is_some()
    }
}
