//! Pages of jobs and runs: filters, order, and where the next page begins.

use hashed_wheel_job_scheduler::{
    JobFilter, JobState, NewJob, RunChange, RunFilter, RunState, RunSummary,
};
use serde_json::Value;

use crate::fixture::{Fixture, LATER, MS, Task, shut_down};

impl Fixture {
    /// All pages of a search, each with at most two jobs.
    async fn search(&self, filter: JobFilter) -> Vec<i64> {
        let (mut found, mut after) = (Vec::new(), Some(0));
        while let Some(start) = after {
            let page = self
                .jobs
                .search(&self.client, &filter, start, 2)
                .await
                .unwrap();
            assert!(
                page.jobs.len() <= 2 && page.next > Some(start) || page.next.is_none(),
                "{page:?}"
            );
            found.extend(page.jobs.iter().map(|job| job.id));
            after = page.next;
        }
        found
    }
}

fn filter(handler: Option<&str>, state: Option<JobState>) -> JobFilter {
    let mut filter = JobFilter::default();
    (filter.handler, filter.state) = (handler.map(str::to_owned), state);
    filter
}

#[tokio::test]
async fn search_finds_all_jobs_that_match() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let ended = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    fixture.until_done(ended, 1).await;
    shut_down(node).await;
    let job = |handler: &str| NewJob::named(handler, Value::Null).after(LATER);
    let mut ids = Vec::new();
    for handler in ["a", "b", "a", "b", "a"] {
        ids.push(fixture.enqueue(job(handler)).await);
    }
    let jobs = fixture.jobs.clone();
    assert!(jobs.pause(&mut fixture.client, ids[0]).await.unwrap());
    let disable = format!(
        "UPDATE {}.job SET enabled = false, disabled_reason = 'why' WHERE id = {}",
        fixture.schema, ids[1]
    );
    fixture.client.batch_execute(&disable).await.unwrap();

    let [a, none] = ["a", "none"].map(Some);
    for (handler, state, expected) in [
        (None, None, [&[ended], &ids[..]].concat()),
        (a, None, vec![ids[0], ids[2], ids[4]]),
        (a, Some(JobState::Scheduled), vec![ids[2], ids[4]]),
        (None, Some(JobState::Paused), vec![ids[0]]),
        (None, Some(JobState::Disabled), vec![ids[1]]),
        (None, Some(JobState::NoNextRun), vec![ended]),
        (none, None, vec![]),
    ] {
        let found = fixture.search(filter(handler, state)).await;
        assert_eq!(found, expected, "{handler:?} {state:?}");
        for id in found {
            let known = fixture.job(id).await.state();
            assert!(state.is_none_or(|state| state == known), "{known}");
        }
    }
    let disabled = filter(None, Some(JobState::Disabled));
    let page = jobs
        .search(&fixture.client, &disabled, 0, 10)
        .await
        .unwrap();
    assert_eq!(
        (page.jobs[0].disabled_reason.as_deref(), page.next),
        (Some("why"), None)
    );
    let none = jobs
        .search(&fixture.client, &JobFilter::default(), i64::MAX, 10)
        .await
        .unwrap();
    assert!(none.jobs.is_empty() && none.next.is_none(), "{none:?}");
}

#[tokio::test]
async fn search_with_a_filter_reads_at_most_10_000_jobs_at_once() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let first = fixture
        .enqueue(NewJob::named("rare", Value::Null).after(LATER))
        .await;
    let fill = format!(
        "INSERT INTO {0}.job (handler, payload, schedule, time_zone, jitter_us, misfire, overlap, retries,
            retry_first_us, retry_max_us, first_run)
        SELECT 'frequent', payload, schedule, time_zone, 0, misfire, overlap, 0, 0, 0, first_run
        FROM {0}.job, generate_series(1, 20000)",
        fixture.schema
    );
    fixture.client.batch_execute(&fill).await.unwrap();
    let last = fixture
        .enqueue(NewJob::named("rare", Value::Null).after(LATER))
        .await;
    let rare = filter(Some("rare"), None);
    let (mut pages, mut after) = (Vec::new(), Some(first - 1));
    while let Some(start) = after {
        let page = fixture
            .jobs
            .search(&fixture.client, &rare, start, 10)
            .await
            .unwrap();
        after = page.next;
        pages.push((
            page.jobs.iter().map(|job| job.id).collect::<Vec<_>>(),
            page.next,
        ));
    }
    let ends = [Some(first + 9_999), Some(first + 19_999), None];
    assert_eq!(
        pages,
        [
            (vec![first], ends[0]),
            (vec![], ends[1]),
            (vec![last], ends[2])
        ]
    );
}

#[tokio::test]
async fn runs_and_failures_are_read_page_by_page() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = fixture
        .enqueue(NewJob::new(&Task::FailUntil(2)).after(LATER))
        .await;
    let mut numbers = Vec::new();
    for count in 1..=5 {
        numbers.push(
            fixture
                .jobs
                .run_now(&fixture.client, job)
                .await
                .unwrap()
                .unwrap(),
        );
        let is_over = |state| state == RunState::Failed;
        fixture
            .until(job, |runs| {
                runs.iter().filter(|run| is_over(run.state)).count() == count
            })
            .await;
    }
    let good = fixture
        .enqueue(NewJob::new(&Task::FailUntil(2)).retries(1, MS, MS))
        .await;
    fixture.until_done(good, 1).await;
    shut_down(node).await;
    numbers.reverse();

    let (jobs, client) = (&fixture.jobs, &fixture.client);
    let (mut found, mut next) = (Vec::new(), None);
    loop {
        let filter = RunFilter::default();
        let page = jobs.search_runs(client, &filter, next, 2).await.unwrap();
        assert!(page.runs.len() <= 2, "{page:?}");
        let is_right = |run: &RunSummary| {
            run.error.as_deref() == Some("too early") && run.handler == "task" && run.key.is_none()
        };
        assert!(page.runs.iter().all(is_right), "{page:?}");
        found.extend(page.runs.iter().map(|run| run.id));
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(found, numbers);
    // The attempt before the last one has failed, too.
    let attempts = jobs
        .history(client, good, 1)
        .await
        .unwrap()
        .remove(0)
        .failures;
    assert_eq!(
        (attempts.len(), attempts[0].attempt, &*attempts[0].error),
        (1, 1, "too early")
    );
    assert!(attempts[0].started <= attempts[0].ended);

    let (mut found, mut last) = (Vec::new(), None);
    loop {
        let page = jobs.runs(client, job, last, 2).await.unwrap();
        let Some(end) = page.last() else { break };
        last = Some(end.due);
        found.extend(
            page.iter()
                .filter(|run| run.state == RunState::Failed)
                .map(|run| run.id),
        );
    }
    assert_eq!(found, numbers);

    let run = jobs.get_run(client, numbers[0]).await.unwrap().unwrap();
    assert_eq!(
        (run.job, run.state, run.error.as_deref()),
        (job, RunState::Failed, Some("too early"))
    );
    assert!(jobs.get_run(client, i64::MAX).await.unwrap().is_none());
}

/// Each field of the filter finds its run among others that differ in this field only.
#[tokio::test]
async fn runs_are_found_by_each_field_and_changed_together() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let job = |handler: &str, key: &str, limit: &str| {
        NewJob::named(handler, Value::Null)
            .after(LATER)
            .key(key)
            .limit(limit, 1)
    };
    let first = fixture.enqueue(job("a", "tenant_7/x", "t7")).await;
    let second = fixture.enqueue(job("b", "tenant.7/x", "t8")).await;
    let insert = format!(
        "INSERT INTO {0}.run (job, handler, due, start_at, state, owner, error, started, finished)
        SELECT job.id, job.handler, now(), now(), state, job.id, 'Why ' || job.id, now(), '2026-01-01T00:00Z'::timestamptz + job.id * interval '1 hour'
        FROM {0}.job, unnest(array['failed']) AS state;
        UPDATE {0}.job SET next_run = NULL",
        fixture.schema
    );
    fixture.client.batch_execute(&insert).await.unwrap();
    let (jobs, client) = (&fixture.jobs, &fixture.client);
    let select = async |change: &dyn Fn(&mut RunFilter)| {
        let mut filter = RunFilter::default();
        change(&mut filter);
        let page = jobs.search_runs(client, &filter, None, 10).await.unwrap();
        assert!(page.next.is_none() && !page.is_cut, "{page:?}");
        let mut found: Vec<_> = page.runs.iter().map(|run| run.job).collect();
        found.sort_unstable();
        found
    };
    let middle = "2026-01-01T01:30Z".parse().unwrap();
    assert_eq!(select(&|_| ()).await, [first, second]);
    assert_eq!(
        select(&|filter| filter.state = Some(RunState::Failed)).await,
        [first, second]
    );
    assert!(
        select(&|filter| filter.state = Some(RunState::Abandoned))
            .await
            .is_empty()
    );
    assert!(
        select(&|filter| filter.state = Some(RunState::Running))
            .await
            .is_empty()
    );
    assert_eq!(
        select(&|filter| filter.handler = Some("b".into())).await,
        [second]
    );
    assert_eq!(select(&|filter| filter.node = Some(first)).await, [first]);
    // Not a pattern.
    assert_eq!(
        select(&|filter| filter.key = Some("tenant_7".into())).await,
        [first]
    );
    assert_eq!(
        select(&|filter| filter.limit = Some("t8".into())).await,
        [second]
    );
    assert_eq!(
        select(&|filter| filter.since = Some(middle)).await,
        [second]
    );
    assert_eq!(select(&|filter| filter.until = Some(middle)).await, [first]);
    assert_eq!(
        select(&|filter| filter.error = Some(format!("WHY {second}"))).await,
        [second]
    );

    let all = RunFilter::default();
    let page = jobs.search_runs(client, &all, None, 10).await.unwrap();
    let mut runs: Vec<_> = page.runs.iter().map(|run| run.id).collect();
    runs.sort_unstable();
    let change = async |change, runs: &[i64]| jobs.change_runs(client, change, runs).await.unwrap();
    assert_eq!(change(RunChange::Cancel(None), &runs).await, 0);
    assert_eq!(change(RunChange::Retry, &runs[..1]).await, 1);
    assert_eq!(change(RunChange::Retry, &runs).await, 1);
    assert_eq!(change(RunChange::Delete, &runs).await, 0);
    let running = RunChange::Cancel(Some(RunState::Running));
    assert_eq!(change(running, &runs).await, 0);
    assert_eq!(change(RunChange::Cancel(None), &runs[1..]).await, 1);
    assert_eq!(change(RunChange::Delete, &runs).await, 1);
    // The last run of a job that has ended takes the job with it.
    assert!(jobs.get(client, first).await.unwrap().is_some());
    assert!(jobs.get(client, second).await.unwrap().is_none());
}

/// 10 500 runs of another kind, another state, or another node come first in each index.
#[tokio::test]
async fn runs_that_have_not_ended_are_found_behind_10_000_others() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let job = fixture
        .enqueue(NewJob::named("b", Value::Null).after(LATER))
        .await;
    let insert = format!(
        "INSERT INTO {0}.node (name, alive_until) SELECT name, now() + interval '1 hour' FROM unnest(array['x', 'y']) AS name;
        INSERT INTO {0}.run (job, due, start_at, handler, state, blocked_on, owner)
        SELECT {job}, now() - number * interval '1 s', now(), of.handler, of.state, of.blocked_on,
            (SELECT id FROM {0}.node WHERE name = of.node)
        FROM (VALUES
            (1, 10500, 'a', 'waiting', NULL, NULL),
            (20001, 20003, 'b', 'waiting', NULL, NULL),
            (30001, 40500, 'a', 'claimed', NULL, 'x'),
            (50001, 50002, 'b', 'running', NULL, 'y'),
            (60001, 60001, 'a', 'claimed', NULL, 'y'),
            (70001, 80500, 'a', 'blocked', 'key a', NULL),
            (90001, 90004, 'b', 'blocked', 'key b', NULL)
        ) AS of (first, last, handler, state, blocked_on, node), generate_series(first, last) AS number",
        fixture.schema
    );
    fixture.client.batch_execute(&insert).await.unwrap();
    let node = format!("SELECT id FROM {}.node WHERE name = 'y'", fixture.schema);
    let node: i64 = fixture
        .client
        .query_one(&node, &[])
        .await
        .unwrap()
        .try_get(0)
        .unwrap();
    let search = async |state, handler: Option<&str>, node, key: Option<&str>| {
        let mut filter = RunFilter::default();
        (filter.state, filter.node) = (Some(state), node);
        (filter.handler, filter.key) = (handler.map(str::to_owned), key.map(str::to_owned));
        let page = fixture.jobs.search_runs(&fixture.client, &filter, None, 9);
        let page = page.await.unwrap();
        let is_right = |run: &RunSummary| {
            run.state == state
                && handler.is_none_or(|handler| run.handler == handler)
                && node.is_none_or(|node| run.node == Some(node))
        };
        assert!(page.runs.iter().all(is_right), "{page:?}");
        (page.runs.len(), page.next.is_some(), page.is_cut)
    };
    for (state, handler, node, count) in [
        (RunState::Waiting, Some("b"), None, 3),
        (RunState::Running, None, None, 2),
        (RunState::Running, Some("b"), Some(node), 2),
        (RunState::Claimed, None, Some(node), 1),
        (RunState::Blocked, Some("b"), None, 4),
        (RunState::Waiting, Some("c"), None, 0),
    ] {
        let found = search(state, handler, node, None).await;
        assert_eq!(found, (count, false, false), "{state} {handler:?} {node:?}");
    }
    // There is no index of keys. So it says that there may be more.
    for state in [RunState::Waiting, RunState::Claimed, RunState::Blocked] {
        let found = search(state, Some("a"), None, Some("key")).await;
        assert_eq!(found, (0, false, true), "{state}");
        assert_eq!(search(state, None, None, None).await, (9, true, true));
    }
}
