//! The hosts of a configuration, and the addresses of a host, one by one.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use tokio::net::lookup_host;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts};

/// Returns a configuration for each host, in the order in which they are tried, because
/// tokio-postgres limits only a part of the time that each of them takes. If their numbers are
/// invalid, the error is that of tokio-postgres.
pub(crate) fn hosts(config: &Config) -> Vec<Config> {
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
pub(crate) async fn addresses(host: Config) -> Vec<Config> {
    let ([Host::Tcp(name)], []) = (host.get_hosts(), host.get_hostaddrs()) else {
        return vec![host];
    };
    let port = host.get_ports().first().copied().unwrap_or_default();
    let Ok(found) = lookup_host((name.as_str(), port)).await else {
        return vec![host];
    };
    in_order(
        found
            .map(|address| host.clone().hostaddr(address.ip()).clone())
            .collect(),
    )
}

/// Begins with a random one, if that is wanted.
fn in_order(mut configs: Vec<Config>) -> Vec<Config> {
    let is_random = |config: &Config| config.get_load_balance_hosts() == LoadBalanceHosts::Random;
    if configs.first().is_some_and(is_random) {
        // Its keys are random.
        let random = RandomState::new().build_hasher().finish();
        let count = configs.len() as u64;
        configs.rotate_left((random % count) as usize);
    }
    configs
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
    one.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .keepalives(config.get_keepalives())
        .load_balance_hosts(config.get_load_balance_hosts())
        .target_session_attrs(config.get_target_session_attrs());
    one
}

#[cfg(test)]
mod tests {
    use std::net::ToSocketAddrs;

    use super::*;

    #[test]
    fn each_host_has_all_settings() {
        let settings = "user=u password=p dbname=d options='-c jit=off' application_name=a sslmode=require \
            sslnegotiation=direct connect_timeout=7 keepalives=0 target_session_attrs=read-write \
            channel_binding=require";
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
}
