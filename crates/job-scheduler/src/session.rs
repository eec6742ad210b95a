//! The life of a node under one number, from its registration to the loss of its lease.
//!
//! ```text
//!                  read: claim, take over, read ahead             at the due time
//! PostgreSQL ───────────────► load ──► queue on the wheel ──► start ──────────────────────► handlers
//!     ▲                        ▲                  ▲             │ running                      │
//!     │                 notification        retry │             ▼                              │
//!     └──────────────────────────────────────── finish ◄───────────────────────────────────────┘
//! ```
//!
//! The database stores what is due, and the wheel waits for the exact time. A session has these
//! duties. Each has its own statement or short transaction, so that no other one waits for it for
//! long, however many jobs, runs and names there are, and however slow the network is.
//!
//! | duty | connection | sent | round trips | what others can make large | bound, and what happens there |
//! |---|---|---|--:|---|---|
//! | lease | its own | each heartbeat | 1 | nothing | a lease: the session ends |
//! | look | read | each heartbeat, after a notification, before the next five | 1 | nothing: it reads one row for each handler and priority, and for each lost node | the next one is a heartbeat later |
//! | claim | read | if there are waiting runs, or those of lost nodes | 1 | their number | `batch` and free capacity |
//! | read ahead | read | if there are jobs that are due | 2 | their number, the time that a pattern takes | as claim, and a sixteenth of a lease; the rest is next |
//! | plan | read | if SQL has added cron jobs that start soon | 2 | their number, the time that a pattern takes | `batch`, a fortieth of a lease; the rest is at the next heartbeat |
//! | settle | read | each heartbeat, by one node, if there are limits | 1 | the number of names and of blocked runs | a part of the names; the rest is next |
//! | clean | read | each minute | 1 | the number and the size of old results | 2 000; the rest is next |
//! | start | start | when runs are due | 1 | payloads | 256 runs, 4 MiB |
//! | finish | finish | when executions end | 1 | outputs | 256 results, 4 MiB |
//!
//! The server ends a statement of the connection `read` after a quarter of a lease. Then the next
//! attempt has half of the rows, and the session goes on, or the next one. A start or a result that
//! takes longer than a lease ends the session, and the next one sends them one by one.
//!
//! Jobs and runs that an application has locked are passed over, which takes about a microsecond for
//! each, in each call. A transaction that has locked so many that this takes a quarter of a lease
//! keeps the nodes from claiming, or from reading ahead, until it ends.
//!
//! An error of the database or the loss of the lease ends the session. The scheduler opens another
//! one with another number. So all errors have the same recovery: that of a killed process. Only
//! the executions continue, while the lease of the first session lasts, and the second one gets
//! them.

mod lease;
mod load;
mod read;
mod work;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Instant;

use jiff::Timestamp;
use tokio::sync::{Notify, watch};

use crate::caught::caught;
use crate::error::Error;
use crate::execution::{Executions, Results};
use crate::hosts::within;
use crate::portions::Portions;
use crate::settings::Shared;
use crate::store::{self, Registered, Role, Store};

use self::lease::Lease;
use self::load::Load;

/// Whether a node should end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stop {
    No,
    /// It should finish what is running until this time.
    At(Instant),
}

/// What this process is in the database since its last session has ended by an error.
#[derive(Debug, Default)]
pub(crate) struct Previous {
    /// The number of that session, and those of later registrations that were not answered, each
    /// with the end of its lease. They may exist, and have executions.
    pub(crate) numbers: Vec<(i64, Option<Timestamp>)>,
    /// The end of its lease, until which its executions continue. `None`: they have ended.
    pub(crate) until: Option<Instant>,
}

pub(crate) struct Session {
    shared: Arc<Shared>,
    lease: Lease,
    load: Load,
    signals: Signals,
}

/// What wakes a session.
#[derive(Clone, Default)]
struct Signals {
    /// Needs a read at once.
    wake: Arc<Notify>,
    /// Needs a look, which shows whether it needs a read.
    heard: Arc<Notify>,
    /// A connection has ended.
    lost: Arc<Notify>,
}

/// The connections of a session.
pub(crate) struct Stores {
    lease: Store,
    read: Store,
    start: Store,
    finish: Store,
}

impl Session {
    /// Connects and registers. The executions of the `previous` session continue in this one, if
    /// its lease has not ended. Its other runs can be claimed immediately.
    pub(crate) async fn open(
        shared: Arc<Shared>,
        executions: &Executions,
        previous: &mut Previous,
    ) -> Result<(Self, Stores), Error> {
        let signals = Signals::default();
        let lease = shared.settings.lease;
        // Zero until it has one.
        let number = Arc::new(AtomicI64::new(0));
        let connect = async |role| -> Result<Store, Error> {
            let Signals { wake, heard, lost } = signals.clone();
            let names = shared.handlers.names();
            let (cancels, number) = (shared.names.cancel_channel(), number.clone());
            let hear = move |channel: &str, text: &str| {
                if channel == cancels {
                    // The number of a node. Its next look finds the runs.
                    if text.parse() == Ok(number.load(Relaxed)) {
                        wake.notify_one();
                    }
                // Without the name of a handler, a notification is for all nodes.
                } else if text.is_empty() || names.iter().any(|name| name == text) {
                    heard.notify_one();
                }
            };
            let client = shared.connector.connect(lease, hear, lost).await?;
            Ok(Store::new(client, &shared.names, lease, shared.settings.listens, role).await?)
        };
        let open = async {
            let (lease, read, start, finish) = tokio::try_join!(
                Box::pin(connect(Role::Lease)),
                Box::pin(connect(Role::Read)),
                Box::pin(connect(Role::Start)),
                Box::pin(connect(Role::Finish))
            )?;
            let stores = Stores {
                lease,
                read,
                start,
                finish,
            };
            if shared.settings.listens {
                stores.read.listen(&shared.names).await?;
            }
            let previous = store::Previous {
                numbers: &mut previous.numbers,
                executing: previous.until.map(|_| executions.runs()),
                excused: executions.excused(),
                culprit: executions.culprit(),
            };
            let (settings, handlers) = (&shared.settings, shared.handlers.names());
            let registered = stores
                .read
                .register(&settings.name, &handlers, settings.heartbeat(), previous)
                .await?;
            Ok((stores, registered))
        };
        // Several connections are opened.
        let (stores, Registered { id, reading, kept }) =
            within(&shared.timer, lease * 4, open).await?;
        number.store(id, Relaxed);
        executions.resume(&kept);
        let session = Self {
            lease: Lease::new(id, reading, &shared),
            load: Load::new(&shared, kept.len()),
            signals,
            shared,
        };
        Ok((session, stores))
    }

    /// Runs until `stop`, or until an error. Executions continue only after an error, and if the
    /// lease has not ended. If a handler blocks its thread for longer than a lease, its run is not
    /// given to the next session.
    pub(crate) async fn run(
        self,
        stores: Stores,
        executions: &Executions,
        results: &mut Results,
        portions: &mut Portions,
        stop: &mut watch::Receiver<Stop>,
    ) -> (Result<(), Error>, Previous) {
        let session = async {
            tokio::select! {
                Err(error) = self.lease.keep(&stores.lease, &self.shared) => Err(error),
                result = Box::pin(self.read(&stores.read, executions, portions, stop)) => result,
                Err(error) = self.start(&stores.start, executions) => Err(error),
                Err(error) = self.finish(&stores.finish, executions, results) => Err(error),
                Err(error) = self.watch(&stores) => Err(error),
            }
        };
        let result = caught(session)
            .await
            .unwrap_or_else(|message| Err(Error::Panic(message)));
        if result.is_ok() {
            let have_ended = executions.end().await;
            let leave = async { Ok(stores.read.leave(self.lease.node, have_ended).await?) };
            return (self.within(leave).await, Previous::default());
        }
        // A transaction may be open, whose locks others would wait for.
        drop(stores);
        executions.failed();
        results.failed(executions);
        portions.failed();
        let (until, is_known) = match result {
            Err(Error::LeaseLost) if self.lease.is_excused() => {
                (None, executions.end_excused().await)
            }
            Err(Error::LeaseLost) => (None, executions.end().await),
            _ => (Some(self.lease.until()), true),
        };
        let numbers = is_known
            .then_some((self.lease.node, None))
            .into_iter()
            .collect();
        (result, Previous { numbers, until })
    }

    /// Detects the end of a connection that may not be used for long. The next run would be late.
    async fn watch(&self, stores: &Stores) -> Result<Infallible, Error> {
        loop {
            self.signals.lost.notified().await;
            // The connection that listens may be busy, and is checked by a look.
            self.signals.wake.notify_one();
            for store in [&stores.lease, &stores.start, &stores.finish] {
                self.within(async { Ok(store.check().await?) }).await?;
            }
        }
    }

    /// A call of the database, which fails if it takes longer than a lease.
    async fn within<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        within(&self.shared.timer, self.shared.settings.lease, call).await
    }
}
