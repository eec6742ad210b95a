//! The example with a pool enqueues in a transaction, and its job is executed.

use hashed_wheel_trial::testing::server_or_skip;
use job_scheduler_trial::Database;
use tokio_postgres::NoTls;

#[path = "../../examples/pool.rs"]
#[allow(dead_code, reason = "the test calls what `main` calls")]
mod example;

#[test]
fn the_example_with_a_pool_runs() {
    let Some(database) = server_or_skip(Database::start()) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        example::run(&database.url).await.unwrap();
        let (client, connection) = tokio_postgres::connect(&database.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let text = "SELECT (job.payload ->> 'account')::bigint = account.id AND run.state = 'done'
            FROM account, job_scheduler.job JOIN job_scheduler.run ON run.job = job.id";
        assert!(
            client
                .query_one(text, &[])
                .await
                .unwrap()
                .try_get::<_, bool>(0)
                .unwrap()
        );
    });
}
