//! Connections with TLS, on a server with a certificate of its own authority.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{future::Future, process};

use hashed_wheel_job_scheduler::{NewJob, Scheduler};
use hashed_wheel_trial::server;
use hashed_wheel_trial::testing::server_or_skip;
use job_scheduler_trial::Database;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Config, NoTls, Socket};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, client};

use crate::fixture::{Task, connect, eventually, perform, shut_down};

/// The part that an application takes from a crate such as `tokio-postgres-rustls`.
#[derive(Clone)]
struct Rustls(Arc<ClientConfig>);

struct Handshake(Rustls, ServerName<'static>);

struct Encrypted(client::TlsStream<Socket>);

impl Rustls {
    /// Trusts only these certificates.
    fn new(authorities: impl IntoIterator<Item = CertificateDer<'static>>) -> Self {
        let mut roots = RootCertStore::empty();
        assert_eq!(roots.add_parsable_certificates(authorities).1, 0);
        Self(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
    }
}

impl MakeTlsConnect<Socket> for Rustls {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Handshake(self.clone(), name))
    }
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move { Ok(Encrypted(TlsConnector::from(self.0.0).connect(self.1, socket).await?)) })
    }
}

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes a certificate for `localhost`: an authority that signs it, and its key. `None`: there is
/// no openssl. It comes with the packages of PostgreSQL.
fn certificate(folder: &Path) -> Option<()> {
    let openssl = server::find("openssl", []);
    if openssl.is_none() {
        assert!(env::var_os("EXAMPLES_NEED_SERVERS").is_none(), "openssl is not installed");
        // Not with `eprintln!`: the test harness hides its output in tests that pass.
        let _ = writeln!(io::stderr(), "\nSKIPPED: openssl is not installed (apt install openssl)");
    }
    let openssl = openssl?;
    fs::write(folder.join("extensions"), "subjectAltName=DNS:localhost\n").unwrap();
    for arguments in [
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 30 -subj /CN=authority",
        "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 30 \
         -extfile extensions",
    ] {
        let made = Command::new(&openssl).args(arguments.split_whitespace()).current_dir(folder).output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    Some(())
}

/// Turns TLS on. The server writes the files itself, because it accepts only a key that no other
/// user may read.
async fn turn_on(config: &Config, folder: &Path) {
    let client = connect(config).await;
    for name in ["server.crt", "server.key"] {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let write = format!(
            "COPY (SELECT unnest(string_to_array('{}', E'\\n'))) TO PROGRAM 'umask 077; cat > {name}'",
            text.trim_end()
        );
        client.batch_execute(&write).await.unwrap();
    }
    client.batch_execute("ALTER SYSTEM SET ssl = on").await.unwrap();
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
}

#[tokio::test]
async fn node_connects_with_tls_and_refuses_an_unknown_certificate() {
    let folder = env::temp_dir().join(format!("job_scheduler_tls-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let folder = Folder(folder);
    // In a thread without a runtime, because it uses a blocking client.
    let start =
        || std::thread::scope(|scope| scope.spawn(|| server_or_skip(Database::start())).join().unwrap());
    let Some(database) = start() else { return };
    let Some(()) = certificate(&folder.0) else { return };
    let mut config: Config = database.url.parse().unwrap();
    turn_on(&config, &folder.0).await;
    let address = config.get_hosts().to_vec();
    assert_eq!(address, [tokio_postgres::config::Host::Tcp("127.0.0.1".into())]);
    // The name in the certificate, and the address.
    let port = config.get_ports()[0];
    config = Config::new();
    config.host("localhost").hostaddr("127.0.0.1".parse().unwrap()).port(port);
    config.user("postgres").dbname("postgres").ssl_mode(SslMode::Require);

    let authority = CertificateDer::from_pem_file(folder.0.join("ca.crt")).unwrap();
    let builder = || Scheduler::builder().handler(perform);
    let node = builder().start(config.clone(), Rustls::new([authority])).await.unwrap();
    let mut plain = config.clone();
    plain.ssl_mode(SslMode::Disable);
    let client = connect(&plain).await;
    let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE ssl AND pid <> pg_backend_pid()";
    // The three connections of the node.
    eventually(async || client.query_one(encrypted, &[]).await.unwrap().get::<_, i64>(0) == 3).await;
    let job = node.jobs().enqueue(&client, NewJob::new(&Task::Succeed)).await.unwrap().job;
    eventually(async || {
        node.jobs().history(&client, job, 1).await.unwrap().iter().any(|run| run.finished.is_some())
    })
    .await;

    let error = builder().start(config.clone(), Rustls::new([])).await.unwrap_err().to_string();
    assert!(error.contains("TLS handshake") && error.contains("UnknownIssuer"), "{error}");
    let error = builder().start(config, NoTls).await.unwrap_err().to_string();
    assert!(error.contains("no TLS implementation configured"), "{error}");
    shut_down(node).await;
}
