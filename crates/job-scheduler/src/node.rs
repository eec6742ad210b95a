//! The task of a node: one session after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use tokio::sync::watch;

use crate::caught::caught;
use crate::error::Error;
use crate::execution::{Executions, Results};
use crate::observe;
use crate::portions::Portions;
use crate::session::{Previous, Session, Stop, Stores};
use crate::settings::Shared;

/// The pause after an error, before the next session.
const PAUSE: Duration = Duration::from_millis(500);

/// One session after the other.
pub(crate) async fn run(
    shared: Arc<Shared>,
    first: (Session, Stores),
    executions: Executions,
    mut results: Results,
    mut stop: watch::Receiver<Stop>,
    own_timer: bool,
) -> Result<(), Error> {
    let _stop_timer = own_timer.then(|| StopTimer(shared.timer.clone()));
    let mut portions = Portions::new(&shared.settings);
    let mut opened = Ok(first);
    let mut previous = Previous::default();
    loop {
        let result = match opened {
            Ok((session, stores)) => {
                let result;
                (result, previous) = session
                    .run(stores, &executions, &mut results, &mut portions, &mut stop)
                    .await;
                result
            }
            Err(error) => Err(error),
        };
        let Err(error) = result else { return Ok(()) };
        if *stop.borrow() != Stop::No && executions.is_empty() || matches!(error, Error::Timer(_)) {
            executions.end().await;
            return Err(error);
        }
        shared.vitals.failed(&error);
        // A recorder of metrics may panic, and did so perhaps.
        let _ = caught(async { observe::restarted(&error) }).await;
        let _ = caught(async { observe::disconnected() }).await;
        let until = previous.until;
        let open = async {
            if !matches!(error, Error::LeaseLost) {
                // The time of several nodes differs, so that they do not all connect at once. It is
                // short compared with the lease, because the executions end with it.
                let pause = PAUSE.min(shared.settings.lease / 6);
                shared
                    .timer
                    .sleep(pause.mul_f64(fastrand::f64().mul_add(0.5, 0.5)))
                    .await?;
            }
            let open = caught(Session::open(shared.clone(), &executions, &mut previous)).await;
            open.unwrap_or_else(|message| Err(Error::Panic(message)))
        };
        opened = tokio::select! {
            opened = open => opened,
            elapsed = shared.timer.sleep_until(until.unwrap_or_else(Instant::now)),
                if until.is_some() && !executions.is_empty() =>
            {
                elapsed?;
                previous.until = None;
                let have_ended = executions.end_excused().await;
                previous.numbers.retain(|_| have_ended);
                Err(Error::LeaseLost)
            }
            // It has no runs now. Those of the previous session are taken over after its lease.
            _ = stop.changed(), if executions.is_empty() => return Ok(()),
        };
    }
}

/// Stops the timer when the node's task ends, even if the task is aborted.
struct StopTimer(HashedWheelTimer);

impl Drop for StopTimer {
    fn drop(&mut self) {
        // Waits for the worker, whose tasks only wake others.
        self.0.stop();
    }
}
