//! The lease of a node: it is renewed on a connection of its own, so that no other duty delays it.

use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Instant;

use crate::caught::lock;
use crate::clock::{Clock, Reading};
use crate::error::Error;
use crate::hosts::within;
use crate::observe;
use crate::settings::Shared;
use crate::store::Store;

pub(super) struct Lease {
    /// The number of the node.
    pub(super) node: i64,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    clock: Clock,
    until: Instant,
    /// The beginning of the last renewal.
    asked: Instant,
}

impl Lease {
    pub(super) fn new(node: i64, reading: Reading, shared: &Shared) -> Self {
        let state = State {
            clock: Clock::new(reading),
            until: reading.sent() + shared.settings.lease,
            asked: reading.sent(),
        };
        Self {
            node,
            state: Mutex::new(state),
        }
    }

    /// Renews the lease at each heartbeat, until it is lost.
    pub(super) async fn keep(&self, store: &Store, shared: &Shared) -> Result<Infallible, Error> {
        let settings = &shared.settings;
        loop {
            let asked = Instant::now();
            lock(&self.state).asked = asked;
            let renew = async { store.renew(self.node).await?.ok_or(Error::LeaseLost) };
            let reading = within(&shared.timer, settings.lease, renew).await?;
            let until = reading.sent() + settings.lease;
            {
                let mut state = lock(&self.state);
                state.until = until;
                state.clock.learn(reading);
            }
            shared.vitals.beat(until);
            observe::beat(reading.trip);
            shared.timer.sleep_until(asked + settings.pause()).await?;
        }
    }

    /// The end of the lease.
    pub(super) fn until(&self) -> Instant {
        lock(&self.state).until
    }

    /// Whether the node has asked in time for a renewal, and the database was slow.
    pub(super) fn is_excused(&self) -> bool {
        let state = lock(&self.state);
        state.asked < state.until
    }

    /// The time of this process at which the database's clock shows `time`.
    pub(super) fn instant(&self, time: jiff::Timestamp) -> Instant {
        lock(&self.state).clock.instant(time)
    }
}
