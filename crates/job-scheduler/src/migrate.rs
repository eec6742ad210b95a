//! Creates and updates the tables.

use tokio_postgres::{Client, IsolationLevel};

use crate::error::{Error, OLDEST_SERVER};
use crate::jobs::Jobs;
use crate::sql::{Names, Typed};

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

/// Returns the checksum of a migration. Tables that another text has created are not the same, even
/// if they have the same version: such as those of an unreleased version of this crate. (The 64 bits
/// of FNV-1a.)
const fn checksum(migration: &str) -> u64 {
    let (bytes, mut hash, mut index) = (migration.as_bytes(), 0xcbf2_9ce4_8422_2325, 0);
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0100_0000_01b3);
        index += 1;
    }
    hash
}

/// Those of the migrations, as they are stored.
const CHECKSUMS: [u64; MIGRATIONS.len()] = [checksum(MIGRATIONS[0])];

const SERVER: &str =
    "SELECT current_setting('server_version_num')::integer, current_setting('server_version')";

/// Also if the tables are so old that they have no checksums.
const APPLIED: &str = "
    SELECT migration.version, to_jsonb(migration) ->> 'checksum' FROM @migration AS migration ORDER BY 1";

/// Waits until no other client migrates this schema. Ends with the transaction.
const LOCK: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('hashed-wheel-job-scheduler ' || $1, 0))";

fn hexadecimal(checksum: u64) -> String {
    format!("{checksum:016x}")
}

/// Creates the schema and the table of its migrations, if there is none.
async fn create(transaction: &tokio_postgres::Transaction<'_>, names: &Names) -> Result<(), Error> {
    let exists = async |what: &str, name: &str| -> Result<bool, Error> {
        let text = format!("SELECT {what}($1) IS NOT NULL");
        let row = transaction.query_typed_one(&text, &[name.typed()]).await?;
        Ok(row.try_get(0)?)
    };
    // A separate question, because CREATE TABLE IF NOT EXISTS needs a right that a node may lack.
    if exists("to_regclass", &names.complete("@migration")).await? {
        return Ok(());
    }
    // CREATE SCHEMA IF NOT EXISTS needs a right on the database, even if the schema exists.
    if !exists("to_regnamespace", names.schema()).await? {
        let create = format!("CREATE SCHEMA IF NOT EXISTS \"{}\"", names.schema());
        transaction.batch_execute(&create).await?;
    }
    let create = "CREATE TABLE @migration \
        (version integer PRIMARY KEY, checksum text, applied timestamptz NOT NULL DEFAULT clock_timestamp())";
    Ok(transaction.batch_execute(&names.complete(create)).await?)
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
    /// [`Error::ServerTooOld`], [`Error::SchemaTooNew`], [`Error::SchemaDiffers`], and
    /// [`Error::Database`], for example if the role may not create tables.
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
        let names = &self.names;
        // Whatever the defaults of the role are.
        let transaction = client
            .build_transaction()
            .isolation_level(IsolationLevel::ReadCommitted)
            .read_only(false)
            .start()
            .await?;
        let row = transaction.query_typed_one(SERVER, &[]).await?;
        if row.try_get::<_, i32>(0)? / 10_000 < OLDEST_SERVER {
            let version: &str = row.try_get(1)?;
            return Err(Error::ServerTooOld(format!(
                "the server has version {version}"
            )));
        }
        transaction
            .query_typed(LOCK, &[names.schema().typed()])
            .await?;
        create(&transaction, names).await?;
        let applied = transaction
            .query_typed(&names.complete(APPLIED), &[])
            .await?;
        let known = MIGRATIONS.len() as i32;
        let mut version = 0;
        for row in applied {
            version = row.try_get(0)?;
            let found: Option<&str> = row.try_get(1)?;
            let expected = usize::try_from(version - 1)
                .ok()
                .and_then(|index| CHECKSUMS.get(index));
            if expected.is_some_and(|expected| found != Some(&hexadecimal(*expected))) {
                return Err(Error::SchemaDiffers { version });
            }
        }
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
            let insert =
                names.complete("INSERT INTO @migration (version, checksum) VALUES ($1, $2)");
            let checksum = hexadecimal(checksum(migration));
            transaction
                .query_typed(&insert, &[number.typed(), checksum.typed()])
                .await?;
        }
        Ok(transaction.commit().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_texts() {
        assert_eq!(checksum(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(checksum("foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(CHECKSUMS, MIGRATIONS.map(checksum));
    }

    /// Otherwise a function would depend on `standard_conforming_strings` of its caller.
    #[test]
    fn no_migration_has_a_backslash() {
        assert!(MIGRATIONS.iter().all(|text| !text.contains('\\')));
    }
}
