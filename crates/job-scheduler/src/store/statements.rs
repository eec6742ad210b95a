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
    /// Prepares these statements in one round trip.
    pub(super) async fn new(
        names: &Names,
        client: &Client,
        texts: &[&'static str],
    ) -> Result<Self, Error> {
        let prepare = |&text: &&'static str| {
            let complete = names.complete(text);
            Box::pin(async move { Ok((text, client.prepare(&complete).await?)) })
        };
        let mut pending: Vec<_> = texts.iter().map(prepare).collect();
        let mut prepared = Vec::new();
        // All of them are sent before the first answer is awaited.
        poll_fn(|context| {
            pending.retain_mut(|prepare| match prepare.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(result) => {
                    prepared.push(result);
                    false
                }
            });
            match pending[..] {
                [] => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
        Ok(Self {
            names: names.clone(),
            prepared: prepared.into_iter().collect::<Result<_, Error>>()?,
        })
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
