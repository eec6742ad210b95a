//! The values that `metrics::publish` passes to a recorder.

#![cfg(feature = "metrics")]

use crate::common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::{Driven, TICK, ms};
use hashed_wheel_util::metrics::publish;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit,
};

/// Keeps the last value of each metric as text, and the unit of its description.
#[derive(Clone, Default)]
struct TestRecorder {
    values: Arc<Mutex<BTreeMap<String, String>>>,
    described: Arc<Mutex<BTreeMap<String, Option<Unit>>>>,
}

struct Metric(TestRecorder, String);

impl Metric {
    fn of(recorder: &TestRecorder, key: &Key) -> Arc<Self> {
        let labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        Arc::new(Self(
            recorder.clone(),
            format!("{}{{{}}}", key.name(), labels.join(",")),
        ))
    }

    fn set(&self, value: impl ToString) {
        self.0
            .values
            .lock()
            .unwrap()
            .insert(self.1.clone(), value.to_string());
    }
}

impl CounterFn for Metric {
    fn increment(&self, _: u64) {
        panic!("the timer publishes absolute values");
    }

    fn absolute(&self, value: u64) {
        self.set(value);
    }
}

impl GaugeFn for Metric {
    fn increment(&self, _: f64) {
        panic!("the timer publishes absolute values");
    }

    fn decrement(&self, _: f64) {
        panic!("the timer publishes absolute values");
    }

    fn set(&self, value: f64) {
        self.set(value);
    }
}

impl Recorder for TestRecorder {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.described
            .lock()
            .unwrap()
            .insert(name.as_str().into(), unit);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.described
            .lock()
            .unwrap()
            .insert(name.as_str().into(), unit);
    }

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        panic!("the timer has no histogram");
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Metric::of(self, key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Metric::of(self, key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        panic!("the timer has no histogram");
    }
}

#[test]
fn all_statistics_are_published_with_the_timers_name() {
    let mut t = Driven::with(|builder| {
        builder
            .max_pending_timeouts(Some(10))
            .slow_task_threshold(Some(ms(5)))
    });
    let timeouts: Vec<_> = (1..=10)
        .map(|ticks| t.timer.new_timeout(|_| (), TICK * ticks).unwrap())
        .collect();
    (0..3).for_each(|_| assert!(t.timer.new_timeout(|_| (), TICK).is_err()));
    assert!(timeouts[9].reset(TICK * 20) && timeouts[8].cancel());
    let clock = t.clock.clone();
    t.timer
        .new_timeout(move |_| clock.advance(ms(12)), TICK * 2)
        .unwrap();
    assert_eq!(t.pass(ms(22)), 3);
    timeouts[7].cancel();

    let recorder = TestRecorder::default();
    metrics::with_local_recorder(&recorder, || publish(&t.timer.stats(), "requests"));
    let mut values = recorder.values.lock().unwrap().clone();
    let mut expect = |name: &str, value: &str| {
        assert_eq!(values.remove(name).as_deref(), Some(value), "{name}");
    };
    for (name, value) in [
        ("scheduled_total", "11"),
        ("expired_total", "3"),
        ("periodic_runs_total", "0"),
        ("cancelled_total", "2"),
        ("rejected_total", "3"),
        ("panics_total", "0"),
        ("dropped_tasks_total", "0"),
        ("slow_tasks_total", "1"),
        ("turns_total", "1"),
        ("wake_ups_total", "0"),
        ("long_turns_total", "1"),
        ("busy_time_microseconds_total", "12000"),
        ("pending", "6"),
        ("cancelled_not_reclaimed", "1"),
        ("longest_turn_seconds", "0.012"),
        ("max_lateness_seconds", "0.012"),
        ("lateness_seconds_count", "3"),
    ] {
        expect(&format!("hashed_wheel_{name}{{timer=requests}}"), value);
    }
    // Deadlines at 10 and at 20 ms, and a turn at 22 ms.
    let mut bound = 0.000_625;
    for count in [0, 0, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3] {
        let name = format!("hashed_wheel_lateness_seconds_bucket{{timer=requests,le={bound}}}");
        expect(&name, &count.to_string());
        bound *= 2.0;
    }
    expect(
        "hashed_wheel_lateness_seconds_bucket{timer=requests,le=+Inf}",
        "3",
    );
    assert!(values.is_empty(), "unexpected metrics: {values:?}");
}

#[test]
fn runs_of_periodic_tasks_are_published() {
    let (mut t, recorder) = (Driven::new(), TestRecorder::default());
    t.timer.schedule_at_fixed_rate(|| (), TICK, TICK).unwrap();
    t.pass(TICK * 3);
    metrics::with_local_recorder(&recorder, || publish(&t.timer.stats(), "requests"));
    let values = recorder.values.lock().unwrap();
    assert_eq!(
        values["hashed_wheel_periodic_runs_total{timer=requests}"],
        "3"
    );
}

#[test]
fn each_metric_is_described() {
    let recorder = TestRecorder::default();
    metrics::with_local_recorder(&recorder, || {
        publish(&Driven::new().timer.stats(), "requests");
    });
    let described = recorder.described.lock().unwrap();
    for name in recorder.values.lock().unwrap().keys() {
        let name = name.split('{').next().unwrap();
        let unit = described
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not described"));
        let is_time = !name.contains("lateness_seconds_") && name.ends_with("_seconds");
        assert_eq!(*unit == Some(Unit::Seconds), is_time, "{name}");
    }
}

#[cfg(feature = "client")]
#[test]
fn counters_of_a_client_are_published_with_its_name() {
    use hashed_wheel_util::client::{Client, Policy};
    use hashed_wheel_util::metrics::publish_client;

    let (t, recorder) = (Driven::new(), TestRecorder::default());
    let client = Client::new(&t.timer, Policy::new(TICK));
    let call = std::pin::pin!(client.call(|_| async { Err::<(), _>("no") }));
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(call.poll(context).is_ready());
    metrics::with_local_recorder(&recorder, || publish_client(&client.stats(), "payments"));
    let values = recorder.values.lock().unwrap();
    assert_eq!(values.len(), 11);
    for (name, value) in [("attempts", "1"), ("failures", "1"), ("answers", "0")] {
        let name = format!("hashed_wheel_client_{name}_total");
        assert_eq!(values[&format!("{name}{{client=payments}}")], value);
        assert_eq!(recorder.described.lock().unwrap()[&name], None);
    }
}

#[test]
fn publish_without_a_recorder_does_nothing() {
    publish(&Driven::new().timer.stats(), "requests");
}
