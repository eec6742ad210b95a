//! Runs the command line as a user would.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

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

/// Executes statements in the schema of [`enqueue`].
fn execute(database: &Database, statements: &str) {
    let config: Config = database.url.parse().unwrap();
    let statements = format!("SET search_path = job_scheduler; {statements}");
    let executed: Result<_, tokio_postgres::Error> = runtime().block_on(async {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(&statements).await
    });
    executed.unwrap();
}

/// Asserts the status of each command, and a part of what it prints.
fn assert_shown(database: &Database, commands: &[(&str, i32, &str)]) {
    for (arguments, status, text) in commands {
        let RunResult {
            status: found,
            text: shown,
        } = run(database, arguments);
        assert_eq!(found, Some(*status), "{arguments}: {shown}");
        assert!(shown.contains(text), "{arguments}: {shown}");
    }
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
    let commands = [
        ("list", 0, "cron 0 30 3 * * *"),
        // No run has ended.
        ("list", 0, "  report                    -          2"),
        ("show 1", 0, "payload    {\"department\":7}"),
        ("run 1", 0, "run 1"),
        ("history 1", 0, "waiting"),
        ("disable 1", 0, ""),
        ("list", 0, "paused"),
        ("history 1", 0, "cancelled"),
        ("list", 0, "  report                    cancelled  2"),
        ("list", 0, "Z  k\n"),
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
        ("limit-kind report --burst 5", 2, "--rate <N/PERIOD>"),
        ("limits", 0, "     any          10ms      10  report"),
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
    ];
    assert_shown(&database, &commands);
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
    runtime().block_on(enqueue(config)).unwrap();
    run(&database, "run 1");
    execute(
        &database,
        "UPDATE job SET payload = '{\"n\": 1e400}'; UPDATE run SET output = '[1e400]'",
    );
    let commands = [
        ("list", 0, "report"),
        ("show 1", 0, "{\\\"n\\\": 1000"),
        ("history 1", 0, "[1000"),
    ];
    assert_shown(&database, &commands);
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
    let commands = [
        (
            "runs key=tenant-7/ since=24h",
            0,
            "print  tenant-7/a  no paper",
        ),
        ("runs since=24h --limit 1", 0, "\nmatching: 3 runs\n"),
        ("history 1", 0, "  attempt 1 failed on node 1 after "),
        ("history 1", 0, ": no paper\n"),
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
        ("runs key=tenant-7/ --retry 2", 0, "changed: 2 runs of 2\n"),
        ("runs key=tenant-7/ --retry 0", 0, ""),
        ("runs state=waiting limit=printer", 0, "matching: 2 runs\n"),
        ("runs state=waiting limit=printer --cancel 2", 0, ""),
        ("runs state=cancelled --delete 2", 0, ""),
        (
            "runs state=odd",
            1,
            "'state' must be one of waiting, claimed",
        ),
        ("runs color=red", 2, "must be like 'kind=mail'"),
        ("runs key=", 2, "must have a text after 'key='"),
        (
            "runs kind=print state=failed kind=mail",
            1,
            "'kind=' is given twice",
        ),
        ("runs since=midnight", 1, "must be like 2026-01-31"),
        ("runs --help", 0, "(`2026-01-31` in UTC,"),
        ("runs --help", 0, "no further due time and no other run"),
        ("--help", 0, "or that the run has ended"),
        ("limit-name printer --running 4", 0, ""),
        ("limits", 0, "       4  printer"),
        ("nodes", 0, "      0        1       1  "),
    ];
    assert_shown(&database, &commands);
    let RunResult { text, .. } = run(&database, "runs");
    assert!(
        text.contains("tenant-8/a") && !text.contains("tenant-7/"),
        "{text}"
    );
}

#[test]
fn changes_examine_as_many_runs_as_the_list() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    runtime().block_on(enqueue(config)).unwrap();
    execute(
        &database,
        "INSERT INTO run (job, handler, due, start_at, state, finished)
        SELECT 1, 'report', time, time, CASE WHEN n > 10500 THEN 'cancelled' ELSE 'done' END, time
        FROM generate_series(1, 10505) AS n, LATERAL (SELECT now() - n * interval '1 s' AS time) AS x;
        INSERT INTO run (job, handler, due, start_at, state)
        SELECT 1, 'report', time, time, 'waiting'
        FROM generate_series(20001, 30000) AS n, LATERAL (SELECT now() - n * interval '1 s' AS time) AS x;",
    );
    let commands = [
        ("runs state=cancelled", 0, "matching: 5 runs\n"),
        (
            "runs state=cancelled --delete 4",
            1,
            "matches 5 runs, not 4",
        ),
        (
            "runs state=cancelled --delete 5",
            0,
            "changed: 5 runs of 5\n",
        ),
        (
            "runs state=done --limit 1",
            0,
            "more than 10000 runs match: narrow the filter",
        ),
        (
            "runs state=done --delete 10000",
            1,
            "more than 10000 runs match: narrow the filter, as by since= or until=. Nothing is changed",
        ),
        (
            "runs state=waiting key=other",
            0,
            "only 10000 runs were examined, and others may match",
        ),
        (
            "runs state=waiting key=other --cancel 0",
            1,
            "narrow the filter by kind=, since= or until=. Nothing is changed",
        ),
        ("runs state=waiting kind=other --cancel 0", 0, ""),
        ("runs state=done", 0, "more than 10000 runs match"),
    ];
    assert_shown(&database, &commands);
}

/// Cancels runs of which one has ended when they are changed.
#[test]
fn runs_that_end_meanwhile_are_left_out_of_a_cancellation() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    runtime().block_on(enqueue(config)).unwrap();
    for _ in 0..3 {
        run(&database, "run 1");
    }
    // Called for each run, in the order of their numbers.
    execute(
        &database,
        "ALTER FUNCTION cancel_run(bigint) RENAME TO cancel_as_before;
        CREATE FUNCTION cancel_run(the_run bigint) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
            UPDATE job_scheduler.run SET state = 'done', finished = now() WHERE id = 2;
            RETURN job_scheduler.cancel_as_before(the_run);
        END $$",
    );
    let commands = [
        ("runs state=waiting --cancel 3", 0, "changed: 2 runs of 3\n"),
        ("runs state=done", 0, "matching: 1 run\n"),
        ("runs state=cancelled", 0, "matching: 2 runs\n"),
        ("runs state=done --cancel 1", 1, "only 0 of them"),
    ];
    assert_shown(&database, &commands);
}

/// A node starts one of three runs after the command has found them, and before it has locked them.
#[test]
fn runs_that_start_meanwhile_are_left_out_of_a_cancellation() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    runtime().block_on(enqueue(config.clone())).unwrap();
    for _ in 0..3 {
        run(&database, "run 1");
    }
    let start = async || {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        let start = "BEGIN; UPDATE job_scheduler.run SET state = 'running', owner = 1 WHERE id = 2";
        client.batch_execute(start).await?;
        let waits = "SELECT FROM pg_locks WHERE NOT granted";
        while client.query(waits, &[]).await?.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        client.batch_execute("COMMIT").await
    };
    let starting = runtime();
    let cancelled = thread::scope(|scope| {
        let starting = scope.spawn(|| starting.block_on(start()));
        let is_started = "SELECT FROM pg_stat_activity WHERE state = 'idle in transaction'";
        let is_started = async {
            let (client, connection) = config.connect(NoTls).await?;
            tokio::spawn(connection);
            while client.query(is_started, &[]).await?.is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok::<_, tokio_postgres::Error>(())
        };
        runtime().block_on(is_started).unwrap();
        let cancelled = run(&database, "runs state=waiting --cancel 3");
        starting.join().unwrap().unwrap();
        cancelled
    });
    let text = cancelled.text;
    assert_eq!(text, "changed: 2 runs of 3\n");
    let commands = [
        ("runs state=running", 0, ""),
        ("runs state=cancelled", 0, "matching: 2 runs\n"),
    ];
    assert_shown(&database, &commands);
    execute(
        &database,
        "DO $$ BEGIN ASSERT NOT (SELECT is_cancelled FROM run WHERE id = 2); END $$",
    );
}

#[test]
fn output_that_nobody_reads_is_no_error() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    runtime().block_on(enqueue(config)).unwrap();
    for arguments in ["list", "limits", "run 1", "runs state=waiting --cancel 1"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_job-scheduler"));
        command.args(["--url", &database.url]);
        command.args(arguments.split(' ')).stderr(Stdio::piped());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        drop(process.stdout.take());
        let output = process.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*text), (Some(0), ""), "{arguments}");
    }
    assert_shown(&database, &[("history 1", 0, "cancelled")]);
}

#[test]
fn password_is_in_no_error() {
    for url in [
        "postgresql://user:secret@localhost/none?sslmode=verify-full",
        "postgresql://user:secret@localhost/none?secret=1",
        "postgresql:/user:secret@localhost/none?sslmode=require",
        "user:secret@localhost",
        "host=localhost password=a secret",
    ] {
        let program = || Command::new(env!("CARGO_BIN_EXE_job-scheduler"));
        for result in [
            run_command(program().args(["--url", url, "list"])),
            run_command(program().args(["serve"]).env("DATABASE_URL", url)),
        ] {
            let RunResult { status, text } = result;
            assert_eq!(status, Some(1), "{url}: {text}");
            assert!(text.contains("disable, prefer or require"), "{text}");
            assert!(!text.contains("secret"), "{text}");
            let is_named = text.contains("invalid value for option `sslmode`");
            assert_eq!(is_named, url.contains("verify-full"), "{text}");
        }
    }
}

#[test]
fn list_has_as_many_jobs_as_asked_for() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    runtime().block_on(enqueue(config)).unwrap();
    execute(
        &database,
        "INSERT INTO job (handler, payload, schedule, time_zone, jitter_us, misfire, overlap, retries,
            retry_first_us, retry_max_us, first_run)
        SELECT handler, payload, schedule, time_zone, 0, misfire, overlap, 0, 0, 0, first_run
        FROM job, generate_series(1, 20004)",
    );
    for (arguments, count, has_more) in [
        ("list", 100, true),
        ("list --limit 20000", 20_000, true),
        ("list --limit 20005", 20_005, false),
        ("list --limit 30000", 20_005, false),
        ("list --limit 30000 --after 20000", 5, false),
        ("list --limit 0", 0, true),
    ] {
        let RunResult { status, text } = run(&database, arguments);
        let jobs = text.matches("  cron 0 30 3 * * *  ").count();
        let note = format!("\nthere are more jobs: --after {count}\n");
        let found = (status, jobs, text.ends_with(&note));
        assert_eq!(found, (Some(0), count, has_more), "{arguments}");
    }
}

#[test]
fn limits_show_what_waits() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    runtime().block_on(enqueue(config)).unwrap();
    execute(
        &database,
        "INSERT INTO run (job, due, start_at, handler, state, blocked_on)
        SELECT 1, time, time, 'report', CASE WHEN name = '' THEN 'waiting' ELSE 'blocked' END, NULLIF(name, '')
        FROM unnest(ARRAY['', 'key bank', 'kind report', 'rate report', 'job 7']) WITH ORDINALITY AS name (name, n),
            LATERAL (SELECT '2026-01-31T00:00Z'::timestamptz + n * interval '1 hour' AS time) AS x;
        INSERT INTO slot (name, place, run) SELECT 'key bank', place, place FROM generate_series(1, 3) AS place;
        INSERT INTO run (job, due, start_at, handler, state, blocked_on)
        SELECT 1, due + n * interval '1 microsecond', due, handler, state, blocked_on
        FROM run, generate_series(1, 1000) AS n WHERE blocked_on = 'job 7'",
    );
    let RunResult { status, text } = run(&database, "limits");
    assert_eq!(status, Some(0), "{text}");
    for line in [
        " WAITING   RUNNING  FIRST                 WAITING FOR\n",
        "       1         0  2026-01-31T01:00:00Z  a node with the handler report\n",
        "       1         3  2026-01-31T02:00:00Z  the limit 'bank'\n",
        "       1         0  2026-01-31T03:00:00Z  the limit of the handler report\n",
        "       1         0  2026-01-31T04:00:00Z  the rate of the handler report\n",
        "   1000+         0  2026-01-31T05:00:00Z  another run of the job 7\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("there may be more"), "{text}");
    execute(
        &database,
        "UPDATE run SET blocked_on = 'job ' || id WHERE blocked_on = 'job 7'",
    );
    assert_shown(&database, &[("limits", 0, "there may be more: 100 names")]);
}

/// An application has locked a job, for longer than a command waits.
#[test]
fn command_does_not_wait_for_a_lock_without_an_end() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    let application = runtime();
    application.block_on(enqueue(config.clone())).unwrap();
    let locked = application.block_on(async {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        let lock = "BEGIN; SELECT FROM job_scheduler.job WHERE id = 1 FOR UPDATE";
        client.batch_execute(lock).await?;
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(40)).await;
            client.batch_execute("ROLLBACK").await
        });
        Ok::<_, tokio_postgres::Error>(())
    });
    locked.unwrap();
    for arguments in ["disable 1", "run 1"] {
        let begin = Instant::now();
        let RunResult { status, text } = run(&database, arguments);
        assert_eq!(status, Some(1), "{arguments}: {text}");
        let why = "another transaction has locked this and has not ended. Nothing was changed (";
        assert!(text.contains(why), "{arguments}: {text}");
        assert!(begin.elapsed() >= Duration::from_secs(5), "{arguments}");
    }
    drop(application);
    let commands = [("list", 0, "scheduled"), ("disable 1", 0, "")];
    assert_shown(&database, &commands);
}

/// It accepts connections and never answers, as a server whose disk hangs.
#[test]
fn silent_host_is_given_up_for_the_next_one() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let config: Config = database.url.parse().unwrap();
    runtime().block_on(enqueue(config.clone())).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let list = |hosts: &str| {
        let url = format!("postgresql://postgres@{hosts}/postgres?connect_timeout=1");
        let mut command = Command::new(env!("CARGO_BIN_EXE_job-scheduler"));
        run_command(command.args(["--url", &url, "list"]))
    };
    let port = config.get_ports()[0];
    let RunResult { status, text } = list(&format!("{silent},127.0.0.1:{port}"));
    assert!(status == Some(0) && text.contains("report"), "{text}");
    let RunResult { status, text } = list(&silent.to_string());
    let why = "the database did not answer within 1.0s";
    assert!(
        status == Some(1) && text.contains(&format!("{why}\n")),
        "{text}"
    );
    let RunResult { status, text } = list(&format!("{silent},{silent}"));
    let one = format!("127.0.0.1 port {}: {why}", silent.port());
    let all = format!("no host of the database can be used: {one}; {one}\n");
    assert!(status == Some(1) && text.contains(&all), "{text}");
}

/// It refuses options of the server, as `PgBouncer` does.
#[test]
fn pooler_gets_no_options() {
    let pooler = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "postgresql://postgres@{}/none",
        pooler.local_addr().unwrap()
    );
    let refusing = thread::spawn(move || -> io::Result<Vec<bool>> {
        let mut has_options = Vec::new();
        for why in ["unsupported startup parameter: options", "it is a test"] {
            let (mut client, _) = pooler.accept()?;
            let mut length = [0; 4];
            client.read_exact(&mut length)?;
            let mut message = vec![0; u32::from_be_bytes(length) as usize - 4];
            client.read_exact(&mut message)?;
            has_options.push(String::from_utf8_lossy(&message).contains("lock_timeout"));
            let reply = format!("SFATAL\0C08P01\0M{why}\0\0");
            client.write_all(b"E")?;
            client.write_all(&(reply.len() as u32 + 4).to_be_bytes())?;
            client.write_all(reply.as_bytes())?;
        }
        Ok(has_options)
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_job-scheduler"));
    let RunResult { status, text } = run_command(command.args(["--url", &url, "list"]));
    assert!(status == Some(1) && text.contains("it is a test"), "{text}");
    assert_eq!(refusing.join().unwrap().unwrap(), [true, false]);
}
