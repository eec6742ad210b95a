//! A blocking connection, for the trial itself.

use jiff::Timestamp;
use postgres::{Client, NoTls};
use tokio_postgres::Config;

use crate::jobs::Time;

pub(crate) fn connect(config: &Config) -> Result<Client, postgres::Error> {
    postgres::Config::from(config.clone()).connect(NoTls)
}

pub(crate) fn now(client: &mut Client) -> Result<Time, postgres::Error> {
    let now: Timestamp = client.query_one("SELECT clock_timestamp()", &[])?.get(0);
    Ok(now.as_microsecond())
}
