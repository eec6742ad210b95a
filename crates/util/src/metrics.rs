//! [`Stats`] for the `metrics` crate: feature `metrics`.

#[cfg(feature = "client")]
use crate::client::ClientStats;
use hashed_wheel::Stats;
use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

/// A metric's name, its description, and the function that reads it.
type Metric<T> = (&'static str, &'static str, fn(&Stats) -> T);

const COUNTERS: [Metric<u64>; 13] = [
    (
        "hashed_wheel_scheduled_total",
        "Timeouts that were accepted",
        |stats| stats.scheduled,
    ),
    (
        "hashed_wheel_expired_total",
        "Timeouts whose task was handed to the executor",
        |stats| stats.expired,
    ),
    (
        "hashed_wheel_periodic_runs_total",
        "Runs of periodic tasks",
        |stats| stats.periodic_runs,
    ),
    (
        "hashed_wheel_cancelled_total",
        "Timeouts that were cancelled",
        |stats| stats.cancelled,
    ),
    (
        "hashed_wheel_rejected_total",
        "Calls of new_timeout that were rejected",
        |stats| stats.rejected,
    ),
    (
        "hashed_wheel_panics_total",
        "Panics of tasks, executors and clocks",
        |stats| stats.panics,
    ),
    (
        "hashed_wheel_dropped_tasks_total",
        "Tasks that the executor dropped without running them",
        |stats| stats.dropped_tasks,
    ),
    (
        "hashed_wheel_slow_tasks_total",
        "Tasks above the threshold for slow tasks",
        |stats| stats.slow_tasks,
    ),
    ("hashed_wheel_turns_total", "Turns of the worker", |stats| {
        stats.turns
    }),
    (
        "hashed_wheel_wake_ups_total",
        "Times that the worker thread woke from a sleep",
        |stats| stats.wake_ups,
    ),
    (
        "hashed_wheel_long_turns_total",
        "Turns that took longer than a tick",
        |stats| stats.long_turns,
    ),
    (
        "hashed_wheel_busy_time_microseconds_total",
        "Total duration of the worker's turns",
        |stats| stats.busy_time.as_micros() as u64,
    ),
    (
        LATENESS_COUNT,
        "Timeouts whose lateness was counted",
        |stats| stats.lateness.buckets().map(|(_, count)| count).sum(),
    ),
];

const GAUGES: [Metric<f64>; 4] = [
    (
        "hashed_wheel_pending",
        "Timeouts that have not ended",
        |stats| stats.pending as f64,
    ),
    (
        "hashed_wheel_cancelled_not_reclaimed",
        "Cancelled timeouts whose entry the worker has not removed",
        |stats| stats.cancelled_not_reclaimed as f64,
    ),
    (
        "hashed_wheel_longest_turn_seconds",
        "Duration of the worker's longest turn",
        |stats| stats.longest_turn.as_secs_f64(),
    ),
    (
        "hashed_wheel_max_lateness_seconds",
        "The greatest lateness of a timeout",
        |stats| stats.lateness.max.as_secs_f64(),
    ),
];

const LATENESS_COUNT: &str = "hashed_wheel_lateness_seconds_count";
const LATENESS_BUCKET: &str = "hashed_wheel_lateness_seconds_bucket";

/// Publishes the numbers of `stats` through the [`metrics`](https://docs.rs/metrics) crate: feature
/// `metrics`.
///
/// Each metric goes to the installed recorder, with a label `timer` of the given value. Without
/// a recorder this does nothing.
///
/// Call it when the numbers are requested, or every few seconds. It stores nothing and starts
/// nothing, and adds no cost to the timer.
///
/// | metric | kind | value |
/// |---|---|---|
/// | `hashed_wheel_scheduled_total` | counter | [`scheduled`](Stats::scheduled) |
/// | `hashed_wheel_expired_total` | counter | [`expired`](Stats::expired) |
/// | `hashed_wheel_periodic_runs_total` | counter | [`periodic_runs`](Stats::periodic_runs) |
/// | `hashed_wheel_cancelled_total` | counter | [`cancelled`](Stats::cancelled) |
/// | `hashed_wheel_rejected_total` | counter | [`rejected`](Stats::rejected) |
/// | `hashed_wheel_panics_total` | counter | [`panics`](Stats::panics) |
/// | `hashed_wheel_dropped_tasks_total` | counter | [`dropped_tasks`](Stats::dropped_tasks) |
/// | `hashed_wheel_slow_tasks_total` | counter | [`slow_tasks`](Stats::slow_tasks) |
/// | `hashed_wheel_turns_total` | counter | [`turns`](Stats::turns) |
/// | `hashed_wheel_wake_ups_total` | counter | [`wake_ups`](Stats::wake_ups) |
/// | `hashed_wheel_long_turns_total` | counter | [`long_turns`](Stats::long_turns) |
/// | `hashed_wheel_busy_time_microseconds_total` | counter | [`busy_time`](Stats::busy_time); its rate, divided by a million, is the worker's load |
/// | `hashed_wheel_pending` | gauge | [`pending`](Stats::pending) |
/// | `hashed_wheel_cancelled_not_reclaimed` | gauge | [`cancelled_not_reclaimed`](Stats::cancelled_not_reclaimed) |
/// | `hashed_wheel_longest_turn_seconds` | gauge | [`longest_turn`](Stats::longest_turn) |
/// | `hashed_wheel_max_lateness_seconds` | gauge | [`Lateness::max`](hashed_wheel::Lateness::max) |
/// | `hashed_wheel_lateness_seconds_bucket` | counter | how many timeouts were at most as late as the label `le` says, in seconds |
/// | `hashed_wheel_lateness_seconds_count` | counter | how many timeouts these are in total |
///
/// The last two form a Prometheus histogram, without a sum. This query returns the lateness
/// that 99 % of the timeouts do not exceed:
/// `histogram_quantile(0.99, rate(hashed_wheel_lateness_seconds_bucket[5m]))`.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::metrics;
///
/// # use hashed_wheel::HashedWheelTimer;
/// # let timer = HashedWheelTimer::default();
/// // When the metrics page is requested:
/// metrics::publish(&timer.stats(), "connections");
/// ```
pub fn publish(stats: &Stats, timer: &str) {
    for (name, description, value) in COUNTERS {
        describe_counter!(name, description);
        counter!(name, "timer" => timer.to_owned()).absolute(value(stats));
    }
    for (name, description, value) in GAUGES {
        let unit = if name.ends_with("_seconds") {
            Unit::Seconds
        } else {
            Unit::Count
        };
        describe_gauge!(name, unit, description);
        gauge!(name, "timer" => timer.to_owned()).set(value(stats));
    }
    describe_counter!(LATENESS_BUCKET, "Timeouts that were at most this late");
    let mut so_far = 0;
    for (bound, count) in stats.lateness.buckets() {
        so_far += count;
        let bound = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
        counter!(LATENESS_BUCKET, "timer" => timer.to_owned(), "le" => bound).absolute(so_far);
    }
}

/// Publishes the numbers of a client, each as a counter with a label `client` of the given value:
/// features `metrics` and `client`.
///
/// Like [`publish`], it goes to the installed recorder. The names are those of the fields of
/// [`ClientStats`]: `calls` is `hashed_wheel_client_calls_total`.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::client::Client;
/// use hashed_wheel_util::metrics;
///
/// /// When the metrics page is requested.
/// fn publish(payments: &Client) {
///     metrics::publish_client(&payments.stats(), "payments");
/// }
/// ```
#[cfg(feature = "client")]
pub fn publish_client(stats: &ClientStats, client: &str) {
    for (field, description, value) in stats.all() {
        let name = format!("hashed_wheel_client_{field}_total");
        describe_counter!(name.clone(), description.trim());
        counter!(name, "client" => client.to_owned()).absolute(value);
    }
}
