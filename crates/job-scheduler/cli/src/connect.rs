//! Connections to the database, with or without TLS, and limits of how long it may take.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use hashed_wheel_job_scheduler::Error;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::Failure;
use crate::hosts::{addresses, hosts};

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

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum Unconnected {
    /// No host has answered within its share of the time.
    Silent {
        /// The share of one of them was longer than `connect_timeout`.
        is_limited: bool,
    },
    Refused(Error),
}

impl Unconnected {
    /// Adds the reason of the next host. The first refusal says more than the silence of others,
    /// and a later one may be that of a host that is only there for the case that it fails.
    fn and(self, next: Self) -> Self {
        match (self, next) {
            (Self::Silent { is_limited: first }, Self::Silent { is_limited: next }) => {
                Self::Silent {
                    is_limited: first || next,
                }
            }
            (Self::Silent { .. }, refused) => refused,
            (refused, _) => refused,
        }
    }
}

/// What [`Unconnected::Silent`] has to add to the length of the share.
pub(crate) fn or_less(is_limited: bool) -> &'static str {
    if is_limited {
        ", at most connect_timeout"
    } else {
        ""
    }
}

/// A connection, and its task.
pub(crate) type Connected = (Client, JoinHandle<Result<(), tokio_postgres::Error>>);

/// Opens connections to a database.
pub(crate) struct Connector {
    config: Config,
    /// `None`: without TLS.
    tls: Option<MakeRustlsConnect>,
    /// For all hosts together.
    limit: Duration,
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
            settings: "",
        })
    }

    /// Tries one host after the other. A host that accepts a connection and does not answer takes
    /// only its part of the time: tokio-postgres would wait for it without an end, and never try the
    /// next one.
    pub(crate) async fn connect(&self) -> Result<Connected, Unconnected> {
        let hosts = hosts(&self.config);
        let share = self.limit / hosts.len() as u32;
        let mut why = Unconnected::Silent { is_limited: false };
        for host in hosts {
            let end = Instant::now() + share;
            let addresses = timeout_at(end, addresses(host)).await.unwrap_or_default();
            match self.connect_to_any(addresses, end).await {
                Ok(connected) => return Ok(connected),
                Err(next) => why = why.and(next),
            }
        }
        Err(why)
    }

    /// Tries one address after the other. Each of them has an equal part of the time that is left.
    async fn connect_to_any(
        &self,
        addresses: Vec<Config>,
        end: Instant,
    ) -> Result<Connected, Unconnected> {
        let mut why = Unconnected::Silent { is_limited: false };
        let count = addresses.len() as u32;
        for (config, left) in addresses.into_iter().zip((1..=count).rev()) {
            let share = end.saturating_duration_since(Instant::now()) / left;
            let given = config.get_connect_timeout().copied();
            let limit = given.map_or(share, |given| share.min(given));
            match timeout(limit, self.connect_to(config)).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(error)) => why = why.and(Unconnected::Refused(error)),
                Err(_) => {
                    why = why.and(Unconnected::Silent {
                        is_limited: limit < share,
                    });
                }
            }
        }
        Err(why)
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
            // Longer than the limit here, which also holds for the time after the TCP connection.
            .connect_timeout(self.limit * 2)
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
    match connector.connect().await {
        Ok((client, _)) => Ok(client),
        Err(Unconnected::Silent { is_limited }) => Err(format!(
            "no host of the database has answered within its share of {} seconds{}",
            CONNECT_LIMIT.as_secs(),
            or_less(is_limited)
        )
        .into()),
        Err(Unconnected::Refused(error)) => Err(error.into()),
    }
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

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

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

    /// The address of a server that says this, not at once, and then nothing.
    async fn server(says: &'static [u8]) -> Config {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let mut streams = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                sleep(LIMIT / 10).await;
                stream.write_all(says).await.unwrap();
                streams.push(stream);
            }
        });
        let config = format!("host=localhost hostaddr=127.0.0.1 port={port} user=u");
        config.parse().unwrap()
    }

    /// The user is known, and the server is ready.
    const WELCOME: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
    const REFUSAL: &[u8] = b"E\0\0\0\x1cSFATAL\0C28000\0Mnot you\0\0";

    fn connector(config: Config) -> Connector {
        Connector::new(config, LIMIT * 4).unwrap()
    }

    #[tokio::test]
    async fn silent_address_of_a_name_leaves_time_for_the_next_one() {
        let (silent, mut limited) = (server(b"").await, server(b"").await);
        limited.connect_timeout(LIMIT / 5);
        let connector = connector(silent.clone());
        for first in [silent, limited] {
            let (begin, addresses) = (Instant::now(), vec![first, server(WELCOME).await]);
            let connected = connector.connect_to_any(addresses, begin + LIMIT * 4).await;
            assert!(connected.is_ok(), "{connected:?}");
        }
    }

    #[tokio::test]
    async fn first_refusal_is_reported_and_otherwise_what_ended_the_silence() {
        let (silent, refusing) = (server(b"").await, server(REFUSAL).await);
        let closed = "hostaddr=127.0.0.1 port=1 user=u"
            .parse::<Config>()
            .unwrap();
        let connector = connector(silent.clone());
        let why = async |addresses: &[&Config]| {
            let addresses = addresses.iter().map(|&address| address.clone()).collect();
            let end = Instant::now() + LIMIT * 2;
            connector.connect_to_any(addresses, end).await.unwrap_err()
        };
        let refused = why(&[&silent, &refusing, &closed]).await;
        let text = format!("{refused:?}");
        assert!(text.contains("not you"), "{text}");
        let mut limited = silent.clone();
        limited.connect_timeout(LIMIT / 5);
        for (address, expected) in [(&silent, false), (&limited, true)] {
            let silent = why(&[address]).await;
            assert!(
                matches!(silent, Unconnected::Silent { is_limited } if is_limited == expected),
                "{silent:?}"
            );
        }
    }
}
