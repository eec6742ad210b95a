//! One hold of a lock, from taking it to its release or loss.
//!
//! | state | ends by |
//! |---|---|
//! | held | the last release; a loss. The first of them decides, under the mutex of the hold |
//! | released, lost | nothing |
//!
//! A timeout on the wheel is at the end of the lease by the local clock. A renewal only records the
//! later end. When the timeout is due, its task is asked and postpones it until then.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{fmt, mem};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout, TimerTask};
use tokio::sync::watch;

use crate::error::{LockError, Loss};
use crate::observe;
use crate::options::LockOptions;
use crate::scripts::Keys;

/// A function that is called when the lock is lost.
type Callback = Box<dyn FnOnce(Loss) + Send>;

/// The locks that one call can renew: the slot on a cluster, otherwise 0; and the lease.
pub(crate) type GroupKey = (u16, Duration);

/// One hold of a lock.
pub(crate) struct Hold {
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: Arc<str>,
    /// The part of the owner that is a number.
    pub(crate) id: u64,
    pub(crate) group: GroupKey,
    pub(crate) token: u64,
    pub(crate) options: Arc<LockOptions>,
    /// The end of the maximum holding time.
    latest: Option<Instant>,
    state: Mutex<State>,
    lost: watch::Sender<Option<Loss>>,
}

struct State {
    /// Counted from before the call to Redis. Redis counts from its execution, so its lease ends a
    /// little later.
    until: Instant,
    /// Why the last renewal failed.
    error_text: Option<String>,
    /// The number of guards.
    guards: usize,
    phase: Phase,
    callbacks: Vec<Callback>,
    /// `Some` while the lock is held.
    lease_end: Option<Timeout>,
}

#[derive(Debug, Clone)]
enum Phase {
    Held,
    Released,
    Lost(Loss),
}

/// The parts of a new hold.
pub(crate) struct NewHold {
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: Arc<str>,
    pub(crate) id: u64,
    pub(crate) group: GroupKey,
    pub(crate) token: u64,
    pub(crate) options: Arc<LockOptions>,
    /// A time before Redis was called.
    pub(crate) start: Instant,
}

/// The timeout at the end of the lease.
struct LeaseEnd(Weak<Hold>);

impl TimerTask for LeaseEnd {
    const POSTPONES: bool = true;

    fn postpone(&self, _: &Timeout) -> Option<Duration> {
        self.0.upgrade()?.rest()
    }

    fn run(self, _: &Timeout) {
        if let Some(hold) = self.0.upgrade() {
            // A renewal that was answered since then is too late.
            let loss = hold.reason_of_the_end(&hold.state());
            hold.lose(loss);
        }
    }

    /// The hold has ended, or the timer is stopped.
    fn cancelled(self, _: &Timeout) {
        if let Some(hold) = self.0.upgrade() {
            hold.lose(Loss::Timer);
        }
    }
}

impl Hold {
    /// Starts the hold, with one guard.
    ///
    /// # Errors
    ///
    /// If the timer does not accept the timeout at the end of the lease.
    pub(crate) fn start(
        new: NewHold,
        timer: &HashedWheelTimer,
    ) -> Result<Arc<Self>, NewTimeoutError> {
        let NewHold {
            keys,
            owner,
            id,
            group,
            token,
            options,
            start,
        } = new;
        let latest = options
            .max_hold_time()
            .and_then(|time| start.checked_add(time));
        let until = start + lease_at(&options, latest, start);
        let state = State {
            until,
            error_text: None,
            guards: 1,
            phase: Phase::Held,
            callbacks: Vec::new(),
            lease_end: None,
        };
        let (state, lost) = (Mutex::new(state), watch::Sender::new(None));
        let hold = Arc::new(Self {
            keys,
            owner,
            id,
            group,
            token,
            options,
            latest,
            state,
            lost,
        });
        let lease_end = timer.new_timeout_task_at(LeaseEnd(Arc::downgrade(&hold)), until)?;
        hold.state().lease_end = Some(lease_end);
        Ok(hold)
    }

    /// Returns the lease for a renewal that starts now. It is zero if the maximum holding time is
    /// over.
    pub(crate) fn lease_at(&self, start: Instant) -> Duration {
        lease_at(&self.options, self.latest, start)
    }

    /// Returns whether renewals change anything: the lease does not reach the end of the maximum
    /// holding time yet.
    pub(crate) fn is_renewable(&self) -> bool {
        let state = self.state();
        matches!(state.phase, Phase::Held) && !self.reaches_the_latest(&state)
    }

    /// Returns whether the lease reaches the end of the maximum holding time. Leases are whole
    /// milliseconds, so the last one may end up to a millisecond before it.
    fn reaches_the_latest(&self, state: &State) -> bool {
        self.latest
            .is_some_and(|latest| state.until + Duration::from_millis(1) >= latest)
    }

    /// Records a renewal: the lease ends at `until`.
    pub(crate) fn renewed(&self, until: Instant) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Held) {
            // The answers to two renewals may be processed in the other order.
            state.until = state.until.max(until);
            state.error_text = None;
        }
    }

    /// Records that a renewal failed. There are more attempts until the lease ends.
    pub(crate) fn failed(&self, error: &LockError) {
        self.state().error_text = Some(error.to_string());
    }

    /// Returns the rest of the lease, if there is one.
    fn rest(&self) -> Option<Duration> {
        let rest = self.state().until.checked_duration_since(Instant::now());
        rest.filter(|rest| !rest.is_zero())
    }

    fn reason_of_the_end(&self, state: &State) -> Loss {
        if self.reaches_the_latest(state) {
            Loss::HeldTooLong
        } else {
            Loss::LeaseEnded(state.error_text.clone())
        }
    }

    /// Returns the reason of a loss that an answer of Redis reports. After the end of the lease,
    /// that is the reason: Redis may have executed the call later, when another owner was allowed.
    pub(crate) fn reason_of(&self, found: Loss) -> Loss {
        self.reason_in(&self.state(), found)
    }

    fn reason_in(&self, state: &State, found: Loss) -> Loss {
        match found {
            Loss::NoOwner | Loss::OtherOwner if Instant::now() >= state.until => {
                self.reason_of_the_end(state)
            }
            found => found,
        }
    }

    /// Ends the hold with a loss, unless it has ended already. Tells everybody who asked for it.
    pub(crate) fn lose(&self, loss: Loss) {
        let mut state = self.state();
        if !matches!(state.phase, Phase::Held) {
            return;
        }
        let loss = self.reason_in(&state, loss);
        state.phase = Phase::Lost(loss.clone());
        let (callbacks, lease_end) = (mem::take(&mut state.callbacks), state.lease_end.take());
        drop(state);
        // Not under the mutex: it calls `cancelled`.
        if let Some(lease_end) = lease_end {
            lease_end.cancel();
        }
        observe::lost(self.keys.lock(), &loss);
        self.lost.send_replace(Some(loss.clone()));
        callbacks
            .into_iter()
            .for_each(|callback| call(callback, loss.clone()));
    }

    /// Checks that the lease has not ended and the lock was not lost before.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        let state = self.state();
        match &state.phase {
            Phase::Lost(loss) => return Err(LockError::Lost(loss.clone())),
            // The timer may be late, or its thread stalls.
            Phase::Held if Instant::now() >= state.until => {}
            Phase::Held | Phase::Released => return Ok(()),
        }
        let loss = self.reason_of_the_end(&state);
        drop(state);
        self.lose(loss.clone());
        Err(LockError::Lost(self.loss().unwrap_or(loss)))
    }

    /// Returns how the lock was lost, if it was.
    pub(crate) fn loss(&self) -> Option<Loss> {
        match &self.state().phase {
            Phase::Lost(loss) => Some(loss.clone()),
            Phase::Held | Phase::Released => None,
        }
    }

    /// Waits until the lock is lost. If it is released before, this never returns.
    pub(crate) async fn until_lost(&self) -> Loss {
        let mut lost = self.lost.subscribe();
        match lost.wait_for(Option::is_some).await {
            Ok(loss) => loss.clone().expect("the condition is that there is a loss"),
            Err(_) => unreachable!("the sender is in the hold, which this function borrows"),
        }
    }

    /// Makes a loss call `callback`. Calls it immediately if the lock is already lost.
    pub(crate) fn on_lost(&self, callback: Callback) {
        let mut state = self.state();
        match &state.phase {
            Phase::Held => state.callbacks.push(callback),
            Phase::Released => {}
            Phase::Lost(loss) => {
                let loss = loss.clone();
                drop(state);
                call(callback, loss);
            }
        }
    }

    /// Adds a guard. Returns false if the last one is gone.
    pub(crate) fn enter(&self) -> bool {
        let mut state = self.state();
        let is_entered = state.guards > 0;
        state.guards += usize::from(is_entered);
        is_entered
    }

    /// Removes a guard. Returns true if it was the last one: then the hold is over, and the caller
    /// has to release the lock in Redis.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.state();
        state.guards -= 1;
        if state.guards > 0 {
            return false;
        }
        if matches!(state.phase, Phase::Held) {
            state.phase = Phase::Released;
        }
        let (callbacks, lease_end) = (mem::take(&mut state.callbacks), state.lease_end.take());
        // Not under the mutex: this calls `cancelled`, and user code.
        drop(state);
        if let Some(lease_end) = lease_end {
            lease_end.cancel();
        }
        callbacks.into_iter().for_each(forget);
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Hold")
            .field("lock", &self.keys.lock())
            .field("owner", &self.owner)
            .field("token", &self.token)
            .field("guards", &state.guards)
            .field("phase", &state.phase)
            .finish_non_exhaustive()
    }
}

fn lease_at(options: &LockOptions, latest: Option<Instant>, start: Instant) -> Duration {
    let lease = options.lease_time();
    let lease = latest.map_or(lease, |latest| {
        lease.min(latest.saturating_duration_since(start))
    });
    // Truncated like in Redis.
    Duration::from_millis(lease.as_millis() as u64)
}

/// Drops a callback. A panic of what it contains does not prevent the release.
fn forget(callback: Callback) {
    let _ = panic::catch_unwind(AssertUnwindSafe(|| drop(callback)));
}

/// A panic of the callback does not affect the other callbacks, nor the renewals of other locks.
fn call(callback: Callback, loss: Loss) {
    let _ = panic::catch_unwind(AssertUnwindSafe(|| callback(loss)));
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::options::LockOptions;
    use crate::scripts::Kind;

    /// Starts a hold without a client, with a timer that expires nothing during the test.
    fn hold(lease: Duration) -> (Arc<Hold>, HashedWheelTimer) {
        let timer = HashedWheelTimer::new(Duration::from_secs(3_600), 16);
        let options = Arc::new(LockOptions::new().lease(lease));
        let (keys, owner, start) = (
            Arc::new(Keys::new("", Kind::Lock, "a")),
            "a client:0".into(),
            Instant::now(),
        );
        let new = NewHold {
            keys,
            owner,
            id: 0,
            group: (0, lease),
            token: 1,
            options,
            start,
        };
        (Hold::start(new, &timer).unwrap(), timer)
    }

    #[test]
    fn after_the_end_of_the_lease_its_end_is_the_reason() {
        let (hold, _timer) = hold(Duration::from_millis(1));
        thread::sleep(Duration::from_millis(2));
        assert_eq!(hold.reason_of(Loss::NoOwner), Loss::LeaseEnded(None));
        hold.failed(&LockError::NoRuntime);
        let ended = Loss::LeaseEnded(Some(LockError::NoRuntime.to_string()));
        assert_eq!(hold.reason_of(Loss::OtherOwner), ended);
        hold.lose(Loss::OtherOwner);
        assert_eq!(hold.loss(), Some(ended));
    }

    #[test]
    fn before_the_end_of_the_lease_the_owner_is_the_reason() {
        let (hold, _timer) = hold(Duration::from_secs(3_600));
        assert_eq!(hold.reason_of(Loss::OtherOwner), Loss::OtherOwner);
        hold.lose(Loss::NoOwner);
        assert_eq!(hold.loss(), Some(Loss::NoOwner));
    }
}
