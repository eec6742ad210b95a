//! Jobs from SQL, and the roles of applications and nodes. `docs/sql.md` has the statements.

use std::time::Duration;

use hashed_wheel_job_scheduler::jiff::Timestamp;
use hashed_wheel_job_scheduler::{Misfire, NewJob, Outcome, Overlap, RunState};
use serde_json::{Value, json};
use tokio_postgres::{Client, Config, NoTls};

use crate::fixture::{Fixture, MS, Task, connect, shut_down};

const PAGE: &str = include_str!("../../../docs/sql.md");

/// Returns a fixture with tables.
async fn new() -> Option<Fixture> {
    let fixture = Fixture::new().await?;
    fixture
        .jobs
        .migrate(&mut connect(&fixture.config).await)
        .await
        .unwrap();
    Some(fixture)
}

impl Fixture {
    /// Calls the function with these arguments. Returns the number of the job and the outcome.
    async fn add(
        &self,
        client: &Client,
        arguments: &str,
    ) -> Result<(i64, String), tokio_postgres::Error> {
        let text = format!(
            "SELECT job, outcome FROM {}.add_job({arguments})",
            self.schema
        );
        let row = client.query_one(&text, &[]).await?;
        Ok((row.get(0), row.get(1)))
    }

    /// Creates a role, and gives it the grants of the page with this name.
    async fn role(&self, page_name: &str, role: &str) -> Client {
        self.client
            .batch_execute(&format!("CREATE ROLE {role} LOGIN"))
            .await
            .unwrap();
        self.grant(page_name, role).await;
        connect(&self.config_of(role)).await
    }

    async fn grant(&self, page_name: &str, role: &str) {
        let marker = format!("<!-- {page_name} -->\n```sql\n");
        let (_, grants) = PAGE.split_once(&marker).expect("the page has the grants");
        let grants = grants.split_once("```").expect("the block ends").0;
        let grants = grants.replace("job_scheduler", &self.schema);
        let grants = grants.replace("TO application;", &format!("TO {role};"));
        self.client
            .batch_execute(&grants.replace("TO node;", &format!("TO {role};")))
            .await
            .unwrap();
    }

    fn config_of(&self, role: &str) -> Config {
        let mut config = self.config.clone();
        config.user(role);
        config
    }
}

/// Names, types and defaults are a promise. New arguments follow at the end.
#[tokio::test]
async fn function_has_these_arguments() {
    let Some(fixture) = new().await else { return };
    let text = "SELECT pg_get_function_arguments(oid), pg_get_function_result(oid) FROM pg_proc
        WHERE proname = 'add_job' AND pronamespace = $1::text::regnamespace";
    let row = fixture
        .client
        .query_one(text, &[&fixture.schema])
        .await
        .unwrap();
    let arguments = "kind text, payload jsonb DEFAULT 'null'::jsonb, due timestamp with time zone DEFAULT NULL::timestamp with time zone, \
        delay interval DEFAULT NULL::interval, key text DEFAULT NULL::text, every interval DEFAULT NULL::interval, \
        cron text DEFAULT NULL::text, time_zone text DEFAULT 'UTC'::text, replace_existing boolean DEFAULT false, \
        jitter interval DEFAULT '00:00:00'::interval, misfire text DEFAULT 'run once'::text, overlap text DEFAULT 'allow'::text, \
        retries integer DEFAULT 0, retry_first interval DEFAULT '00:00:00'::interval, \
        retry_max interval DEFAULT '00:00:00'::interval, timeout interval DEFAULT NULL::interval, \
        max_interruptions integer DEFAULT 10, notify boolean DEFAULT true, limits jsonb DEFAULT NULL::jsonb, priority integer DEFAULT 0";
    let found: &str = row.get(0);
    assert!(found.starts_with(arguments), "{found}");
    assert_eq!(row.get::<_, &str>(1), "TABLE(job bigint, outcome text)");
    for argument in found.split(", ").skip(20) {
        assert!(argument.contains(" DEFAULT "), "{argument}");
    }
}

/// A job from SQL and the same job from the library do not differ.
#[tokio::test]
async fn options_and_defaults_are_those_of_the_library() {
    let Some(fixture) = new().await else { return };
    let job = || NewJob::named("task", json!({ "a": [1, "b"] }));
    let time: Timestamp = "2090-02-03T04:05:06.789012Z".parse().unwrap();
    for (arguments, job) in [
        ("", job()),
        (", delay => '90 s'", job().after(MS * 90_000)),
        (", due => '2090-02-03 04:05:06.789012+00'", job().at(time)),
        (", every => '2 hours'", job().every(MS * 7_200_000)),
        (
            ", every => '1.5 s', delay => '1 day'",
            job().every(MS * 1_500).after(MS * 86_400_000),
        ),
        (
            ", every => '1001 us', due => '2090-02-03 04:05:06.789012Z'",
            job().every(Duration::from_micros(1_001)).at(time),
        ),
        (
            ", cron => ' 0 30 3  * * MON-FRI'",
            job().cron("0 30 3 * * MON-FRI"),
        ),
        (
            ", cron => '0 30 3 * * *', time_zone => 'Asia/Tokyo', delay => '1 hour'",
            job()
                .cron(" 0 30 3 * * *")
                .time_zone("Asia/Tokyo")
                .after(MS * 3_600_000),
        ),
        (
            ", cron => '0 30 3 * * *', due => '2090-02-03 04:05:06.789012Z'",
            job().cron("0 30 3 * * *").at(time),
        ),
        (
            ", jitter => '1 s', misfire => 'skip', overlap => 'wait', retries => 3, retry_first => '1 s', \
              retry_max => '1 min', timeout => '5 min', max_interruptions => 2, notify => false, \
              limits => '{\"a\": 2, \"b\": 1}', priority => -3",
            job()
                .jitter(MS * 1_000)
                .misfire(Misfire::Skip)
                .overlap(Overlap::Wait)
                .retries(3, MS * 1_000, MS * 60_000)
                .timeout(MS * 300_000)
                .max_interruptions(2)
                .limit("a", 2)
                .limit("b", 1)
                .priority(-3)
                .without_notification(),
        ),
    ] {
        let key = format!("k{}", arguments.len());
        let call = format!(
            "'task', '{{\"a\": [1, \"b\"]}}', key => '{key}', replace_existing => true{arguments}"
        );
        let added = fixture.add(&fixture.client, &call).await.unwrap();
        assert_eq!(added.1, "added", "{call}");
        let job = job.key(key).replace_existing();
        let found = fixture.jobs.enqueue(&fixture.client, job).await.unwrap();
        assert_eq!(
            (found.job, found.outcome),
            (added.0, Outcome::Found),
            "{arguments}"
        );
        assert_eq!(
            fixture.add(&fixture.client, &call).await.unwrap(),
            (added.0, "found".into())
        );
    }
    // The payload `null` is no missing one.
    let (job, _) = fixture
        .add(&fixture.client, "'task', key => 'n'")
        .await
        .unwrap();
    assert_eq!(fixture.job(job).await.payload, Value::Null);
    let (replaced, outcome) = fixture
        .add(
            &fixture.client,
            "'task', '1', key => 'n', replace_existing => true",
        )
        .await
        .unwrap();
    assert_eq!((replaced, outcome.as_str()), (job, "replaced"));
    assert_eq!(fixture.job(job).await.payload, json!(1));
}

#[tokio::test]
async fn invalid_arguments_say_what_is_allowed() {
    let Some(fixture) = new().await else { return };
    let levels = |count: usize| format!("'task', '{}{}'", "[".repeat(count), "]".repeat(count));
    for (arguments, error) in [
        (
            "''",
            "kind: the name of a handler must have from 1 to 1000 bytes",
        ),
        (
            "'a', key => repeat('a', 1001)",
            "key: must have at most 1000 bytes",
        ),
        ("NULL", "kind: the name"),
        ("repeat('a', 1001)", "kind: the name"),
        (
            "'a', to_jsonb(repeat('a', 4194303))",
            "payload: has 4194305 bytes, must be at most 4194304",
        ),
        (&levels(128), "payload: must have at most 127 levels"),
        (
            "'a', due => now(), delay => '1 s'",
            "due and delay: give only one",
        ),
        (
            "'a', due => 'infinity'",
            "must be from the year 1 to the year 5999",
        ),
        (
            "'a', due => '0001-01-01 BC'",
            "must be from the year 1 to the year 5999",
        ),
        (
            "'a', delay => '-1 s'",
            "delay of -00:00:01: must be from zero to a century",
        ),
        ("'a', delay => '101 years'", "delay of 101 years: must be"),
        (
            "'a', every => '1 s', cron => '* * * * * *'",
            "every and cron: give only one",
        ),
        (
            "'a', every => '1 month'",
            "every: 1 mon has no fixed length",
        ),
        ("'a', every => '0.9 ms'", "must be at least 1 millisecond"),
        ("'a', cron => '* * * * *'", "must have 6 or 7 fields"),
        (
            "'a', cron => '* * * * * *', time_zone => 'Mars/Olympus'",
            "time zone \"Mars/Olympus\" not recognized",
        ),
        (
            "'a', misfire => 'never'",
            "misfire: 'never' must be 'skip', 'run once' or 'run all'",
        ),
        (
            "'a', overlap => 'maybe'",
            "overlap: 'maybe' must be 'allow', 'skip' or 'wait'",
        ),
        ("'a', retries => -1", "retries: must be at least 0"),
        ("'a', jitter => '-1 s'", "jitter of -00:00:01"),
        ("'a', retry_max => '1000 years'", "retry_max of 1000 years"),
        (
            "'a', timeout => '0'",
            "timeout: 00:00:00 must be at least 1 millisecond",
        ),
        (
            "'a', max_interruptions => -1",
            "max_interruptions: must be at least 0",
        ),
        ("'a', overlap => NULL", "may be NULL"),
        (
            "'a', limits => '{\"a\": 0}'",
            "must be an object of names with whole numbers from 1 to 1000",
        ),
        // A node could not read this number, or store this name.
        (
            "'a', limits => '{\"a\": 1.0}'",
            "must be an object of names with whole numbers",
        ),
        (
            "'a', limits => jsonb_build_object(repeat('a', 256), 1)",
            "with 1 to 255 bytes",
        ),
        ("'a', limits => '{\"\": 1}'", "with 1 to 255 bytes"),
        (
            "'a', limits => (SELECT jsonb_object_agg(n::text, 1) FROM generate_series(1, 9) AS n)",
            "at most 8 names",
        ),
        ("'a', priority => 6", "priority: 6 must be from -5 to 5"),
        ("'a', limits => '[1]'", "must be an object of names"),
    ] {
        let why = fixture.add(&fixture.client, arguments).await.unwrap_err();
        let why = why.as_db_error().expect("an error of the database");
        assert!(why.message().contains(error), "{arguments}: {why}");
        assert!(
            ["22023", "22008"].contains(&why.code().code()),
            "{arguments}: {}",
            why.code().code()
        );
    }
    fixture.add(&fixture.client, &levels(127)).await.unwrap();
    fixture
        .add(&fixture.client, "'a', to_jsonb(repeat('a', 4194302))")
        .await
        .unwrap();
    assert_eq!(fixture.all_jobs().await.len(), 2);
}

/// Applications may call the function of the library too. Their jobs must not end the nodes, one
/// after the other.
#[tokio::test]
async fn durations_beyond_a_century_are_rejected_for_all_callers() {
    let Some(fixture) = new().await else { return };
    let put = format!(
        "SELECT outcome FROM {}.put_jobs(jsonb_build_array($1::jsonb))",
        fixture.schema
    );
    let century = 100 * 366 * 86_400 * 1_000_000_i64;
    for column in [
        "jitter_us",
        "retry_first_us",
        "retry_max_us",
        "timeout_us",
        "delay_us",
    ] {
        let mut job = json!({
            "number": 1, "handler": "task", "schedule": "once", "time_zone": "UTC", "jitter_us": 0,
            "misfire": "run once", "overlap": "allow", "retries": 1, "retry_first_us": 0, "retry_max_us": 0,
            "max_interruptions": 1, "delay_us": 0, "is_planned": true, "notifies": true, "priority": 0,
            "replaces": false,
        });
        job[column] = json!(century);
        fixture.client.query_one(&put, &[&job]).await.unwrap();
        job[column] = json!(century + 1);
        let error = fixture.client.query_one(&put, &[&job]).await.unwrap_err();
        assert_eq!(
            error.code().map(|code| code.code()),
            Some("23514"),
            "{column}: {error:?}"
        );
    }
}

/// Returns whether a time is a whole second.
fn is_whole(time: Timestamp) -> bool {
    time.subsec_nanosecond() == 0
}

#[tokio::test]
async fn first_due_time_of_a_pattern_is_computed_by_a_node() {
    let Some(fixture) = new().await else { return };
    let add = async |arguments: &str| fixture.add(&fixture.client, arguments).await.unwrap().0;
    let soon = add("'task', '\"Succeed\"', cron => '* * * * * *'").await;
    let late = add("'task', '\"Succeed\"', cron => '0 0 3 1 1 *'").await;
    let wrong = add("'task', '\"Succeed\"', cron => '61 * * * * *'").await;
    let never = add("'task', '\"Succeed\"', cron => '0 0 0 30 2 *'").await;
    let quartz = add("'task', '\"Succeed\"', cron => '0 0/5 * * * *'").await;
    // No node has read it: it is the start, by the clock of the database.
    assert!(!is_whole(fixture.job(late).await.next_run.unwrap()));
    let node = fixture.node().await;
    let runs = fixture
        .until(soon, |runs| {
            runs.iter().any(|run| run.state == RunState::Done)
        })
        .await;
    assert!(runs.iter().all(|run| is_whole(run.due)), "{runs:#?}");
    let next = fixture.job(late).await.next_run.unwrap();
    assert!(next.to_string().ends_with("-01-01T03:00:00Z"), "{next}");
    assert!(fixture.history(late).await.is_empty());
    for (job, reason) in [
        (wrong, "cron pattern '61 * * * * *'"),
        (never, "has no due time after"),
        (quartz, "In the syntax of this crate: '0 */5 * * * *'"),
    ] {
        let job = fixture.job(job).await;
        assert!(!job.enabled);
        let found = job.disabled_reason.unwrap();
        assert!(found.contains(reason), "{found}");
    }
    shut_down(node).await;
}

/// Before a node has read it.
#[tokio::test]
async fn paused_job_with_a_pattern_from_sql_can_be_resumed() {
    let Some(mut fixture) = new().await else {
        return;
    };
    let (job, _) = fixture
        .add(&fixture.client, "'task', cron => '0 0 3 1 1 *'")
        .await
        .unwrap();
    let jobs = fixture.jobs.clone();
    jobs.pause(&mut fixture.client, job).await.unwrap();
    jobs.resume(&mut fixture.client, job).await.unwrap();
    let next = fixture.job(job).await.next_run.unwrap();
    assert!(next.to_string().ends_with("-01-01T03:00:00Z"), "{next}");
}

/// Each role has exactly the grants of the page.
#[tokio::test]
async fn application_only_adds_jobs_and_a_node_runs_them() {
    let Some(fixture) = new().await else { return };
    let [app, node] = ["app", "node"].map(|role| format!("{}_{role}", fixture.schema));
    let client = fixture.role("application", &app).await;
    drop(fixture.role("node", &node).await);

    let (first, _) = fixture
        .add(&client, "'task', '\"Succeed\"', key => 'k'")
        .await
        .unwrap();
    let jobs = [
        NewJob::new(&Task::Succeed),
        NewJob::new(&Task::Succeed).key("k").replace_existing(),
    ];
    let enqueued = fixture.jobs.enqueue_all(&client, jobs).await.unwrap();
    assert_eq!(
        (enqueued[1].job, enqueued[1].outcome),
        (first, Outcome::Found)
    );
    for statement in [
        "SELECT FROM @job",
        "UPDATE @job SET payload = '1'",
        "INSERT INTO @node (name, alive_until) VALUES ('a', now())",
        "DELETE FROM @run",
        "SELECT @clean('1 s', 1)",
        "SELECT @cancel_runs(1)",
        "SELECT @change_job(NULL, true, now())",
        "CREATE TABLE @more ()",
    ] {
        let statement = statement.replace('@', &format!("{}.", fixture.schema));
        let error = client.batch_execute(&statement).await.unwrap_err();
        assert_eq!(
            error.code().map(|code| code.code()),
            Some("42501"),
            "{statement}: {error:?}"
        );
    }
    // Others cannot add jobs.
    let other = format!("{}_other", fixture.schema);
    fixture
        .client
        .batch_execute(&format!("CREATE ROLE {other} LOGIN"))
        .await
        .unwrap();
    fixture
        .client
        .batch_execute(&format!(
            "GRANT USAGE ON SCHEMA {} TO {other}",
            fixture.schema
        ))
        .await
        .unwrap();
    let other = connect(&fixture.config_of(&other)).await;
    let error = fixture.add(&other, "'task'").await.unwrap_err();
    assert_eq!(error.code().map(|code| code.code()), Some("42501"));

    let node = fixture
        .builder()
        .start(fixture.config_of(&node), NoTls)
        .await
        .unwrap();
    for job in [first, enqueued[0].job] {
        fixture.until_done(job, 1).await;
    }
    // Due now, and notified in the application's transaction.
    let (job, _) = fixture.add(&client, "'task', '\"Succeed\"'").await.unwrap();
    fixture.until_done(job, 1).await;
    shut_down(node).await;

    assert!(fixture.jobs.get(&client, job).await.is_err());
    fixture.grant("reader", &app).await;
    assert!(fixture.jobs.get(&client, job).await.unwrap().is_some());
    assert_eq!(
        fixture.jobs.history(&client, job, 9).await.unwrap().len(),
        1
    );
    assert!(fixture.jobs.delete(&client, job).await.is_err());
}

/// A function of the caller with the name of one of PostgreSQL must not run with the owner's
/// rights.
#[tokio::test]
async fn functions_with_the_rights_of_the_owner_have_a_fixed_search_path() {
    let Some(fixture) = new().await else { return };
    let text = "SELECT proname::text, proconfig::text FROM pg_proc
        WHERE prosecdef AND pronamespace = $1::text::regnamespace ORDER BY proname";
    let rows = fixture
        .client
        .query(text, &[&fixture.schema])
        .await
        .unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["add_job", "put_jobs", "wake"]);
    for row in &rows {
        assert_eq!(
            row.get::<_, &str>(1),
            "{\"search_path=pg_catalog, pg_temp\"}"
        );
    }
}

/// As in the page.
#[tokio::test]
async fn trigger_adds_a_job_in_the_transaction_of_its_statement() {
    let Some(fixture) = new().await else { return };
    let (_, trigger) = PAGE.split_once("## In a trigger\n\n```sql\n").unwrap();
    let trigger = trigger
        .split_once("```")
        .unwrap()
        .0
        .replace("job_scheduler", &fixture.schema);
    let app = connect(&fixture.config).await;
    app.batch_execute(&format!(
        "CREATE SCHEMA {0}_app; SET search_path = {0}_app; CREATE TABLE account (id bigint); {trigger}",
        fixture.schema
    ))
    .await
    .unwrap();
    app.batch_execute("BEGIN; INSERT INTO account VALUES (1); ROLLBACK")
        .await
        .unwrap();
    app.batch_execute("INSERT INTO account VALUES (2), (3)")
        .await
        .unwrap();
    let jobs = fixture.all_jobs().await;
    let mut found = Vec::new();
    for job in &jobs {
        found.push((job.key.as_deref(), fixture.job(job.id).await.payload));
    }
    assert_eq!(
        found,
        [(Some("welcome-2"), json!(2)), (Some("welcome-3"), json!(3))]
    );
}

/// The first block of the page is valid.
#[tokio::test]
async fn examples_of_the_page_run() {
    let Some(fixture) = new().await else { return };
    let examples = PAGE
        .split_once("```sql\n")
        .unwrap()
        .1
        .split_once("```")
        .unwrap()
        .0;
    fixture
        .client
        .batch_execute(&examples.replace("job_scheduler", &fixture.schema))
        .await
        .unwrap();
    let jobs = fixture.all_jobs().await;
    assert_eq!(jobs.len(), 1_002);
}
