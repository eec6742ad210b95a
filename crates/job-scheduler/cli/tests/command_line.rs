//! Runs the command line as a user would.

use std::process::Command;
use std::time::Duration;

use hashed_wheel_job_scheduler::{Error, KindLimits, NewJob, RunError, RunFilter, Scheduler};
use hashed_wheel_trial::testing::{RunResult, run_command, server_or_skip};
use job_scheduler_trial::{Certificate, Database};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_postgres::{Config, NoTls};

fn run(database: &Database, arguments: &str) -> RunResult {
    let mut command = Command::new(env!("CARGO_BIN_EXE_job-scheduler"));
    run_command(
        command
            .args(["--url", &database.url])
            .args(arguments.split(' ')),
    )
}

async fn enqueue(config: Config) -> Result<(), Error> {
    let node = Scheduler::builder().start(config.clone(), NoTls).await?;
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    let job = NewJob::named("report", json!({ "department": 7 }))
        .cron("0 30 3 * * *")
        .key("k");
    node.jobs().enqueue(&client, job).await?;
    node.shutdown(Duration::ZERO).await
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn jobs_are_listed_shown_run_and_changed() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    runtime().block_on(enqueue(config)).unwrap();
    let run = |arguments: &str| run(&database, arguments);
    for (arguments, status, text) in [
        ("list", 0, "cron 0 30 3 * * *"),
        ("show 1", 0, "payload    {\"department\":7}"),
        ("run 1", 0, "run 1"),
        ("history 1", 0, "waiting"),
        ("disable 1", 0, ""),
        ("list", 0, "paused"),
        ("history 1", 0, "cancelled"),
        ("cancel 1", 3, "the run has ended"),
        ("retry 1", 0, ""),
        ("history 1", 0, "waiting"),
        ("cancel 1", 0, ""),
        ("retry 2", 3, "there is no such run"),
        ("cancel 2", 3, "there is no such run"),
        ("enable 1", 0, ""),
        ("list", 0, "scheduled"),
        ("limit-kind report --running 5", 0, ""),
        ("limits", 0, "       5           any       1  report"),
        ("limit-kind report --rate 100/1s --burst 10", 0, ""),
        ("limits", 0, "     any          10ms      10  report"),
        ("limit-kind report --rate 100", 2, "must be like '100/1s'"),
        (
            "limit-kind report --running 0",
            1,
            "running runs of 0: must be from 1 to 1000",
        ),
        ("limit-kind report", 0, ""),
        ("limit-name bank --running 7", 0, ""),
        ("limits", 0, "       7  bank"),
        (
            "limit-name bank --running 0",
            1,
            "limit 'bank' of 0: must be from 1 to 1000",
        ),
        ("limit-name bank", 0, ""),
        // There are no others.
        ("limits", 0, "RUNNING  NAME\n"),
        ("nodes", 0, ""),
        ("delete 1", 0, ""),
        ("show 1", 3, "there is no such job"),
        ("history 1", 3, "there is no such job"),
        ("--schema No list", 1, "'No' is no name for a schema"),
        ("--schema nothing list", 1, "does not exist"),
        ("shout 1", 2, "unrecognized subcommand"),
    ] {
        let RunResult {
            status: found,
            text: shown,
        } = run(arguments);
        assert_eq!(found, Some(status), "{arguments}: {shown}");
        assert!(shown.contains(text), "{arguments}: {shown}");
    }
}

#[test]
fn nodes_are_listed_with_their_kinds() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    let handler = |_, _: Value| async { Ok::<_, RunError>(()) };
    let builder = Scheduler::builder().name("printer");
    let builder = builder
        .handler_named("mail", handler)
        .handler_named("print", handler);
    let runtime = runtime();
    let node = runtime.block_on(builder.start(config, NoTls)).unwrap();
    let RunResult { text, .. } = run(&database, "nodes");
    assert!(text.contains("  NAME  KINDS\n"), "{text}");
    assert!(text.ends_with("  printer  mail, print\n"), "{text}");
    runtime.block_on(node.shutdown(Duration::ZERO)).unwrap();
}

/// Text in the database, which another user may have written.
#[test]
fn nothing_in_the_database_controls_the_terminal() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    let text: &'static str = "\u{1b}[2Jred\u{7}\r\nJOB 7";
    runtime().block_on(async {
        let handler = move |_, _: Value| async move { Err::<(), _>(RunError::permanent(text)) };
        let node = Scheduler::builder()
            .name(text)
            .handler_named(text, handler)
            .start(config.clone(), NoTls)
            .await
            .unwrap();
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        let job = NewJob::named(text, json!(text)).key(text).limit(text, 3);
        node.jobs().enqueue(&client, job).await.unwrap();
        let later = NewJob::named(text, json!(text)).after(Duration::from_secs(3));
        node.jobs().enqueue(&client, later).await.unwrap();
        node.jobs().set_limit(&client, text, Some(3)).await.unwrap();
        let limits = KindLimits::new().running(3);
        node.jobs().set_kind(&client, text, limits).await.unwrap();
        while node
            .jobs()
            .history(&client, 1, 1)
            .await
            .unwrap()
            .iter()
            .all(|run| run.error.is_none())
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        client
            .execute(
                "UPDATE job_scheduler.job SET disabled_reason = $1 WHERE id = 1",
                &[&text],
            )
            .await
            .unwrap();
        drop(node);
    });
    for arguments in ["list", "show 1", "history 1", "limits", "nodes", "runs"] {
        let RunResult { status, text } = run(&database, arguments);
        assert_eq!(status, Some(0), "{arguments}: {text}");
        let lines = text.lines().filter(|line| line.contains("JOB 7")).count();
        assert!(lines > 0, "{arguments}: {text}");
        let shown = r"\u{1b}[2Jred\u{7}\r\nJOB 7";
        assert!(
            text.matches(shown).count() >= lines || arguments == "show 1",
            "{arguments}: {text}"
        );
        let is_control = |character: char| character.is_control() && character != '\n';
        assert!(!text.contains(is_control), "{arguments}: {text:?}");
        assert!(!text.contains("\nJOB 7"), "{arguments}: {text}");
    }
    let RunResult { text, .. } = run(&database, "--schema \u{1b}x list");
    assert!(text.contains(r"'\u{1b}x' is no name"), "{text}");
}

#[test]
fn certificate_of_the_server_is_checked() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let Some(certificate) = server_or_skip(Certificate::new("command_line_tls")) else {
        return;
    };
    certificate.install(&database.url).unwrap();
    let config: Config = database.url.parse().unwrap();
    runtime().block_on(enqueue(config.clone())).unwrap();
    let port = config.get_ports()[0];
    let list = |host: &str, authority: &str| {
        let url = format!(
            "postgresql://postgres@{host}:{port}/postgres?sslmode=require&hostaddr=127.0.0.1"
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_job-scheduler"));
        run_command(
            command
                .args(["--url", &url, "list"])
                .env("SSL_CERT_FILE", authority),
        )
    };
    let authority = certificate.authority();
    let RunResult { status, text } = list("localhost", authority.to_str().unwrap());
    assert!(
        status == Some(0) && text.contains("cron 0 30 3 * * *"),
        "{text}"
    );
    let other = Certificate::new("command_line_other_tls").unwrap();
    for (host, authority, why) in [
        ("localhost", other.authority(), "invalid peer certificate: "),
        ("example.com", authority, "not valid for name"),
    ] {
        let RunResult { status, text } = list(host, authority.to_str().unwrap());
        assert!(status == Some(1) && text.contains(why), "{text}");
    }
}

#[test]
fn documents_that_cannot_be_read_are_shown_as_text() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    let runtime = runtime();
    runtime.block_on(enqueue(config.clone())).unwrap();
    let run = |arguments: &str| run(&database, arguments);
    run("run 1");
    let store = "UPDATE job_scheduler.job SET payload = '{\"n\": 1e400}'; UPDATE job_scheduler.run SET output = '[1e400]'";
    let stored: Result<_, tokio_postgres::Error> = runtime.block_on(async {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(store).await
    });
    stored.unwrap();
    for (arguments, text) in [
        ("list", "report"),
        ("show 1", "{\\\"n\\\": 1000"),
        ("history 1", "[1000"),
    ] {
        let RunResult {
            status,
            text: shown,
        } = run(arguments);
        assert_eq!(status, Some(0), "{arguments}: {shown}");
        assert!(shown.contains(text), "{arguments}: {shown}");
    }
}

/// An operator finds the failed runs of a tenant since midnight, sees why, repeats them, raises a
/// limit, and sees the nodes.
#[test]
fn failed_runs_of_a_tenant_are_found_and_repeated() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    runtime().block_on(async {
        let fail = |_, _: Value| async { Err::<(), _>(RunError::permanent("no paper")) };
        let node = Scheduler::builder().handler_named("print", fail);
        let node = node.start(config.clone(), NoTls).await.unwrap();
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        for key in ["tenant-7/a", "tenant-7/b", "tenant-8/a"] {
            let job = NewJob::named("print", Value::Null)
                .key(key)
                .limit("printer", 1);
            node.jobs().enqueue(&client, job).await.unwrap();
        }
        let failed = async || {
            let filter = RunFilter::default();
            let page = node.jobs().search_runs(&client, &filter, None, 10).await;
            page.unwrap().runs.len()
        };
        while failed().await < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        node.shutdown(Duration::ZERO).await.unwrap();
    });
    for (arguments, status, text) in [
        (
            "runs key=tenant-7/ since=24h",
            0,
            "print  tenant-7/a  no paper",
        ),
        ("runs key=tenant-8/ since=24h --limit 1", 0, "tenant-8/a"),
        ("runs error=PAPER until=24h", 0, ""),
        (
            "runs key=tenant-7/ --retry 3",
            1,
            "the filter matches 2 runs, not 3: nothing is changed",
        ),
        (
            "runs key=tenant-7/ --cancel 2",
            1,
            "only 0 of them can be changed",
        ),
        ("runs key=tenant-7/ --retry 2", 0, ""),
        ("runs key=tenant-7/ --retry 0", 0, ""),
        ("runs state=waiting limit=printer --cancel 2", 0, ""),
        ("runs state=cancelled --delete 2", 0, ""),
        (
            "runs state=odd",
            1,
            "'state' must be one of waiting, claimed",
        ),
        ("runs color=red", 2, "must be like 'kind=mail'"),
        ("runs since=midnight", 1, "must be like 2026-01-31"),
        ("limit-name printer --running 4", 0, ""),
        ("limits", 0, "       4  printer"),
        ("nodes", 0, "      0        1       1  "),
    ] {
        let RunResult {
            status: found,
            text: shown,
        } = run(&database, arguments);
        assert_eq!(found, Some(status), "{arguments}: {shown}");
        assert!(shown.contains(text), "{arguments}: {shown}");
    }
    let RunResult { text, .. } = run(&database, "runs");
    assert!(
        text.contains("tenant-8/a") && !text.contains("tenant-7/"),
        "{text}"
    );
}
