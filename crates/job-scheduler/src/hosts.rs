//! Connections to a database with several hosts, or with a name that has several addresses. A node
//! connects with them, and applications and tools can.

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, TimeoutError};
use tokio::net::lookup_host;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts};

use crate::error::Error;

/// Opens a connection to the first address that accepts one, as a node does.
///
/// [`Config::connect`] waits without an end for a host that accepts a connection and does not
/// answer, such as a machine whose disk hangs, and never tries the next one. Here each host gets an
/// equal part of the time that is left of `limit`, and each address of its name an equal part of
/// that: at most [`connect_timeout`](Config::connect_timeout). They are tried in their order, or in a
/// random one if [`load_balance_hosts`](Config::load_balance_hosts) says so.
///
/// `open` gets a configuration with one host, one of the addresses if it has a name that was found,
/// and all other settings.
///
/// # Errors
///
/// If no address accepts a connection: [`Error::Unconnected`] with the reason of each. If only one
/// was tried, it is its own error, [`Error::NoAnswer`] or that of `open`. An error of another kind
/// than these and [`Error::Database`], such as [`Error::Pooler`], is returned without the others.
///
/// # Panics
///
/// If it is not called in a tokio runtime with I/O and time enabled.
///
/// # Examples
///
/// ```no_run
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_job_scheduler::{Error, hosts};
/// use std::time::Duration;
/// use tokio_postgres::{Client, Config, NoTls};
///
/// async fn connect(config: &Config, timer: &HashedWheelTimer) -> Result<Client, Error> {
///     let open = async |config: Config| Ok(config.connect(NoTls).await?);
///     let limit = Duration::from_secs(30);
///     let (client, connection) = hosts::connect(config, limit, timer, open).await?;
///     tokio::spawn(connection);
///     Ok(client)
/// }
/// # let _ = connect;
/// ```
pub async fn connect<T, F>(
    config: &Config,
    limit: Duration,
    timer: &HashedWheelTimer,
    open: impl Fn(Config) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    connect_with(config, limit, timer, addresses, open).await
}

/// `resolve` returns a configuration for each address of a host.
async fn connect_with<T, F, R>(
    config: &Config,
    limit: Duration,
    timer: &HashedWheelTimer,
    resolve: impl Fn(Config) -> R,
    open: impl Fn(Config) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
    R: Future<Output = Vec<Config>>,
{
    let mut failures = Vec::new();
    for (host, share) in shares(hosts(config), limit) {
        let (begin, name) = (Instant::now(), place(&host));
        let resolved = within(timer, share, async { Ok(resolve(host).await) }).await;
        let addresses = resolved.unwrap_or_else(|why| {
            failures.push((name, why));
            Vec::new()
        });
        for (address, share) in shares(addresses, share.saturating_sub(begin.elapsed())) {
            let name = place(&address);
            let limit = address.get_connect_timeout().copied();
            let limit = limit.map_or(share, |limit| limit.min(share));
            match within(timer, limit, open(address)).await {
                Ok(connected) => return Ok(connected),
                Err(why) => failures.push((name, why)),
            }
        }
    }
    Err(unconnected(failures))
}

/// Gives each configuration, when it is its turn, an equal part of the time that is left.
fn shares(configs: Vec<Config>, limit: Duration) -> impl Iterator<Item = (Config, Duration)> {
    let (begin, count) = (Instant::now(), configs.len() as u32);
    let turns = configs.into_iter().zip((1..=count).rev());
    turns.map(move |(config, left)| (config, limit.saturating_sub(begin.elapsed()) / left))
}

/// Returns the error that says most.
fn unconnected(mut failures: Vec<(String, Error)>) -> Error {
    // It is about the database or the node, whatever the address is.
    let telling = failures
        .iter()
        .position(|(_, why)| !matches!(why, Error::Database(_) | Error::NoAnswer(_)));
    match telling.or((failures.len() == 1).then_some(0)) {
        Some(index) => failures.swap_remove(index).1,
        None => Error::Unconnected(failures),
    }
}

/// Returns the name of a host, its address and its port.
fn place(config: &Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        // If a password in a URL has an `@` that is not escaped, its rest is part of this name.
        Host::Tcp(name) => name.rsplit('@').next().unwrap_or_default().to_owned(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    });
    let addresses = config.get_hostaddrs().iter().map(ToString::to_string);
    let ports = config.get_ports().iter().map(|port| format!("port {port}"));
    let mut words: Vec<_> = hosts.chain(addresses).chain(ports).collect();
    // A name may be an address.
    words.dedup();
    words.join(" ")
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
        Err(_) => Err(Error::NoAnswer(limit)),
    }
}

/// Returns a configuration for each host, in the order in which they are tried. If their numbers
/// are invalid, the error is that of tokio-postgres.
fn hosts(config: &Config) -> Vec<Config> {
    let (names, addresses) = (config.get_hosts().len(), config.get_hostaddrs().len());
    let count = names.max(addresses);
    let is_valid = (names == addresses || names == 0 || addresses == 0)
        && [0, 1, count].contains(&config.get_ports().len());
    if count < 2 || !is_valid {
        return vec![config.clone()];
    }
    in_order((0..count).map(|index| with_host(config, index)).collect())
}

/// Returns a configuration for each address of a host, in the order in which they are tried. It has
/// the name too, which the certificate of the server must have. Without an address, the error is
/// that of tokio-postgres.
async fn addresses(host: Config) -> Vec<Config> {
    let ([Host::Tcp(name)], []) = (host.get_hosts(), host.get_hostaddrs()) else {
        return vec![host];
    };
    let found = lookup_host((name.as_str(), 0)).await;
    let with = |address: SocketAddr| host.clone().hostaddr(address.ip()).clone();
    let all: Vec<_> = found.into_iter().flatten().map(with).collect();
    in_order(if all.is_empty() { vec![host] } else { all })
}

fn in_order(mut configs: Vec<Config>) -> Vec<Config> {
    let is_random = |config: &Config| config.get_load_balance_hosts() == LoadBalanceHosts::Random;
    if configs.first().is_some_and(is_random) {
        fastrand::shuffle(&mut configs);
    }
    configs
}

/// Returns a configuration with one of the hosts.
fn with_host(config: &Config, index: usize) -> Config {
    let mut one = Config::new();
    match config.get_hosts().get(index) {
        Some(Host::Tcp(name)) => drop(one.host(name)),
        #[cfg(unix)]
        Some(Host::Unix(path)) => drop(one.host_path(path)),
        None => {}
    }
    let address = config.get_hostaddrs().get(index);
    address.map(|&address| one.hostaddr(address));
    let ports = config.get_ports();
    let port = ports.get(index).or(ports.first());
    port.map(|&port| one.port(port));
    config.get_user().map(|user| one.user(user));
    config.get_password().map(|password| one.password(password));
    config.get_dbname().map(|name| one.dbname(name));
    config.get_options().map(|options| one.options(options));
    let name = config.get_application_name();
    name.map(|name| one.application_name(name));
    let limit = config.get_connect_timeout();
    limit.map(|&limit| one.connect_timeout(limit));
    let limit = config.get_tcp_user_timeout();
    limit.map(|&limit| one.tcp_user_timeout(limit));
    let interval = config.get_keepalives_interval();
    interval.map(|interval| one.keepalives_interval(interval));
    let retries = config.get_keepalives_retries();
    retries.map(|retries| one.keepalives_retries(retries));
    one.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .load_balance_hosts(config.get_load_balance_hosts())
        .target_session_attrs(config.get_target_session_attrs());
    one
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::net::ToSocketAddrs;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio_postgres::{Client, NoTls};

    use super::*;

    #[test]
    fn each_host_has_all_settings() {
        let settings = "user=u password=p dbname=d options='-c jit=off' application_name=a sslmode=require \
            sslnegotiation=direct connect_timeout=7 keepalives=0 target_session_attrs=read-write \
            channel_binding=require tcp_user_timeout=8 keepalives_idle=9 keepalives_interval=10 \
            keepalives_retries=11";
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
        let expected = [with("host=one port=5433"), with("host=two port=5433")];
        assert_eq!(split, expected);
        for unchanged in [
            "host=one",
            "host=one,two,three port=1,2",
            "host=one,two hostaddr=10.0.0.1",
        ] {
            assert_eq!(hosts(&with(unchanged)), [with(unchanged)]);
        }

        let random = |hosts: &str| with(&format!("{hosts} load_balance_hosts=random"));
        let both = random("host=one,two");
        let firsts: Vec<_> = (0..100).map(|_| hosts(&both).remove(0)).collect();
        for host in ["host=one", "host=two"] {
            assert!(firsts.contains(&random(host)), "{host}: {firsts:?}");
        }
    }

    #[tokio::test]
    async fn names_are_resolved_and_kept() {
        let with = |host: &str| {
            format!("{host} port=5433 user=u")
                .parse::<Config>()
                .unwrap()
        };
        let found = ("localhost", 5433).to_socket_addrs().unwrap();
        let expected: Vec<_> = found
            .map(|address| with(&format!("host=localhost hostaddr={}", address.ip())))
            .collect();
        assert_eq!(addresses(with("host=localhost")).await, expected);
        let both = with("host=127.0.0.1 hostaddr=127.0.0.1");
        assert_eq!(addresses(with("host=127.0.0.1")).await, [both]);
        for unchanged in [
            "host=/run",
            "hostaddr=10.0.0.1",
            "host=one hostaddr=10.0.0.1",
            "host=no-such-name.invalid",
        ] {
            assert_eq!(addresses(with(unchanged)).await, [with(unchanged)]);
        }
    }

    const LIMIT: Duration = Duration::from_secs(2);

    /// An address of a host with the name `one`: that of a server that says this, and then nothing.
    async fn server(says: &'static [u8]) -> Config {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let mut streams = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                stream.write_all(says).await.unwrap();
                streams.push(stream);
            }
        });
        let config = format!("host=one hostaddr=127.0.0.1 port={port} user=u");
        config.parse().unwrap()
    }

    /// The user is known, and the server is ready.
    const WELCOME: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
    const REFUSAL: &[u8] = b"E\0\0\0\x1cSFATAL\0C28000\0Mnot you\0\0";

    /// Connects to a host whose name has these addresses.
    async fn connect_to(addresses: &[&Config]) -> Result<Client, Error> {
        let timer = HashedWheelTimer::new(Duration::from_millis(1), 64);
        let host = "host=one user=u".parse().unwrap();
        let addresses: Vec<_> = addresses.iter().map(|&address| address.clone()).collect();
        let resolve = |_| ready(addresses.clone());
        let open = async |config: Config| Ok(config.connect(NoTls).await?.0);
        connect_with(&host, LIMIT, &timer, resolve, open).await
    }

    /// It accepts connections, as a machine does whose disk hangs.
    #[tokio::test]
    async fn silent_address_of_a_name_leaves_time_for_the_next_one() {
        let (silent, welcoming) = (server(b"").await, server(WELCOME).await);
        let mut limited = silent.clone();
        limited.connect_timeout(LIMIT / 8);
        for (first, share) in [(silent, LIMIT / 2), (limited, LIMIT / 8)] {
            let begin = Instant::now();
            connect_to(&[&first, &welcoming]).await.unwrap();
            assert!(begin.elapsed() >= share, "{:?}", begin.elapsed());
        }
    }

    #[tokio::test]
    async fn name_without_an_answer_leaves_time_for_the_next_host() {
        let timer = HashedWheelTimer::new(Duration::from_millis(1), 64);
        let hosts = "host=one,two user=u".parse().unwrap();
        let (one, welcoming): (Config, _) =
            ("host=one user=u".parse().unwrap(), server(WELCOME).await);
        let resolve = async |host: Config| match host == one {
            true => pending().await,
            false => vec![welcoming.clone()],
        };
        let open = async |config: Config| Ok(config.connect(NoTls).await?.0);
        let connected = connect_with(&hosts, LIMIT, &timer, resolve, open).await;
        assert!(connected.is_ok(), "{connected:?}");
    }

    #[tokio::test]
    async fn error_has_the_reason_of_each_address() {
        let (silent, refusing) = (server(b"").await, server(REFUSAL).await);
        let closed = "hostaddr=127.0.0.1 port=1 user=u".parse().unwrap();
        let error = connect_to(&[&silent, &refusing, &closed])
            .await
            .unwrap_err();
        let text = error.to_string();
        let Error::Unconnected(reasons) = error else {
            panic!("{text}");
        };
        let [
            (_, Error::NoAnswer(_)),
            (_, Error::Database(why)),
            (last, Error::Database(_)),
        ] = &reasons[..]
        else {
            panic!("{text}");
        };
        assert!(why.as_db_error().is_some() && last == "127.0.0.1 port 1");
        let port = silent.get_ports()[0];
        let first = format!("one 127.0.0.1 port {port}: the database did not answer within");
        assert!(text.contains(&first) && text.contains("not you"), "{text}");

        let only = connect_to(&[&refusing]).await.unwrap_err();
        assert!(matches!(only, Error::Database(_)), "{only}");
    }

    #[test]
    fn place_has_no_part_of_a_password() {
        let config = "postgresql://u:pass@word@one:5433/d".parse().unwrap();
        assert_eq!(place(&config), "one port 5433");
    }

    #[test]
    fn error_about_the_database_itself_is_the_only_one() {
        let silent = || ("one".to_owned(), Error::NoAnswer(LIMIT));
        let pooler = ("two".to_owned(), Error::Pooler("why".into()));
        let error = unconnected(vec![silent(), pooler, silent()]);
        assert!(matches!(error, Error::Pooler(_)), "{error}");
    }
}
