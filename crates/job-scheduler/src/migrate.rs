//! Creates and updates the tables.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::error::Error;
use crate::jobs::Jobs;
use crate::sql::Names;

/// Each version changes the tables of the version before it. Its files never change after a
/// release.
const MIGRATIONS: [&str; 1] = [concat!(
    include_str!("../migrations/1.sql"),
    include_str!("../migrations/1_jobs.sql"),
    include_str!("../migrations/1_notifications.sql"),
    include_str!("../migrations/1_limits.sql"),
    include_str!("../migrations/1_rates.sql"),
    include_str!("../migrations/1_interruptions.sql"),
    include_str!("../migrations/1_control.sql")
)];

/// Waits until no other client migrates this schema. Ends with the transaction.
const LOCK: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('hashed-wheel-job-scheduler ' || $1, 0))";

/// Brings the tables to the newest version. All in one transaction: after an error, nothing has
/// changed.
pub(crate) async fn migrate(client: &mut Client, names: &Names) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    transaction
        .query_typed(LOCK, &[(&names.schema(), Type::TEXT)])
        .await?;
    let version = version(&transaction, names).await?;
    let known = MIGRATIONS.len() as i32;
    if version > known {
        return Err(Error::SchemaTooNew {
            found: version,
            known,
        });
    }
    for (migration, number) in MIGRATIONS.iter().zip(1_i32..).skip(version as usize) {
        transaction
            .batch_execute(&names.complete(migration))
            .await?;
        let insert = names.complete("INSERT INTO @migration VALUES ($1)");
        transaction
            .query_typed(&insert, &[(&number, Type::INT4)])
            .await?;
    }
    Ok(transaction.commit().await?)
}

/// Returns the version of the tables. Creates the schema if there is none.
async fn version(
    transaction: &tokio_postgres::Transaction<'_>,
    names: &Names,
) -> Result<i32, Error> {
    // A separate question, because CREATE TABLE IF NOT EXISTS needs a right that a node may lack.
    let table = names.complete("@migration");
    let exists = transaction
        .query_typed_one(
            "SELECT to_regclass($1) IS NOT NULL",
            &[(&table, Type::TEXT)],
        )
        .await?;
    if !exists.try_get::<_, bool>(0)? {
        // CREATE SCHEMA IF NOT EXISTS needs a right on the database, even if the schema exists.
        let exists = transaction
            .query_typed_one(
                "SELECT to_regnamespace($1) IS NOT NULL",
                &[(&names.schema(), Type::TEXT)],
            )
            .await?;
        if !exists.try_get::<_, bool>(0)? {
            transaction
                .batch_execute(&format!(
                    "CREATE SCHEMA IF NOT EXISTS \"{}\"",
                    names.schema()
                ))
                .await?;
        }
        let create = "CREATE TABLE @migration \
            (version integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT clock_timestamp())";
        transaction.batch_execute(&names.complete(create)).await?;
    }
    let newest = names.complete("SELECT COALESCE(max(version), 0) FROM @migration");
    transaction
        .query_typed_one(&newest, &[])
        .await?
        .try_get(0)
        .map_err(Error::from)
}

impl Jobs {
    /// Creates the tables, or updates them to the version of this crate, as
    /// [`SchedulerBuilder::start`](crate::SchedulerBuilder::start) does. For a program that has no
    /// node, and for roles of nodes that may not create tables. Does nothing if they are up to
    /// date.
    ///
    /// It is one transaction. Several programs can call it at the same time: the others wait.
    ///
    /// # Errors
    ///
    /// [`Error::SchemaTooNew`], and [`Error::Database`], for example if the role may not create
    /// tables.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::Jobs;
    ///
    /// # async fn example(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// Jobs::new("jobs")?.migrate(&mut client).await?;
    /// client.batch_execute("GRANT USAGE ON SCHEMA jobs TO application").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn migrate(&self, client: &mut Client) -> Result<(), Error> {
        migrate(client, &self.names).await
    }
}
