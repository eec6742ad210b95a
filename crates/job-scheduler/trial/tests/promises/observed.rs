//! The reports of a node to `metrics` and `tracing`, under the documented names.
//!
//! The nodes of a test run on its thread, because its runtime has only one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hashed_wheel_job_scheduler::{NewJob, RunState};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Recorder, SharedString, Unit};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tokio::sync::Semaphore;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::fixture::{
    Fixture, MS, Task, begun, connect, eventually, gate_job, shut_down, with_gate,
};
use crate::interruptions::interrupted;

/// Executes runs that succeed, fail and are taken over. Then the node loses its connections.
async fn do_everything(fixture: &Fixture) {
    let lost = fixture.start(fixture.mortal()).await;
    let begun_before = begun();
    let interrupted = fixture.enqueue(NewJob::new(&Task::Sleep(1_500))).await;
    fixture.until_state(interrupted, RunState::Running).await;
    // The node has taken the run, and begins it once it has the answer of the database.
    eventually(async || begun() > begun_before).await;
    drop(lost);
    let node = fixture.node().await;
    fixture.until_done(interrupted, 1).await;
    let fails = fixture
        .enqueue(NewJob::new(&Task::Fail).retries(1, MS, MS))
        .await;
    fixture.until_state(fails, RunState::Failed).await;
    fixture.close_connections().await;
    eventually(async || {
        fixture
            .jobs
            .nodes(&fixture.client)
            .await
            .unwrap()
            .iter()
            .any(|node| node.id >= 3)
    })
    .await;
    let last = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    fixture.until_done(last, 1).await;
    shut_down(node).await;
}

#[tokio::test]
async fn metrics_have_the_documented_names_and_labels() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    do_everything(&fixture).await;
    let mut found = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        let mut labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        labels.sort();
        found.insert(format!("{}{{{}}}", key.name(), labels.join(",")), value);
    }
    let counter = |name: &str| match found.get(name) {
        Some(DebugValue::Counter(count)) => *count,
        other => panic!("{name}: {other:?} in {found:#?}"),
    };
    let values = |name: &str| match found.get(name) {
        Some(DebugValue::Histogram(values)) => {
            values.iter().map(|value| value.0).collect::<Vec<_>>()
        }
        other => panic!("{name}: {other:?} in {found:#?}"),
    };
    // A node that loses its lease, because the machine is busy, would add to these.
    assert!(counter("job_scheduler_runs_started_total{handler=task}") >= 5);
    assert!(counter("job_scheduler_runs_ended_total{end=done,handler=task}") >= 2);
    assert!(counter("job_scheduler_runs_ended_total{end=retried,handler=task}") >= 1);
    assert!(counter("job_scheduler_runs_ended_total{end=failed,handler=task}") >= 1);
    assert!(counter("job_scheduler_taken_over_total{}") >= 1);
    assert!(counter("job_scheduler_restarts_total{}") >= 1);
    assert!(
        values("job_scheduler_lateness_seconds{handler=task}")
            .iter()
            .all(|&late| (0.0..60.0).contains(&late))
    );
    // That of the run that sleeps for 1.5 s.
    assert!(
        values("job_scheduler_duration_seconds{handler=task}")
            .iter()
            .any(|&took| (0.3..30.0).contains(&took))
    );
    for duty in ["lease", "look", "claim", "read ahead", "start", "finish"] {
        let times = values(&format!("job_scheduler_duty_seconds{{duty={duty}}}"));
        assert!(!times.is_empty(), "{duty}");
    }
    assert!(matches!(
        found.get("job_scheduler_runs_held{}"),
        Some(DebugValue::Gauge(_))
    ));
    // Each name is in the documentation, and there are no others.
    let documentation = include_str!("../../../src/lib.rs");
    for name in found.keys() {
        let name = name.split('{').next().unwrap();
        assert!(
            documentation.contains(&format!("| `{name}` |")),
            "{name} is not documented"
        );
    }
    let documented = documentation
        .lines()
        .filter(|line| line.starts_with("//! | `job_scheduler_"))
        .count();
    let names: std::collections::BTreeSet<_> =
        found.keys().map(|name| name.split('{').next()).collect();
    assert_eq!(documented, names.len());
}

#[tokio::test]
async fn takeover_of_a_run_that_pauses_is_counted() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let builder = || with_gate(fixture.builder(), &gate);
    let lost = fixture.start(builder()).await;
    let job = interrupted(&fixture, 2).await;
    fixture.until_state(job, RunState::Running).await;
    fixture.lose(lost).await;
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let node = fixture.start(builder()).await;
    fixture.until_state(job, RunState::Waiting).await;
    shut_down(node).await;
    let counted = snapshotter.snapshot().into_vec().into_iter();
    let counted: Vec<_> = counted
        .filter(|(key, ..)| key.key().name() == "job_scheduler_taken_over_total")
        .map(|(.., value)| value)
        .collect();
    assert_eq!(counted, [DebugValue::Counter(1)]);
}

/// A recorder of which one metric panics each time, until it is repaired.
struct Defective {
    metric: &'static str,
    is_defective: AtomicBool,
}

impl Defective {
    fn new(metric: &'static str) -> Self {
        Self {
            metric,
            is_defective: AtomicBool::new(true),
        }
    }

    fn register(&self, key: &Key) {
        let panics = key.name() == self.metric && self.is_defective.load(Relaxed);
        assert!(!panics, "the recorder is defective");
    }
}

impl Recorder for Defective {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &metrics::Metadata<'_>) -> Counter {
        self.register(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &metrics::Metadata<'_>) -> Gauge {
        self.register(key);
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &metrics::Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// The gauge is set in the task of the node.
#[tokio::test]
async fn node_that_panics_starts_again() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let recorder = Defective::new("job_scheduler_runs_held");
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let node = fixture.node().await;
    let job = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    let has_restarted = async || {
        fixture
            .jobs
            .nodes(&fixture.client)
            .await
            .unwrap()
            .iter()
            .any(|node| node.id > 2)
    };
    eventually(has_restarted).await;
    recorder.is_defective.store(false, Relaxed);
    assert_eq!(fixture.until_done(job, 1).await[0].interrupted, 0);
    shut_down(node).await;
}

/// The first result of a statement is reported, while the run of the second one is locked.
#[tokio::test]
async fn result_that_waits_is_kept_if_the_report_of_another_one_panics() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let recorder = Defective::new("job_scheduler_runs_ended_total");
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let [first, second] = [
        fixture.enqueue(gate_job()).await,
        fixture.enqueue(gate_job()).await,
    ];
    for job in [first, second] {
        fixture.until_state(job, RunState::Running).await;
    }
    let lock = format!(
        "SELECT FROM {}.run WHERE job = $1 FOR UPDATE",
        fixture.schema
    );
    let other = connect(&fixture.config).await;
    let transaction = fixture.client.transaction().await.unwrap();
    transaction.execute(&lock, &[&second]).await.unwrap();
    gate.close();
    let is_done =
        async || fixture.jobs.history(&other, first, 1).await.unwrap()[0].state == RunState::Done;
    eventually(is_done).await;
    transaction.rollback().await.unwrap();
    eventually(async || {
        fixture
            .jobs
            .nodes(&other)
            .await
            .unwrap()
            .iter()
            .any(|node| node.id > 1)
    })
    .await;
    recorder.is_defective.store(false, Relaxed);
    assert_eq!(fixture.until_done(second, 1).await[0].interrupted, 0);
    shut_down(node).await;
}

thread_local! {
    /// The events of the nodes of a test, because they run on its thread.
    static EVENTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Collects events as text. It is that of the process: with one for a thread, whether an event is
/// enabled would depend on the thread that has it first.
struct Collector;

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("hashed_wheel_job_scheduler")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        EVENTS.with_borrow_mut(|events| events.push(text.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn failures_takeovers_and_restarts_are_reported_to_tracing() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    tracing::subscriber::set_global_default(Collector).unwrap();
    do_everything(&fixture).await;
    let events = EVENTS.take();
    let has = |texts: &[&str]| {
        let has = events
            .iter()
            .any(|event| texts.iter().all(|text| event.contains(text)));
        assert!(has, "no event with {texts:?} in {events:#?}");
    };
    let level = Level::WARN.as_str();
    has(&[
        level,
        "message=a run failed",
        "handler=\"task\"",
        "attempt=1",
        "will_retry=true",
        "error=\"failed\"",
    ]);
    has(&[
        level,
        "message=a run failed",
        "attempt=2",
        "will_retry=false",
    ]);
    has(&[
        level,
        "message=took over the runs of a lost node",
        "count=1",
    ]);
    has(&[
        level,
        "message=the scheduler starts again",
        "error=database error",
    ]);
}
