//! The clients that can enqueue jobs and complete runs: of tokio-postgres, and of sqlx.

use std::future::Future;

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::error::Error;

/// A connection or a transaction that can enqueue jobs and [complete](crate::Context::complete)
/// runs: `&Client` or `&Transaction` of [`tokio_postgres`], and `&mut PgConnection` of
/// [`sqlx`](https://docs.rs/sqlx/0.8) with the feature `sqlx`.
///
/// The library implements it for these types only.
///
/// # Examples
///
/// ```no_run
/// use hashed_wheel_job_scheduler::{Enqueued, Error, JobClient, Jobs, NewJob};
///
/// /// A function of an application that does not care which client it gets.
/// async fn welcome(client: impl JobClient, user: i64) -> Result<Enqueued, Error> {
///     Jobs::new("jobs")?.enqueue(client, NewJob::named("welcome", user.into())).await
/// }
/// # let _ = |client: &tokio_postgres::Client| drop(welcome(client, 7));
/// ```
#[cfg_attr(
    feature = "sqlx",
    doc = r#"
A transaction of sqlx is dereferenced:

```no_run
use hashed_wheel_job_scheduler::{Jobs, NewJob};
use sqlx::Connection;

# async fn example(mut connection: sqlx::PgConnection) -> Result<(), Box<dyn std::error::Error>> {
let mut transaction = connection.begin().await?;
Jobs::new("jobs")?.enqueue(&mut *transaction, NewJob::named("welcome", 7.into())).await?;
transaction.commit().await?;
# Ok(())
# }
```
"#
)]
pub trait JobClient: private::Client {}

impl<T: private::Client> JobClient for T {}

pub(crate) mod private {
    use super::*;

    pub trait Client: Send {
        /// Executes a statement with one parameter of the type `text`, whose rows are a number and
        /// a text.
        fn rows(
            &mut self,
            statement: &str,
            parameter: &str,
        ) -> impl Future<Output = Result<Vec<(i64, String)>, Error>> + Send;
    }
}

impl<C: GenericClient + Sync> private::Client for &C {
    async fn rows(
        &mut self,
        statement: &str,
        parameter: &str,
    ) -> Result<Vec<(i64, String)>, Error> {
        let rows = self
            .query_typed(statement, &[(&parameter, Type::TEXT)])
            .await?;
        let row = |row: &tokio_postgres::Row| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.iter().map(row).collect()
    }
}

#[cfg(feature = "sqlx")]
impl private::Client for &mut sqlx::PgConnection {
    async fn rows(
        &mut self,
        statement: &str,
        parameter: &str,
    ) -> Result<Vec<(i64, String)>, Error> {
        // Not kept on the connection: the text depends on the schema.
        let query = sqlx::query_as(statement).bind(parameter).persistent(false);
        query.fetch_all(&mut **self).await.map_err(Error::Sqlx)
    }
}
