//! Connections, with TLS of any kind.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Socket};

use crate::caught::caught;
use crate::error::Error;

type Messages =
    Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> + Send>;
type Connecting = Pin<Box<dyn Future<Output = Result<(Client, Messages), tokio_postgres::Error>> + Send>>;

/// Opens connections. Without the type of the TLS library, so that the scheduler has no type
/// parameter.
#[derive(Clone)]
pub(crate) struct Connector {
    config: Config,
    /// Whether connections have settings. Otherwise they may be those of a pooler.
    has_session: bool,
    connect: Arc<dyn Fn(Config) -> Connecting + Send + Sync>,
}

impl Connector {
    pub(crate) fn new<T>(config: Config, tls: T, has_session: bool) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let connect = move |config: Config| {
            let tls = tls.clone();
            Box::pin(async move {
                let (client, connection) = config.connect(tls).await?;
                Ok((client, messages(connection)))
            }) as Connecting
        };
        Self { config, has_session, connect: Arc::new(connect) }
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
        let mut config = self.config.clone();
        // TCP options are in whole seconds. Zero would be rejected.
        let [idle, interval] = [lease, lease / 3].map(|time| time.max(Duration::from_secs(1)));
        let connect_timeout = config.get_connect_timeout().map_or(lease, |limit| lease.min(*limit));
        config.connect_timeout(connect_timeout).tcp_user_timeout(lease);
        config.keepalives_idle(idle).keepalives_interval(interval).keepalives_retries(2);
        let settings = settings(lease);
        if self.has_session {
            config.options(options(config.get_options().unwrap_or_default(), &settings));
        }
        let (client, mut messages) = (self.connect)(config).await.map_err(rejection)?;
        tokio::spawn(async move {
            // An error or a panic closes the connection. The next call of the client reports that.
            while let Ok(Some(Ok(message))) = caught(poll_fn(&mut messages)).await {
                if let AsyncMessage::Notification(notification) = message {
                    heard(notification.channel(), notification.payload());
                }
            }
            lost.notify_one();
        });
        let check =
            if self.has_session { check(&client, &settings).await } else { check_isolation(&client).await };
        check.map(|()| client)
    }
}

/// Returns the settings of a connection that are not the defaults.
///
/// All statements of a node find their rows by an index, in its order. The statistics of a table
/// that grows and shrinks as fast as a queue are often wrong, and a plan with a sequential scan
/// that was right for an empty table would be kept, or one that sorts all jobs that are due to find
/// the first ones. (And a plan that needs one has a high cost then, for which it would be
/// compiled.)
fn settings(lease: Duration) -> [(&'static str, String); 7] {
    let millis = lease.as_millis();
    [
        ("idle_in_transaction_session_timeout", millis.to_string()),
        ("statement_timeout", millis.to_string()),
        ("default_transaction_isolation", "read committed".into()),
        ("client_min_messages", "warning".into()),
        ("enable_seqscan", "off".into()),
        ("enable_bitmapscan", "off".into()),
        ("jit", "off".into()),
    ]
}

/// Appends the settings to those of the user, as options of the start-up message.
fn options(user: &str, settings: &[(&str, String)]) -> String {
    settings.iter().fold(user.to_owned(), |options, (name, value)| {
        format!("{options} -c {name}={}", value.replace(' ', "\\ "))
    })
}

/// Fails if the settings of the start-up message have no effect. A pooler has dropped them: then it
/// would also drop `LISTEN`, or give it to the connections of others.
async fn check(client: &Client, settings: &[(&str, String)]) -> Result<(), Error> {
    let names: Vec<_> = settings.iter().map(|(name, _)| *name).collect();
    let values: Vec<_> = settings.iter().map(|(_, value)| value).collect();
    let text = "
        SELECT pg_settings.name FROM pg_settings JOIN unnest($1, $2) AS wanted (name, value) USING (name)
        WHERE pg_settings.setting <> wanted.value LIMIT 1";
    let types = [(&names as &(dyn ToSql + Sync), Type::TEXT_ARRAY), (&values, Type::TEXT_ARRAY)];
    match client.query_typed_opt(text, &types).await? {
        Some(row) => Err(Error::Pooler(format!("the setting {} has no effect", row.try_get::<_, &str>(0)?))),
        None => Ok(()),
    }
}

/// Returns the same settings for one transaction.
pub(crate) fn local_settings(lease: Duration) -> String {
    let settings = settings(lease);
    let local = settings.iter().filter(|(name, _)| !name.starts_with("default_"));
    local.fold(String::new(), |text, (name, value)| format!("{text}SET LOCAL {name} = '{value}';"))
}

/// The functions of a node need that each of their statements sees what was committed before it.
async fn check_isolation(client: &Client) -> Result<(), Error> {
    let text = "SELECT current_setting('default_transaction_isolation')";
    let row = client.query_typed_one(text, &[]).await?;
    match row.try_get(0)? {
        "read committed" => Ok(()),
        other => Err(Error::Invalid(format!(
            "default_transaction_isolation of '{other}': must be 'read committed' for a node without notifications"
        ))),
    }
}

/// Whether a server or a pooler has rejected the options.
fn rejection(error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(why) if why.message().contains("startup parameter") => Error::Pooler(why.message().into()),
        _ => error.into(),
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("config", &self.config).finish_non_exhaustive()
    }
}

fn messages<S>(mut connection: Connection<Socket, S>) -> Messages
where
    S: tokio_postgres::tls::TlsStream + Unpin + Send + 'static,
{
    Box::new(move |context| connection.poll_message(context))
}
