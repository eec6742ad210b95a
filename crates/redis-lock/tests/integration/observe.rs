//! Reports to `metrics` and `tracing`, under the documented names.

use std::collections::BTreeMap;
use std::env;
use std::fmt::{self, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit,
};
use redis::Commands;
use redis_lock::Loss;
use tokio::runtime::Builder;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};

use super::common::{LEASE, PATIENCE, Setup, options, take, within};

/// The values of each metric, in the order in which they were reported.
#[derive(Default)]
struct Values(Mutex<BTreeMap<String, Vec<f64>>>);

impl Values {
    fn get(&self, name: &str) -> Vec<f64> {
        self.0
            .lock()
            .unwrap()
            .get(name)
            .cloned()
            .unwrap_or_default()
    }

    fn sum(&self, name: &str) -> f64 {
        self.get(name).iter().sum()
    }
}

struct Metric(&'static Values, String);

impl Metric {
    fn report(&self, value: f64) {
        self.0
            .0
            .lock()
            .unwrap()
            .entry(self.1.clone())
            .or_default()
            .push(value);
    }
}

impl CounterFn for Metric {
    fn increment(&self, value: u64) {
        self.report(value as f64);
    }

    fn absolute(&self, _: u64) {
        unreachable!("all counters are incremented");
    }
}

impl HistogramFn for Metric {
    fn record(&self, value: f64) {
        self.report(value);
    }
}

struct Recorder(&'static Values);

impl Recorder {
    fn metric(&self, key: &Key) -> Arc<Metric> {
        Arc::new(Metric(self.0, key.name().to_owned()))
    }
}

impl metrics::Recorder for Recorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.metric(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        unreachable!("there is no gauge: {key}")
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.metric(key))
    }
}

/// The events of the lock, as lines.
struct Events(&'static Mutex<Vec<String>>);

impl Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("redis_lock")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

/// Set in the process in which the test runs again.
const IS_ALONE: &str = "REDIS_LOCK_TEST_OBSERVES";

/// Runs a test again in a process of its own, because recorders and subscribers are those of the
/// process.
fn alone(test: &str, run: impl AsyncFnOnce()) {
    if env::var_os(IS_ALONE).is_some() {
        return Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(run());
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([&format!("observe::{test}"), "--exact", "--nocapture"]);
    let output = command
        .env(IS_ALONE, "")
        .stdout(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn renewals_losses_and_waits_are_reported() {
    alone("renewals_losses_and_waits_are_reported", observe);
}

/// Panics on each counter.
struct Panics;

impl metrics::Recorder for Panics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        panic!("on purpose: {key}")
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn a_recorder_that_panics_ends_no_renewal_and_hides_no_loss() {
    alone(
        "a_recorder_that_panics_ends_no_renewal_and_hides_no_loss",
        async || {
            let Some(mut setup) = Setup::new("lock-recorder") else {
                return;
            };
            assert!(metrics::set_global_recorder(Panics).is_ok());
            let guard = take(&mut setup.locks.lock_with("a", options().lease(LEASE))).await;
            tokio::time::sleep(LEASE * 3 / 2).await;
            guard.check().unwrap();
            let () = setup.redis.del("{lock:a}").unwrap();
            let loss = within(guard.lost()).await;
            assert!(
                matches!(loss, Loss::NoOwner | Loss::LeaseEnded(_)),
                "{loss:?}"
            );
        },
    );
}

async fn observe() {
    let Some(mut setup) = Setup::new("lock-observe") else {
        return;
    };
    let values: &'static Values = Box::leak(Box::default());
    let lines: &'static Mutex<Vec<String>> = Box::leak(Box::default());
    assert!(metrics::set_global_recorder(Recorder(values)).is_ok());
    tracing::subscriber::set_global_default(Events(lines)).unwrap();
    let has_line = |level: Level, parts: &[&str]| {
        let lines = lines.lock().unwrap();
        lines.iter().any(|line| {
            line.starts_with(level.as_str()) && parts.iter().all(|part| line.contains(part))
        })
    };

    // A wait of 200 ms. A re-entry renews the lease, and is not counted as acquired.
    let long = options().lease(PATIENCE * 3);
    let mut lock = setup.locks.lock_with("a", long.clone());
    let guard = lock.lock().await.unwrap();
    let mut waiting = setup.locks.lock_with("a", long);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("a") == 1)
        .await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    lock.lock().await.unwrap().unlock().await.unwrap();
    guard.unlock().await.unwrap();
    let guard = within(waiting).await.unwrap().unwrap();
    assert_eq!(values.sum("redis_lock.acquired"), 2.0);
    let waits = values.get("redis_lock.wait");
    assert_eq!(waits.len(), 2);
    assert!(
        waits[0] >= 0.0 && (0.2..PATIENCE.as_secs_f64()).contains(&waits[1]),
        "{waits:?}"
    );
    assert_eq!(values.sum("redis_lock.renewals"), 1.0);
    assert_eq!(values.sum("redis_lock.renewal_calls"), 1.0);
    assert_eq!(values.sum("redis_lock.renewal_errors"), 0.0);
    assert_eq!(values.sum("redis_lock.lost"), 0.0);
    let token = format!("token={} ", guard.token());
    assert!(
        has_line(
            Level::DEBUG,
            &["a lock is taken", "{lock:a}", &token, "waited="]
        ),
        "{lines:?}"
    );
    assert!(
        has_line(Level::DEBUG, &["leases of locks were renewed", "leases=1"]),
        "{lines:?}"
    );
    guard.unlock().await.unwrap();

    // The watchdog renews, until Redis is down.
    let guard = take(&mut setup.locks.lock_with("b", options().lease(LEASE))).await;
    let lost = values.sum("redis_lock.lost");
    setup
        .until("the watchdog has renewed it", |_| {
            values.sum("redis_lock.renewals") >= 2.0
        })
        .await;
    setup.server.kill().unwrap();
    let loss = within(guard.lost()).await;
    assert!(matches!(loss, Loss::LeaseEnded(_)), "{loss:?}");
    assert_eq!(values.sum("redis_lock.lost"), lost + 1.0);
    assert!(values.sum("redis_lock.renewal_errors") >= 1.0);
    assert!(
        values.sum("redis_lock.renewal_calls") >= 2.0 + values.sum("redis_lock.renewal_errors")
    );
    assert!(
        has_line(Level::WARN, &["a lock is lost", "{lock:b}", "reason="]),
        "{lines:?}"
    );
    assert!(
        has_line(
            Level::WARN,
            &["leases of locks were not renewed", "leases=1", "error="]
        ),
        "{lines:?}"
    );

    // There are no other metrics, and all are documented.
    let docs = include_str!("../../src/lib.rs");
    for name in values.0.lock().unwrap().keys() {
        assert!(
            docs.contains(&format!("`{name}`")),
            "{name} is not documented"
        );
    }
    assert_eq!(values.0.lock().unwrap().len(), 6);
}
