//! Many jobs in one call, and jobs in transactions of sqlx.

use hashed_wheel_job_scheduler::{Error, Jobs, NewJob, Outcome, RunChange, RunState};
use sqlx::Connection;
use tokio_postgres::error::SqlState;

use crate::fixture::{Fixture, LATER, MS, Task, connect, eventually, shut_down};

fn job() -> NewJob {
    NewJob::new(&Task::Succeed)
}

#[tokio::test]
async fn batch_keeps_its_order_and_honours_keys() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let old = fixture.enqueue(job().key("old").after(LATER)).await;
    let finished = fixture.enqueue(job().key("finished")).await;
    let node = fixture.node().await;
    fixture.until_done(finished, 1).await;
    shut_down(node).await;
    let jobs = [
        job().key("z"),
        job().key("old"),
        job(),
        job().key("a"),
        job().key("finished"),
        job().key("z"),
        job().key("old").timeout(MS * 1_000).replace_existing(),
        job().key("finished"),
    ];
    let enqueued = fixture
        .jobs
        .enqueue_all(&fixture.client, jobs)
        .await
        .unwrap();
    let outcomes: Vec<_> = enqueued.iter().map(|enqueued| enqueued.outcome).collect();
    use Outcome::{Added, Found, Replaced};
    assert_eq!(
        outcomes,
        [Added, Found, Added, Added, Added, Found, Replaced, Found]
    );
    let ids: Vec<_> = enqueued.iter().map(|enqueued| enqueued.job).collect();
    assert_eq!((ids[1], ids[6]), (old, old));
    assert_eq!((ids[5], ids[7]), (ids[0], ids[4]));
    assert!(ids[4] != finished && ids[0] < ids[2] && ids[2] < ids[3]);
    assert_eq!(
        fixture.jobs.find(&fixture.client, "a").await.unwrap(),
        Some(ids[3])
    );
    assert!(
        fixture
            .jobs
            .enqueue_all(&fixture.client, [])
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn batch_is_stored_completely_or_not_at_all() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let many = || (0..1_000).map(|_| job().after(LATER));
    // The library rejects the one, and the database the other.
    for wrong in [job().cron("61 * * * * *"), job().key("a\0")] {
        fixture
            .jobs
            .enqueue_all(&fixture.client, many().chain([wrong]))
            .await
            .unwrap_err();
    }
    let large = (0..33).map(|_| NewJob::named("task", "a".repeat(2 << 20).into()));
    let error = fixture
        .jobs
        .enqueue_all(&fixture.client, large)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("must be at most 67108864"),
        "{error}"
    );
    assert!(fixture.all_jobs().await.is_empty());
    let enqueued = fixture
        .jobs
        .enqueue_all(&fixture.client, many())
        .await
        .unwrap();
    assert!(enqueued.is_sorted_by_key(|enqueued| enqueued.job) && enqueued.len() == 1_000);
}

/// Panics after another error.
fn is_deadlock<T>(result: &Result<T, Error>) -> bool {
    match result {
        Ok(_) => false,
        Err(Error::Database(error)) => {
            assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED));
            true
        }
        Err(error) => panic!("{error}"),
    }
}

/// Two clients that enqueue the same keys, in opposite orders. Returns whether one of them got an
/// error because of a deadlock.
async fn deadlocks(sabotage: Option<(&str, &str)>) -> Option<bool> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    shut_down(fixture.node().await).await;
    let clients = [
        connect(&fixture.config).await,
        connect(&fixture.config).await,
    ];
    for round in 0..10 {
        let keyed = |number: u32| job().key(format!("{round}-{number}")).after(LATER);
        let forth = fixture.jobs.enqueue_all(&clients[0], (0..1_000).map(keyed));
        let back = fixture
            .jobs
            .enqueue_all(&clients[1], (0..1_000).rev().map(keyed));
        let (forth, back) = tokio::join!(forth, back);
        if is_deadlock(&forth) || is_deadlock(&back) {
            return Some(true);
        }
        let added = |outcome| {
            move |enqueued: &&hashed_wheel_job_scheduler::Enqueued| enqueued.outcome == outcome
        };
        let (forth, back) = (forth.unwrap(), back.unwrap());
        let count = |outcome| forth.iter().chain(&back).filter(added(outcome)).count();
        assert_eq!(
            (count(Outcome::Added), count(Outcome::Found)),
            (1_000, 1_000)
        );
    }
    Some(false)
}

#[tokio::test]
async fn batches_with_the_same_keys_do_not_wait_for_each_other_forever() {
    let Some(has_deadlock) = deadlocks(None).await else {
        return;
    };
    assert!(!has_deadlock);
    let no_order = (
        "ORDER BY wanted.key, wanted.number\n            ON CONFLICT",
        "ORDER BY wanted.number\n            ON CONFLICT",
    );
    assert_eq!(deadlocks(Some(no_order)).await, Some(true));
}

/// A transaction replaces two jobs in the order of their keys. After the first one, the runs of both
/// are changed, whose numbers are in the other order. Returns whether there is a deadlock.
async fn bulk_change_deadlocks(change: RunChange, sabotage: Option<(&str, &str)>) -> Option<bool> {
    let mut fixture = Fixture::sabotaged(&sabotage).await?;
    fixture.migrate().await;
    let jobs = fixture.jobs.clone();
    let (changing, watching) = (
        connect(&fixture.config).await,
        connect(&fixture.config).await,
    );
    let mut runs = Vec::new();
    for key in ["b", "a"] {
        let id = fixture.enqueue(job().key(key).after(LATER)).await;
        let run = jobs.run_now(&fixture.client, id).await.unwrap().unwrap();
        if change == RunChange::Retry {
            jobs.cancel(&fixture.client, run).await.unwrap();
        }
        runs.push(run);
    }
    let waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
    let query = format!("%\"{}\".%called WHERE changed%", fixture.schema);
    let replacement = |key| job().key(key).after(LATER).priority(1).replace_existing();
    let transaction = fixture.client.transaction().await.unwrap();
    jobs.enqueue(&transaction, replacement("a")).await.unwrap();
    let replace = async {
        eventually(async || !watching.query(waits, &[&query]).await.unwrap().is_empty()).await;
        let replaced = jobs.enqueue(&transaction, replacement("b")).await;
        transaction.commit().await.unwrap();
        replaced
    };
    let (changed, replaced) = tokio::join!(jobs.change_runs(&changing, change, &runs), replace);
    let has_deadlock = is_deadlock(&changed) || is_deadlock(&replaced);
    assert!(has_deadlock || changed.unwrap() == 2);
    Some(has_deadlock)
}

#[tokio::test]
async fn changes_of_many_runs_and_replacements_do_not_wait_for_each_other_forever() {
    for change in [RunChange::Retry, RunChange::Cancel(None)] {
        let Some(has_deadlock) = bulk_change_deadlocks(change, None).await else {
            return;
        };
        assert!(!has_deadlock, "{change:?}");
        let no_locks = ("(SELECT count(*) FROM locked) > 0 AND", "");
        assert_eq!(
            bulk_change_deadlocks(change, Some(no_locks)).await,
            Some(true)
        );
    }
}

/// Three runs wait, and two of them should be cancelled because they do. While the first one is
/// locked, the second one starts. Returns how many were cancelled, and whether the second one was.
async fn cancelled_while_one_starts(sabotage: Option<(&str, &str)>) -> Option<(u64, bool)> {
    let mut fixture = Fixture::sabotaged(&sabotage).await?;
    fixture.migrate().await;
    let jobs = fixture.jobs.clone();
    let [cancelling, watching] = [
        connect(&fixture.config).await,
        connect(&fixture.config).await,
    ];
    let mut runs = Vec::new();
    for _ in 0..3 {
        let id = fixture.enqueue(job().after(LATER)).await;
        runs.push(jobs.run_now(&fixture.client, id).await.unwrap().unwrap());
    }
    let schema = &fixture.schema;
    let start = format!(
        "SELECT FROM {schema}.run WHERE id = {} FOR UPDATE;
        UPDATE {schema}.run SET state = 'running', owner = 1, started = now() WHERE id = {}",
        runs[0], runs[1]
    );
    let transaction = fixture.client.transaction().await.unwrap();
    transaction.batch_execute(&start).await.unwrap();
    let waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
    let query = format!("%\"{schema}\".%called WHERE changed%");
    let commit = async {
        eventually(async || !watching.query(waits, &[&query]).await.unwrap().is_empty()).await;
        transaction.commit().await.unwrap();
    };
    let change = RunChange::Cancel(Some(RunState::Waiting));
    let cancelled = jobs.change_runs(&cancelling, change, &runs[..2]);
    let (cancelled, ()) = tokio::join!(cancelled, commit);
    let mut is_cancelled = Vec::new();
    for run in &runs {
        let run = jobs.get_run(&watching, *run).await.unwrap().unwrap();
        is_cancelled.push(run.is_cancelled || run.state == RunState::Cancelled);
    }
    assert!(is_cancelled[0] && !is_cancelled[2], "{is_cancelled:?}");
    Some((cancelled.unwrap(), is_cancelled[1]))
}

#[tokio::test]
async fn runs_that_start_meanwhile_are_not_cancelled_with_those_that_wait() {
    let Some(cancelled) = cancelled_while_one_starts(None).await else {
        return;
    };
    assert_eq!(cancelled, (1, false));
    let no_state = ("AND run.state IS NOT DISTINCT FROM 'waiting'", "");
    let cancelled = cancelled_while_one_starts(Some(no_state)).await;
    assert_eq!(cancelled, Some((2, true)));
}

/// A transaction deletes a job, and locks its runs by their due times: the last one first. While it
/// waits for the second one, another transaction deletes or cancels these runs. Returns whether there
/// is a deadlock.
async fn deletion_deadlocks(deletes: bool, sabotage: Option<(&str, &str)>) -> Option<bool> {
    let mut fixture = Fixture::sabotaged(&sabotage).await?;
    fixture.migrate().await;
    let jobs = fixture.jobs.clone();
    let [changing, deleting, watching] = [
        connect(&fixture.config).await,
        connect(&fixture.config).await,
        connect(&fixture.config).await,
    ];
    let id = fixture.enqueue(job().after(LATER)).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        let run = jobs.run_now(&fixture.client, id).await.unwrap();
        runs.push(run.unwrap());
    }
    if deletes {
        assert_eq!(jobs.cancel_all(&fixture.client, id).await.unwrap(), 3);
    }
    let table = format!("\"{}\".run", fixture.schema);
    for run in runs.iter().rev() {
        let text = format!("UPDATE {table} SET due = due - id * interval '1 hour' WHERE id = $1");
        fixture.client.execute(&text, &[run]).await.unwrap();
    }
    let waits = format!(
        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, '\"{}\".') > 0",
        fixture.schema
    );
    let until_waiting = async |count| {
        eventually(async || watching.query(&waits, &[]).await.unwrap().len() == count).await;
    };
    let lock = fixture.client.transaction().await.unwrap();
    let text = format!("SELECT FROM {table} WHERE id = $1 FOR UPDATE");
    lock.query(&text, &[&runs[1]]).await.unwrap();
    let change = async {
        until_waiting(1).await;
        match deletes {
            true => jobs.change_runs(&changing, RunChange::Delete, &runs).await,
            false => jobs.cancel_all(&changing, id).await,
        }
    };
    let unlock = async {
        until_waiting(2).await;
        lock.rollback().await.unwrap();
    };
    let (deleted, changed, ()) = tokio::join!(jobs.delete(&deleting, id), change, unlock);
    let has_deadlock = is_deadlock(&deleted) || is_deadlock(&changed);
    assert!(has_deadlock || deleted.unwrap() && changed.unwrap() == 0);
    Some(has_deadlock)
}

#[tokio::test]
async fn changes_of_many_runs_and_deletions_of_jobs_do_not_wait_for_each_other_forever() {
    let no_locks = ("WHERE (SELECT count(*) FROM locked) > 0", "");
    for (deletes, sabotage) in [
        (true, ("IF waits THEN", "IF false THEN")),
        (false, no_locks),
    ] {
        let Some(has_deadlock) = deletion_deadlocks(deletes, None).await else {
            return;
        };
        assert!(!has_deadlock, "{deletes}");
        assert_eq!(
            deletion_deadlocks(deletes, Some(sabotage)).await,
            Some(true)
        );
    }
}

/// Otherwise nothing would find the job later: it has no result.
#[tokio::test]
async fn result_remains_while_another_transaction_has_locked_its_finished_job() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let jobs = fixture.jobs.clone();
    let other = connect(&fixture.config).await;
    let node = fixture.node().await;
    let id = fixture.enqueue(job()).await;
    let run = fixture.until_done(id, 1).await[0].id;
    shut_down(node).await;
    let clean = format!("SELECT {}.clean('0 s', 100)", fixture.schema);
    let clean = async || other.query_one(&clean, &[]).await.unwrap().get::<_, i64>(0);
    let transaction = fixture.client.transaction().await.unwrap();
    assert!(!jobs.retry(&transaction, run).await.unwrap());
    assert_eq!(clean().await, 0);
    let deleted = jobs.change_runs(&other, RunChange::Delete, &[run]).await;
    assert_eq!(deleted.unwrap(), 0);
    transaction.rollback().await.unwrap();
    assert_eq!(clean().await, 1);
    assert!(jobs.get(&other, id).await.unwrap().is_none());
}

#[tokio::test]
async fn job_exists_if_the_transaction_of_sqlx_commits() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let mut connection = sqlx::PgConnection::connect(&fixture.url()).await.unwrap();

    let mut transaction = connection.begin().await.unwrap();
    let lost = fixture
        .jobs
        .enqueue(&mut *transaction, job())
        .await
        .unwrap()
        .job;
    transaction.rollback().await.unwrap();

    let mut transaction = connection.begin().await.unwrap();
    let cron = job().cron("0 0 3 1 1 *").key("k");
    let cron = fixture.jobs.enqueue(&mut *transaction, cron).await.unwrap();
    let both = fixture
        .jobs
        .enqueue_all(&mut *transaction, [job(), job().key("k")])
        .await
        .unwrap();
    assert_eq!((both[1].job, both[1].outcome), (cron.job, Outcome::Found));
    transaction.commit().await.unwrap();

    fixture.until_done(both[0].job, 1).await;
    assert!(
        fixture
            .jobs
            .get(&fixture.client, lost)
            .await
            .unwrap()
            .is_none()
    );
    let next = fixture.job(cron.job).await.next_run.unwrap();
    assert!(next.to_string().ends_with("-01-01T03:00:00Z"), "{next}");
    shut_down(node).await;

    let no_schema = Jobs::new("no_such_schema").unwrap();
    let error = no_schema.enqueue(&mut connection, job()).await.unwrap_err();
    assert!(matches!(error, Error::Sqlx(_)), "{error}");
}
