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
        let mut found = Vec::new();
        for run in jobs.select_runs(client, &filter, None).await.unwrap() {
            found.push(jobs.get_run(client, run).await.unwrap().unwrap().job);
        }
        let page = jobs.search_runs(client, &filter, None, 10).await.unwrap();
        assert!(
            page.next.is_none() && page.runs.len() == found.len(),
            "{page:?}"
        );
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

    let runs = jobs
        .select_runs(client, &RunFilter::default(), None)
        .await
        .unwrap();
    let change = async |change, runs: &[i64]| jobs.change_runs(client, change, runs).await.unwrap();
    assert_eq!(change(RunChange::Cancel, &runs).await, 0);
    assert_eq!(change(RunChange::Retry, &runs[..1]).await, 1);
    assert_eq!(change(RunChange::Retry, &runs).await, 1);
    assert_eq!(change(RunChange::Delete, &runs).await, 0);
    assert_eq!(change(RunChange::Cancel, &runs[1..]).await, 1);
    assert_eq!(change(RunChange::Delete, &runs).await, 1);
    // The last run of a job that has ended takes the job with it.
    assert!(jobs.get(client, first).await.unwrap().is_some());
    assert!(jobs.get(client, second).await.unwrap().is_none());
}
