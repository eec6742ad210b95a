//! Runs the command line as a user would.

use std::env;
use std::io::{self, Write};
use std::process::Command;

use hashed_wheel_examples::server::Missing;
use hashed_wheel_examples::testing::{RunResult, run_command};
use hashed_wheel_job_scheduler::{NewJob, Scheduler};
use job_scheduler_trial::Database;
use serde_json::json;
use tokio_postgres::{Config, NoTls};

async fn enqueue(config: Config) -> Result<(), hashed_wheel_job_scheduler::Error> {
    let node = Scheduler::builder().start(config.clone(), NoTls).await?;
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    let job = NewJob::named("report", json!({ "department": 7 })).cron("0 30 3 * * *").key("k");
    node.jobs().enqueue(&client, job).await?;
    node.shutdown(std::time::Duration::ZERO).await
}

#[test]
fn jobs_are_listed_shown_run_and_changed() {
    let database = match Database::start() {
        Ok(database) => database,
        Err(error) if error.is::<Missing>() && env::var_os("EXAMPLES_NEED_SERVERS").is_none() => {
            // Not with `eprintln!`: the test harness hides its output in tests that pass.
            let _ = writeln!(io::stderr(), "\n{error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let config: Config = database.url.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(enqueue(config)).unwrap();
    let run = |arguments: &str| {
        let arguments = arguments.split(' ');
        run_command(
            Command::new(env!("CARGO_BIN_EXE_job-scheduler")).args(["--url", &database.url]).args(arguments),
        )
    };
    for (arguments, status, text) in [
        ("list", 0, "cron 0 30 3 * * *"),
        ("show 1", 0, "payload    {\"department\":7}"),
        ("run 1", 0, "run 1"),
        ("history 1", 0, "waiting"),
        ("disable 1", 0, ""),
        ("list", 0, "paused"),
        ("history 1", 0, "cancelled"),
        ("enable 1", 0, ""),
        ("list", 0, "enabled"),
        ("nodes", 0, ""),
        ("delete 1", 0, ""),
        ("show 1", 3, "there is no such job"),
        ("history 1", 3, "there is no such job"),
        ("--schema No list", 1, "'No' is no name for a schema"),
        ("--schema nothing list", 1, "does not exist"),
        ("shout 1", 2, "unrecognized subcommand"),
    ] {
        let RunResult { status: found, text: shown } = run(arguments);
        assert_eq!(found, Some(status), "{arguments}: {shown}");
        assert!(shown.contains(text), "{arguments}: {shown}");
    }
}
