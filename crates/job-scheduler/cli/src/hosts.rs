//! The hosts of a configuration, one by one.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

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
    let mut hosts: Vec<_> = (0..count).map(|index| with_host(config, index)).collect();
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        // Its keys are random.
        let random = RandomState::new().build_hasher().finish();
        hosts.rotate_left((random % count as u64) as usize);
    }
    hosts
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
        .target_session_attrs(config.get_target_session_attrs());
    one
}

#[cfg(test)]
mod tests {
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

        let random = with("host=one,two load_balance_hosts=random");
        let firsts: Vec<_> = (0..100).map(|_| hosts(&random).remove(0)).collect();
        for host in ["host=one", "host=two"] {
            assert!(firsts.contains(&with(host)), "{host}: {firsts:?}");
        }
    }
}
