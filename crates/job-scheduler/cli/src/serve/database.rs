//! The connection to the database. There is one, and it is replaced after each error.

use std::time::Duration;

use hashed_wheel_job_scheduler::Error;
use hashed_wheel_job_scheduler::jiff::Timestamp;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, IsolationLevel, Transaction};

use super::problem::Problem;
use crate::connect::Connector;

/// How long the database may take for a statement. Less than a request may take, so that the
/// page shows the reason.
const STATEMENT_TIMEOUT: &str = "SET LOCAL statement_timeout = '8s'; SET LOCAL lock_timeout = '3s'";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens the connection when it is needed.
pub(crate) struct Database {
    connector: Connector,
    idle: Mutex<Option<Connection>>,
}

#[derive(Debug)]
struct Connection {
    client: Client,
    task: JoinHandle<Result<(), tokio_postgres::Error>>,
}

/// The connection, for one request at a time. If it is dropped before [`keep`](Self::keep), after
/// an error or because the browser has gone, the connection is closed.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    idle: MutexGuard<'a, Option<Connection>>,
    connection: Connection,
}

impl Database {
    pub(crate) fn new(mut config: Config) -> Result<Self, String> {
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("job-scheduler serve");
        }
        Ok(Self {
            connector: Connector::new(config)?,
            idle: Mutex::new(None),
        })
    }

    /// Returns the connection. Waits until no other request has it.
    pub(crate) async fn lease(&self) -> Result<Lease<'_>, Problem> {
        let mut idle = self.idle.lock().await;
        let connection = match idle.take() {
            Some(connection) if !connection.client.is_closed() => connection,
            _ => {
                let (client, task) = self.connector.connect().await.map_err(Error::from)?;
                Connection { client, task }
            }
        };
        Ok(Lease { idle, connection })
    }
}

impl Lease<'_> {
    /// Begins a transaction that sees one state of the database, and cannot change it.
    pub(crate) async fn read(&mut self) -> Result<Transaction<'_>, Problem> {
        let builder = self.connection.client.build_transaction();
        limited(
            builder
                .read_only(true)
                .isolation_level(IsolationLevel::RepeatableRead)
                .start()
                .await,
        )
        .await
    }

    /// Begins a transaction that may change the database.
    pub(crate) async fn change(&mut self) -> Result<Transaction<'_>, Problem> {
        limited(self.connection.client.transaction().await).await
    }

    /// Keeps the connection for the next request.
    pub(crate) fn keep(mut self) {
        *self.idle = Some(self.connection);
    }
}

/// Limits the times of statements in the transaction. Not of the connection, because a pooler would
/// refuse that.
async fn limited(
    begun: Result<Transaction<'_>, tokio_postgres::Error>,
) -> Result<Transaction<'_>, Problem> {
    let limited = async {
        let transaction = begun?;
        transaction.batch_execute(STATEMENT_TIMEOUT).await?;
        Ok::<_, Error>(transaction)
    };
    Ok(limited.await?)
}

/// Returns the time by the clock of the database, to which all times here belong.
pub(crate) async fn now(reader: &Transaction<'_>) -> Result<Timestamp, Error> {
    let row = reader
        .query_typed("SELECT clock_timestamp()", &[])
        .await?
        .remove(0);
    Ok(row.try_get(0)?)
}

impl Drop for Connection {
    /// A server that is stopped would keep the task forever.
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let Error::Database(why) = &error else {
            return Self::bad(error.to_string());
        };
        let hint = match why.code() {
            Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => {
                "No node has created the tables of this schema yet, or its name is another one."
            }
            Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                "Another transaction has changed this and has not ended. Nothing was changed here."
            }
            Some(_) => "",
            None => "The database may be away. This page connects again with the next request.",
        };
        Self::unavailable(error.to_string(), hint)
    }
}
