//! A database that is away, locked, or silent.

use std::io::Write;
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
    let is_silent = |page: &str, limit: &str| {
        let why = format!("the database did not answer within {limit}");
        page.contains(&why) && page.contains("Nothing was changed.")
    };
    assert!(
        reply.status == 503 && is_silent(&reply.body, "5.0s"),
        "{reply:?}"
    );
    assert!(took >= Duration::from_secs(5), "{took:?}");
    let url = format!("postgresql://nobody@{address}/none?connect_timeout=1");
    let shown = Page::start(&url, &["serve"]).get("/").body;
    assert!(is_silent(&shown, "1.0s"), "{shown}");

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

/// Lets each cancellation of a run take as many tenths of a second as its number.
fn slow_down(fixture: &Fixture) {
    fixture.execute(
        "CREATE SEQUENCE @calls;
        CREATE OR REPLACE FUNCTION @cancel_run(the_run bigint) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
            PERFORM nextval('@calls'), pg_sleep(the_run / 10.0);
            RETURN 'cancelled';
        END $$",
    );
}

/// A user loads a slow page again and again.
#[test]
fn requests_that_nobody_waits_for_are_ended() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    let id = fixture.enqueue(job(Value::Null).after(Duration::from_secs(7_200)));
    let form = page.form(&format!("/jobs/{id}"));
    slow_down(&fixture);
    let number = |text: &str| -> i64 {
        let text = text.replace('@', &format!("{}.", fixture.schema));
        let row = fixture.wait(fixture.client.query_one(&text, &[]));
        row.unwrap().try_get(0).unwrap()
    };
    let calls = || number("SELECT last_value + CASE WHEN is_called THEN 0 ELSE -1 END FROM @calls");
    let active = || {
        let text = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%\"@%cancel_run%'
            AND pid <> pg_backend_pid()";
        let schema = format!("\"{}\".", fixture.schema);
        number(&text.replace("\"@", &schema))
    };
    let request = format!(
        "POST /runs/70/cancel HTTP/1.1\r\nHost: {}\r\nSec-Fetch-Site: same-origin\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        page.address,
        form.len()
    );
    let begin = Instant::now();
    for count in 1..=7 {
        let mut stream = TcpStream::connect(&page.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        eventually(|| calls() >= count, "the statement begins");
        drop(stream);
        assert!(active() <= 4, "{} statements at a time", active());
    }
    eventually(|| active() == 0, "the last one is ended");
    // The first ones would have ended by themselves after seven seconds.
    assert!(
        begin.elapsed() < Duration::from_secs(6),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(page.get("/").status, 200);
}

/// It waits for others for as long as it may, and then for its statement.
#[test]
fn request_that_has_waited_for_others_has_the_whole_time_of_a_statement() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    let id = fixture.enqueue(job(Value::Null).after(Duration::from_secs(7_200)));
    let form = page.form(&format!("/jobs/{id}"));
    slow_down(&fixture);
    let cancel = |run: u32| page.post(&format!("/runs/{run}/cancel"), &form);
    let (reply, took) = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(cancel(35).status, 303));
        }
        thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        (cancel(74), begin.elapsed())
    });
    assert_eq!(reply.status, 303, "{reply:?}");
    assert!(took > Duration::from_secs(10), "{took:?}");
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
