//! Connections to the database, with or without TLS, and limits of how long it may take.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_job_scheduler::{Error, hosts};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::Failure;

/// How long a command tries to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// How long a statement of a command may take, and wait for a lock. The options of the user come
/// after these.
const SETTINGS: &str = "-c statement_timeout=120s -c lock_timeout=5s";

/// How long the database may be silent during a command. It is more than a statement may take,
/// because it is not certain then whether something was changed.
const SILENCE_LIMIT: Duration = Duration::from_secs(125);

/// A connection is tested after this time without an answer, and given up after as much again.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// A connection, and its task.
pub(crate) type Connected = (Client, JoinHandle<Result<(), tokio_postgres::Error>>);

/// Opens connections to a database.
pub(crate) struct Connector {
    config: Config,
    /// `None`: without TLS.
    tls: Option<MakeRustlsConnect>,
    /// For all hosts together.
    limit: Duration,
    timer: HashedWheelTimer,
    /// Options of the server.
    settings: &'static str,
}

impl Connector {
    /// With `sslmode=require`, connections use TLS, and the certificate of the server must be valid
    /// and for its name. Otherwise connections do not use TLS: many servers that offer it have a
    /// certificate that no authority has signed.
    pub(crate) fn new(config: Config, limit: Duration) -> Result<Self, String> {
        let tls = match config.get_ssl_mode() {
            SslMode::Disable | SslMode::Prefer => None,
            _ => Some(tls()?),
        };
        Ok(Self {
            config,
            tls,
            limit,
            timer: HashedWheelTimer::new(Duration::from_millis(10), 512),
            settings: "",
        })
    }

    pub(crate) async fn connect(&self) -> Result<Connected, Error> {
        let open = |config| self.connect_to(config);
        hosts::connect(&self.config, self.limit, &self.timer, open).await
    }

    /// Ends what the server does on a connection.
    pub(crate) async fn cancel(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let token = client.cancel_token();
        match &self.tls {
            None => token.cancel_query(NoTls).await,
            Some(tls) => token.cancel_query(tls.clone()).await,
        }
    }

    async fn connect_to(&self, mut config: Config) -> Result<Connected, Error> {
        config
            .keepalives_idle(IDLE_LIMIT)
            .keepalives_interval(IDLE_LIMIT / 3)
            .keepalives_retries(3)
            .tcp_user_timeout(IDLE_LIMIT * 2);
        if self.settings.is_empty() {
            return self.open(&config).await;
        }
        let options = config.get_options().unwrap_or_default();
        let mut with_settings = config.clone();
        with_settings.options(format!("{} {options}", self.settings));
        match self.open(&with_settings).await {
            // A pooler, whose sessions have no settings of their own.
            Err(Error::Database(why))
                if why
                    .as_db_error()
                    .is_some_and(|why| why.message().contains("startup parameter")) =>
            {
                self.open(&config).await
            }
            result => result,
        }
    }

    async fn open(&self, config: &Config) -> Result<Connected, Error> {
        Ok(match &self.tls {
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                (client, tokio::spawn(connection))
            }
            Some(tls) => {
                let (client, connection) = config.connect(tls.clone()).await?;
                (client, tokio::spawn(connection))
            }
        })
    }
}

/// Opens the connection of a command.
pub(crate) async fn connect(config: Config) -> Result<Client, Failure> {
    let connector = Connector {
        settings: SETTINGS,
        ..Connector::new(config, CONNECT_LIMIT)?
    };
    let (client, _) = connector.connect().await?;
    Ok(client)
}

/// Limits the time of a command, except that in which it prints, and says what its end by the
/// database means.
pub(crate) async fn limited<T>(
    changes: bool,
    command: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let consequence = if changes {
        ": a change may still take effect"
    } else {
        ""
    };
    answered(SILENCE_LIMIT, consequence, command)
        .await
        .map_err(explained)
}

/// Ends work that waits for longer than this for the next answer.
async fn answered<T>(
    limit: Duration,
    consequence: &str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut work = pin!(work);
    let mut silence = pin!(sleep(limit));
    poll_fn(|context| {
        let is_silent = silence.as_mut().poll(context).is_ready();
        let result = work.as_mut().poll(context);
        if result.is_pending() && is_silent {
            let seconds = limit.as_secs();
            return Poll::Ready(Err(format!(
                "the database did not answer within {seconds} seconds{consequence}"
            )
            .into()));
        }
        if result.is_pending() {
            // There was an answer, and perhaps it was printed to a program that reads slowly.
            silence.as_mut().reset(Instant::now() + limit);
            let _ = silence.as_mut().poll(context);
        }
        result
    })
    .await
}

/// Says what it means that the server has ended a statement.
fn explained(failure: Failure) -> Failure {
    let code = match failure.downcast_ref() {
        Some(Error::Database(why)) => why.code(),
        _ => None,
    };
    match code {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => format!(
            "another transaction has locked this and has not ended. Nothing was changed ({failure})"
        )
        .into(),
        Some(&SqlState::QUERY_CANCELED) => {
            format!("it took too long. Nothing was changed ({failure})").into()
        }
        _ => failure,
    }
}

/// Trusts the authorities of the system, or instead those in the files that `SSL_CERT_FILE` and
/// `SSL_CERT_DIR` name. Prints which of these files cannot be read.
fn tls() -> Result<MakeRustlsConnect, String> {
    let (tls, errors) = match MakeRustlsConnect::with_native_certs() {
        Ok((tls, errors)) => (Some(tls), errors),
        Err(errors) => (None, errors),
    };
    errors.iter().for_each(|error| eprintln!("{error}"));
    tls.ok_or_else(|| {
        "sslmode=require needs the certificates of authorities, and none was found".into()
    })
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(500);

    #[tokio::test]
    async fn silence_ends_a_command() {
        let silent = answered(LIMIT, ": so", pending::<Result<(), Failure>>()).await;
        let why = silent.unwrap_err().to_string();
        assert!(
            why.starts_with("the database did not answer within") && why.ends_with("seconds: so"),
            "{why}"
        );
    }

    /// Neither many answers nor a slow reader of what is printed.
    #[tokio::test]
    async fn progress_does_not_end_a_command() {
        let work = async {
            for _ in 0..2 {
                sleep(LIMIT / 50).await;
                std::thread::sleep(LIMIT * 2);
            }
            Ok(7)
        };
        assert_eq!(answered(LIMIT, "", work).await.unwrap(), 7);
    }
}
