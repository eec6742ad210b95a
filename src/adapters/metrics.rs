//! The same numbers for the `metrics` crate.

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use crate::stats::Stats;

/// A metric's name, what it is, and where it comes from.
type Metric<T> = (&'static str, &'static str, fn(&Stats) -> T);

const COUNTERS: [Metric<u64>; 14] = [
    ("hashed_wheel_scheduled_total", "Timeouts that were accepted", |stats| stats.scheduled),
    ("hashed_wheel_expired_total", "Timeouts whose task was handed to the executor", |stats| stats.expired),
    ("hashed_wheel_periodic_runs_total", "Runs of periodic tasks", |stats| stats.periodic_runs),
    ("hashed_wheel_cancelled_total", "Timeouts that were cancelled", |stats| stats.cancelled),
    ("hashed_wheel_rejected_total", "Timeouts that were refused", |stats| stats.rejected),
    ("hashed_wheel_resets_total", "Timeouts re-armed", |stats| stats.resets),
    ("hashed_wheel_panics_total", "Panics of tasks and executors", |stats| stats.panics),
    ("hashed_wheel_dropped_tasks_total", "Tasks that the executor dropped", |stats| stats.dropped_tasks),
    ("hashed_wheel_slow_tasks_total", "Tasks above the threshold for slow ones", |stats| stats.slow_tasks),
    ("hashed_wheel_turns_total", "Turns of the worker", |stats| stats.turns),
    ("hashed_wheel_wake_ups_total", "Times that the worker came out of a sleep", |stats| stats.wake_ups),
    ("hashed_wheel_long_turns_total", "Turns that took longer than a tick", |stats| stats.long_turns),
    ("hashed_wheel_busy_time_microseconds_total", "How long turns of the worker took in all", |stats| {
        stats.busy_time.as_micros() as u64
    }),
    (LATENESS_COUNT, "Timeouts whose lateness was counted", |stats| {
        stats.lateness.buckets().map(|(_, count)| count).sum()
    }),
];

const GAUGES: [Metric<f64>; 4] = [
    ("hashed_wheel_pending", "Timeouts that have not ended", |stats| stats.pending as f64),
    (
        "hashed_wheel_cancelled_not_reclaimed",
        "Cancelled timeouts that the worker has not taken back",
        |stats| stats.cancelled_not_reclaimed as f64,
    ),
    ("hashed_wheel_longest_turn_seconds", "What the longest turn of the worker took", |stats| {
        stats.longest_turn.as_secs_f64()
    }),
    ("hashed_wheel_max_lateness_seconds", "How late the latest timeout was", |stats| {
        stats.lateness.max.as_secs_f64()
    }),
];

const LATENESS_COUNT: &str = "hashed_wheel_lateness_seconds_count";
const LATENESS_BUCKET: &str = "hashed_wheel_lateness_seconds_bucket";

impl Stats {
    /// Hands these numbers to the recorder of the [`metrics`](https://docs.rs/metrics) crate, each with a label `timer` of
    /// this value: feature `metrics`.
    ///
    /// Call it when the numbers are asked for, or every few seconds; it keeps nothing and starts nothing, and a timer costs
    /// no more for it. With no recorder installed it does nothing.
    ///
    /// | metric | kind | |
    /// |---|---|---|
    /// | `hashed_wheel_scheduled_total` | counter | as [`scheduled`](Self::scheduled), and so are those below |
    /// | `hashed_wheel_expired_total` | counter | |
    /// | `hashed_wheel_periodic_runs_total` | counter | |
    /// | `hashed_wheel_cancelled_total` | counter | |
    /// | `hashed_wheel_rejected_total` | counter | |
    /// | `hashed_wheel_resets_total` | counter | |
    /// | `hashed_wheel_panics_total` | counter | |
    /// | `hashed_wheel_dropped_tasks_total` | counter | |
    /// | `hashed_wheel_slow_tasks_total` | counter | |
    /// | `hashed_wheel_turns_total` | counter | |
    /// | `hashed_wheel_wake_ups_total` | counter | |
    /// | `hashed_wheel_long_turns_total` | counter | |
    /// | `hashed_wheel_busy_time_microseconds_total` | counter | its rate, by a million, is the worker's load |
    /// | `hashed_wheel_pending` | gauge | |
    /// | `hashed_wheel_cancelled_not_reclaimed` | gauge | |
    /// | `hashed_wheel_longest_turn_seconds` | gauge | |
    /// | `hashed_wheel_max_lateness_seconds` | gauge | [`Lateness::max`](crate::Lateness::max) |
    /// | `hashed_wheel_lateness_seconds_bucket` | counter | with a label `le`: how many were at most so late, in seconds |
    /// | `hashed_wheel_lateness_seconds_count` | counter | how many these are in all |
    ///
    /// The last two are what Prometheus knows as a histogram (without a sum):
    /// `histogram_quantile(0.99, rate(hashed_wheel_lateness_seconds_bucket[5m]))` is the lateness of all but a hundredth.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # let timer = HashedWheelTimer::default();
    /// // When the page is asked for:
    /// timer.stats().publish("connections");
    /// ```
    pub fn publish(&self, timer: &str) {
        for (name, description, value) in COUNTERS {
            describe_counter!(name, description);
            counter!(name, "timer" => timer.to_owned()).absolute(value(self));
        }
        for (name, description, value) in GAUGES {
            let unit = if name.ends_with("_seconds") { Unit::Seconds } else { Unit::Count };
            describe_gauge!(name, unit, description);
            gauge!(name, "timer" => timer.to_owned()).set(value(self));
        }
        describe_counter!(LATENESS_BUCKET, "Timeouts that were at most so late");
        let mut so_far = 0;
        for (bound, count) in self.lateness.buckets() {
            so_far += count;
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
            counter!(LATENESS_BUCKET, "timer" => timer.to_owned(), "le" => bound).absolute(so_far);
        }
    }
}
