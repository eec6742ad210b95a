//! Large tables: no query that a node or an application repeats reads a table from end to end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hashed_wheel_job_scheduler::jiff::Timestamp;
use hashed_wheel_job_scheduler::{
    JobFilter, JobState, KindLimits, NewJob, Payload, RunFilter, RunState, SchedulerBuilder,
};

use crate::fixture::{Fixture, MS, Task, eventually, shut_down};

/// 10^5 jobs and 10^5 results. A part of the jobs is due, and 10^4 runs wait, but no node has a
/// handler for them.
const FILL: &str = "
    INSERT INTO @job (key, handler, payload, schedule, time_zone, jitter_us, misfire, overlap, retries,
        retry_first_us, retry_max_us, max_interruptions, first_run, next_run)
    SELECT CASE WHEN n % 2 = 0 THEN 'key ' || n END, CASE WHEN n % 10 = 0 THEN 'unknown' ELSE 'task' END,
        '\"Succeed\"', 'once', 'UTC', 0, 'skip', 'allow', 0, 0, 0, 10, clock_timestamp(),
        CASE WHEN n % 10 = 0 THEN clock_timestamp() WHEN n % 2 = 0 THEN clock_timestamp() + interval '1 hour' END
    FROM generate_series(1, 100000) AS n;
    INSERT INTO @run (job, due, start_at, handler, state, started, finished)
    SELECT id, now, now, 'task', 'done', now, now FROM @job, clock_timestamp() AS now WHERE next_run IS NULL;
    INSERT INTO @run (job, due, start_at, handler, state, started, finished)
    SELECT 1, due, due, 'task', CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'done' END, due, due
    FROM generate_series(1, 50000) AS n, LATERAL (SELECT clock_timestamp() - n * interval '1 second' AS due) AS x;
    INSERT INTO @run (job, due, start_at, handler, state, priority)
    SELECT 2, due, due, 'unknown', 'waiting', n % 11 - 5
    FROM generate_series(1, 10000) AS n, LATERAL (SELECT clock_timestamp() - n * interval '1 second' AS due) AS x;";

/// Publishes the statistics of the connection of the fixture.
async fn publish(fixture: &Fixture) {
    let now = "SELECT pg_stat_force_next_flush()";
    if fixture.client.batch_execute(now).await.is_err() {
        // Before PostgreSQL 15, a connection publishes them at the end of a statement, at most twice
        // per second, and another one sees them within half a second.
        for _ in 0..2 {
            tokio::time::sleep(MS * 600).await;
            fixture.client.batch_execute("SELECT 1").await.unwrap();
        }
    }
}

/// Returns the number of sequential scans and of scans of an index.
async fn scans(fixture: &Fixture) -> BTreeMap<String, (i64, i64)> {
    publish(fixture).await;
    let text = "SELECT relname::text, seq_scan, COALESCE(idx_scan, 0) FROM pg_stat_user_tables
        WHERE schemaname = $1 AND relname IN ('job', 'run')";
    let rows = fixture
        .client
        .query(text, &[&fixture.schema])
        .await
        .unwrap();
    rows.iter()
        .map(|row| (row.get(0), (row.get(1), row.get(2))))
        .collect()
}

/// The indexes of jobs and runs that are due.
const DUE: &str = "indexrelname IN ('job_due', 'run_waiting')";

/// Returns the number of entries that were read in the indexes for which this holds.
async fn index_reads(fixture: &Fixture, condition: &str) -> i64 {
    publish(fixture).await;
    let text = format!(
        "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE schemaname = $1 AND {condition}"
    );
    fixture
        .client
        .query_one(&text, &[&fixture.schema])
        .await
        .unwrap()
        .get(0)
}

/// Waits until the connections of the node have published their statistics, and asserts that they
/// have scanned only indexes.
async fn assert_only_indexes(fixture: &Fixture, before: &BTreeMap<String, (i64, i64)>) {
    let more = |after: &BTreeMap<String, (i64, i64)>| {
        before
            .iter()
            .all(|(table, scans)| after[table].1 > scans.1 + 10)
    };
    eventually(async || more(&scans(fixture).await)).await;
    // They publish it once per second, if they do something.
    tokio::time::sleep(MS * 1_500).await;
    let after = scans(fixture).await;
    assert_no_sequential_scan(before, &after);
}

fn assert_no_sequential_scan(
    before: &BTreeMap<String, (i64, i64)>,
    after: &BTreeMap<String, (i64, i64)>,
) {
    for (table, (sequential, _)) in before {
        assert_eq!(after[table].0, *sequential, "sequential scans of {table}");
    }
}

/// Returns a fixture with large tables. Their statistics are those of empty tables, because nothing
/// has analysed them.
async fn filled() -> Option<Fixture> {
    let fixture = Fixture::new().await?;
    fixture.migrate().await;
    no_autovacuum(&fixture, &["job", "run"]).await;
    execute(&fixture, FILL).await;
    Some(fixture)
}

/// Nothing analyses these tables.
async fn no_autovacuum(fixture: &Fixture, tables: &[&str]) {
    for table in tables {
        execute(
            fixture,
            &format!("ALTER TABLE @{table} SET (autovacuum_enabled = off)"),
        )
        .await;
    }
}

/// Executes statements in which `@` stands for the schema.
async fn execute(fixture: &Fixture, statements: &str) {
    let statements = statements.replace('@', &format!("{}.", fixture.schema));
    fixture.client.batch_execute(&statements).await.unwrap();
}

/// `Jobs::nodes` would read runs, too.
async fn has_node(fixture: &Fixture, condition: &str) -> bool {
    let text = format!(
        "SELECT FROM {}.node WHERE {condition} LIMIT 1",
        fixture.schema
    );
    !fixture.client.query(&text, &[]).await.unwrap().is_empty()
}

/// Runs nodes, of which one is lost.
async fn assert_nodes_read_only_indexes(
    fixture: &Fixture,
    adapt: impl Fn(SchedulerBuilder) -> SchedulerBuilder,
) {
    let before = scans(fixture).await;
    let read = index_reads(fixture, DUE).await;
    // Removes half of the results while it runs.
    let builder = fixture
        .mortal()
        .retention(Duration::from_secs(25_000))
        .prefetch(MS * 500);
    let node = fixture.start(adapt(builder)).await;
    let job = fixture
        .enqueue(
            NewJob::new(&Task::FailUntil(2))
                .every(MS * 50)
                .retries(1, MS, MS),
        )
        .await;
    fixture
        .until(job, |runs| {
            runs.iter()
                .filter(|run| run.state == RunState::Done)
                .count()
                > 50
        })
        .await;
    assert_only_indexes(fixture, &before).await;
    // It starts again, and keeps what it executes.
    fixture.close_connections().await;
    let is_second = async || has_node(fixture, "id > 2").await;
    eventually(is_second).await;
    // A node is lost, and another one takes over.
    let slow = fixture.enqueue(NewJob::new(&Task::Sleep(2_000))).await;
    fixture.until_state(slow, RunState::Running).await;
    drop(node);
    let node = fixture.start(adapt(fixture.builder())).await;
    fixture.until_done(slow, 1).await;
    assert!(fixture.jobs.delete(&fixture.client, job).await.unwrap());
    assert_only_indexes(fixture, &before).await;
    shut_down(node).await;
    // A beat reads neither a job nor a run that is due and has no handler here. One that reads them
    // all would have read 10 000 each time.
    let read = index_reads(fixture, DUE).await - read;
    assert!(read < 10_000, "{read}");
}

/// 10^5 jobs that are due, with all priorities.
const BACKLOG: &str = "
    INSERT INTO @job (handler, payload, schedule, time_zone, jitter_us, misfire, overlap, retries,
        retry_first_us, retry_max_us, max_interruptions, first_run, next_run, priority)
    SELECT 'task', '\"Succeed\"', 'once', 'UTC', 0, 'run once', 'allow', 0, 0, 0, 10, now, now, n % 11 - 5
    FROM generate_series(1, 100000) AS n, clock_timestamp() AS now";

#[tokio::test]
async fn backlog_with_priorities_is_not_sorted_by_each_read() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    no_autovacuum(&fixture, &["job"]).await;
    execute(&fixture, BACKLOG).await;
    let read = index_reads(&fixture, DUE).await;
    let node = fixture
        .start(fixture.builder().batch(32).capacity(64))
        .await;
    let done = format!(
        "SELECT count(*), min(priority) FROM {}.run WHERE state = 'done'",
        fixture.schema
    );
    let mut priority = 0;
    eventually(async || {
        let row = fixture.client.query_one(&done, &[]).await.unwrap();
        priority = row.get::<_, Option<i16>>(1).unwrap_or_default();
        row.get::<_, i64>(0) > 1_000
    })
    .await;
    assert_eq!(priority, 5);
    let ran: i64 = fixture.client.query_one(&done, &[]).await.unwrap().get(0);
    drop(node);
    tokio::time::sleep(MS * 1_500).await;
    // A read that sorted them would read all of them, at least 30 times.
    let read = index_reads(&fixture, DUE).await - read;
    assert!(read < 100_000 + ran * 20, "{read} for {ran} runs");
}

/// 1 000 places that are taken, and 10^5 runs that wait for a free one. No node has their handler.
const LIMITED: &str = "
    ALTER TABLE @run SET (autovacuum_enabled = off);
    INSERT INTO @node (name, alive_until, handlers) VALUES ('a', clock_timestamp() + interval '1 hour', '{task}');
    INSERT INTO @job (handler, payload, schedule, time_zone, jitter_us, misfire, overlap, retries,
        retry_first_us, retry_max_us, first_run, limits)
    SELECT 'task', 'null', 'once', 'UTC', 0, 'skip', 'allow', 0, 0, 0, clock_timestamp(), '{\"x\": 5}';
    INSERT INTO @run (job, due, start_at, handler, state, owner)
    SELECT job.id, due, due, 'task', 'running', node.id FROM @job job, @node node, generate_series(1, 1000) AS n,
        LATERAL (SELECT clock_timestamp() - n * interval '1 second' AS due) AS x WHERE node.name = 'a';
    INSERT INTO @slot (name, place, run, node)
    SELECT 'key ' || id % 100, row_number() OVER (PARTITION BY id % 100), id, owner FROM @run;
    INSERT INTO @run (job, due, start_at, handler, state, blocked_on)
    SELECT job.id, due, due, 'unknown', 'blocked', 'key x' FROM @job job, generate_series(1, 100000) AS n,
        LATERAL (SELECT clock_timestamp() + n * interval '1 second' AS due) AS x;
    INSERT INTO @slot (name, place) VALUES ('key x', 1);";

#[tokio::test]
async fn runs_that_wait_for_a_handler_are_not_read_by_each_heartbeat() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    execute(&fixture, LIMITED).await;
    let reads = async || {
        (
            scans(&fixture).await["run"].0,
            index_reads(&fixture, "relname = 'run'").await,
        )
    };
    // Once as it is planned for each call, and then with the plans that a connection keeps.
    for _ in 0..10 {
        let before = reads().await;
        execute(&fixture, "SELECT @settle('1 s')").await;
        let after = reads().await;
        assert_eq!(after.0, before.0, "sequential scans");
        let read = after.1 - before.1;
        assert!(read < 20_000, "{read}");
    }
}

/// 60 000 more runs: half of them are blocked, on ten names, and the others are claimed by a lost
/// node, with a handler that no node has.
const OTHERS: &str = "
    INSERT INTO @node (name, alive_until) VALUES ('other', clock_timestamp() - interval '1 hour');
    INSERT INTO @run (job, due, start_at, handler, state, owner, blocked_on)
    SELECT 1, due, due, 'unknown', state, CASE state WHEN 'claimed' THEN node.id END,
        CASE state WHEN 'blocked' THEN 'key ' || n % 10 END
    FROM @node node, generate_series(1, 30000) AS n, unnest(ARRAY['claimed', 'blocked']) AS state, LATERAL (
        SELECT clock_timestamp() + n * interval '1 second' + ascii(state) * interval '1 microsecond' AS due) AS x
    WHERE node.name = 'other';
    INSERT INTO @slot (name, place) SELECT 'key ' || n, 1 FROM generate_series(0, 9) AS n;";

/// A node keeps the plans that it has made while the tables were empty.
#[tokio::test]
async fn plans_for_empty_tables_are_right_for_large_ones() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let tables = ["job", "run", "slot", "kind", "pace", "node"];
    no_autovacuum(&fixture, &tables).await;
    for table in tables {
        execute(&fixture, &format!("VACUUM ANALYZE @{table}")).await;
    }
    let node = fixture.start(fixture.builder().heartbeat(MS * 1_000)).await;
    let limits = KindLimits::new().rate(1_000, MS * 1_000).burst(1_000);
    fixture
        .jobs
        .set_kind(&fixture.client, Task::HANDLER, limits)
        .await
        .unwrap();
    let some = async |job: fn() -> NewJob| {
        for _ in 0..20 {
            fixture.enqueue_until(job(), RunState::Done).await;
        }
    };
    let lose_one = async || {
        fixture
            .lose_only(fixture.start(fixture.builder().name("lost")).await, "lost")
            .await;
        let is_gone = async || !has_node(&fixture, "name = 'lost'").await;
        eventually(is_gone).await;
    };
    let plain = || NewJob::new(&Task::Succeed);
    let limited = || {
        NewJob::new(&Task::Succeed)
            .limit("five", 5)
            .retries(1, MS, MS)
    };
    some(plain).await;
    some(limited).await;
    lose_one().await;
    // What the node does less often, on this connection with the settings of a node.
    for name in ["enable_seqscan", "enable_bitmapscan", "jit"] {
        execute(&fixture, &format!("SET {name} = off")).await;
    }
    execute(&fixture, "SET plan_cache_mode = force_generic_plan").await;
    let seldom = "SELECT @settle('1 s'), @clean('49990 s', 2000), @look(1, '{task}', 1000000)";
    execute(&fixture, seldom).await;
    execute(&fixture, FILL).await;
    execute(&fixture, OTHERS).await;
    let reads = || index_reads(&fixture, "relname IN ('job', 'run', 'slot')");
    tokio::time::sleep(MS * 1_500).await;
    let before = reads().await;
    some(plain).await;
    some(limited).await;
    lose_one().await;
    execute(&fixture, seldom).await;
    shut_down(node).await;
    tokio::time::sleep(MS * 1_500).await;
    let read = reads().await - before;
    // A statement that reads an index from end to end reads 30 000 entries or more each time.
    assert!(read < 20_000, "{read} index entries for 40 runs");
}

#[tokio::test]
async fn nodes_read_only_indexes_of_tables_that_were_not_analysed() {
    let Some(fixture) = filled().await else {
        return;
    };
    assert_nodes_read_only_indexes(&fixture, |builder| builder).await;
}

/// Their settings are those of single transactions and functions.
#[tokio::test]
async fn nodes_without_notifications_read_only_indexes() {
    let Some(fixture) = filled().await else {
        return;
    };
    assert_nodes_read_only_indexes(&fixture, SchedulerBuilder::without_notifications).await;
}

#[tokio::test]
async fn nodes_and_applications_read_only_indexes() {
    let Some(mut fixture) = filled().await else {
        return;
    };
    execute(&fixture, "ANALYZE @job; ANALYZE @run").await;
    assert_nodes_read_only_indexes(&fixture, |builder| builder).await;
    // The calls of an application, on its own connection with the default settings.
    let before = scans(&fixture).await;
    let middle = Timestamp::now() - Duration::from_secs(100);
    let mut paused = JobFilter::default();
    paused.state = Some(JobState::Paused);
    let begin = Instant::now();
    for number in 0..20 {
        let jobs = fixture.jobs.clone();
        let job = || {
            NewJob::new(&Task::Succeed)
                .after(Duration::from_secs(600))
                .key(format!("key {number}"))
        };
        let id = jobs.enqueue(&fixture.client, job()).await.unwrap().job;
        jobs.enqueue(&fixture.client, job().replace_existing())
            .await
            .unwrap();
        assert!(jobs.run_now(&fixture.client, id).await.unwrap().is_some());
        assert!(jobs.pause(&mut fixture.client, id).await.unwrap());
        assert!(jobs.resume(&mut fixture.client, id).await.unwrap());
        assert_eq!(
            jobs.history(&fixture.client, 1, 10).await.unwrap().len(),
            10
        );
        assert!(jobs.get(&fixture.client, id).await.unwrap().is_some());
        let run = jobs.run_now(&fixture.client, id).await.unwrap().unwrap();
        assert!(jobs.get_run(&fixture.client, run).await.unwrap().is_some());
        assert_eq!(
            jobs.runs(&fixture.client, 1, Some(middle), 10)
                .await
                .unwrap()
                .len(),
            10
        );
        let mut filter = RunFilter::default();
        for state in [
            None,
            Some(RunState::Done),
            Some(RunState::Waiting),
            Some(RunState::Blocked),
        ] {
            filter.state = state;
            let page = jobs.search_runs(&fixture.client, &filter, Some((middle, 0)), 10);
            let is_over = state.is_none_or(|state| state == RunState::Done);
            assert!(
                page.await.unwrap().runs.len() == 10 || !is_over,
                "{state:?}"
            );
        }
        jobs.queues(&fixture.client).await.unwrap();
        let page = jobs
            .search(&fixture.client, &paused, 1_000, 10)
            .await
            .unwrap();
        assert!(
            page.jobs.is_empty() && page.next == Some(11_000),
            "{page:?}"
        );
        assert!(jobs.delete(&fixture.client, id).await.unwrap());
        jobs.overview(&fixture.client, 10).await.unwrap();
    }
    println!("300 calls of an application: {:?}", begin.elapsed());
    assert_no_sequential_scan(&before, &scans(&fixture).await);
}

/// A planner that knows that a part of the table waits would read the table to find some of it.
#[tokio::test]
async fn views_read_only_indexes_of_tables_with_new_statistics() {
    let Some(fixture) = filled().await else {
        return;
    };
    execute(&fixture, OTHERS).await;
    let all_for_one = "UPDATE @run SET blocked_on = 'key 0' WHERE state = 'blocked';
        UPDATE @run SET state = 'waiting', owner = NULL WHERE state = 'claimed'";
    for (change, names) in [("", 10), (all_for_one, 1)] {
        execute(&fixture, &format!("{change}; ANALYZE @job; ANALYZE @run")).await;
        let before = scans(&fixture).await;
        let overview = fixture.jobs.overview(&fixture.client, 10).await.unwrap();
        assert_eq!(
            [overview.jobs, overview.waiting, overview.blocked],
            [10_000; 3]
        );
        let queues = fixture.jobs.queues(&fixture.client).await.unwrap();
        assert_eq!(queues.len(), 1 + names);
        assert!(queues.iter().all(|queue| queue.waiting == 1_000));
        assert_no_sequential_scan(&before, &scans(&fixture).await);
    }
}
