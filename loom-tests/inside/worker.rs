use super::Worker;
use crate::core::Core;

impl Worker {
    pub(crate) fn could_sleep(&self, core: &Core) -> bool {
        core.life.word().has_admitted(self.taken)
    }

    pub(crate) fn anything_waits(&self, core: &Core) -> bool {
        !self.inbox.is_empty(&core.door)
    }
}
