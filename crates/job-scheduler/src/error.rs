//! Errors.

use std::fmt;
use std::time::Duration;

use hashed_wheel::NewTimeoutError;

/// The oldest version of PostgreSQL that has what the statements use.
pub(crate) const OLDEST_SERVER: i32 = 12;

/// Why a call failed.
///
/// # Examples
///
/// ```no_run
/// use hashed_wheel_job_scheduler::{Error, Scheduler};
/// use tokio_postgres::NoTls;
///
/// # async fn example(config: tokio_postgres::Config) -> Result<(), Error> {
/// match Scheduler::builder().start(config, NoTls).await {
///     Err(Error::SchemaTooNew { found, known }) => {
///         println!("version {found} of the tables needs a newer program than this one, which knows {known}");
///     }
///     started => drop(started?),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A setting, a schedule or a name is invalid. The text says which one and what is valid.
    Invalid(String),
    /// A payload cannot be converted to JSON.
    Payload(serde_json::Error),
    /// The database or the connection reported an error.
    Database(tokio_postgres::Error),
    /// sqlx reported an error of the database or of the connection.
    #[cfg(feature = "sqlx")]
    Sqlx(sqlx::Error),
    /// The database did not answer within this time: a lease, a part of it for one of several
    /// hosts, or a minute when the tables are created or updated.
    NoAnswer(Duration),
    /// No host of the database can be used: each address that was tried, or name whose addresses
    /// were not found in time, and why it failed. If there is only one, the error is that of its
    /// attempt. See [`hosts::connect`](crate::hosts::connect).
    Unconnected(Vec<(String, Error)>),
    /// A node is not connected to PostgreSQL itself, but to a pooler that does not keep the
    /// settings of a session. The text says how that was noticed. See
    /// [`without_notifications`](crate::SchedulerBuilder::without_notifications).
    Pooler(String),
    /// The server is older than PostgreSQL 12. The text says how that was noticed.
    ServerTooOld(String),
    /// The tables belong to a newer version of this crate.
    SchemaTooNew {
        /// The version of the tables.
        found: i32,
        /// The newest version that this crate knows.
        known: i32,
    },
    /// The tables have a version that this crate knows, but were not created by it: by an unreleased
    /// version, for example. They are not changed.
    SchemaDiffers {
        /// The version of the tables.
        version: i32,
    },
    /// The node has not renewed its lease in time, and other nodes take over its runs.
    LeaseLost,
    /// An execution no longer has its run, in [`Context::complete`](crate::Context::complete): the
    /// run was cancelled, another node repeats it, or its job was deleted.
    RunLost,
    /// The code of a node has panicked, with this message. The node starts again, as after an error
    /// of the database.
    Panic(String),
    /// The timer is stopped, or has reached its limit.
    Timer(NewTimeoutError),
}

/// Returns what is wrong with a setting, unless it is valid.
pub(crate) fn ensure(is_valid: bool, wrong: impl FnOnce() -> String) -> Result<(), Error> {
    is_valid
        .then_some(())
        .ok_or_else(|| Error::Invalid(wrong()))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(what) => f.write_str(what),
            Self::Payload(error) => write!(f, "the payload cannot be converted to JSON: {error}"),
            Self::Database(error) => {
                write!(f, "database error: {error}")?;
                // The error contains only its kind.
                std::error::Error::source(error).map_or(Ok(()), |why| write!(f, ": {why}"))
            }
            #[cfg(feature = "sqlx")]
            Self::Sqlx(error) => write!(f, "database error: {error}"),
            Self::NoAnswer(limit) => write!(f, "the database did not answer within {limit:.1?}"),
            Self::Unconnected(failures) => {
                let reasons = failures
                    .iter()
                    .map(|(place, why)| format!("{place}: {why}"));
                let reasons = reasons.collect::<Vec<_>>().join("; ");
                write!(f, "no host of the database can be used: {reasons}")
            }
            Self::Pooler(why) => {
                write!(
                    f,
                    "a node with notifications must connect to PostgreSQL directly, not through a pooler: {why}"
                )
            }
            Self::ServerTooOld(why) => {
                write!(f, "PostgreSQL {OLDEST_SERVER} or newer is required: {why}")
            }
            Self::SchemaTooNew { found, known } => {
                write!(
                    f,
                    "the tables have version {found}, and this program knows versions up to {known}"
                )
            }
            Self::SchemaDiffers { version } => {
                write!(
                    f,
                    "the tables say that they have version {version}, but another program has created them, such as an \
                     unreleased version of this one: use another schema, or drop this one"
                )
            }
            Self::LeaseLost => f.write_str("the lease of this node has ended"),
            Self::RunLost => f.write_str(
                "this execution no longer has its run, which was cancelled or is repeated",
            ),
            Self::Panic(message) => write!(f, "the scheduler {message}"),
            Self::Timer(error) => write!(f, "timer error: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Payload(error) => Some(error),
            Self::Database(error) => Some(error),
            #[cfg(feature = "sqlx")]
            Self::Sqlx(error) => Some(error),
            Self::Timer(error) => Some(error),
            _ => None,
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<NewTimeoutError> for Error {
    fn from(error: NewTimeoutError) -> Self {
        Self::Timer(error)
    }
}
