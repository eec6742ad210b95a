//! A database that is away, locked, or silent.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use hashed_wheel_trial::testing::server_or_skip;
use job_scheduler_trial::{Database, End};
use serde_json::Value;

use crate::fixture::{Fixture, Page, eventually, job};

#[test]
fn page_says_that_the_database_is_away_and_connects_again() {
    let Some(mut database) = server_or_skip(Database::start()) else {
        return;
    };
    let fixture = Fixture::at(database.url.clone(), "page".into());
    let page = fixture.serve(&[]);
    page.until("/", &["first"]);
    drop(fixture);
    database.restart(End::Kill).unwrap();
    eventually(|| page.get("/").status == 200, "the page connects again");
    drop(database);
    for path in ["/", "/jobs", "/jobs/1", "/runs/1", "/runs", "/find?job=1"] {
        let reply = page.get(path);
        assert!(
            reply.status == 503 && reply.body.contains("The database may be away"),
            "{path}: {reply:?}"
        );
        // Then a browser asks again.
        assert!(reply.body.contains("data-refresh"), "{path}: {reply:?}");
    }
    // It also starts before the database.
    let other = Page::start("postgresql://nobody@127.0.0.1:1/none", &["serve"]);
    assert_eq!(other.get("/").status, 503);
}

#[test]
fn schema_without_tables_is_named() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = Page::start(&fixture.url, &["--schema", "nothing", "serve"]);
    let reply = page.get("/");
    assert!(
        reply.status == 503 && reply.body.contains("No node has created the tables"),
        "{reply:?}"
    );
}

#[test]
fn change_of_a_locked_job_is_given_up() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    let id = fixture.enqueue(job(Value::Null).after(Duration::from_secs(7_200)));
    let form = page.form(&format!("/jobs/{id}"));
    fixture.execute(&format!(
        "BEGIN; SELECT FROM @job WHERE id = {id} FOR UPDATE"
    ));
    for action in ["pause", "delete", "run", "resume"] {
        let reply = page.post(&format!("/jobs/{id}/{action}"), &form);
        assert!(
            reply.status == 503 && reply.body.contains("Nothing was changed here."),
            "{action}: {reply:?}"
        );
    }
    fixture.execute("COMMIT");
    let found = fixture
        .wait(fixture.jobs.get(&fixture.client, id))
        .unwrap()
        .unwrap();
    assert!(found.enabled);
    assert_eq!(page.post(&format!("/jobs/{id}/pause"), &form).status, 303);
}

/// It accepts connections and never answers, as a server whose machine is overloaded.
#[test]
fn silent_database_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let page = Page::start(&format!("postgresql://nobody@{address}/none"), &["serve"]);
    let begin = Instant::now();
    let reply = page.get("/");
    let took = begin.elapsed();
    assert!(
        reply.status == 503 && reply.body.contains("did not answer within 10 seconds"),
        "{reply:?}"
    );
    assert!(took >= Duration::from_secs(10), "{took:?}");
}
