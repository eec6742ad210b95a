//! Concurrent changes of the same jobs, while their runs start and end.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel_job_scheduler::{Jobs, NewJob, Overlap};
use tokio_postgres::Client;

use crate::fixture::{Fixture, MS, Task, connect, shut_down};

const KEYS: usize = 5;

/// The number of changes that each client makes. Not a time, because the machine may be busy.
const CHANGES: u32 = 400;

fn job(random: &mut Rng, key: usize) -> NewJob {
    let overlap = [Overlap::Allow, Overlap::Skip, Overlap::Wait][key % 3];
    let task = [
        Task::Succeed,
        Task::Fail,
        Task::Panic,
        Task::Sleep(random.u64(1..30)),
        Task::FailUntil(2),
    ];
    let job = NewJob::new(random.choice(&task).unwrap())
        .key(key.to_string())
        .overlap(overlap);
    let job = job
        .retries(1, MS * random.u32(0..20), MS * 20)
        .timeout(MS * random.u32(5..50));
    if random.bool() {
        job.every(MS * random.u32(5..40))
    } else {
        job
    }
}

/// Changes one of the jobs. No error is expected, in particular no deadlock.
async fn change(jobs: &Jobs, client: &mut Client, random: &mut Rng) {
    let key = random.usize(..KEYS);
    let change = random.u32(..6);
    if change < 2 {
        let job = job(random, key);
        let job = if change == 0 {
            job.replace_existing()
        } else {
            job
        };
        jobs.enqueue(&*client, job).await.unwrap();
        return;
    }
    let Some(id) = jobs.find(&*client, &key.to_string()).await.unwrap() else {
        return;
    };
    match change {
        2 => drop(jobs.pause(client, id).await.unwrap()),
        3 => drop(jobs.resume(client, id).await.unwrap()),
        4 => drop(jobs.run_now(&*client, id).await.unwrap()),
        _ => drop(jobs.delete(&*client, id).await.unwrap()),
    }
}

#[tokio::test]
async fn concurrent_changes_neither_lose_runs_nor_cost_a_node_its_lease() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    // The leases do not end, so only an error of the database could give a node another number.
    let builder = || fixture.builder().heartbeat(MS * 100).prefetch(MS * 500);
    let nodes = [
        fixture.start(builder()).await,
        fixture.start(builder()).await,
    ];
    let mut tasks = Vec::new();
    for seed in 0..4 {
        let (mut client, jobs) = (connect(&fixture.config).await, fixture.jobs.clone());
        tasks.push(tokio::spawn(async move {
            let mut random = Rng::with_seed(seed);
            for _ in 0..CHANGES {
                change(&jobs, &mut client, &mut random).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    // No more due times. Then each run ends.
    let schema = &fixture.schema;
    let end = format!("UPDATE {schema}.job SET next_run = NULL");
    fixture.client.batch_execute(&end).await.unwrap();
    let begin = Instant::now();
    let states = format!("SELECT state, count(*) FROM {schema}.run GROUP BY state");
    let counts = loop {
        let rows = fixture.client.query(&states, &[]).await.unwrap();
        let counts: HashMap<String, i64> =
            rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let active = ["waiting", "claimed", "running", "blocked"];
        if !active.iter().any(|state| counts.contains_key(*state)) {
            break counts;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{counts:?}");
        tokio::time::sleep(MS * 20).await;
    };
    assert!(
        counts.get("done").is_some_and(|&count| count > 0),
        "{counts:?}"
    );
    // The nodes free the places of runs that applications have ended at their next heartbeat.
    fixture.until_no_place_is_taken().await;
    let interrupted = format!("SELECT id FROM {schema}.run WHERE interrupted > 0");
    assert!(
        fixture
            .client
            .query(&interrupted, &[])
            .await
            .unwrap()
            .is_empty()
    );
    let mut numbers: Vec<_> = fixture
        .jobs
        .nodes(&fixture.client)
        .await
        .unwrap()
        .iter()
        .map(|node| node.id)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    for node in nodes {
        shut_down(node).await;
    }
}
