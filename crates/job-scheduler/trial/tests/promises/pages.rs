//! Pages of jobs and runs: filters, order, and where the next page begins.

use hashed_wheel_job_scheduler::{JobFilter, JobState, NewJob, RunState};
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

    let all = JobFilter::new;
    assert_eq!(fixture.search(all()).await, [&[ended], &ids[..]].concat());
    assert_eq!(
        fixture.search(all().handler("a")).await,
        [ids[0], ids[2], ids[4]]
    );
    assert_eq!(
        fixture
            .search(all().handler("a").state(JobState::Scheduled))
            .await,
        [ids[2], ids[4]]
    );
    assert_eq!(
        fixture.search(all().state(JobState::Paused)).await,
        [ids[0]]
    );
    assert_eq!(
        fixture.search(all().state(JobState::Disabled)).await,
        [ids[1]]
    );
    assert_eq!(
        fixture.search(all().state(JobState::NoNextRun)).await,
        [ended]
    );
    assert_eq!(
        fixture.search(all().handler("none")).await,
        Vec::<i64>::new()
    );
    let page = jobs
        .search(&fixture.client, &all().state(JobState::Disabled), 0, 10)
        .await
        .unwrap();
    assert_eq!(
        (page.jobs[0].disabled_reason.as_deref(), page.next),
        (Some("why"), None)
    );
    let none = jobs
        .search(&fixture.client, &all(), i64::MAX, 10)
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
    let rare = JobFilter::new().handler("rare");
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
    let (mut found, mut last) = (Vec::new(), None);
    loop {
        let page = jobs.failures(client, last, 2).await.unwrap();
        let Some(end) = page.last() else { break };
        last = Some((end.finished.unwrap(), end.id));
        assert!(
            page.iter()
                .all(|run| run.error.as_deref() == Some("too early") && run.handler == "task")
        );
        found.extend(page.iter().map(|run| run.id));
    }
    assert_eq!(found, numbers);

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
