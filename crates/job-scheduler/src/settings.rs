//! The settings of a node.

use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;

use crate::connect::Connector;
use crate::error::{Error, ensure};
use crate::handler::Handlers;
use crate::health::Vitals;
use crate::shares::Shares;
use crate::sql::Names;

/// The durations and limits that a user can set.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) prefetch: Duration,
    pub(crate) lease: Duration,
    pub(crate) heartbeat: Option<Duration>,
    pub(crate) misfire_after: Duration,
    pub(crate) batch: usize,
    pub(crate) capacity: usize,
    pub(crate) runners: usize,
    pub(crate) retention: Duration,
    pub(crate) cancel_grace: Duration,
    /// Whether it uses notifications, and settings of its sessions.
    pub(crate) listens: bool,
}

/// The state that the sessions of a node share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) names: Names,
    pub(crate) handlers: Handlers,
    pub(crate) connector: Connector,
    pub(crate) timer: HashedWheelTimer,
    pub(crate) vitals: Arc<Vitals>,
    /// The runs that the node has, by handler: those that count for the capacity.
    pub(crate) held: Shares,
    /// Of these, the ones that are executing.
    pub(crate) executing: Shares,
}

/// The longest time that a handler has to end after its run is cancelled.
const AN_HOUR: Duration = Duration::from_secs(3_600);

/// The longest lease, prefetch and heartbeat.
const A_MINUTE: Duration = Duration::from_secs(60);

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: String::new(),
            prefetch: Duration::from_secs(5),
            lease: Duration::from_secs(3),
            heartbeat: None,
            misfire_after: A_MINUTE,
            batch: 512,
            capacity: 1_024,
            runners: 64,
            retention: Duration::from_secs(7 * 86_400),
            cancel_grace: Duration::from_millis(500),
            listens: true,
        }
    }
}

impl Settings {
    /// The longest time between two beats.
    pub(crate) fn heartbeat(&self) -> Duration {
        self.heartbeat.unwrap_or(self.lease / 3)
    }

    /// The time between two beats: random, so that all nodes get a share of the runs.
    pub(crate) fn pause(&self) -> Duration {
        let share = fastrand::f64().mul_add(0.5, 0.5);
        self.heartbeat().mul_f64(share)
    }

    /// The longest time of a statement that reads, settles or cleans. A long one delays others of
    /// the same connection.
    pub(crate) fn duty_limit(&self) -> Duration {
        self.lease / 4
    }

    /// The time between two removals of old results.
    pub(crate) fn cleaning_interval(&self) -> Duration {
        (self.retention / 10).clamp(Duration::from_secs(1), A_MINUTE)
    }

    /// Returns what is wrong with the settings.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self {
            prefetch,
            lease,
            misfire_after,
            retention,
            cancel_grace,
            ..
        } = *self;
        let heartbeat = self.heartbeat();
        ensure(
            (Duration::from_millis(500)..=A_MINUTE).contains(&lease),
            || format!("lease of {lease:?}: must be from 500ms to one minute"),
        )?;
        ensure(
            (Duration::from_millis(50)..=lease / 2).contains(&heartbeat),
            || {
                format!(
                    "heartbeat of {heartbeat:?}: must be from 50ms to half of the lease of {lease:?}"
                )
            },
        )?;
        ensure((heartbeat..=A_MINUTE).contains(&prefetch), || {
            format!(
                "prefetch of {prefetch:?}: must be from the heartbeat of {heartbeat:?} to one minute, because runs that are \
                 due between two reads would be late"
            )
        })?;
        ensure(misfire_after >= lease, || {
            format!(
                "misfire_after of {misfire_after:?}: must be at least the lease of {lease:?}, because runs of a lost node \
                 would misfire"
            )
        })?;
        let counts = [self.batch, self.capacity, self.runners];
        ensure(counts.iter().all(|n| (1..=1 << 20).contains(n)), || {
            "batch, capacity and runners must be from 1 to 2^20".into()
        })?;
        ensure(retention >= Duration::from_secs(1), || {
            format!("retention of {retention:?}: must be at least 1s")
        })?;
        ensure(cancel_grace <= AN_HOUR, || {
            format!("cancel_grace of {cancel_grace:?}: must be at most one hour")
        })?;
        crate::job::micros("misfire_after", misfire_after)?;
        crate::job::micros("retention", retention).map(drop)
    }
}

/// A node needs this many round trips to connect and to register, and that must not take longer
/// than a lease, because executions continue for a lease without a connection.
const ROUND_TRIPS: u32 = 6;

impl Settings {
    /// Returns what is wrong with the lease on a network with this round trip.
    pub(crate) fn check_network(&self, round_trip: Duration) -> Result<(), Error> {
        let lease = self.lease;
        ensure(round_trip <= lease / ROUND_TRIPS, || {
            format!(
                "lease of {lease:?}: must be at least {ROUND_TRIPS} times the round trip to the database, which takes \
                 {round_trip:?}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_say_what_is_wrong() {
        let ms = Duration::from_millis;
        let defaults = Settings::default();
        assert!(defaults.check().is_ok());
        for (settings, reason) in [
            (
                Settings {
                    lease: ms(499),
                    ..defaults.clone()
                },
                "lease of 499ms: must be",
            ),
            (
                Settings {
                    lease: ms(60_001),
                    ..defaults.clone()
                },
                "lease of 60.001s: must be",
            ),
            (
                Settings {
                    heartbeat: Some(ms(1_501)),
                    ..defaults.clone()
                },
                "heartbeat of 1.501s",
            ),
            (
                Settings {
                    heartbeat: Some(ms(10)),
                    ..defaults.clone()
                },
                "heartbeat of 10ms",
            ),
            (
                Settings {
                    prefetch: ms(999),
                    ..defaults.clone()
                },
                "prefetch of 999ms",
            ),
            (
                Settings {
                    misfire_after: ms(2_999),
                    ..defaults.clone()
                },
                "misfire_after of 2.999s",
            ),
            (
                Settings {
                    misfire_after: Duration::MAX,
                    ..defaults.clone()
                },
                "misfire_after of",
            ),
            (
                Settings {
                    batch: 0,
                    ..defaults.clone()
                },
                "batch, capacity and runners",
            ),
            (
                Settings {
                    runners: 1 << 21,
                    ..defaults.clone()
                },
                "batch, capacity and runners",
            ),
            (
                Settings {
                    retention: ms(1),
                    ..defaults.clone()
                },
                "retention of 1ms",
            ),
            (
                Settings {
                    cancel_grace: ms(3_600_001),
                    ..defaults.clone()
                },
                "cancel_grace of 3600.001s",
            ),
        ] {
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
