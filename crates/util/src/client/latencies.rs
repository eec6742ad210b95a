//! How long the requests of a client take.

use std::fmt;
use std::time::Duration;

use crate::deadlines::{NEVER, nanos};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// How many of the last answers count.
const WINDOW: usize = 512;

/// How many answers an estimate needs.
const LEAST: usize = 128;

/// After how many answers the estimate is made anew.
const EVERY: usize = 16;

/// A percentile of the last answer times.
pub(super) struct Latencies {
    percent: u8,
    /// In nanoseconds; [`NEVER`] until there are enough answers.
    estimate: AtomicU64,
    window: Mutex<Window>,
}

struct Window {
    /// In nanoseconds. Once it is full, the oldest answer time is overwritten.
    times: Vec<u64>,
    /// How many there ever were.
    count: usize,
}

impl Latencies {
    pub(super) fn new(percent: u8) -> Self {
        let window = Mutex::new(Window {
            times: Vec::new(),
            count: 0,
        });
        Self {
            percent,
            estimate: AtomicU64::new(NEVER),
            window,
        }
    }

    /// Returns the percentile; `None` until there are enough answers.
    pub(super) fn percentile(&self) -> Option<Duration> {
        let estimate = self.estimate.load(Ordering::Relaxed);
        (estimate != NEVER).then_some(Duration::from_nanos(estimate))
    }

    pub(super) fn record(&self, time: Duration) {
        let mut window = self.window.lock();
        let Window { times, count } = &mut *window;
        let place = *count % WINDOW;
        if place < times.len() {
            times[place] = nanos(time);
        } else {
            times.push(nanos(time));
        }
        *count += 1;
        if times.len() < LEAST || *count % EVERY > 0 {
            return;
        }
        let mut times = times.clone();
        drop(window);
        let rank = (times.len() * usize::from(self.percent)).div_ceil(100);
        let (_, percentile, _) = times.select_nth_unstable(rank - 1);
        self.estimate.store(*percentile, Ordering::Relaxed);
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latencies")
            .field("percent", &self.percent)
            .field("percentile", &self.percentile())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(percent: u8, times: impl IntoIterator<Item = u64>) -> Option<u128> {
        let latencies = Latencies::new(percent);
        times
            .into_iter()
            .for_each(|time| latencies.record(Duration::from_millis(time)));
        latencies.percentile().map(|time| time.as_millis())
    }

    #[test]
    fn percentile_is_that_of_the_last_answers() {
        let hundred = |_| 1..=100;
        assert_eq!(recorded(95, (0..4).flat_map(hundred)), Some(95));
        assert_eq!(recorded(99, (0..4).flat_map(hundred)), Some(99));
        assert_eq!(recorded(1, (0..4).flat_map(hundred)), Some(1));
        assert_eq!(recorded(50, (0..1_008).chain([7; WINDOW / 2])), Some(7));
        assert_eq!(
            recorded(51, [1; 1_008].into_iter().chain([7; WINDOW / 2])),
            Some(7)
        );
        assert_eq!(
            recorded(50, [1; 1_008].into_iter().chain([7; WINDOW / 2])),
            Some(1)
        );
    }

    #[test]
    fn few_answers_are_no_estimate() {
        assert_eq!(recorded(95, 0..LEAST as u64 - 1), None);
        assert_eq!(recorded(95, [3; LEAST]), Some(3));
    }
}
