//! `docs/database.md`: its statements, roles with time limits, and a database that is restored.

use hashed_wheel_job_scheduler::{NewJob, RunState};
use hashed_wheel_trial::testing::server_or_skip;
use job_scheduler_trial::Database;
use serde_json::Value;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::fixture::{Fixture, MS, Task, connect, shut_down};

const PAGE: &str = include_str!("../../../docs/database.md");

/// Returns the statements of the page that are queries, or the others.
fn statements(schema: &str, are_queries: bool) -> Vec<String> {
    let blocks = PAGE
        .split("```sql\n")
        .skip(1)
        .map(|rest| rest.split_once("```").unwrap().0);
    let lines: Vec<_> = blocks
        .flat_map(str::lines)
        .filter(|line| !line.starts_with("--"))
        .collect();
    let text = lines
        .join("\n")
        .replace("job_scheduler", schema)
        .replace("ROLE node", "ROLE limited_node");
    let all = text.split(';').map(|statement| statement.trim().to_owned());
    all.filter(|text| !text.is_empty() && text.starts_with("SELECT") == are_queries)
        .collect()
}

/// Executes statements. Returns the first columns of all rows.
async fn execute(client: &Client, statements: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for statement in statements {
        let messages = client
            .simple_query(statement)
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        found.extend(messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }));
    }
    found
}

#[tokio::test]
async fn statements_of_the_page_find_what_they_promise_and_stop_a_copy() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    fixture
        .client
        .batch_execute("CREATE ROLE limited_node")
        .await
        .unwrap();
    let named = |name: &str| NewJob::named(name, Value::Null);
    let overdue = fixture.enqueue(named("overdue")).await;
    let waiting = fixture.enqueue(named("waits")).await;
    assert!(
        fixture
            .jobs
            .run_now(&fixture.client, waiting)
            .await
            .unwrap()
            .is_some()
    );
    let disabled = fixture.enqueue(named("disabled").key("why")).await;
    let schema = &fixture.schema;
    let prepare = format!(
        "UPDATE {schema}.job SET next_run = clock_timestamp() - interval '2 minutes' WHERE id = {overdue};
        UPDATE {schema}.run SET start_at = clock_timestamp() - interval '2 minutes' WHERE job = {waiting};
        UPDATE {schema}.job SET enabled = false, disabled_reason = 'why' WHERE id = {disabled};"
    );
    fixture.client.batch_execute(&prepare).await.unwrap();
    let queries = statements(schema, true);
    assert!(queries.len() > 7, "{queries:?}");
    let found = execute(&fixture.client, &queries).await;
    for expected in ["overdue", "waits", &disabled.to_string()] {
        assert!(
            found.iter().any(|value| value == expected),
            "{expected}: {found:?}"
        );
    }

    let succeeds = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    let mut changes = statements(schema, false);
    let timeout = "idle_session_timeout";
    let text = "SELECT EXISTS (SELECT FROM pg_settings WHERE name = $1)";
    let row = fixture.client.query_one(text, &[&timeout]).await.unwrap();
    // Before PostgreSQL 14, there is nothing to leave off.
    changes.retain(|change| row.get(0) || !change.contains(timeout));
    execute(&fixture.client, &changes).await;
    let node = fixture.node().await;
    let after = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    fixture.until_done(after, 1).await;
    assert!(fixture.history(succeeds).await.is_empty());
    assert_eq!(fixture.history(waiting).await[0].state, RunState::Cancelled);
    shut_down(node).await;
}

#[tokio::test]
async fn limits_of_roles_do_not_apply_to_nodes() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let role = "
        CREATE ROLE hurried LOGIN SUPERUSER;
        ALTER ROLE hurried SET statement_timeout = '1ms';
        ALTER ROLE hurried SET idle_in_transaction_session_timeout = '1ms';
        ALTER ROLE hurried SET default_transaction_isolation = 'serializable';
        ALTER ROLE hurried SET enable_indexscan = off;";
    fixture.client.batch_execute(role).await.unwrap();
    let mut config = fixture.config.clone();
    config.user("hurried");
    let client = connect(&config).await;
    assert!(client.batch_execute("SELECT pg_sleep(0.1)").await.is_err());
    let node = fixture.builder().start(config, NoTls).await.unwrap();
    for _ in 0..20 {
        let job = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
        fixture.until_done(job, 1).await;
    }
    assert_eq!(fixture.jobs.nodes(&fixture.client).await.unwrap().len(), 1);
    assert_eq!(node.health().last_error, None);
    shut_down(node).await;
}

#[tokio::test]
async fn restored_database_continues_with_what_was_executing() {
    // In a thread without a runtime, because it uses a blocking client.
    let start = || {
        std::thread::scope(|scope| {
            scope
                .spawn(|| server_or_skip(Database::start()))
                .join()
                .unwrap()
        })
    };
    let Some(database) = start() else { return };
    let config: tokio_postgres::Config = database.url.parse().unwrap();
    let original = Fixture::at(config.clone(), "jobs").await;
    let node = original.start(original.mortal()).await;
    let done = original.enqueue(NewJob::new(&Task::Succeed)).await;
    original.until_done(done, 1).await;
    let executing = original.enqueue(NewJob::new(&Task::HangOnce)).await;
    original.until_state(executing, RunState::Running).await;
    let later = original
        .enqueue(NewJob::new(&Task::Succeed).after(MS * 1_000))
        .await;
    let dump = database.dump("jobs").unwrap();
    drop(node);

    original
        .client
        .batch_execute("CREATE DATABASE restored")
        .await
        .unwrap();
    let mut config = config;
    let restored = Fixture::at(config.dbname("restored").clone(), "jobs").await;
    connect(&config).await.batch_execute(&dump).await.unwrap();
    let node = restored.node().await;
    let run = restored.until_done(executing, 1).await.remove(0);
    assert_eq!((run.attempt, run.interrupted), (2, 1));
    restored.until_done(later, 1).await;
    assert_eq!(restored.history(done).await[0].attempt, 1);
    let new = restored.enqueue(NewJob::new(&Task::Succeed)).await;
    assert!(new > later);
    restored.until_done(new, 1).await;
    shut_down(node).await;
}
