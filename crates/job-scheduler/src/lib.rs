//! Durable jobs in PostgreSQL, shared by any number of nodes, and started on time.
//!
//! A job is a row: a payload with a schedule, which is a single time, a fixed rate or a cron
//! pattern in a time zone. Each node reads the runs of the next seconds in advance, and waits for
//! them on a timing wheel. When a node is lost, others take over its runs within seconds. This is
//! the design of xxl-job, without a server of its own: a node is a value in your program.
//!
//! ```no_run
//! use hashed_wheel_job_scheduler::{Context, NewJob, Payload, RunError, Scheduler};
//! use serde::{Deserialize, Serialize};
//! use std::time::Duration;
//! use tokio_postgres::NoTls;
//!
//! #[derive(Serialize, Deserialize)]
//! struct SendMail {
//!     to: String,
//! }
//!
//! impl Payload for SendMail {
//!     const HANDLER: &'static str = "send-mail";
//! }
//!
//! async fn send(_: Context, mail: SendMail) -> Result<(), RunError> {
//!     println!("to {}", mail.to);
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let config: tokio_postgres::Config = "postgresql://user@localhost/shop".parse()?;
//!     let node = Scheduler::builder().handler(send).start(config.clone(), NoTls).await?;
//!
//!     // Usually somewhere else, on a connection or in a transaction of the application.
//!     let (client, connection) = config.connect(NoTls).await?;
//!     tokio::spawn(connection);
//!     let mail = SendMail { to: "you".into() };
//!     node.jobs().enqueue(&client, NewJob::new(&mail)).await?;
//!     node.jobs().enqueue(&client, NewJob::new(&mail).cron("0 0 8 * * MON").key("monday")).await?;
//!
//!     tokio::signal::ctrl_c().await?;
//!     node.shutdown(Duration::from_secs(10)).await?;
//!     Ok(())
//! }
//! ```
//!
//! # What is promised
//!
//! - **Each due time has its run.** It is one row in a table, with its result. Due times that
//!   no node could read for too long follow the [`Misfire`] policy of their job.
//! - **A run starts at or after its due time**, by the clock of the database, whatever the clocks
//!   of the nodes show.
//! - **A run that has not started when its node is lost is started elsewhere, once.** A node is
//!   lost if it has not renewed its [lease](SchedulerBuilder::lease). The run starts at most
//!   `lease + heartbeat` after the last renewal, if another node has capacity. So does one that was
//!   running, if it is interrupted for the first time.
//! - **A run that was interrupted is repeated and marked**: by [`Context::interrupted`], the
//!   handler detects that it may have been done before. It is not repeated if its job is paused
//!   meanwhile, or after more than [`max_interruptions`](NewJob::max_interruptions).
//! - **At most one run of a job is running**, if its [`Overlap`] is `Skip` or `Wait`, and at most
//!   as many runs of a handler or with a name as their [limits](NewJob::limit) allow. Interrupted
//!   runs are the exception, see below.
//! - **Runs of a handler start no faster than its [rate](KindLimits::rate)**, on all nodes
//!   together, by the clock of the database.
//! - **Changes are immediate.** A run that was read ahead does not start after its job is paused,
//!   replaced or deleted, because each start checks that in the database.
//! - **A cancelled run ends as cancelled**, even if it is executing, on any node, and even if this
//!   node is lost: see [`Jobs::cancel`]. Its handler learns it within milliseconds by a
//!   notification, and at most a [heartbeat](SchedulerBuilder::heartbeat) later. It has the time
//!   [`cancel_grace`](SchedulerBuilder::cancel_grace) to end. With the defaults, this is half a
//!   second.
//!
//! # What cannot be promised
//!
//! - **Exactly one execution.** If a node is lost after the effect of a run and before its result
//!   is written, the run is repeated. A handler whose effect must not be repeated uses
//!   [`Context::run`] as a key where it takes effect. If that is the same database,
//!   [`Context::complete`] writes the result in the transaction of the effect: exactly once.
//! - **No execution after a loss.** A node that was stopped for longer than its lease (a suspended
//!   machine) may finish runs that it had started, while another node repeats them. It notices that
//!   when it continues, and drops their futures. A node without a connection drops them at the end
//!   of its lease; one that is back before keeps them.
//! - **A handler that ends its process** ends one node after the other, with growing pauses, until
//!   the run is [`Abandoned`](RunState::Abandoned): see
//!   [`max_interruptions`](NewJob::max_interruptions). Until then, a node that executes this run, or
//!   another one that was interrupted twice, starts no other run for up to a minute.
//! - **The end of a handler that blocks its thread.** A [`timeout`](NewJob::timeout), a
//!   [cancellation](Jobs::cancel) and the loss of a lease take effect at its next `.await`. If all
//!   threads of the runtime are blocked for longer than a lease, the node loses it.
//!
//! # Clocks
//!
//! All times are those of the database's clock. A node estimates this clock from the answers of the
//! database, and never uses the wall clock of its machine. If the clock of the database is set
//! forward, runs that were read ahead are late by at most the
//! [`prefetch`](SchedulerBuilder::prefetch). If it is set back, runs that were read ahead wait
//! until the new time; only those between the change and the next heartbeat are early.
//!
//! Leases are times of this clock too. If it is set forward by more than a lease, all nodes lose
//! theirs: they start again immediately, and what was running is repeated and marked. If it is set
//! back, nodes that are lost before their next heartbeat are taken over that much later.
//!
//! # Who is alive
//!
//! A node whose database cannot be reached tries again until it is back. So it is alive, and not
//! ready. It is dead when its task has ended, which [`Scheduler::ended`] awaits, or when it is
//! stuck. Both are in [`Scheduler::health`]:
//!
//! | | `is_alive` | `is_ready` | what to do |
//! |---|---|---|---|
//! | it works | true | true | |
//! | no connection, or the lease has ended | true | false | alert; a restart does not help |
//! | stuck: handlers block all threads of its runtime | false | false | restart the process |
//! | ended: shut down, dropped, or its timer is stopped | false | false | restart, if the process should go on |
//!
//! # Cargo features
//!
//! | feature | |
//! |---|---|
//! | `tracing` (default) | reports failed runs, takeovers and restarts, as warnings |
//! | `metrics` | the metrics below |
//! | `sqlx` | jobs are enqueued, and runs completed, on connections and in transactions of sqlx 0.8 too |
//!
//! # Metrics
//!
//! They are those of one process. Nodes in the same process add to the same counters and
//! histograms, and the gauges show one of these nodes.
//!
//! | name | labels | |
//! |---|---|---|
//! | `job_scheduler_runs_started_total` | `handler` | counter of executions |
//! | `job_scheduler_runs_ended_total` | `handler`, `end` | counter: `done`, `failed`, `retried`, `snoozed`, `cancelled` or `abandoned` |
//! | `job_scheduler_lateness_seconds` | `handler` | histogram: how much later than it should an execution has started |
//! | `job_scheduler_duration_seconds` | `handler` | histogram of the times of executions |
//! | `job_scheduler_runs_held` | | gauge: runs that the node has read ahead or is executing |
//! | `job_scheduler_taken_over_total` | | counter of runs that the node has taken over |
//! | `job_scheduler_session_up` | | gauge: 1 if the node has connections and a lease, 0 while it has none |
//! | `job_scheduler_last_beat_timestamp_seconds` | | gauge: when the node has renewed its lease, in seconds since 1970 by its clock |
//! | `job_scheduler_duty_seconds` | `duty` | histogram of the times of `lease` (its renewal), `look`, `claim`, `read ahead`, `plan`, `settle`, `clean`, `start` and `finish` |
//! | `job_scheduler_duty_timeouts_total` | `duty` | counter: the server has ended one of them after a quarter of the lease, and the next attempt does less. A `lease`, `start` or `finish` that takes a lease ends the session: `job_scheduler_restarts_total` |
//! | `job_scheduler_restarts_total` | | counter: the node has lost its lease or its connections, or has panicked, and starts again |

mod cancel;
mod caught;
mod client;
mod clock;
mod connect;
mod control;
mod cron;
mod enqueue;
mod error;
mod execution;
mod handler;
mod health;
pub mod hosts;
mod job;
mod jobs;
mod json;
mod limits;
mod looks;
mod migrate;
mod misfire;
mod node;
mod observe;
mod overview;
mod pages;
mod perform;
mod portions;
mod ready;
mod records;
mod runs;
mod schedule;
mod scheduler;
mod session;
mod settings;
mod shares;
mod sql;
mod store;
pub mod testing;

// Crates whose types the API uses.
pub use {jiff, serde_json, tokio_postgres};

pub use crate::client::JobClient;
pub use crate::control::Cancellation;
pub use crate::error::Error;
pub use crate::handler::{Context, RunError};
pub use crate::health::{Ended, Health, Monitor};
pub use crate::job::{NewJob, Overlap, Payload};
pub use crate::jobs::{Enqueued, Jobs, Outcome};
pub use crate::limits::KindLimits;
pub use crate::misfire::Misfire;
pub use crate::overview::{ActiveRun, Minute, NodeInfo, Overview, Queue};
pub use crate::pages::{JobFilter, JobPage, JobState, JobSummary, RunSummary};
pub use crate::records::{BlockedOn, FailedAttempt, Job, RunInfo, RunState};
pub use crate::runs::{RunChange, RunFilter, RunPage};
pub use crate::scheduler::{Scheduler, SchedulerBuilder};

/// The code of the README is compiled as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/from-quartz.md")]
struct FromQuartz;
