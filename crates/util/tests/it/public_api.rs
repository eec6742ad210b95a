//! The public API as a promise: every name with its signature, and its auto traits. A change that
//! breaks a caller does not compile here. (The full listing is `public-api.txt`, which `.ci/deep`
//! compares.)

use std::fmt::Debug;
use std::hash::Hash;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

#[cfg(any(feature = "rayon", feature = "tokio"))]
use hashed_wheel::Builder;
use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_util::delay_queue::{self, DelayQueue, Expired};
use hashed_wheel_util::{
    BeingWritten, BoxFuture, Cause, Entry, ExpiringMap, ExpiringMapBuilder, InsertError,
    OccupiedEntry, Removed, RemovedEntries, VacantEntry,
};

#[test]
fn a_delay_queue_has_these_methods() {
    type Queue = DelayQueue<String>;
    type Received = Result<Expired<String>, NewTimeoutError>;
    type Inserted = Result<delay_queue::Key, delay_queue::InsertError<String>>;
    type ReceivedInTime = Result<Option<Expired<String>>, NewTimeoutError>;

    let _: fn(&HashedWheelTimer) -> Queue = Queue::new;
    let _: fn(&Queue, String, Duration) -> Inserted = Queue::insert;
    let _: fn(&Queue, String, Instant) -> Inserted = Queue::insert_at;
    let _: fn(&Queue, delay_queue::Key) -> Option<String> = Queue::remove;
    let _: fn(&Queue, delay_queue::Key, Duration) -> bool = Queue::reset;
    let _: fn(&Queue, delay_queue::Key, Instant) -> bool = Queue::reset_at;
    let _: fn(&Queue, delay_queue::Key) -> Option<Instant> = Queue::deadline;
    let _: fn(&Queue) -> Option<delay_queue::Key> = Queue::peek;
    let _: fn(&Queue) -> usize = Queue::len;
    let _: fn(&Queue) -> bool = Queue::is_empty;
    let _: fn(&Queue) = Queue::clear;
    let _: fn(&Queue) -> Vec<String> = Queue::drain;
    let _: fn(&Queue) -> Option<Expired<String>> = Queue::try_recv;
    let _: fn(&Queue) -> Received = Queue::recv;
    let _: fn(&Queue, Duration) -> ReceivedInTime = Queue::recv_timeout;
    let _: fn(&mut Queue, &mut Context<'_>) -> Poll<Received> = Queue::poll_expired;
    let _ = async |queue: &Queue| -> Received { queue.expired().await };
    let _: fn(&Queue) -> Queue = Queue::clone;

    let _: fn(&Expired<String>) -> &String = Expired::get_ref;
    let _: fn(&mut Expired<String>) -> &mut String = Expired::get_mut;
    let _: fn(Expired<String>) -> String = Expired::into_inner;
    let _: fn(&Expired<String>) -> Instant = Expired::deadline;
    let _: fn(&Expired<String>) -> delay_queue::Key = Expired::key;
}

#[cfg(feature = "tokio")]
#[test]
fn timers_on_tokio_are_built_by_this_function() {
    use hashed_wheel::{BuildError, Clock};
    use hashed_wheel_util::tokio::{TokioClock, build_on};
    use tokio::runtime::Handle;

    let _: fn(Builder, &Handle) -> Result<HashedWheelTimer, BuildError> = build_on;
    let _: fn(Handle) -> TokioClock = TokioClock::new;
    let _: fn(&TokioClock) -> Duration = Clock::now;
    is_send_sync::<TokioClock>();
    is_clone::<TokioClock>();
    is_debug::<TokioClock>();
}

#[cfg(feature = "tokio")]
#[test]
fn tokio_executors_have_these_methods() {
    use hashed_wheel_util::executor::{TokioSpawn, TokioSpawnBlocking};
    use tokio::runtime::Handle;

    let _: fn(Handle) -> TokioSpawn = TokioSpawn::new;
    let _: fn(Handle) -> TokioSpawnBlocking = TokioSpawnBlocking::new;
    let _: fn(Builder, TokioSpawn) -> Builder = Builder::task_executor;
    let _: fn(Builder, TokioSpawnBlocking) -> Builder = Builder::task_executor;
}

#[cfg(feature = "rayon")]
#[test]
fn rayon_executors_have_these_methods() {
    use hashed_wheel_util::executor::{RayonGlobal, RayonPool};
    use rayon_core::ThreadPool;
    use std::sync::Arc;

    let _: fn(Arc<ThreadPool>) -> RayonPool = RayonPool::new;
    let _: fn() -> RayonGlobal = RayonGlobal::default;
    let _: fn(Builder, RayonGlobal) -> Builder = Builder::task_executor;
    let _: fn(Builder, RayonPool) -> Builder = Builder::task_executor;
}

#[test]
fn an_expiring_map_has_these_methods() {
    type Map = ExpiringMap<String, u64>;
    type Inserted = Result<Option<u64>, InsertError<String, u64>>;
    type IfAbsent = Result<Option<(String, u64)>, InsertError<String, u64>>;
    type Handler = fn(Removed<String, u64>);
    type Access = fn(&mut u64);
    type Keep = fn(&String, &mut u64) -> bool;

    let _: fn(&HashedWheelTimer, Handler) -> Map = Map::with_handler;
    let _: fn(&HashedWheelTimer) -> Map = Map::new;
    let _: fn(&Map, String, u64, Duration) -> Inserted = Map::insert;
    let _: fn(&Map, String, u64, Instant) -> Inserted = Map::insert_at;
    let _: fn(&Map, String, u64, Duration) -> IfAbsent = Map::insert_if_absent;
    let _: fn(&Map, String, u64) -> Inserted = Map::put;
    let _: fn(&Map, &str) -> bool = Map::renew;
    let _: fn(&Map, &str) -> Option<u64> = Map::get;
    let _: fn(&Map, &str, Access) -> Option<()> = Map::with;
    let _: fn(&Map, &str, Duration) -> bool = Map::touch;
    let _: fn(&Map, &str, Instant) -> bool = Map::touch_at;
    let _: fn(&Map, &str) -> Option<u64> = Map::remove;
    let _: fn(&Map, Keep) = Map::retain;
    let _: fn(&Map, &str) -> Option<Duration> = Map::remaining;
    let _: fn(&Map, &str) -> bool = Map::contains_key;
    let _: fn(&Map) -> Vec<String> = Map::keys;
    let _: fn(&Map) -> usize = Map::len;
    let _: fn(&Map) -> bool = Map::is_empty;
    let _: fn(&Map) -> usize = Map::clear;
    let _: fn(&Map) -> Vec<(String, u64)> = Map::drain;
    let _: fn(&Map) -> Map = Map::clone;

    type Builder = ExpiringMapBuilder<String, u64>;
    let _: fn(&HashedWheelTimer) -> Builder = Map::builder;
    let _: fn(Builder, Duration) -> Builder = Builder::time_to_live;
    let _: fn(Builder, [Cause; 2]) -> Builder = Builder::causes;
    let _: fn(Builder) -> Map = Builder::build;
    let _: fn(Builder, Handler) -> Map = Builder::build_with_handler;
    let _: fn(Builder) -> (Map, RemovedEntries<String, u64>) = Builder::build_with_receiver;
    let _: fn(Builder, usize) -> (Map, RemovedEntries<String, u64>) =
        Builder::build_with_bounded_receiver;
    let _: fn(Builder, Duration) -> Builder = Builder::time_to_idle;
    let _ = |builder: Builder, weigh: fn(&String, &u64) -> u32| builder.max_weight(7, weigh);
    let _: fn(Builder, Handler) -> Map = Builder::build_with_write_back;
    let _ = |builder: Builder, spawn: fn(BoxFuture)| {
        builder.build_with_async_write_back(spawn, async |_: Removed<String, u64>| ())
    };
}

#[test]
fn entries_have_these_methods() {
    type Map = ExpiringMap<String, u64>;
    type Occupied = OccupiedEntry<'static, String, u64>;
    type Vacant = VacantEntry<'static, String, u64>;
    type Inserted = Result<Occupied, InsertError<String, u64>>;

    let _: for<'a> fn(&'a Map, String) -> Entry<'a, String, u64> = Map::entry;
    let _ = |map: &Map| -> Result<u64, InsertError<String, u64>> {
        map.get_or_insert_with(String::new(), || 7, Duration::MAX)
    };
    let _: fn(&Map, &str) -> Result<Option<u64>, BeingWritten> = Map::try_get;
    let _ = async |map: &Map| map.written("key").await;
    let _: fn(Entry<'static, String, u64>, u64, Duration) -> Inserted = Entry::or_insert;
    let _ = |entry: Entry<'static, String, u64>| -> Inserted {
        let _: &String = entry.key();
        entry
            .and_modify(|value| *value += 1)
            .or_insert_with(|| 7, Duration::MAX)
    };
    let _: for<'a> fn(&'a Occupied) -> &'a u64 = Occupied::get;
    let _: for<'a> fn(&'a mut Occupied) -> &'a mut u64 = Occupied::get_mut;
    let _: for<'a> fn(&'a Occupied) -> &'a String = Occupied::key;
    let _: fn(&mut Occupied, u64) -> u64 = Occupied::insert;
    let _: fn(&mut Occupied, Duration) -> bool = Occupied::touch;
    let _: fn(Occupied) -> u64 = Occupied::remove;
    let _: fn(Vacant, u64, Duration) -> Inserted = Vacant::insert;
    let _: fn(Vacant) -> String = Vacant::into_key;
    let _: for<'a> fn(&'a Vacant) -> &'a String = Vacant::key;
    // An entry may be kept across an `await`.
    is_send_sync::<Entry<'static, String, u64>>();
    is_debug::<Entry<'static, String, Box<dyn Send>>>();
}

#[test]
fn the_receiver_of_entries_has_these_methods() {
    type Receiver = RemovedEntries<String, u64>;
    type Made = (ExpiringMap<String, u64>, Receiver);
    type Received = Poll<Option<Removed<String, u64>>>;
    type Batch = Vec<Removed<String, u64>>;

    let _: fn(&HashedWheelTimer) -> Made = ExpiringMap::with_receiver;
    let _: fn(&mut Receiver, &mut Context<'_>) -> Received = Receiver::poll_recv;
    let _: fn(&mut Receiver, &mut Context<'_>, &mut Batch, usize) -> Poll<usize> =
        Receiver::poll_recv_many;
}

#[test]
fn the_module_time_has_these_functions() {
    use hashed_wheel_util::time::{
        self, Instant, Interval, MissedTickBehavior, Sleep, Timeout, Timer, error::Elapsed,
    };
    use std::future::Ready;
    use std::pin::Pin;

    type Limited = Timeout<Ready<u8>>;
    let _: fn(Duration) -> Sleep = time::sleep;
    let _: fn(time::Instant) -> Sleep = time::sleep_until;
    let _: fn(Duration, Ready<u8>) -> Limited = time::timeout;
    let _: fn(time::Instant, Ready<u8>) -> Limited = time::timeout_at;
    let _: fn(Duration) -> Interval = time::interval;
    let _: fn(time::Instant, Duration) -> Interval = time::interval_at;
    let _: fn(&Sleep) -> time::Instant = Sleep::deadline;
    let _: fn(&Sleep) -> bool = Sleep::is_elapsed;
    let _: fn(Pin<&mut Sleep>, time::Instant) = Sleep::reset;
    let _: fn(&Limited) -> &Ready<u8> = Timeout::get_ref;
    let _: fn(&mut Limited) -> &mut Ready<u8> = Timeout::get_mut;
    let _: fn(Limited) -> Ready<u8> = Timeout::into_inner;
    let _ = async |limited: Limited| -> Result<u8, Elapsed> { limited.await };
    let _ = async |interval: &mut Interval| -> time::Instant { interval.tick().await };
    let _: fn(&mut Interval, &mut Context<'_>) -> Poll<time::Instant> = Interval::poll_tick;
    let _: fn(&mut Interval) = Interval::reset;
    let _: fn(&mut Interval) = Interval::reset_immediately;
    let _: fn(&mut Interval, Duration) = Interval::reset_after;
    let _: fn(&mut Interval, time::Instant) = Interval::reset_at;
    let _: fn(&Interval) -> MissedTickBehavior = Interval::missed_tick_behavior;
    let _: fn(&mut Interval, MissedTickBehavior) = Interval::set_missed_tick_behavior;
    let _: fn(&Interval) -> Duration = Interval::period;

    let _: fn(&HashedWheelTimer) -> Timer = Timer::new;
    let _: fn(&Timer) -> time::Instant = Timer::now;
    let _: fn(&Timer, Duration) -> Sleep = Timer::sleep;
    let _: fn(&Timer, time::Instant) -> Sleep = Timer::sleep_until;
    let _: fn(&Timer, Duration, Ready<u8>) -> Limited = Timer::timeout;
    let _: fn(&Timer, time::Instant, Ready<u8>) -> Limited = Timer::timeout_at;
    let _: fn(&Timer, Duration) -> Interval = Timer::interval;
    let _: fn(&Timer, time::Instant, Duration) -> Interval = Timer::interval_at;

    // The same with and without tokio's types.
    let _: fn() -> Instant = Instant::now;
    let _: fn(std::time::Instant) -> Instant = Instant::from_std;
    let _: fn(Instant) -> std::time::Instant = Instant::into_std;
    let _: fn(&Instant) -> Duration = Instant::elapsed;
    let _: fn(&Instant, Instant) -> Duration = Instant::duration_since;
    let _: fn(&Instant, Instant) -> Duration = Instant::saturating_duration_since;
    let _: fn(&Instant, Instant) -> Option<Duration> = Instant::checked_duration_since;
    let _: fn(&Instant, Duration) -> Option<Instant> = Instant::checked_add;
    let _: fn(&Instant, Duration) -> Option<Instant> = Instant::checked_sub;
    is_eq_hash::<Instant>();
    is_clone::<MissedTickBehavior>();
    is_send_sync::<(Sleep, Interval, Limited, Timer, Instant)>();
    is_unpin::<(Sleep, Interval)>();
    is_debug::<(Sleep, Interval, Limited, Timer, Instant, Elapsed)>();
}

#[test]
fn a_deadline_has_these_functions() {
    use hashed_wheel_util::deadline::{self, Within};
    use hashed_wheel_util::time::{self, Timeout};
    use std::future::Ready;

    let _: fn() -> Option<Instant> = deadline::current;
    let _: fn() -> Option<Duration> = deadline::remaining;
    let _: fn(Ready<u8>) -> Within<Ready<u8>> = deadline::inherit;
    let _ = |at: Instant, future: Ready<u8>| -> Timeout<Within<Ready<u8>>> {
        deadline::within(at, future)
    };
    let _ = |at: time::Instant, future: Ready<u8>| deadline::within(at, future);
    is_send_sync::<Within<Ready<u8>>>();
}

// --- auto traits and derived traits --------------------------------------------------------------

fn is_send_sync<T: Send + Sync + 'static>() {}
fn is_unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
fn is_unpin<T: Unpin>() {}
fn is_debug<T: Debug>() {}
fn is_clone<T: Clone>() {}
fn is_eq_hash<T: Eq + Hash>() {}

#[test]
fn public_types_have_these_traits() {
    is_send_sync::<DelayQueue<String>>();
    is_send_sync::<Expired<String>>();

    is_unwind_safe::<DelayQueue<String>>();
    is_unwind_safe::<Expired<String>>();

    is_unpin::<DelayQueue<String>>();
    // Also for values that do not implement it.
    is_debug::<DelayQueue<Box<dyn Send>>>();
    is_clone::<DelayQueue<Box<dyn Send>>>();
    is_eq_hash::<delay_queue::Key>();
    is_eq_hash::<Cause>();
    is_unwind_safe::<ExpiringMapBuilder<String, u64>>();
}
