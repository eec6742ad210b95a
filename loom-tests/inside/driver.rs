impl crate::Driver {
    /// Returns whether the worker knows that it has seen all new timeouts. Otherwise it would not
    /// sleep.
    pub fn could_sleep(&self) -> bool {
        self.inner.could_sleep()
    }

    /// Does what the worker thread does after a turn. Returns whether the thread would park now.
    pub fn falls_asleep(&self) -> bool {
        self.inner.falls_asleep()
    }

    /// Returns whether a `shutdown` would wait for a timeout that falls due up to the tick `last`.
    pub fn keeps_shutdown_waiting(&self, last: u64) -> bool {
        self.inner.next_due(last).is_some()
    }

    /// Returns whether the worker sleeps past this tick, as far as it has announced.
    pub fn sleeps_past(&self, tick: u64) -> bool {
        self.inner.sleeps_past(tick)
    }

    /// Returns whether the worker is asleep although messages wait.
    pub fn misses_messages(&self) -> bool {
        self.inner.misses_messages()
    }

    /// Returns whether the worker is asleep although threads have left nodes for it to reclaim.
    pub fn misses_idle_nodes(&self) -> bool {
        self.inner.misses_idle_nodes()
    }

    /// Returns how many lanes the worker looks at.
    pub fn lanes(&self) -> usize {
        self.inner.lanes()
    }

    /// Returns how many nodes were ever made.
    pub fn made_nodes(&self) -> u64 {
        self.inner.made_nodes()
    }
}
