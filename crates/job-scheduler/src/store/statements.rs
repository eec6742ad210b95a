//! Statements with or without a session.

use std::collections::BTreeMap;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, GenericClient, Row, Statement};

use crate::sql::Names;

/// A parameter with its type, as in `query_typed`.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// How the statements of a connection are executed: those that are executed often, as prepared
/// statements. Without a session, there are none, because a pooler may execute each transaction on
/// another connection.
#[derive(Debug)]
pub(super) struct Statements {
    names: Names,
    prepared: BTreeMap<&'static str, Statement>,
}

impl Statements {
    pub(super) fn new(names: &Names) -> Self {
        Self {
            names: names.clone(),
            prepared: BTreeMap::new(),
        }
    }

    pub(super) async fn prepare(
        &mut self,
        client: &Client,
        texts: &[&'static str],
    ) -> Result<(), Error> {
        for text in texts {
            self.prepared
                .insert(text, client.prepare(&self.names.complete(text)).await?);
        }
        Ok(())
    }

    /// Executes a statement, in which `@` stands for the schema.
    pub(super) async fn query(
        &self,
        client: &impl GenericClient,
        text: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        match self.prepared.get(text) {
            Some(statement) => {
                let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
                client.query(statement, &values).await
            }
            None => {
                client
                    .query_typed(&self.names.complete(text), parameters)
                    .await
            }
        }
    }

    /// Executes a statement that returns one row.
    pub(super) async fn query_one(
        &self,
        client: &impl GenericClient,
        text: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, Error> {
        // The statements for which this is called return a row, so this is no other error.
        Ok(self.query(client, text, parameters).await?.swap_remove(0))
    }
}
