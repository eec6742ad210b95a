//! When a node looks for work after notifications.

use std::time::{Duration, Instant};

/// The minimum time between two looks or reads, if notifications arrive all the time.
pub(crate) const MIN_PAUSE: Duration = Duration::from_millis(5);

/// The time between two looks of a node that leaves notifications to others, or has no free runner.
const MAX_PAUSE: Duration = Duration::from_millis(320);

/// How a node answers notifications. All nodes are notified, but one is enough. Therefore each of
/// them first looks whether there is work, which writes nothing. Each look in vain doubles the time
/// until the next one. So the node that was fastest remains fast, and the others look seldom, until
/// it is lost or has no free runner.
#[derive(Debug)]
pub(crate) struct Looks {
    /// When the last one began.
    last: Instant,
    /// How many of the last ones in a row were in vain.
    in_vain: u32,
    /// There was a notification after the last one, or transactions may have added jobs without
    /// one.
    pub(crate) is_needed: bool,
}

impl Looks {
    pub(crate) fn new() -> Self {
        Self { last: Instant::now(), in_vain: 0, is_needed: false }
    }

    /// Returns the earliest time of the next look.
    pub(crate) fn next(&self, has_runner: bool) -> Instant {
        let pause = (MIN_PAUSE * (1 << self.in_vain.min(6))).min(MAX_PAUSE);
        self.last + if has_runner { pause } else { MAX_PAUSE }
    }

    pub(crate) fn begin(&mut self) {
        self.last = Instant::now();
    }

    /// Whether the last look has led to a run.
    pub(crate) fn learn(&mut self, has_run: bool) {
        self.in_vain = if has_run { 0 } else { self.in_vain.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_become_rare_up_to_a_limit_until_one_finds_work() {
        let mut looks = Looks::new();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            pauses.push((looks.next(true) - looks.last).as_millis());
            looks.learn(false);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 320, 320]);
        looks.learn(true);
        assert_eq!(looks.next(true) - looks.last, MIN_PAUSE);
        assert_eq!(looks.next(false) - looks.last, MAX_PAUSE);
    }
}
