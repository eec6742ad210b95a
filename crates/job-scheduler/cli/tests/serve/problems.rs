//! A database that is away, locked, or silent.

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel_trial::process::Process;
use hashed_wheel_trial::testing::server_or_skip;
use job_scheduler_trial::{Database, End};
use serde_json::Value;
use tokio_postgres::Config;

use crate::fixture::{Fixture, Page, Reply, eventually, exchange, job};

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
        // A browser would load this address, where there is no page, and lose the reason.
        let refreshes = ["data-refresh", "http-equiv"];
        assert!(
            !refreshes.iter().any(|text| reply.body.contains(text)),
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
        reply.status == 503
            && reply
                .body
                .contains("share of 5 seconds. Nothing was changed."),
        "{reply:?}"
    );
    assert!(took >= Duration::from_secs(5), "{took:?}");

    let Some(fixture) = Fixture::new() else {
        return;
    };
    let port = fixture.url.parse::<Config>().unwrap().get_ports()[0];
    let url = format!("postgresql://postgres@{address},127.0.0.1:{port}/postgres");
    let page = Page::start(&url, &["--schema", &fixture.schema, "serve"]);
    let shown = page.get("/").body;
    assert!(shown.contains("first &lt;node&gt;"), "{shown}");
}

#[test]
fn request_without_a_connection_says_that_nothing_was_sent() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    let id = fixture.enqueue(job(Value::Null).after(Duration::from_secs(7_200)));
    let form = page.form(&format!("/jobs/{id}"));
    // Each request waits for three seconds, so the last ones find no connection for four.
    fixture.execute("BEGIN; LOCK TABLE @job IN ACCESS EXCLUSIVE MODE");
    let pause = || page.post(&format!("/jobs/{id}/pause"), &form);
    let replies: Vec<_> = thread::scope(|scope| {
        let requests: Vec<_> = (0..12).map(|_| scope.spawn(pause)).collect();
        let replies = requests.into_iter().map(|request| request.join().unwrap());
        replies.collect()
    });
    fixture.execute("COMMIT");
    let count = |text: &str| {
        let has_text = |reply: &&Reply| reply.status == 503 && reply.body.contains(text);
        replies.iter().filter(has_text).count()
    };
    let unsent = count("Nothing was sent to the database, and nothing was changed.");
    let locked = count("Nothing was changed here.");
    assert!(unsent > 0 && locked > 3, "{replies:?}");
    assert_eq!(unsent + locked, 12, "{replies:?}");
    assert_eq!(pause().status, 303);
}

#[test]
fn page_is_served_if_nobody_reads_the_output() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let mut command = Command::new(env!("CARGO_BIN_EXE_job-scheduler"));
    command.args(["--url", "postgresql://nobody@127.0.0.1:1/none", "serve"]);
    command.args(["--listen", &address]).stdout(Stdio::piped());
    let mut process = Process::start(&mut command).unwrap();
    drop(process.stdout.take());
    eventually(|| TcpStream::connect(&address).is_ok(), "it listens");
    let head = "GET /style.css HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(exchange(&address, head).status, 200);
}
