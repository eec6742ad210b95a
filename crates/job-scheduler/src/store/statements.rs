//! Statements with or without a session.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::task::Poll;

use tokio_postgres::{Client, Error, Row, Statement};

use crate::sql::{Names, Parameter, Typed};

/// How the statements of a connection are executed: those that are executed often, as prepared
/// statements. Without a session, there are none, because a pooler may execute each transaction on
/// another connection.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) names: Names,
    prepared: BTreeMap<&'static str, Statement>,
}

impl Statements {
    pub(super) fn new(names: &Names) -> Self {
        Self {
            names: names.clone(),
            prepared: BTreeMap::new(),
        }
    }

    /// Prepares all of them in one round trip.
    pub(super) async fn prepare(
        &mut self,
        client: &Client,
        texts: &[&'static str],
    ) -> Result<(), Error> {
        let mut pending = Vec::new();
        for &text in texts {
            let complete = self.names.complete(text);
            pending.push(Box::pin(async move {
                Ok::<_, Error>((text, client.prepare(&complete).await?))
            }));
        }
        // All of them are sent before the first answer is awaited.
        let prepared = poll_fn(|context| {
            let mut result = Poll::Pending;
            pending.retain_mut(|prepare| match prepare.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(Ok((text, statement))) => {
                    self.prepared.insert(text, statement);
                    false
                }
                Poll::Ready(Err(error)) => {
                    result = Poll::Ready(Err(error));
                    false
                }
            });
            if pending.is_empty() && result.is_pending() {
                result = Poll::Ready(Ok(()));
            }
            result
        });
        prepared.await
    }

    /// Executes a statement, in which `@` stands for the schema.
    pub(super) async fn query<const N: usize>(
        &self,
        client: &Client,
        text: &str,
        parameters: [Parameter<'_>; N],
    ) -> Result<Vec<Row>, Error> {
        let typed = parameters.map(Typed::typed);
        match self.prepared.get(text) {
            Some(statement) => {
                client
                    .query(statement, &typed.map(|(value, _)| value))
                    .await
            }
            None => client.query_typed(&self.names.complete(text), &typed).await,
        }
    }
}
