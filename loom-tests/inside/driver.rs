impl crate::Driver {
    /// Whether the worker knows that nothing is on its way. It would never sleep otherwise.
    pub fn could_sleep(&self) -> bool {
        self.core.post.enter().could_sleep(&self.core)
    }

    /// What the worker thread does after a turn; says whether it would go to sleep now until somebody wakes it.
    pub fn falls_asleep(&self) -> bool {
        self.core.falls_asleep()
    }

    /// Whether a `shutdown` would go on waiting for what falls due up to this tick.
    pub fn keeps_a_shutdown_waiting(&self, last: u64) -> bool {
        self.core.keeps_a_shutdown_waiting(last)
    }

    /// Whether the worker is asleep, and nobody has woken it for what is in the lanes.
    pub fn misses_something(&self) -> bool {
        self.core.life.word().is_asleep() && self.core.post.enter().anything_waits(&self.core)
    }
}
