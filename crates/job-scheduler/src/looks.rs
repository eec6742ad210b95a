//! When a node looks for work after notifications.

use std::time::{Duration, Instant};

/// The minimum time between two looks or reads, if notifications arrive all the time.
pub(crate) const MIN_PAUSE: Duration = Duration::from_millis(5);

/// A node that leaves notifications to others, or has no free runner, looks every 320 ms.
const MAX_DOUBLINGS: u32 = 6;

/// How a node answers notifications. All nodes are notified, but one is enough. Therefore each of
/// them first looks whether there is work, which writes nothing. Each look in vain doubles the time
/// until the next one, and each one that leads to a run halves it. So a node that gets less than
/// half of the runs becomes slow, and one remains fast, until it is lost or has no free runner.
#[derive(Debug)]
pub(crate) struct Looks {
    /// When the last one began.
    last: Instant,
    /// How often the time between two looks is doubled.
    doublings: u32,
    /// There was a notification after the last one, or transactions may have added jobs without
    /// one.
    pub(crate) is_needed: bool,
}

impl Looks {
    pub(crate) fn new() -> Self {
        Self {
            last: Instant::now(),
            doublings: 0,
            is_needed: false,
        }
    }

    /// Returns the earliest time of the next look.
    pub(crate) fn next(&self, has_runner: bool) -> Instant {
        let doublings = if has_runner {
            self.doublings
        } else {
            MAX_DOUBLINGS
        };
        self.last + MIN_PAUSE * (1 << doublings)
    }

    pub(crate) fn begin(&mut self) {
        self.last = Instant::now();
    }

    /// Whether the last look has led to a run.
    pub(crate) fn learn(&mut self, has_run: bool) {
        self.doublings = match has_run {
            true => self.doublings.saturating_sub(1),
            false => MAX_DOUBLINGS.min(self.doublings + 1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_become_rare_up_to_a_limit() {
        let mut looks = Looks::new();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            pauses.push((looks.next(true) - looks.last).as_millis());
            looks.learn(false);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 320, 320]);
        for pause in [160, 80, 40, 20, 10, 5, 5] {
            looks.learn(true);
            assert_eq!((looks.next(true) - looks.last).as_millis(), pause);
            assert_eq!((looks.next(false) - looks.last).as_millis(), 320);
        }
    }
}
