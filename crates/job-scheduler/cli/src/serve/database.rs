//! The connections to the database. Each is replaced after an error.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hashed_wheel_job_scheduler::Error;
use hashed_wheel_job_scheduler::jiff::Timestamp;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, IsolationLevel, Transaction};

use super::problem::Problem;
use crate::connect::Connector;

/// How long the database may take for a statement: less than a request may take, so that the page
/// shows the reason. Without statistics, or with old ones, a plan would read a table from end to end
/// although there is an index for each statement of this page.
const SETTINGS: &str = "SET LOCAL statement_timeout = '8s'; SET LOCAL lock_timeout = '3s';
    SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off";

/// How many requests use the database at a time, so that a slow one does not keep the others waiting.
const CONNECTIONS: usize = 4;

/// How long a request waits for one of them, and then for all hosts of the database. Together, these
/// are less than a request may take.
const WAITING_LIMIT: Duration = Duration::from_secs(4);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Opens connections when they are needed.
pub(crate) struct Database {
    connector: Connector,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

#[derive(Debug)]
struct Connection {
    client: Client,
    task: JoinHandle<Result<(), tokio_postgres::Error>>,
}

/// A connection for one request. If it is dropped before [`keep`](Self::keep), after an error or
/// because the browser has gone, the connection is closed.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    idle: &'a Mutex<Vec<Connection>>,
    connection: Connection,
    _permit: SemaphorePermit<'a>,
}

impl Database {
    pub(crate) fn new(mut config: Config) -> Result<Self, String> {
        if config.get_application_name().is_none() {
            config.application_name("job-scheduler serve");
        }
        Ok(Self {
            connector: Connector::new(config, CONNECT_LIMIT)?,
            permits: Semaphore::new(CONNECTIONS),
            idle: Mutex::default(),
        })
    }

    /// Returns a connection. Waits until fewer than [`CONNECTIONS`] other requests have one.
    pub(crate) async fn lease(&self) -> Result<Lease<'_>, Problem> {
        let Ok(Ok(permit)) = timeout(WAITING_LIMIT, self.permits.acquire()).await else {
            let seconds = WAITING_LIMIT.as_secs();
            return Err(Problem::unavailable(
                format!(
                    "For {seconds} seconds, other requests have used all connections of this page."
                ),
                "Nothing was sent to the database, and nothing was changed.",
            ));
        };
        let connection = match self.idle() {
            Some(connection) => connection,
            None => {
                let (client, task) = self.connector.connect().await?;
                Connection { client, task }
            }
        };
        Ok(Lease {
            idle: &self.idle,
            connection,
            _permit: permit,
        })
    }

    fn idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| !connection.client.is_closed());
        idle.pop()
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
    pub(crate) fn keep(self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(self.connection);
    }
}

/// Sets what holds for the statements of the transaction. Not of the connection, because a pooler
/// would refuse that.
async fn limited(
    begun: Result<Transaction<'_>, tokio_postgres::Error>,
) -> Result<Transaction<'_>, Problem> {
    let limited = async {
        let transaction = begun?;
        transaction.batch_execute(SETTINGS).await?;
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
        let away = "The database may be away. This page connects again with the next request.";
        let why = match &error {
            Error::Database(why) => why,
            Error::NoAnswer => {
                let seconds = CONNECT_LIMIT.as_secs();
                let text = format!(
                    "No host of the database has accepted a connection within its share of {seconds} \
                     seconds. Nothing was changed."
                );
                return Self::unavailable(text, away);
            }
            _ => return Self::bad(error.to_string()),
        };
        let hint = match why.code() {
            Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => {
                "No node has created the tables of this schema yet, or its name is another one."
            }
            Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                "Another transaction has changed this and has not ended. Nothing was changed here."
            }
            Some(_) => "",
            None => away,
        };
        Self::unavailable(error.to_string(), hint)
    }
}
