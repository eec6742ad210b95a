//! Each duty of a node is slow or has much to do, or the network is slow: the others go on, and the
//! node keeps its lease. Without a safeguard it loses the lease.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel_job_scheduler::serde_json::Value;
use hashed_wheel_job_scheduler::{
    Context, Error, KindLimits, Misfire, NewJob, RunError, RunState, Scheduler, SchedulerBuilder,
};
use hashed_wheel_trial::testing::is_deep;
use tokio::sync::Semaphore;
use tokio_postgres::NoTls;

use crate::fixture::{Fixture, MS, Task, begun, eventually, gate_job, shut_down, with_gate};
use crate::network::Relay;

/// A short lease, which is lost if anything delays it.
const LEASE: Duration = Duration::from_secs(3);

/// How long one duty is slow. About 150 ticks begin in this time, if nothing delays them.
const PERIOD: Duration = Duration::from_millis(7_500);

/// At least this many begin, even on a busy machine.
const TICKS: usize = 75;

/// How long a node without a safeguard may take until it has lost its lease.
const LOSES: Duration = Duration::from_secs(20);

thread_local! {
    static ECHOED: Cell<usize> = const { Cell::new(0) };
}

/// `echo` returns its payload, and counts.
fn builder(fixture: &Fixture) -> SchedulerBuilder {
    fixture
        .builder()
        .lease(LEASE)
        .heartbeat(MS * 500)
        .handler_named("report", |_: Context, _: Value| async {
            Ok::<_, RunError>(())
        })
        .handler_named("echo", |_: Context, payload: Value| async {
            ECHOED.set(ECHOED.get() + 1);
            Ok::<_, RunError>(payload)
        })
}

fn tick() -> NewJob {
    NewJob::new(&Task::Succeed)
        .every(MS * 50)
        .misfire(Misfire::Skip)
}

/// Waits until more of them have begun.
async fn until_more_ticks(more: usize) {
    let before = begun();
    eventually(async || begun() >= before + more).await;
}

/// Why the node has lost its connections or its lease.
async fn fails(node: &Scheduler, within: Duration) -> Option<String> {
    let begin = Instant::now();
    while begin.elapsed() < within && node.health().last_error.is_none() {
        tokio::time::sleep(MS * 10).await;
    }
    node.health().last_error
}

/// Adds cron jobs by one statement in SQL. One pattern of ten has no due time.
async fn add_cron_jobs(fixture: &Fixture, count: i64) {
    let text = format!(
        "SELECT {0}.add_job('report', to_jsonb(n), time_zone => 'Europe/Berlin', key => 'report-' || n,
            cron => CASE WHEN n % 10 > 0 THEN '0 30 3 * * *' ELSE '0 0 0 30 2 *' END)
        FROM generate_series(1, $1::bigint) AS n",
        fixture.schema
    );
    fixture.client.execute(&text, &[&count]).await.unwrap();
}

/// A node on a network with this delay in each direction gets many cron jobs by SQL. The runs of
/// another handler go on, and all jobs are planned.
async fn plan_many(delay: Duration, count: i64) {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let relay = Relay::with_delay(&fixture.config, delay).await;
    let node = builder(&fixture)
        .start(relay.config.clone(), NoTls)
        .await
        .unwrap();
    fixture.enqueue(tick()).await;
    until_more_ticks(5).await;
    add_cron_jobs(&fixture, count).await;
    until_more_ticks(10).await;
    let unplanned = format!(
        "SELECT count(*) FROM {}.job WHERE enabled AND NOT is_planned",
        fixture.schema
    );
    eventually(async || {
        let row = fixture.client.query_one(&unplanned, &[]).await.unwrap();
        row.get::<_, i64>(0) == 0
    })
    .await;
    until_more_ticks(5).await;
    let disabled = format!(
        "SELECT count(*) FROM {}.job WHERE disabled_reason LIKE '%has no due time%'",
        fixture.schema
    );
    let row = fixture.client.query_one(&disabled, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), count / 10);
    assert_eq!(node.health().last_error, None);
    drop(node);
}

#[tokio::test]
async fn cron_jobs_by_sql_do_not_stop_others_on_a_slow_network() {
    plan_many(MS * 5, 1_000).await;
    if is_deep() {
        for delay in [1, 25, 100] {
            plan_many(MS * delay, 5_000).await;
        }
    }
}

/// A change of a statement by which a duty takes longer than a lease.
type Slow = (&'static str, &'static str);

const SLOW_LOOK: Slow = ("FROM @look(", "FROM pg_sleep(8), @look(");
const SLOW_CLAIM: Slow = ("FROM @claim_runs(", "FROM pg_sleep(8), @claim_runs(");
const SLOW_READ: Slow = (" AS now FROM due", " AS now FROM pg_sleep(8), due");
const SLOW_PLAN: Slow = (
    "SELECT found.* FROM unnest($2",
    "SELECT found.* FROM pg_sleep(8), unnest($2",
);
const SLOW_SETTLE: Slow = ("SELECT @settle(", "SELECT pg_sleep(8), @settle(");
const SLOW_CLEAN: Slow = ("SELECT @clean(", "SELECT pg_sleep(8), @clean(");

/// The bound of a start and of a result is the lease: these are shorter.
const SLOW_START: Slow = (
    "SELECT * FROM @start_runs($1, $2, $3)",
    "SELECT started.* FROM pg_sleep(2), @start_runs($1, $2, $3) AS started",
);
const SLOW_FINISH: Slow = (
    "SELECT * FROM @finish_runs($1, $2, $3, $4, $5, $6, $7)",
    "SELECT ended.* FROM pg_sleep(2), @finish_runs($1, $2, $3, $4, $5, $6, $7) AS ended",
);

/// These are longer.
const TOO_SLOW_START: Slow = (
    SLOW_START.0,
    "SELECT started.* FROM pg_sleep(8), @start_runs($1, $2, $3) AS started",
);
const TOO_SLOW_FINISH: Slow = (
    SLOW_FINISH.0,
    "SELECT ended.* FROM pg_sleep(8), @finish_runs($1, $2, $3, $4, $5, $6, $7) AS ended",
);

/// A duty without its limit.
const UNLIMITED: Slow = (
    "SET LOCAL statement_timeout = ",
    "SET LOCAL statement_timeout = 60000; SELECT ",
);

/// A renewal that waits for what the node reads.
const SAME_LOCK: Slow = ("FOR KEY SHARE", "FOR UPDATE");

/// A renewal that takes as long as ten round trips of 400 ms.
const SLOW_LEASE: Slow = (
    "make_interval(secs => $2)
    WHERE id",
    "make_interval(secs => $2) + (SELECT interval '0' FROM pg_sleep(4))
    WHERE id",
);

/// Starts a node that has something to do for each duty. It reads less ahead than a slow duty takes.
async fn busy(fixture: &Fixture, lease: Duration) -> Scheduler {
    let node = builder(fixture)
        .lease(lease)
        .retention(MS * 1_000)
        .prefetch(MS * 1_000)
        .start(fixture.config.clone(), NoTls)
        .await
        .unwrap();
    fixture.enqueue(tick()).await;
    for _ in 0..2 {
        let limited = NewJob::new(&Task::Sleep(600_000)).limit("one", 1);
        fixture.enqueue(limited).await;
    }
    add_cron_jobs(fixture, 20).await;
    node
}

/// Runs that are requested need a claim. The others are read ahead.
async fn request(fixture: &Fixture) {
    let job = NewJob::named("report", Value::Null).after(Duration::from_secs(3_600));
    let job = fixture.enqueue(job).await;
    fixture
        .jobs
        .run_now(&fixture.client, job)
        .await
        .expect("a job");
}

/// One duty is slow for more than two leases. The others go on.
async fn others_go_on(slow: Slow) {
    let Some(fixture) = Fixture::sabotaged(&[slow]).await else {
        return;
    };
    let node = busy(&fixture, LEASE).await;
    let (begin, before) = (Instant::now(), begun());
    request(&fixture).await;
    if slow != SLOW_CLAIM {
        let done = format!(
            "SELECT count(*) FROM {}.run WHERE handler = 'report' AND state = 'done'",
            fixture.schema
        );
        eventually(async || {
            let row = fixture.client.query_one(&done, &[]).await.unwrap();
            row.get::<_, i64>(0) > 0
        })
        .await;
    }
    let rest = PERIOD.checked_sub(begin.elapsed());
    let rest = rest.expect("the requested run is not delayed");
    assert_eq!(fails(&node, rest).await, None, "{slow:?}");
    assert_eq!(node.health().last_error, None, "{slow:?}");
    let ticks = begun() - before;
    let needs_slow = [SLOW_READ, SLOW_START].contains(&slow);
    assert!(needs_slow || ticks >= TICKS, "{ticks}: {slow:?}");
    drop(node);
}

#[tokio::test]
async fn slow_look_does_not_delay_others() {
    others_go_on(SLOW_LOOK).await;
}

#[tokio::test]
async fn slow_claim_does_not_delay_others() {
    others_go_on(SLOW_CLAIM).await;
}

#[tokio::test]
async fn slow_read_does_not_delay_others() {
    others_go_on(SLOW_READ).await;
}

#[tokio::test]
async fn slow_plan_does_not_delay_others() {
    others_go_on(SLOW_PLAN).await;
}

#[tokio::test]
async fn slow_start_does_not_delay_others() {
    others_go_on(SLOW_START).await;
}

#[tokio::test]
async fn slow_result_does_not_delay_others() {
    others_go_on(SLOW_FINISH).await;
}

#[tokio::test]
async fn slow_settlement_does_not_delay_others() {
    others_go_on(SLOW_SETTLE).await;
}

#[tokio::test]
async fn slow_cleaning_does_not_delay_others() {
    others_go_on(SLOW_CLEAN).await;
}

/// These have the same connection as the reads. With a longer lease, the node does not end before.
#[tokio::test]
async fn slow_duties_without_limits_delay_others() {
    for slow in [SLOW_SETTLE, SLOW_CLEAN] {
        let Some(fixture) = Fixture::sabotaged(&[slow, UNLIMITED]).await else {
            return;
        };
        let node = busy(&fixture, LEASE * 20).await;
        let before = begun();
        tokio::time::sleep(PERIOD).await;
        let ticks = begun() - before;
        assert!(ticks < TICKS, "{ticks}: {slow:?}");
        drop(node);
    }
}

/// What a look reads: runs of a lost node whose handler is not here. And what is cleaned: results.
const LARGE: &str = "
    WITH lost AS (
        INSERT INTO @node (name, alive_until, handlers)
        VALUES ('lost', clock_timestamp() - interval '1 hour', '{other}') RETURNING id
    )
    INSERT INTO @run (job, due, start_at, handler, state, owner)
        SELECT (SELECT min(id) FROM @job), now() + interval '1 day' + n * interval '1 us', now(), 'other', 'claimed', lost.id
        FROM lost, generate_series(1, $n) AS n;
    INSERT INTO @run (job, due, start_at, handler, state, started, finished, output)
        SELECT (SELECT min(id) FROM @job), time, time, 'report', 'done', time, time, to_jsonb(repeat('x', 4000))
        FROM (SELECT now() - interval '1 hour' - n * interval '1 us' AS time FROM generate_series(1, $n) AS n) AS old";

/// A result is removed so slowly that 10 000 of them take longer than a duty may.
const SLOW_RESULTS: Slow = (
    "AND run.job <> ALL (locked_jobs)",
    "AND run.job <> ALL (locked_jobs) AND pg_sleep(0.0001) IS NOT NULL",
);

/// All old results are removed by one statement.
const NO_PORTION: Slow = (
    "ORDER BY run.finished LIMIT the_limit",
    "ORDER BY run.finished",
);

/// Starts a node, and then adds this many of what the statements insert.
async fn with_much(fixture: &Fixture, statements: &str, count: &str) -> Scheduler {
    let node = busy(fixture, LEASE).await;
    let text = statements
        .replace("$n", count)
        .replace('@', &format!("{}.", fixture.schema));
    fixture.client.batch_execute(&text).await.unwrap();
    node
}

async fn old_results(fixture: &Fixture) -> i64 {
    let text = format!(
        "SELECT count(*) FROM {}.run WHERE finished < now() - interval '1 hour'",
        fixture.schema
    );
    let row = fixture.client.query_one(&text, &[]).await.unwrap();
    row.get(0)
}

/// Until this is done, the runs of a handler go on, and the node keeps its lease.
async fn others_go_on_until(node: &Scheduler, is_done: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    eventually(async || {
        let more = tokio::time::timeout(LEASE * 2, until_more_ticks(5)).await;
        more.expect("runs begin meanwhile");
        is_done().await
    })
    .await;
    let rest = PERIOD.saturating_sub(begin.elapsed());
    assert_eq!(fails(node, rest).await, None);
}

#[tokio::test]
async fn large_look_and_cleaning_do_not_delay_others() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let count = if is_deep() { "200000" } else { "20000" };
    let node = with_much(&fixture, LARGE, count).await;
    others_go_on_until(&node, async || old_results(&fixture).await == 0).await;
    drop(node);
}

/// Returns whether a node with these changes removes some of 10 000 old results, and how many of the
/// rest are removed by a call of the database that may remove one. The rows show that a portion is
/// missing, however slow this machine is.
async fn removes(changes: &[Slow], within: Duration) -> Option<(bool, i64)> {
    let fixture = Fixture::sabotaged(changes).await?;
    let node = with_much(&fixture, LARGE, "10000").await;
    let begin = Instant::now();
    while begin.elapsed() < within && old_results(&fixture).await == 10_000 {
        tokio::time::sleep(MS * 100).await;
    }
    drop(node);
    let has_removed = old_results(&fixture).await < 10_000;
    let call = format!("SELECT {}.clean('1 hour', 1)", fixture.schema);
    let mut removed = 0;
    // The server may still execute the last statement of the node. Then the call removes nothing.
    eventually(async || {
        let row = fixture.client.query_one(&call, &[]).await.unwrap();
        removed = row.get(0);
        removed > 0
    })
    .await;
    Some((has_removed, removed))
}

/// Returns whether a node with these changes fails because of what the statements insert.
async fn fails_with_much(statements: &str, count: &str, changes: &[Slow]) -> Option<bool> {
    let fixture = Fixture::sabotaged(changes).await?;
    let node = with_much(&fixture, statements, count).await;
    Some(fails(&node, LOSES).await.is_some())
}

#[tokio::test]
async fn large_cleaning_needs_portions() {
    let found = tokio::join!(
        removes(&[SLOW_RESULTS], LOSES * 5),
        removes(&[SLOW_RESULTS, NO_PORTION], PERIOD),
    );
    let expected = (Some((true, 1)), Some((false, 10_000)));
    assert!(found == expected || found == (None, None), "{found:?}");
}

/// Settling this name takes longer than a duty may.
const SLOW_NAME: Slow = (
    "FOREACH the_name IN ARRAY the_names LOOP",
    "FOREACH the_name IN ARRAY the_names LOOP
        PERFORM pg_sleep(60) WHERE the_name = 'key a';",
);

#[tokio::test]
async fn name_that_is_not_settled_in_time_does_not_hide_those_behind_it() {
    let Some(fixture) = Fixture::sabotaged(&[SLOW_NAME]).await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture
        .start(with_gate(fixture.builder().lease(LEASE), &gate))
        .await;
    for name in ["a", "b"] {
        for state in [RunState::Running, RunState::Blocked] {
            fixture
                .enqueue_until(gate_job().limit(name, 1), state)
                .await;
        }
    }
    for name in ["a", "b"] {
        let set = fixture.jobs.set_limit(&fixture.client, name, Some(2));
        set.await.unwrap();
    }
    let blocked = format!(
        "SELECT array_agg(blocked_on) FROM {}.run WHERE state = 'blocked'",
        fixture.schema
    );
    eventually(async || {
        let row = fixture.client.query_one(&blocked, &[]).await.unwrap();
        row.get::<_, Vec<String>>(0) == ["key a"]
    })
    .await;
    drop(node);
}

/// What a claim takes: runs that were given back.
const WAITING: &str = "
    SELECT @add_job('echo', delay => '1 hour');
    INSERT INTO @run (job, due, start_at, handler, state)
        SELECT (SELECT max(id) FROM @job), now() + interval '1 day' + n * interval '1 us', now(), 'echo', 'waiting'
        FROM generate_series(1, $n) AS n";

/// What is read ahead: jobs that are due.
const DUE: &str = "SELECT @add_job('echo', to_jsonb(n)) FROM generate_series(1, $n) AS n";

/// What is started and written: payloads, which are the results too.
const PAYLOADS: &str =
    "SELECT @add_job('echo', to_jsonb(repeat('x', 10000))) FROM generate_series(1, $n)";

/// A run is claimed so slowly that a batch of them takes longer than a lease.
const SLOW_CLAIMED: Slow = (
    "SELECT * FROM @claim_runs($1, $2, $3, $4, $5, $6)",
    "SELECT claimed.* FROM @claim_runs($1, $2, $3, $4, $5, $6) AS claimed WHERE pg_sleep(0.01) IS NOT NULL",
);

/// As slow for a due time.
const SLOW_DUE: Slow = (
    "start_at, CASE WHEN is_skipped THEN 'skipped'",
    "start_at, CASE WHEN pg_sleep(0.01) IS NULL OR is_skipped THEN 'skipped'",
);

/// All payloads of 600 kB together take two leases.
const SLOW_PAYLOADS: Slow = (
    SLOW_START.0,
    "SELECT started.* FROM @start_runs($1, $2, $3) AS started
    WHERE pg_sleep(COALESCE(octet_length(payload::text), 0) / 1e5) IS NOT NULL",
);

/// A start has at most 100 kB of them.
const FEW_BYTES: Slow = (
    "@start_runs($1, $2, $3)",
    "@start_runs($1, $2, $3::bigint / 40)",
);

/// Runs that are many or large do not delay others. Each is executed once.
async fn all_are_executed(statements: &str, count: usize) {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = with_much(&fixture, statements, &count.to_string()).await;
    others_go_on_until(&node, async || ECHOED.get() >= count).await;
    assert_eq!(ECHOED.get(), count);
    drop(node);
}

#[tokio::test]
async fn large_claim_does_not_delay_others() {
    all_are_executed(WAITING, if is_deep() { 20_000 } else { 5_000 }).await;
}

#[tokio::test]
async fn many_due_jobs_do_not_delay_others() {
    all_are_executed(DUE, if is_deep() { 20_000 } else { 5_000 }).await;
}

#[tokio::test]
async fn payloads_and_results_do_not_delay_others() {
    all_are_executed(PAYLOADS, if is_deep() { 2_000 } else { 200 }).await;
}

#[tokio::test]
async fn many_and_large_runs_need_their_bounds() {
    let found = tokio::join!(
        fails_with_much(WAITING, "1000", &[SLOW_CLAIMED]),
        fails_with_much(WAITING, "1000", &[SLOW_CLAIMED, UNLIMITED]),
        fails_with_much(DUE, "1000", &[SLOW_DUE]),
        fails_with_much(DUE, "1000", &[SLOW_DUE, UNLIMITED]),
        fails_with_much(PAYLOADS, "60", &[SLOW_PAYLOADS, FEW_BYTES]),
        fails_with_much(PAYLOADS, "60", &[SLOW_PAYLOADS]),
    );
    let found: [_; 6] = found.into();
    let expected = [false, true, false, true, false, true].map(Some);
    assert!(found == expected || found == [None; 6], "{found:?}");
}

/// Returns whether a node with these changes fails.
async fn fails_with(changes: &[Slow]) -> Option<bool> {
    let fixture = Fixture::sabotaged(changes).await?;
    let node = busy(&fixture, LEASE).await;
    Some(fails(&node, LOSES).await.is_some())
}

#[tokio::test]
async fn duties_need_their_limits_and_the_lease_needs_its_own_lock() {
    let failed = tokio::join!(
        fails_with(&[SLOW_READ, UNLIMITED]),
        fails_with(&[SLOW_PLAN, UNLIMITED]),
        fails_with(&[SLOW_SETTLE, UNLIMITED]),
        fails_with(&[SLOW_READ, UNLIMITED, SAME_LOCK]),
        fails_with(&[SLOW_LEASE]),
        fails_with(&[TOO_SLOW_START]),
        fails_with(&[TOO_SLOW_FINISH]),
    );
    let failed: [_; 7] = failed.into();
    assert!(!failed.contains(&Some(false)), "{failed:?}");
}

/// On a network with this delay in each direction, a node with the default lease executes jobs, and
/// keeps its lease.
async fn execute_far_away(delay: Duration) {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let relay = Relay::with_delay(&fixture.config, delay).await;
    let node = builder(&fixture)
        .start(relay.config.clone(), NoTls)
        .await
        .unwrap();
    fixture.enqueue(tick()).await;
    until_more_ticks(50).await;
    add_cron_jobs(&fixture, 100).await;
    let begin = Instant::now();
    until_more_ticks(50).await;
    let rest = (LEASE * 2).saturating_sub(begin.elapsed());
    assert_eq!(fails(&node, rest).await, None, "{delay:?}");
    drop(node);
}

#[tokio::test]
async fn node_far_away_from_the_database_keeps_its_lease() {
    execute_far_away(MS * 100).await;
    if is_deep() {
        for delay in [5, 25, 200] {
            execute_far_away(MS * delay).await;
        }
    }
}

#[tokio::test]
async fn lease_that_is_too_short_for_the_network_is_an_error() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let relay = Relay::with_delay(&fixture.config, MS * 100).await;
    let node = builder(&fixture).lease(MS * 1_100);
    let error = node.start(relay.config.clone(), NoTls).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with("lease of 1.1s: must be at least 6 times the round trip"),
        "{text}"
    );
}

/// Runs that are blocked on a limit, which has grown since then.
const BLOCKED: &str = "
    INSERT INTO @kind (handler, running) VALUES ('report', $n) ON CONFLICT (handler) DO UPDATE SET running = $n;
    INSERT INTO @node (name, alive_until, handlers)
        VALUES ('other', clock_timestamp() + interval '1 hour', '{report}');
    SELECT @add_job('report', delay => '1 hour');
    INSERT INTO @run (job, due, start_at, handler, state, blocked_on)
        SELECT (SELECT max(id) FROM @job), now() + n * interval '1 ms', now(), 'report', 'blocked', 'kind report'
        FROM generate_series(1, $n) AS n;
    INSERT INTO @slot (name, place) VALUES ('kind report', 1);
    SET enable_seqscan = off";

/// Returns the number of pages that a settlement reads which hands out this many places, and its
/// time.
async fn hand_out(count: u32, sabotage: Option<Slow>) -> Option<(u64, Duration)> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    shut_down(fixture.node().await).await;
    let complete = |text: &str| {
        text.replace("$n", &count.to_string())
            .replace('@', &format!("{}.", fixture.schema))
    };
    fixture
        .client
        .batch_execute(&complete(BLOCKED))
        .await
        .unwrap();
    let explain = complete("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT @settle('1 s')");
    let begin = Instant::now();
    let row = fixture.client.query_one(&explain, &[]).await.unwrap();
    let took = begin.elapsed();
    let plan: Value = row.get(0);
    let waiting = complete(
        "SELECT count(*) FROM @slot JOIN @run run ON run.id = slot.run AND state = 'waiting'",
    );
    let row = fixture.client.query_one(&waiting, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), i64::from(count));
    let pages = plan[0]["Plan"]["Shared Hit Blocks"].as_u64().unwrap();
    Some((pages, took))
}

#[tokio::test]
async fn settlement_takes_as_long_as_it_hands_out() {
    let (Some(few), Some(many)) = (hand_out(200, None).await, hand_out(1_000, None).await) else {
        return;
    };
    // Five times as many places.
    assert!(many.0 < few.0 * 8, "{few:?}, {many:?}");
    // One place after the other: each of them reads all that were handed out before.
    let one_by_one = (
        "LEAST(100, heir.places - taken)",
        "LEAST(1, heir.places - taken)",
    );
    let slow = hand_out(1_000, Some(one_by_one)).await.unwrap();
    let again = hand_out(1_000, None).await.unwrap();
    // Measured on two cores: 185 ms and 2.6 s.
    let shortest = many.1.min(again.1);
    assert!(slow.1 > shortest * 3, "{slow:?}, {shortest:?}");
}

/// The limit of a handler grows while many runs wait for it, on a slow network.
#[tokio::test]
async fn limit_that_grows_does_not_delay_the_lease() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let set = async |running| {
        let limits = KindLimits::new().running(running);
        let jobs = &fixture.jobs;
        jobs.set_kind(&fixture.client, "long", limits)
            .await
            .unwrap();
    };
    set(1).await;
    let relay = Relay::with_delay(&fixture.config, MS * 5).await;
    let node = builder(&fixture)
        .handler_named("long", |_: Context, _: Value| async {
            tokio::time::sleep(LOSES * 10).await;
            Ok::<_, RunError>(())
        })
        .runners(1_000)
        .capacity(4_000)
        .start(relay.config.clone(), NoTls)
        .await
        .unwrap();
    fixture.enqueue(tick()).await;
    let jobs = (0..800).map(|_| NewJob::named("long", Value::Null));
    fixture
        .jobs
        .enqueue_all(&fixture.client, jobs)
        .await
        .unwrap();
    let count = async |state: &str| {
        let text = format!(
            "SELECT count(*) FROM {}.run WHERE handler = 'long' AND state = $1",
            fixture.schema
        );
        let row = fixture.client.query_one(&text, &[&state]).await.unwrap();
        row.get::<_, i64>(0)
    };
    eventually(async || count("blocked").await == 799).await;
    for running in [200, 10, 800] {
        set(running).await;
        until_more_ticks(10).await;
    }
    eventually(async || count("running").await == 800).await;
    until_more_ticks(10).await;
    assert_eq!(node.health().last_error, None);
    drop(node);
}
