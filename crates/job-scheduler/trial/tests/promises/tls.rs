//! Connections with TLS, on a server with a certificate of its own authority.

use hashed_wheel_job_scheduler::{NewJob, Scheduler};
use hashed_wheel_trial::testing::server_or_skip;
use job_scheduler_trial::{Certificate, Database};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::SslMode;
use tokio_postgres::{Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::fixture::{Task, connect, eventually, perform, shut_down};

/// Trusts only these certificates.
fn trusting(authorities: impl IntoIterator<Item = CertificateDer<'static>>) -> MakeRustlsConnect {
    let mut roots = RootCertStore::empty();
    assert_eq!(roots.add_parsable_certificates(authorities).1, 0);
    MakeRustlsConnect::new(
        ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth(),
    )
}

#[tokio::test]
async fn node_connects_with_tls_and_refuses_an_unknown_certificate() {
    // In a thread without a runtime, because these use a blocking client.
    let start = || {
        let database = server_or_skip(Database::start())?;
        let certificate = server_or_skip(Certificate::new("job_scheduler_tls"))?;
        certificate.install(&database.url).unwrap();
        Some((database, certificate))
    };
    let Some((database, certificate)) =
        std::thread::scope(|scope| scope.spawn(start).join().unwrap())
    else {
        return;
    };
    let mut config: Config = database.url.parse().unwrap();
    let address = config.get_hosts().to_vec();
    assert_eq!(
        address,
        [tokio_postgres::config::Host::Tcp("127.0.0.1".into())]
    );
    // The name in the certificate, and the address.
    let port = config.get_ports()[0];
    config = Config::new();
    config
        .host("localhost")
        .hostaddr("127.0.0.1".parse().unwrap())
        .port(port);
    config
        .user("postgres")
        .dbname("postgres")
        .ssl_mode(SslMode::Require);

    let authority = CertificateDer::from_pem_file(certificate.authority()).unwrap();
    let builder = || Scheduler::builder().handler(perform);
    let node = builder()
        .start(config.clone(), trusting([authority]))
        .await
        .unwrap();
    let mut plain = config.clone();
    plain.ssl_mode(SslMode::Disable);
    let client = connect(&plain).await;
    let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE ssl AND pid <> pg_backend_pid()";
    // The four connections of the node.
    eventually(async || {
        client
            .query_one(encrypted, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 4
    })
    .await;
    let job = node
        .jobs()
        .enqueue(&client, NewJob::new(&Task::Succeed))
        .await
        .unwrap()
        .job;
    eventually(async || {
        node.jobs()
            .history(&client, job, 1)
            .await
            .unwrap()
            .iter()
            .any(|run| run.finished.is_some())
    })
    .await;

    let error = builder()
        .start(config.clone(), trusting([]))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("TLS handshake") && error.contains("UnknownIssuer"),
        "{error}"
    );
    let error = builder()
        .start(config, NoTls)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no TLS implementation configured"),
        "{error}"
    );
    shut_down(node).await;
}
