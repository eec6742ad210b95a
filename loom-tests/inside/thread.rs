use crate::core::Core;
use crate::worker::Rest;

impl Core {
    pub(crate) fn falls_asleep(&self) -> bool {
        matches!(self.rest(), Rest::Sleep(_))
    }
}
