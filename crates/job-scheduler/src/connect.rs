//! Connections, with TLS of any kind.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, Socket};

use crate::caught::caught;

type Messages = Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>> + Send>;
type Connecting = Pin<Box<dyn Future<Output = Result<(Client, Messages), Error>> + Send>>;

/// Opens connections. Without the type of the TLS library, so that the scheduler has no type
/// parameter.
#[derive(Clone)]
pub(crate) struct Connector {
    config: Config,
    connect: Arc<dyn Fn(Config) -> Connecting + Send + Sync>,
}

impl Connector {
    pub(crate) fn new<T>(config: Config, tls: T) -> Self
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
        Self { config, connect: Arc::new(connect) }
    }

    /// Opens a connection. Each notification on it calls `heard`, and its end notifies `lost`. It is
    /// closed when the client is dropped.
    ///
    /// The server waits for at most a lease for a node that has locked rows and sends nothing.
    pub(crate) async fn connect(
        &self,
        lease: Duration,
        heard: impl Fn(&str) + Send + 'static,
        lost: Arc<Notify>,
    ) -> Result<Client, Error> {
        let mut config = self.config.clone();
        // TCP options are in whole seconds. Zero would be rejected.
        let [idle, interval] = [lease, lease / 3].map(|time| time.max(Duration::from_secs(1)));
        let connect_timeout = config.get_connect_timeout().map_or(lease, |limit| lease.min(*limit));
        config.connect_timeout(connect_timeout).tcp_user_timeout(lease);
        config.keepalives_idle(idle).keepalives_interval(interval).keepalives_retries(2);
        let (client, mut messages) = (self.connect)(config).await?;
        tokio::spawn(async move {
            // An error or a panic closes the connection. The next call of the client reports that.
            while let Ok(Some(Ok(message))) = caught(poll_fn(&mut messages)).await {
                if let AsyncMessage::Notification(notification) = message {
                    heard(notification.payload());
                }
            }
            lost.notify_one();
        });
        let millis = lease.as_millis();
        // All statements of a node find their rows by an index, in its order. The statistics of a
        // table that grows and shrinks as fast as a queue are often wrong, and a plan with a
        // sequential scan that was right for an empty table would be kept, or one that sorts all
        // jobs that are due to find the first ones. (And a plan that needs one has a high cost
        // then, for which it would be compiled.)
        let settings = format!(
            "SET idle_in_transaction_session_timeout = {millis}; SET statement_timeout = {millis}; \
             SET default_transaction_isolation = 'read committed'; SET client_min_messages = warning; \
             SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off"
        );
        client.batch_execute(&settings).await?;
        Ok(client)
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
