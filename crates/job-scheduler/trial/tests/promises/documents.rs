//! Payloads and outputs that PostgreSQL stores and `serde_json` does not read, and large ones.

use std::time::Duration;

use hashed_wheel_job_scheduler::jiff::Timestamp;
use hashed_wheel_job_scheduler::{Context, Error, NewJob, RunError, RunState, Scheduler};
use serde_json::{Value, json};

use crate::fixture::{Fixture, LATER, MS, Task, eventually, shut_down};

fn nested(levels: usize) -> Value {
    (0..levels).fold(Value::Null, |inner, _| Value::Array(vec![inner]))
}

/// Its payload is a kind of output, or anything that it does not use.
async fn answer(_: Context, payload: Value) -> Result<Value, RunError> {
    match payload.as_str() {
        Some("deep") => Ok(nested(128)),
        Some("long") => Ok("a".repeat(5 << 20).into()),
        Some("long error") => Err(RunError::permanent("a".repeat(5 << 20))),
        _ => Ok(payload),
    }
}

impl Fixture {
    async fn answering_node(&self) -> Scheduler {
        self.start(self.builder().handler_named("answer", answer))
            .await
    }

    async fn execute_sql(&self, text: &str) {
        self.client
            .batch_execute(&text.replace('@', &format!("{}.", self.schema)))
            .await
            .unwrap();
    }
}

/// With these payloads, the tasks of the nodes would panic one after the other.
#[tokio::test]
async fn payload_that_cannot_be_read_fails_its_run_only() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let deep = "[".repeat(5_000) + &"]".repeat(5_000);
    let number = format!("{{\"n\": 1{}}}", "0".repeat(400));
    for (stored, shown, error) in [
        (deep.as_str(), deep.as_str(), "recursion limit exceeded"),
        ("{\"n\": 1e400}", &number, "out of range"),
    ] {
        let job = NewJob::named("answer", Value::Null)
            .retries(5, MS, MS)
            .after(LATER);
        let job = fixture.enqueue(job).await;
        fixture
            .execute_sql(&format!(
                "UPDATE @job SET payload = '{stored}' WHERE id = {job}"
            ))
            .await;
        fixture.make_due(job).await;
        let neighbour = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
        let node = fixture.answering_node().await;
        let run = fixture.until_state(job, RunState::Failed).await;
        let found = run.error.unwrap();
        assert!(
            found.starts_with("the handler cannot read the payload: ") && found.contains(error),
            "{found}"
        );
        assert_eq!((run.attempt, run.interrupted), (1, 0));
        assert_eq!(fixture.until_done(neighbour, 1).await[0].node, run.node);
        shut_down(node).await;
        assert_eq!(fixture.job(job).await.payload, json!(shown));
    }
}

#[tokio::test]
async fn output_that_cannot_be_read_is_shown_as_text() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.answering_node().await;
    let job = fixture.enqueue(NewJob::named("answer", json!(1))).await;
    let run = fixture.until_state(job, RunState::Done).await;
    fixture
        .execute_sql("UPDATE @run SET output = '1e400'")
        .await;
    assert_eq!(
        fixture.history(job).await[0].output,
        Some(format!("1{}", "0".repeat(400)).into())
    );
    assert_eq!(run.output, Some(json!(1)));
    shut_down(node).await;
}

/// The node could not read these rows.
#[tokio::test]
async fn times_that_cannot_be_read_are_not_stored() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let job = fixture
        .enqueue(NewJob::new(&Task::Succeed).after(LATER))
        .await;
    fixture.jobs.run_now(&fixture.client, job).await.unwrap();
    for column in ["due", "start_at", "misses_until", "started", "finished"] {
        for time in ["infinity", "-infinity", "9999-12-30 00:00:00+00"] {
            let update = format!("UPDATE {}.run SET {column} = '{time}'", fixture.schema);
            let error = fixture.client.batch_execute(&update).await.unwrap_err();
            assert_eq!(
                error.code().map(|code| code.code()),
                Some("23514"),
                "{column} {time}: {error}"
            );
        }
    }
    fixture
        .execute_sql("UPDATE @run SET started = '9999-12-29 23:59:59+00'")
        .await;
    assert!(fixture.history(job).await[0].started.is_some());
}

/// The constraints of the tables allow only names that the node knows. Without one of them, a node
/// that reads another name disables the job and goes on.
#[tokio::test]
async fn name_that_is_not_known_is_an_error() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let later = NewJob::new(&Task::Succeed).after(LATER);
    let job = fixture.enqueue(later).await;
    let update = "UPDATE @job SET misfire = 'perhaps'";
    let refused = update.replace('@', &format!("{}.", fixture.schema));
    let error = fixture.client.batch_execute(&refused).await.unwrap_err();
    assert_eq!(error.code().map(|code| code.code()), Some("23514"));
    let drop = "ALTER TABLE @job DROP CONSTRAINT job_misfire_check; ";
    fixture.execute_sql(&format!("{drop}{update}")).await;
    let reason = "misfire 'perhaps': must be one of skip, run once, run all";
    let error = fixture.jobs.get(&fixture.client, job).await.unwrap_err();
    assert!(error.to_string().ends_with(reason), "{error}");
    fixture.make_due(job).await;
    let node = fixture.node().await;
    let disabled = async || {
        let jobs = fixture.all_jobs().await;
        jobs[0].disabled_reason.as_deref() == Some(reason)
    };
    eventually(disabled).await;
    let neighbour = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    fixture.until_done(neighbour, 1).await;
    shut_down(node).await;
}

/// Otherwise the node could not store the next due time, nor anything else in the same transaction.
#[tokio::test]
async fn due_time_that_is_too_late_for_the_tables_does_not_stop_a_node() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let now: Timestamp = fixture
        .client
        .query_one("SELECT clock_timestamp()", &[])
        .await
        .unwrap()
        .get(0);
    let end: Timestamp = "9999-12-30T10:00:00Z".parse().unwrap();
    let seconds = end.duration_since(now).as_secs().unsigned_abs();
    let rare = fixture
        .enqueue(NewJob::new(&Task::Succeed).every(Duration::from_secs(seconds)))
        .await;
    assert_eq!(fixture.until_done(rare, 1).await[0].node, Some(1));
    shut_down(node).await;
}

#[tokio::test]
async fn output_that_could_not_be_read_or_is_too_long_is_a_failure_of_its_run() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.answering_node().await;
    for (kind, error) in [
        (
            "deep",
            "the output could not be read again: recursion limit exceeded",
        ),
        (
            "long",
            "the output has 5242882 bytes of JSON: must be at most 4194304",
        ),
    ] {
        let job = NewJob::named("answer", json!(kind)).retries(5, MS, MS);
        let run = fixture
            .until_state(fixture.enqueue(job).await, RunState::Failed)
            .await;
        assert!(run.error.as_ref().unwrap().starts_with(error), "{run:?}");
        assert_eq!((run.attempt, run.node), (1, Some(1)));
    }
    let job = fixture
        .enqueue(NewJob::named("answer", json!("long error")))
        .await;
    let run = fixture.until_state(job, RunState::Failed).await;
    assert_eq!(run.error.unwrap(), "a".repeat(64 << 10) + " ...");
    shut_down(node).await;
}

#[tokio::test]
async fn payload_that_could_not_be_read_or_is_too_long_is_rejected() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    for (payload, reason) in [
        (
            nested(128),
            "the payload could not be read again: recursion limit exceeded",
        ),
        (
            "a".repeat(4 << 20).into(),
            "the payload has 4194306 bytes of JSON: must be at most 4194304",
        ),
    ] {
        let result = fixture
            .jobs
            .enqueue(&fixture.client, NewJob::named("answer", payload))
            .await;
        let Err(Error::Invalid(text)) = result else {
            panic!("{result:?}")
        };
        assert!(text.starts_with(reason), "{text}");
    }
    let node = fixture.answering_node().await;
    let job = fixture.enqueue(NewJob::named("answer", nested(127))).await;
    assert_eq!(
        fixture.until_done(job, 1).await[0].output,
        Some(nested(127))
    );
    shut_down(node).await;
}

/// All payloads together would not get through within the lease.
#[tokio::test]
async fn large_payloads_that_are_due_together_are_executed_once() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let mut jobs = Vec::new();
    for _ in 0..8 {
        let job = NewJob::named("answer", "a".repeat(3 << 20).into()).after(LATER);
        jobs.push(fixture.enqueue(job).await);
    }
    fixture
        .execute_sql("UPDATE @job SET next_run = clock_timestamp()")
        .await;
    let node = fixture.answering_node().await;
    for job in jobs {
        let run = &fixture.until_done(job, 1).await[0];
        assert_eq!((run.attempt, run.taken_over, run.node), (1, 0, Some(2)));
    }
    shut_down(node).await;
}

/// Of runs that are started together, as many as fit are read, and one in any case.
#[tokio::test]
async fn payloads_that_a_statement_reads_are_limited() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let mut runs = Vec::new();
    for size in [2_000_000, 2_000_000, 2_000_000, 10, 6_000_000] {
        let job = fixture
            .enqueue(NewJob::named("answer", Value::Null).after(LATER))
            .await;
        let update =
            format!("UPDATE @job SET payload = to_jsonb(repeat('a', {size})) WHERE id = {job}");
        fixture.execute_sql(&update).await;
        runs.push(
            fixture
                .jobs
                .run_now(&fixture.client, job)
                .await
                .unwrap()
                .unwrap(),
        );
    }
    fixture
        .execute_sql(
            "INSERT INTO @node (name, alive_until) VALUES ('test', clock_timestamp() + interval '1 hour');
            UPDATE @run SET owner = (SELECT max(id) FROM @node), state = 'claimed'",
        )
        .await;
    let start = format!(
        "SELECT id, state, octet_length(payload::text) FROM {0}.start_runs((SELECT max(id) FROM {0}.node), $1, \
         4000000) ORDER BY id",
        fixture.schema
    );
    let states = async |left: &[i64]| -> Vec<(String, Option<i32>)> {
        let rows = fixture.client.query(&start, &[&left]).await.unwrap();
        rows.iter().map(|row| (row.get(1), row.get(2))).collect()
    };
    let running = |size| ("running".to_owned(), Some(size));
    let postponed = ("postponed".to_owned(), None);
    // With its quotes, the second one does not fit.
    let [a, b, c] = [running(2_000_002), running(12), running(6_000_002)];
    let first = states(&runs).await;
    assert_eq!(
        first,
        [&a, &postponed, &postponed, &postponed, &postponed].map(Clone::clone)
    );
    let second = states(&runs[2..]).await;
    assert_eq!(second, [&a, &b, &postponed].map(Clone::clone));
    let third = states(&runs[4..]).await;
    assert_eq!(third, [c]);
}

/// With any writer: it might not get through within a lease, on any node.
#[tokio::test]
async fn payload_that_no_node_could_read_in_time_is_not_stored() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    fixture
        .enqueue(NewJob::new(&Task::Succeed).after(LATER))
        .await;
    let update = format!(
        "UPDATE {}.job SET payload = to_jsonb(repeat('a', $1))",
        fixture.schema
    );
    let limit = 16 << 20;
    fixture
        .client
        .execute(&update, &[&(limit - 2)])
        .await
        .unwrap();
    let error = fixture
        .client
        .execute(&update, &[&(limit - 1)])
        .await
        .unwrap_err();
    assert_eq!(
        error.as_db_error().and_then(|error| error.constraint()),
        Some("payload_too_large")
    );
}
