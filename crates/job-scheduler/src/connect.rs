//! Connections, with TLS of any kind.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, TimeoutError};
use tokio::sync::Notify;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Socket};

use crate::caught::caught;
use crate::error::Error;
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
    /// One for each host.
    hosts: Vec<Config>,
    timer: HashedWheelTimer,
    /// Whether connections have settings. Otherwise they may be those of a pooler.
    has_session: bool,
    connect: Arc<dyn Fn(Config) -> Connecting + Send + Sync>,
}

impl Connector {
    pub(crate) fn new<T>(
        config: &Config,
        tls: T,
        has_session: bool,
        timer: HashedWheelTimer,
    ) -> Self
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
        Self {
            hosts: hosts(config),
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
        let (client, mut messages) = self.connect_to_any(lease, &settings).await?;
        tokio::spawn(async move {
            // An error or a panic closes the connection. The next call of the client reports that.
            while let Ok(Some(Ok(message))) = caught(poll_fn(&mut messages)).await {
                if let AsyncMessage::Notification(notification) = message {
                    heard(notification.channel(), notification.payload());
                }
            }
            lost.notify_one();
        });
        self.check(&client, &settings).await.map(|()| client)
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

    /// Tries one host after the other. A host that accepts a connection and does not answer, such
    /// as a machine whose disk hangs, takes only its part of the lease: tokio-postgres would wait
    /// for it without an end, and never try the next one.
    async fn connect_to_any(
        &self,
        lease: Duration,
        settings: &[(&str, String)],
    ) -> Result<(Client, Messages), Error> {
        let mut hosts = self.hosts.clone();
        if hosts
            .iter()
            .any(|config| config.get_load_balance_hosts() == LoadBalanceHosts::Random)
        {
            fastrand::shuffle(&mut hosts);
        }
        let share = lease / hosts.len() as u32;
        let mut result = Err(Error::NoAnswer);
        for mut config in hosts {
            // TCP options are in whole seconds. Zero would be rejected.
            let [idle, interval] = [lease, lease / 3].map(|time| time.max(Duration::from_secs(1)));
            let limit = config
                .get_connect_timeout()
                .map_or(share, |limit| share.min(*limit));
            config.connect_timeout(limit).tcp_user_timeout(lease);
            config
                .keepalives_idle(idle)
                .keepalives_interval(interval)
                .keepalives_retries(2);
            if self.has_session {
                config.options(options(config.get_options().unwrap_or_default(), settings));
            }
            let connecting = async {
                (self.connect)(config)
                    .await
                    .map_err(|error| rejection(error, settings))
            };
            result = within(&self.timer, limit, connecting).await;
            if matches!(result, Ok(_) | Err(Error::Timer(_))) {
                break;
            }
        }
        result
    }
}

/// Ends a call of the database that takes too long: a stopped server may still have a working
/// kernel, which keeps the connection alive.
pub(crate) async fn within<T>(
    timer: &HashedWheelTimer,
    limit: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match timer.timeout(limit, call).await {
        Ok(result) => result,
        Err(TimeoutError::Timer(error)) => Err(error.into()),
        Err(_) => Err(Error::NoAnswer),
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

/// Returns a configuration for each host. If their numbers are invalid, the error is that of
/// tokio-postgres.
fn hosts(config: &Config) -> Vec<Config> {
    let (names, addresses) = (config.get_hosts().len(), config.get_hostaddrs().len());
    let count = names.max(addresses);
    let is_valid = (names == addresses || names == 0 || addresses == 0)
        && [0, 1, count].contains(&config.get_ports().len());
    if count > 1 && is_valid {
        (0..count).map(|index| with_host(config, index)).collect()
    } else {
        vec![config.clone()]
    }
}

/// Returns a configuration with one of the hosts, without the options of TCP, which are set later.
fn with_host(config: &Config, index: usize) -> Config {
    let mut one = Config::new();
    match config.get_hosts().get(index) {
        Some(Host::Tcp(name)) => drop(one.host(name)),
        #[cfg(unix)]
        Some(Host::Unix(path)) => drop(one.host_path(path)),
        None => {}
    }
    config
        .get_hostaddrs()
        .get(index)
        .map(|&address| one.hostaddr(address));
    let ports = config.get_ports();
    ports
        .get(index)
        .or(ports.first())
        .map(|&port| one.port(port));
    config.get_user().map(|user| one.user(user));
    config.get_password().map(|password| one.password(password));
    config.get_dbname().map(|name| one.dbname(name));
    config.get_options().map(|options| one.options(options));
    config
        .get_application_name()
        .map(|name| one.application_name(name));
    config
        .get_connect_timeout()
        .map(|&limit| one.connect_timeout(limit));
    one.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation());
    one.channel_binding(config.get_channel_binding())
        .keepalives(config.get_keepalives());
    one.target_session_attrs(config.get_target_session_attrs());
    one.load_balance_hosts(config.get_load_balance_hosts());
    one
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

fn messages<S>(mut connection: Connection<Socket, S>) -> Messages
where
    S: tokio_postgres::tls::TlsStream + Unpin + Send + 'static,
{
    Box::new(move |context| connection.poll_message(context))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_all_settings() {
        let settings = "user=u password=p dbname=d options='-c jit=off' application_name=a sslmode=require \
            sslnegotiation=direct connect_timeout=7 keepalives=0 target_session_attrs=read-write \
            channel_binding=require load_balance_hosts=random";
        let with = |hosts: &str| format!("{hosts} {settings}").parse::<Config>().unwrap();
        let split = hosts(&with(
            "host=one,/two hostaddr=10.0.0.1,10.0.0.2 port=5433,5434",
        ));
        let first = with("host=one hostaddr=10.0.0.1 port=5433");
        assert_eq!(
            split,
            [first, with("host=/two hostaddr=10.0.0.2 port=5434")]
        );
        let split = hosts(&with("host=one,two port=5433"));
        assert_eq!(
            split,
            [with("host=one port=5433"), with("host=two port=5433")]
        );
        for unchanged in [
            "host=one",
            "host=one,two,three port=1,2",
            "host=one,two hostaddr=10.0.0.1",
        ] {
            assert_eq!(hosts(&with(unchanged)), [with(unchanged)]);
        }
    }
}
