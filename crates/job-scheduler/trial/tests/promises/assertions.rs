//! Helpers for the tests of applications.

use hashed_wheel_job_scheduler::NewJob;
use hashed_wheel_job_scheduler::testing::Wanted;
use serde_json::json;
use sqlx::Connection;

use crate::fixture::{Fixture, Task, connect};

/// Returns the message of the panic.
async fn message(assertion: impl Future<Output = ()> + Send + 'static) -> String {
    let panic = tokio::spawn(assertion).await.unwrap_err().into_panic();
    *panic.downcast::<String>().expect("a message")
}

#[tokio::test]
async fn job_is_found_by_its_parts_in_its_transaction() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let mut client = connect(&fixture.config).await;
    fixture.jobs.migrate(&mut client).await.unwrap();
    let jobs = &fixture.jobs;
    let transaction = client.transaction().await.unwrap();
    let mail = NewJob::named("mail", json!({ "to": "you", "cc": ["a", "b"], "text": "" })).key("m");
    let mail = jobs.enqueue(&transaction, mail).await.unwrap().job;
    let task = jobs
        .enqueue(&transaction, NewJob::new(&Task::Succeed))
        .await
        .unwrap()
        .job;
    for wanted in [
        Wanted::named("mail"),
        Wanted::named("mail").key("m"),
        Wanted::named("mail").payload(json!({ "to": "you" })),
        Wanted::named("mail")
            .key("m")
            .payload(json!({ "cc": ["b"] })),
    ] {
        assert_eq!(wanted.assert_enqueued(jobs, &transaction).await, mail);
    }
    assert_eq!(
        Wanted::of::<Task>()
            .payload(json!("Succeed"))
            .assert_enqueued(jobs, &transaction)
            .await,
        task
    );
    for wanted in [
        Wanted::named("mai"),
        Wanted::named("mail").key("n"),
        Wanted::of::<Task>().key("m"),
        Wanted::named("mail").payload(json!({ "to": "me" })),
        Wanted::of::<Task>().payload(json!(null)),
    ] {
        wanted.assert_not_enqueued(jobs, &transaction).await;
        assert!(wanted.find(jobs, &transaction).await.unwrap().is_empty());
    }
    assert_eq!(
        Wanted::named("mail")
            .find(jobs, &transaction)
            .await
            .unwrap(),
        [mail]
    );
    // Others do not see it.
    Wanted::named("mail")
        .assert_not_enqueued(jobs, &fixture.client)
        .await;
}

#[tokio::test]
async fn failed_assertion_lists_the_jobs() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture
        .jobs
        .migrate(&mut connect(&fixture.config).await)
        .await
        .unwrap();
    let jobs = fixture.jobs.clone();
    let mut connection = sqlx::PgConnection::connect(&fixture.url()).await.unwrap();
    let wanted = Wanted::named("mail")
        .key("m")
        .payload(json!({ "to": "me" }));
    let found = message({
        let (jobs, wanted) = (jobs.clone(), wanted.clone());
        async move { _ = wanted.assert_enqueued(&jobs, &mut connection).await }
    });
    assert_eq!(
        found.await,
        "a job for 'mail' with the key 'm' whose payload contains {\"to\":\"me\"} was not enqueued.\nThere are no jobs."
    );
    let client = connect(&fixture.config).await;
    jobs.enqueue(
        &client,
        NewJob::named("mail", json!({ "to": "you" })).key("n"),
    )
    .await
    .unwrap();
    jobs.enqueue(&client, NewJob::new(&Task::Succeed))
        .await
        .unwrap();
    let found = message(async move { _ = wanted.assert_enqueued(&jobs, &client).await }).await;
    let lines: Vec<_> = found.lines().collect();
    assert!(
        lines[2].starts_with("job 1: mail, key n, once, due 2"),
        "{found}"
    );
    assert!(
        lines[2].ends_with("payload {\"to\": \"you\"}") && lines.len() == 4,
        "{found}"
    );
    let (client, jobs) = (connect(&fixture.config).await, fixture.jobs.clone());
    let found = message(async move {
        Wanted::named("mail")
            .assert_not_enqueued(&jobs, &client)
            .await
    })
    .await;
    assert!(
        found.starts_with("a job for 'mail' was enqueued: [1].\nThere are:\njob 1: mail"),
        "{found}"
    );
}
