//! Which nodes are notified, when, and what they do then.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use hashed_wheel_job_scheduler::{NewJob, RunState, SchedulerBuilder};
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::fixture::{Fixture, LATER, MS, Task, connect, shut_down};

/// Much less than half of the longest heartbeat, after which a node reads without a notification.
const SOON: Duration = Duration::from_secs(12);

/// Settings of a node that reads after 15 to 30 seconds if it is not notified.
fn rarely(builder: SchedulerBuilder) -> SchedulerBuilder {
    builder.heartbeat(MS * 30_000).prefetch(MS * 30_000)
}

/// Receives the notifications of a schema.
pub(crate) struct Listener {
    client: Client,
    channel: String,
    payloads: UnboundedReceiver<String>,
}

impl Listener {
    pub(crate) async fn new(fixture: &Fixture) -> Self {
        let (client, mut connection) = fixture.config.connect(NoTls).await.unwrap();
        let (sender, payloads) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notification(notification) = message {
                    let _ = sender.send(notification.payload().to_owned());
                }
            }
        });
        let channel = format!("{}_jobs", fixture.schema);
        client
            .batch_execute(&format!("LISTEN {channel}"))
            .await
            .unwrap();
        Self {
            client,
            channel,
            payloads,
        }
    }

    /// Returns the payloads since the last call.
    pub(crate) async fn take(&mut self) -> Vec<String> {
        let mark = format!("SELECT pg_notify('{}', 'mark')", self.channel);
        self.client.batch_execute(&mark).await.unwrap();
        let mut payloads = Vec::new();
        loop {
            let payload = self.payloads.recv().await.expect("the connection is open");
            if payload == "mark" {
                return payloads;
            }
            payloads.push(payload);
        }
    }
}

#[tokio::test]
async fn nodes_are_notified_only_of_what_they_would_read_too_late() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let mut listener = Listener::new(&fixture).await;
    // One that does not listen has no influence on that.
    let silent = fixture.start(
        fixture
            .builder()
            .without_notifications()
            .heartbeat(MS * 20_000)
            .prefetch(MS * 20_000),
    );
    let silent = silent.await;
    let due = || NewJob::named("unknown", Value::Null);
    let first = fixture.enqueue(due()).await;
    assert_eq!(listener.take().await, ["unknown"]);
    // The heartbeat is 300 ms.
    let later = fixture.enqueue(due().after(MS * 5_000)).await;
    fixture.enqueue(due().after(LATER)).await;
    fixture.enqueue(due().without_notification()).await;
    assert_eq!(listener.take().await, [""; 0]);
    // As at the end of the transaction.
    let transaction = fixture.client.transaction().await.unwrap();
    fixture
        .jobs
        .enqueue(&transaction, due().after(MS * 2_000))
        .await
        .unwrap();
    tokio::time::sleep(MS * 2_100).await;
    transaction.commit().await.unwrap();
    assert_eq!(listener.take().await, ["unknown"]);

    fixture.jobs.run_now(&fixture.client, later).await.unwrap();
    assert_eq!(listener.take().await, ["unknown"]);
    fixture
        .jobs
        .clone()
        .pause(&mut fixture.client, first)
        .await
        .unwrap();
    assert_eq!(listener.take().await, [""; 0]);
    fixture
        .jobs
        .clone()
        .resume(&mut fixture.client, first)
        .await
        .unwrap();
    assert_eq!(listener.take().await, ["unknown"]);
    shut_down(silent).await;
    shut_down(node).await;
}

#[tokio::test]
async fn notifications_without_work_write_nothing() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.start(rarely(fixture.builder())).await;
    tokio::time::sleep(MS * 500).await;
    let leases = format!("SELECT max(xmin::text) FROM {}.node", fixture.schema);
    let before: String = fixture.client.query_one(&leases, &[]).await.unwrap().get(0);
    let notify = format!("SELECT pg_notify('{}_jobs', 'task')", fixture.schema);
    for _ in 0..50 {
        fixture.client.batch_execute(&notify).await.unwrap();
        tokio::time::sleep(MS * 10).await;
    }
    let after: String = fixture.client.query_one(&leases, &[]).await.unwrap().get(0);
    assert_eq!(before, after);
    // Although it has looked in vain often.
    let begin = Instant::now();
    let job = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    fixture.until_state(job, RunState::Done).await;
    assert!(begin.elapsed() < SOON);
    shut_down(node).await;
}

/// A transaction commits while another one, which was about to notify, makes its notification
/// needless. Returns whether its job has started soon.
async fn starts_without_a_notification_of_its_own(sabotage: Option<(&str, &str)>) -> Option<bool> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let node = fixture.start(rarely(fixture.builder())).await;
    tokio::time::sleep(MS * 500).await;
    let mut listener = Listener::new(&fixture).await;
    let [mut first, mut second] = [
        connect(&fixture.config).await,
        connect(&fixture.config).await,
    ];
    let [first, second] = [
        first.transaction().await.unwrap(),
        second.transaction().await.unwrap(),
    ];
    let mut jobs = Vec::new();
    for transaction in [&first, &second] {
        let enqueued = fixture
            .jobs
            .enqueue(transaction, NewJob::new(&Task::Succeed))
            .await
            .unwrap();
        jobs.push(enqueued.job);
        // This is the first part of a commit.
        transaction
            .batch_execute("SET CONSTRAINTS ALL IMMEDIATE")
            .await
            .unwrap();
    }
    first.commit().await.unwrap();
    assert_eq!(listener.take().await, ["task"]);
    fixture.until_state(jobs[0], RunState::Done).await;
    tokio::time::sleep(MS * 200).await;
    second.commit().await.unwrap();
    assert_eq!(listener.take().await, [""; 0]);
    let begin = Instant::now();
    let limit = if sabotage.is_some() { MS * 3_000 } else { SOON };
    let mut has_started = false;
    while !has_started && begin.elapsed() < limit {
        tokio::time::sleep(MS * 10).await;
        has_started = !fixture.history(jobs[1]).await.is_empty();
    }
    drop(node);
    Some(has_started)
}

#[tokio::test]
async fn nodes_look_until_no_transaction_adds_jobs_without_a_notification() {
    let Some(has_started) = starts_without_a_notification_of_its_own(None).await else {
        return;
    };
    assert!(has_started);
    let look_once = (
        "CASE WHEN pg_try_advisory_lock(commits)",
        "CASE WHEN true THEN true WHEN pg_try_advisory_lock(commits)",
    );
    assert_eq!(
        starts_without_a_notification_of_its_own(Some(look_once)).await,
        Some(false)
    );
}

#[tokio::test]
async fn jobs_of_many_clients_start_soon_on_many_nodes() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(fixture.start(rarely(fixture.builder())).await);
    }
    let begin = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..16 {
        let (client, jobs) = (connect(&fixture.config).await, fixture.jobs.clone());
        clients.push(tokio::spawn(async move {
            for _ in 0..20 {
                jobs.enqueue(&client, NewJob::new(&Task::Succeed))
                    .await
                    .unwrap();
                tokio::time::sleep(MS * fastrand::u32(0..20)).await;
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    let done = format!(
        "SELECT count(*) FROM {}.run WHERE state = 'done'",
        fixture.schema
    );
    while fixture
        .client
        .query_one(&done, &[])
        .await
        .unwrap()
        .get::<_, i64>(0)
        < 16 * 20
    {
        assert!(begin.elapsed() < SOON);
        tokio::time::sleep(MS * 10).await;
    }
    for node in nodes {
        shut_down(node).await;
    }
}

/// Returns what is notified by the calls of an application, if no node listens.
async fn notifications_without_listeners(sabotage: Option<(&str, &str)>) -> Option<Vec<String>> {
    let mut fixture = Fixture::sabotaged(&sabotage).await?;
    let builder = fixture.builder().without_notifications();
    let node = fixture.start(builder).await;
    let mut listener = Listener::new(&fixture).await;
    let fails = fixture.enqueue(NewJob::new(&Task::Fail)).await;
    let failed = fixture.until_state(fails, RunState::Failed).await.id;
    let hangs = fixture.enqueue(NewJob::new(&Task::HangOnce).key("k")).await;
    let running = fixture.until_state(hangs, RunState::Running).await.id;
    assert!(fixture.jobs.retry(&fixture.client, failed).await.unwrap());
    fixture.jobs.cancel(&fixture.client, running).await.unwrap();
    // Found by the next beat.
    fixture.until_state(hangs, RunState::Cancelled).await;
    fixture.jobs.run_now(&fixture.client, hangs).await.unwrap();
    fixture
        .jobs
        .clone()
        .pause(&mut fixture.client, hangs)
        .await
        .unwrap();
    fixture
        .jobs
        .clone()
        .resume(&mut fixture.client, hangs)
        .await
        .unwrap();
    fixture
        .jobs
        .cancel_all(&fixture.client, hangs)
        .await
        .unwrap();
    fixture
        .until(hangs, |runs| runs.iter().all(|run| run.finished.is_some()))
        .await;
    shut_down(node).await;
    Some(listener.take().await)
}

#[tokio::test]
async fn nothing_is_notified_if_no_node_listens() {
    let Some(payloads) = notifications_without_listeners(None).await else {
        return;
    };
    assert_eq!(payloads, [""; 0]);
    let always = (
        "INTO needed_after FROM @node node WHERE node.listens;",
        "INTO needed_after FROM @node node;",
    );
    let payloads = notifications_without_listeners(Some(always)).await.unwrap();
    assert!(payloads.contains(&"task".into()), "{payloads:?}");
}
