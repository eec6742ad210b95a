//! The health of a node, for a probe and a supervisor.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::caught::lock;
use crate::error::Error;

/// A node that shows no sign of life for this many leases is stuck. The steps of its task have time
/// limits of four leases altogether, when it opens connections, and less otherwise. After each of
/// them it has succeeded or failed, and that is a sign.
const SILENCE: u32 = 8;

/// The state of a node at a moment. See [`Scheduler::health`](crate::Scheduler::health).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// For a liveness probe: a process of which this is false should be restarted.
    ///
    /// It is false if the node has [`ended`](crate::Scheduler::ended), and then it remains false.
    /// It is also false while the node has neither succeeded nor failed in anything for eight
    /// leases, because handlers block all threads of its runtime. (Its runs were taken over then.)
    ///
    /// It remains true while the database cannot be reached: the node tries again, and a restart
    /// would not help.
    pub is_alive: bool,
    /// For a readiness probe or an alert: the node has connections, and its lease has not ended.
    ///
    /// It follows from the renewal of the lease only, which has a connection of its own. It remains
    /// true if the other statements are slow, or if handlers occupy all runners.
    pub is_ready: bool,
    /// The time since the last renewal of the lease. It is at most about a [`heartbeat`](crate::SchedulerBuilder::heartbeat) if all is well.
    pub last_beat: Duration,
    /// Why the node had to open connections again the last time. It remains when the node is ready
    /// again.
    pub last_error: Option<String>,
}

/// Why a node has ended. See [`Scheduler::ended`](crate::Scheduler::ended).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// By [`Scheduler::shutdown`](crate::Scheduler::shutdown), without an error.
    ShutDown,
    /// Its [`Scheduler`](crate::Scheduler) was dropped, or its runtime was.
    Dropped,
    /// By an error, which would be the same again: its timer is stopped. Or by an error of the
    /// database during a shutdown. With its text.
    Failed(String),
}

/// Observes a node, from any task or thread. It does not keep the node alive.
///
/// # Examples
///
/// A liveness probe, and the end of a process whose node has ended:
///
/// ```no_run
/// use hashed_wheel_job_scheduler::Scheduler;
/// use tokio_postgres::NoTls;
///
/// # async fn serve_http(_: impl Fn() -> u16) {}
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let config = "postgresql://user@localhost/shop".parse()?;
/// let node = Scheduler::builder().start(config, NoTls).await?;
/// let monitor = node.monitor();
/// tokio::spawn(serve_http(move || if monitor.health().is_alive { 200 } else { 503 }));
/// let why = node.ended().await;
/// eprintln!("the node has ended: {why:?}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Monitor {
    vitals: Arc<Vitals>,
    ended: watch::Receiver<Option<Ended>>,
}

impl Monitor {
    /// Returns the state of the node. See [`Scheduler::health`](crate::Scheduler::health).
    #[must_use]
    pub fn health(&self) -> Health {
        let has_ended = self.ended.borrow().is_some() || self.ended.has_changed().is_err();
        self.vitals.health(has_ended)
    }

    /// Waits until the node has ended. See [`Scheduler::ended`](crate::Scheduler::ended).
    pub fn ended(&self) -> impl Future<Output = Ended> + Send + 'static + use<> {
        let mut ended = self.ended.clone();
        async move {
            match ended.wait_for(Option::is_some).await {
                Ok(why) => why.clone().unwrap_or(Ended::Dropped),
                Err(_) => Ended::Dropped,
            }
        }
    }
}

/// The signs of life of a node.
#[derive(Debug)]
pub(crate) struct Vitals {
    lease: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    has_session: bool,
    /// The end of the lease.
    until: Instant,
    last_beat: Instant,
    last_sign: Instant,
    last_error: Option<String>,
}

impl Vitals {
    pub(crate) fn new(lease: Duration) -> Self {
        let now = Instant::now();
        let state = State {
            has_session: false,
            until: now,
            last_beat: now,
            last_sign: now,
            last_error: None,
        };
        Self {
            lease,
            state: Mutex::new(state),
        }
    }

    /// The lease was renewed until this time.
    pub(crate) fn beat(&self, until: Instant) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        (state.has_session, state.until) = (true, until);
        (state.last_beat, state.last_sign) = (now, now);
    }

    /// The node has no connections now.
    pub(crate) fn failed(&self, error: &Error) {
        let mut state = lock(&self.state);
        (state.has_session, state.last_sign) = (false, Instant::now());
        state.last_error = Some(error.to_string());
    }

    fn health(&self, has_ended: bool) -> Health {
        let state = lock(&self.state);
        let is_alive = !has_ended && state.last_sign.elapsed() < self.lease * SILENCE;
        Health {
            is_alive,
            is_ready: !has_ended && state.has_session && Instant::now() < state.until,
            last_beat: state.last_beat.elapsed(),
            last_error: state.last_error.clone(),
        }
    }
}

/// Tells why the node has ended, even if its task is aborted.
pub(crate) struct Announcer(watch::Sender<Option<Ended>>);

pub(crate) fn announcer(vitals: Arc<Vitals>) -> (Announcer, Monitor) {
    let (sender, ended) = watch::channel(None);
    (Announcer(sender), Monitor { vitals, ended })
}

impl Announcer {
    pub(crate) fn announce(self, result: &Result<(), Error>) {
        self.0.send_replace(Some(match result {
            Ok(()) => Ended::ShutDown,
            Err(error) => Ended::Failed(error.to_string()),
        }));
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.0.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(Ended::Dropped);
            is_first
        });
    }
}
