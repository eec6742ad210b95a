//! Connections, with TLS of any kind.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use tokio::sync::Notify;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Socket};

use crate::caught::caught;
use crate::error::Error;
use crate::hosts::{self, within};
use crate::sql::{Parameter, Typed};

type Messages = Box<
    dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> + Send,
>;
type Connecting =
    Pin<Box<dyn Future<Output = Result<(Client, Messages), tokio_postgres::Error>> + Send>>;

/// Opens connections. Without the type of the TLS library, so that the scheduler has no type
/// parameter.
#[derive(Clone)]
pub(crate) struct Connector {
    config: Config,
    timer: HashedWheelTimer,
    /// Whether connections have settings. Otherwise they may be those of a pooler.
    has_session: bool,
    connect: Arc<dyn Fn(Config) -> Connecting + Send + Sync>,
}

impl Connector {
    pub(crate) fn new<T>(config: Config, tls: T, has_session: bool, timer: HashedWheelTimer) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let connect = move |config: Config| {
            let tls = tls.clone();
            Box::pin(async move {
                let (client, mut connection) = config.connect(tls).await?;
                let messages = move |context: &mut Context<'_>| connection.poll_message(context);
                Ok((client, Box::new(messages) as Messages))
            }) as Connecting
        };
        Self {
            config,
            timer,
            has_session,
            connect: Arc::new(connect),
        }
    }

    /// Opens a connection. Each notification on it calls `heard`, with its channel and its
    /// text, and its end notifies `lost`. It
    /// is closed when the client is dropped.
    ///
    /// The server waits for at most a lease for a node that has locked rows and sends nothing.
    pub(crate) async fn connect(
        &self,
        lease: Duration,
        heard: impl Fn(&str, &str) + Send + 'static,
        lost: Arc<Notify>,
    ) -> Result<Client, Error> {
        let settings = settings(lease);
        let open = |config| self.open(config, lease, &settings);
        let (client, mut messages) = hosts::connect(&self.config, lease, &self.timer, open).await?;
        tokio::spawn(async move {
            // An error or a panic closes the connection. The next call of the client reports that.
            while let Ok(Some(Ok(message))) = caught(poll_fn(&mut messages)).await {
                if let AsyncMessage::Notification(notification) = message {
                    heard(notification.channel(), notification.payload());
                }
            }
            lost.notify_one();
        });
        within(&self.timer, lease, self.check(&client, &settings)).await?;
        Ok(client)
    }

    /// Fails if the settings of the start-up message have no effect. A pooler has dropped them:
    /// then it would also drop `LISTEN`, or give it to the connections of others.
    ///
    /// Without a session, it fails if statements outside of a transaction would have another
    /// effect. The functions of a node need that each of their statements sees what was committed
    /// before it.
    async fn check(&self, client: &Client, settings: &[(&str, String)]) -> Result<(), Error> {
        let needed = settings
            .iter()
            .filter(|(name, _)| self.has_session || name.starts_with("default_"));
        let (names, values): (Vec<_>, Vec<_>) = needed.cloned().unzip();
        let parameters: [Parameter<'_>; 2] = [&names, &values];
        let text = "
            SELECT name, current.setting, wanted.setting
            FROM pg_settings AS current JOIN unnest($1, $2) AS wanted (name, setting) USING (name)
            WHERE current.setting <> wanted.setting LIMIT 1";
        let wrong = client
            .query_typed_opt(text, &parameters.map(Typed::typed))
            .await?;
        let Some(row) = wrong else { return Ok(()) };
        let (name, found, expected): (&str, &str, &str) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        Err(if self.has_session {
            Error::Pooler(format!("the setting {name} has no effect"))
        } else {
            Error::Invalid(format!(
                "{name} of '{found}': must be '{expected}' for a node without notifications"
            ))
        })
    }

    async fn open(
        &self,
        mut config: Config,
        lease: Duration,
        settings: &[(&str, String)],
    ) -> Result<(Client, Messages), Error> {
        // TCP options are in whole seconds. Zero would be rejected.
        let [idle, interval] = [lease, lease / 3].map(|time| time.max(Duration::from_secs(1)));
        config
            .tcp_user_timeout(lease)
            .keepalives_idle(idle)
            .keepalives_interval(interval)
            .keepalives_retries(2);
        if self.has_session {
            config.options(options(config.get_options().unwrap_or_default(), settings));
        }
        let connected = (self.connect)(config).await;
        connected.map_err(|error| rejection(error, settings))
    }
}

/// Returns the shortest time of three round trips.
pub(crate) async fn round_trip(client: &Client) -> Result<Duration, Error> {
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        let sent = Instant::now();
        client.batch_execute("").await?;
        shortest = shortest.min(sent.elapsed());
    }
    Ok(shortest)
}

/// Returns the settings of a connection that are not the defaults.
///
/// All statements of a node find their rows by an index, in its order. The statistics of a table
/// that grows and shrinks as fast as a queue are often wrong, and a plan with a sequential scan
/// that was right for an empty table would be kept, or one that sorts all jobs that are due to find
/// the first ones. (And a plan that needs one has a high cost then, for which it would be
/// compiled.) With these settings the plan does not depend on the parameters, so it is made once: a
/// new plan often takes longer than the statement.
fn settings(lease: Duration) -> [(&'static str, String); 11] {
    let millis = lease.as_millis();
    [
        ("idle_in_transaction_session_timeout", millis.to_string()),
        ("statement_timeout", millis.to_string()),
        ("lock_timeout", "0".into()),
        ("default_transaction_isolation", "read committed".into()),
        ("default_transaction_read_only", "off".into()),
        ("standard_conforming_strings", "on".into()),
        ("client_min_messages", "warning".into()),
        ("enable_seqscan", "off".into()),
        ("enable_bitmapscan", "off".into()),
        ("jit", "off".into()),
        ("plan_cache_mode", "force_generic_plan".into()),
    ]
}

/// Appends the settings to those of the user, as options of the start-up message.
fn options(user: &str, settings: &[(&str, String)]) -> String {
    settings
        .iter()
        .fold(user.to_owned(), |options, (name, value)| {
            format!("{options} -c {name}={}", value.replace(' ', "\\ "))
        })
}

/// Returns the same settings for one transaction.
pub(crate) fn local_settings(lease: Duration) -> String {
    let settings = settings(lease);
    let local = settings
        .iter()
        .filter(|(name, _)| !name.starts_with("default_"));
    local.fold(String::new(), |text, (name, value)| {
        format!("{text}SET LOCAL {name} = '{value}';")
    })
}

/// Whether a server or a pooler has rejected the options. PostgreSQL 12 has all of them.
fn rejection(error: tokio_postgres::Error, settings: &[(&str, String)]) -> Error {
    let is_named = |why: &DbError| {
        settings
            .iter()
            .any(|(name, _)| why.message().contains(name))
    };
    match error.as_db_error() {
        Some(why) if why.code() == &SqlState::UNDEFINED_OBJECT && is_named(why) => {
            Error::ServerTooOld(why.message().into())
        }
        Some(why) if why.message().contains("startup parameter") => {
            Error::Pooler(why.message().into())
        }
        _ => error.into(),
    }
}
