//! The connections to the database. Each is replaced after an error.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashed_wheel_job_scheduler::Error;
use hashed_wheel_job_scheduler::jiff::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, IsolationLevel, Transaction};

use super::problem::Problem;
use crate::connect::Connector;

/// How many requests use the database at a time, so that a slow one does not keep the others waiting.
const CONNECTIONS: usize = 4;

/// How long a request waits for one of them, then for all hosts of the database, and then for a
/// statement.
pub(crate) const WAITING_LIMIT: Duration = Duration::from_secs(4);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const STATEMENT_LIMIT: Duration = Duration::from_secs(8);

/// How long a request may take: more than all of these, so that the page shows which one has ended
/// it. The script of the page waits for longer.
pub(crate) const REQUEST_LIMIT: Duration = WAITING_LIMIT
    .saturating_add(CONNECT_LIMIT)
    .saturating_add(STATEMENT_LIMIT)
    .saturating_add(Duration::from_secs(1));

/// How long the statement of an abandoned request may go on before it is cancelled, and how long
/// that may take.
const ABANDONED_LIMIT: Duration = Duration::from_millis(100);
const CANCEL_LIMIT: Duration = Duration::from_secs(2);

/// Opens connections when they are needed.
pub(crate) struct Database {
    connector: Arc<Connector>,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

#[derive(Debug)]
struct Connection {
    client: Client,
    task: JoinHandle<Result<(), tokio_postgres::Error>>,
}

/// A connection for one request. If it is dropped before [`keep`](Self::keep), after an error or
/// because the browser has gone, the connection is closed.
pub(crate) struct Lease<'a> {
    database: &'a Database,
    /// `None`: it was kept.
    held: Option<(Connection, OwnedSemaphorePermit)>,
}

impl Database {
    pub(crate) fn new(mut config: Config) -> Result<Self, String> {
        if config.get_application_name().is_none() {
            config.application_name("job-scheduler serve");
        }
        Ok(Self {
            connector: Arc::new(Connector::new(config, CONNECT_LIMIT)?),
            permits: Arc::new(Semaphore::new(CONNECTIONS)),
            idle: Mutex::default(),
        })
    }

    /// Returns a connection. Waits until fewer than [`CONNECTIONS`] other requests have one.
    pub(crate) async fn lease(&self) -> Result<Lease<'_>, Problem> {
        let permit = self.permits.clone().acquire_owned();
        let Ok(Ok(permit)) = timeout(WAITING_LIMIT, permit).await else {
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
            database: self,
            held: Some((connection, permit)),
        })
    }

    fn idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| !connection.client.is_closed());
        idle.pop()
    }
}

impl Lease<'_> {
    fn client(&mut self) -> &mut Client {
        match &mut self.held {
            Some((connection, _)) => &mut connection.client,
            None => unreachable!("`keep` consumes the lease"),
        }
    }

    /// Begins a transaction that sees one state of the database, and cannot change it.
    pub(crate) async fn read(&mut self) -> Result<Transaction<'_>, Problem> {
        let builder = self.client().build_transaction();
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
        limited(self.client().transaction().await).await
    }

    /// Keeps the connection for the next request.
    pub(crate) fn keep(mut self) {
        if let Some((connection, _permit)) = self.held.take() {
            let idle = self.database.idle.lock();
            idle.unwrap_or_else(PoisonError::into_inner)
                .push(connection);
        }
    }
}

impl Drop for Lease<'_> {
    /// The server goes on with the statement of an abandoned request. So it is cancelled, and
    /// counts until it has ended: otherwise a user who loads a slow page again and again would add a
    /// statement each time.
    fn drop(&mut self) {
        if let Some((connection, permit)) = self.held.take() {
            let connector = self.database.connector.clone();
            tokio::spawn(async move {
                end(&connector, &connection.client).await;
                drop((connection, permit));
            });
        }
    }
}

/// Waits until the server has ended what it does on a connection. Tells it to, if that takes long.
async fn end(connector: &Connector, client: &Client) {
    let mut has_ended = pin!(client.batch_execute(""));
    if timeout(ABANDONED_LIMIT, &mut has_ended).await.is_err() {
        let cancelled = async {
            // If that fails, the statement may end by itself.
            let _ = connector.cancel(client).await;
            let _ = has_ended.await;
        };
        let _ = timeout(CANCEL_LIMIT, cancelled).await;
    }
}

/// Sets what holds for the statements of the transaction. Not of the connection, because a pooler
/// would refuse that. Without statistics, or with old ones, a plan would read a table from end to
/// end although there is an index for each statement of this page.
async fn limited(
    begun: Result<Transaction<'_>, tokio_postgres::Error>,
) -> Result<Transaction<'_>, Problem> {
    let settings = format!(
        "SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = '3s';
        SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off",
        STATEMENT_LIMIT.as_millis()
    );
    let limited = async {
        let transaction = begun?;
        transaction.batch_execute(&settings).await?;
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
        let hint = match &error {
            Error::Database(why) => match why.code() {
                Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => {
                    "No node has created the tables of this schema yet, or its name is another one."
                }
                Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                    "Another transaction has changed this and has not ended. Nothing was changed here."
                }
                Some(_) => "",
                // An error of the connection.
                None => "The database may be away. This page connects again with the next request.",
            },
            // There is no connection.
            Error::NoAnswer(_) | Error::Unconnected(_) => {
                "Nothing was changed. This page connects again with the next request."
            }
            _ => return Self::bad(error.to_string()),
        };
        Self::unavailable(error.to_string(), hint)
    }
}
