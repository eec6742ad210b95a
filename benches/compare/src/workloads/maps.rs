//! The map whose entries expire beside maps and caches.

use std::time::Duration;

#[cfg(feature = "util")]
use hashed_wheel::HashedWheelTimer;
#[cfg(feature = "util")]
use hashed_wheel_util::ExpiringMap;

use super::WorkloadResult;
use super::threads::{BATCH, Meter};
use crate::command::{Answer, Command};
use crate::process;

const LONG: Duration = Duration::from_secs(3_600);

/// A map whose entries live for an hour, if it has times.
pub(crate) trait Map: Sync {
    fn new() -> Self;
    fn insert(&self, key: u64);
    fn get(&self, key: u64) -> Option<u64>;
    /// Gives the entry its time again: a map without times changes the value instead.
    fn touch(&self, key: u64) -> bool {
        self.get(key).is_some()
    }
}

#[cfg(feature = "util")]
pub(crate) type Expiring = ExpiringMap<u64, u64>;
pub(crate) type Moka = moka::sync::Cache<u64, u64>;
pub(crate) type QuickCache = quick_cache::sync::Cache<u64, u64>;
pub(crate) type DashMap = dashmap::DashMap<u64, u64>;

#[cfg(feature = "util")]
impl Map for Expiring {
    fn new() -> Self {
        Self::new(&HashedWheelTimer::default())
    }

    fn insert(&self, key: u64) {
        let inserted = self.insert(key, key, LONG);
        inserted.expect("the timer is neither stopped nor full");
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.get(&key)
    }

    fn touch(&self, key: u64) -> bool {
        self.touch(&key, LONG)
    }
}

/// Each `get` moves the time.
impl Map for Moka {
    fn new() -> Self {
        Self::builder().time_to_idle(LONG).build()
    }

    fn insert(&self, key: u64) {
        self.insert(key, key);
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.get(&key)
    }
}

impl Map for QuickCache {
    fn new() -> Self {
        Self::with_weighter(1 << 20, 1 << 40, quick_cache::UnitWeighter)
    }

    fn insert(&self, key: u64) {
        self.insert(key, key);
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.get(&key)
    }
}

impl Map for DashMap {
    fn new() -> Self {
        Self::new()
    }

    fn insert(&self, key: u64) {
        self.insert(key, key);
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.get(&key).map(|value| *value)
    }

    fn touch(&self, key: u64) -> bool {
        self.get_mut(&key).map(|mut value| *value += 1).is_some()
    }
}

/// A key without an order, which no other number has.
fn key(number: usize) -> u64 {
    (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Executes a command.
pub(crate) fn answer<M: Map>(command: &Command) -> Answer {
    let is_there = |is_there: bool| assert!(is_there, "the key is there");
    let answer = match &*command.workload {
        "map-get" => run::<M>(command, |map, key, _| is_there(map.get(key).is_some())),
        "map-touch" => run::<M>(command, |map, key, _| is_there(map.touch(key))),
        "map-insert" => run::<M>(command, |map, _, new| map.insert(new)),
        "map-memory" => memory::<M>(command),
        _ => return Answer::unsupported("it is a map"),
    };
    answer.unwrap_or_else(Answer::failed)
}

/// Repeats an operation with the map, random keys of it, and keys that are not in it.
fn run<M: Map>(command: &Command, operation: impl Fn(&M, u64, u64) + Sync) -> WorkloadResult {
    let (map, count) = (M::new(), command.get("count")?);
    (0..count).for_each(|number| map.insert(key(number)));
    let mut random = command.random();
    let (map, operation) = (&map, &operation);
    Meter::measure(
        command,
        true,
        |scope, laps| {
            for (index, lap) in laps.into_iter().enumerate() {
                let order = random.indices(count, count);
                scope.spawn(move || {
                    let mut order = order.into_iter().cycle();
                    let mut new = (index + 1) << 40;
                    loop {
                        for number in order.by_ref().take(BATCH) {
                            operation(map, key(number), key(new));
                            new += 1;
                        }
                        if !lap.count() {
                            break;
                        }
                    }
                });
            }
        },
        || false,
    )
}

/// `map-memory`: how much the resident memory of this process grows per entry.
fn memory<M: Map>(command: &Command) -> WorkloadResult {
    let (map, count) = (M::new(), command.get("count")?);
    let before = process::resident()?;
    (0..count).for_each(|number| map.insert(key(number)));
    process::wait_until_idle(Duration::from_secs(2));
    let grown = process::resident()?.saturating_sub(before);
    let is_there = map.get(key(0)).is_some();
    is_there.then_some(()).ok_or("the key is not there")?;
    Ok(Answer::new([("bytes", grown as f64 / count as f64)]))
}
