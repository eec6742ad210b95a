//! Connections to the database, with or without TLS.

use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, Error, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

/// A connection, and its task.
pub(crate) type Connected = (Client, JoinHandle<Result<(), Error>>);

/// Opens connections to a database.
pub(crate) struct Connector {
    config: Config,
    /// `None`: without TLS.
    tls: Option<MakeRustlsConnect>,
}

impl Connector {
    /// With `sslmode=require`, connections use TLS, and the certificate of the server must be valid
    /// and for its name. Otherwise connections do not use TLS: many servers that offer it have a
    /// certificate that no authority has signed.
    pub(crate) fn new(config: Config) -> Result<Self, String> {
        let tls = match config.get_ssl_mode() {
            SslMode::Disable | SslMode::Prefer => None,
            _ => Some(tls()?),
        };
        Ok(Self { config, tls })
    }

    pub(crate) async fn connect(&self) -> Result<Connected, Error> {
        match &self.tls {
            None => {
                let (client, connection) = self.config.connect(NoTls).await?;
                Ok((client, tokio::spawn(connection)))
            }
            Some(tls) => {
                let (client, connection) = self.config.connect(tls.clone()).await?;
                Ok((client, tokio::spawn(connection)))
            }
        }
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
