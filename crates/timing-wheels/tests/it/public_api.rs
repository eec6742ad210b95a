//! The public API as a promise: every name with its signature, and its auto traits. A change that
//! breaks a caller does not compile here. (The full listing is `public-api.txt`, which `.ci/deep`
//! compares.)

use std::fmt::Debug;
use std::hash::Hash;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::time::{Duration, Instant};

use timing_wheels::{HashedWheel, HierarchicalWheel, Iter, Key, LocalTimer, SizeError, Ticks};

/// The entries of this wheel are not even `Send`.
macro_rules! wheel_has_these_methods {
    ($name:ident, $wheel:ident) => {
        #[test]
        fn $name() {
            type Wheel = $wheel<Rc<str>>;
            let _: fn(usize) -> Wheel = Wheel::new;
            let _: fn(usize) -> Result<Wheel, SizeError> = Wheel::try_new;
            let _: fn(usize, usize) -> Wheel = Wheel::with_capacity;
            let _: fn(usize, usize) -> Result<Wheel, SizeError> = Wheel::try_with_capacity;
            let _: fn(&Wheel) -> usize = Wheel::capacity;
            let _: fn(&mut Wheel) = Wheel::shrink_to_fit;
            let _: fn(&mut Wheel) = Wheel::clear;
            let _: fn(&mut Wheel, u64, Rc<str>) -> Key = Wheel::insert;
            let _: fn(&mut Wheel, Key) -> Option<Rc<str>> = Wheel::remove;
            let _: fn(&Wheel, Key) -> Option<&Rc<str>> = Wheel::get;
            let _: fn(&mut Wheel, Key) -> Option<&mut Rc<str>> = Wheel::get_mut;
            let _: fn(&Wheel, Key) -> Option<u64> = Wheel::deadline;
            let _: fn(&mut Wheel, Key, u64) -> bool = Wheel::reset;
            let _: fn(&Wheel) -> Option<(Key, u64, &Rc<str>)> = Wheel::peek;
            let _: fn(&mut Wheel, u64, fn(Rc<str>)) = Wheel::advance;
            let _: fn(&mut Wheel, u64) -> Option<(Key, u64, Rc<str>)> = Wheel::pop_expired;
            let _: fn(&mut Wheel, u64) -> Option<(Key, u64, &mut Rc<str>)> = Wheel::peek_expired;
            let _: fn(&Wheel) -> Option<u64> = Wheel::next_deadline;
            let _: fn(&Wheel) -> u64 = Wheel::tick;
            let _: fn(&Wheel) -> usize = Wheel::len;
            let _: fn(&Wheel) -> bool = Wheel::is_empty;
            fn drain(wheel: &mut Wheel) -> impl Iterator<Item = Rc<str>> {
                wheel.drain()
            }
            assert_eq!(drain(&mut Wheel::new(8)).count(), 0);
            let _: fn(&Wheel) -> Iter<'_, Rc<str>> = Wheel::iter;
            fn iter(wheel: &Wheel) -> impl Iterator<Item = (Key, u64, &Rc<str>)> {
                wheel.into_iter()
            }
            assert_eq!(iter(&Wheel::new(8)).count(), 0);
        }
    };
}

wheel_has_these_methods!(the_hashed_wheel_has_these_methods, HashedWheel);
wheel_has_these_methods!(the_hierarchical_wheel_has_these_methods, HierarchicalWheel);

#[test]
fn ticks_have_these_methods() {
    let _: fn(Duration) -> Ticks = Ticks::new;
    let _: fn(Ticks, Duration) -> u64 = Ticks::at_or_after;
    let _: fn(Ticks, Duration) -> u64 = Ticks::at;
    let _: fn(Ticks, u64) -> Duration = Ticks::start;
    let _: fn(Ticks) -> Duration = Ticks::duration;
}

/// The values are not even `Send`.
#[test]
fn the_local_timer_has_these_methods() {
    type Timer = LocalTimer<Rc<str>, Instant>;

    let _: fn(Instant, Duration) -> Timer = Timer::new;
    let _: fn(&mut Timer, Instant, Rc<str>) -> Key = Timer::insert;
    let _: fn(&mut Timer, Key, Instant) -> bool = Timer::reset;
    let _: fn(&mut Timer, Key) -> Option<Rc<str>> = Timer::remove;
    let _: fn(&Timer, Key) -> Option<&Rc<str>> = Timer::get;
    let _: fn(&mut Timer, Key) -> Option<&mut Rc<str>> = Timer::get_mut;
    let _ = |timer: &mut Timer, now: Instant| -> Option<(Key, Rc<str>)> { timer.poll(now) };
    let _: fn(Instant, Duration, usize) -> Timer = Timer::with_capacity;
    let _: fn(&Timer, Key) -> Option<Instant> = Timer::deadline;
    let _ = |timer: &mut Timer, now: Instant| -> Option<Key> { Some(timer.peek_expired(now)?.0) };
    let _: fn(&mut Timer) = Timer::clear;
    fn iter(timer: &Timer) -> impl Iterator<Item = (Key, &Rc<str>)> + '_ {
        timer.iter()
    }
    let empty = Timer::new(Instant::now(), Duration::from_secs(1));
    assert_eq!(iter(&empty).count(), 0);
    let _: fn(&Timer) -> Option<Instant> = Timer::next;
    let _: fn(&Timer) -> usize = Timer::len;
    let _: fn(&Timer) -> bool = Timer::is_empty;
    let _: fn(Duration, Duration) -> LocalTimer<(), Duration> = LocalTimer::new;
    is_send_sync::<LocalTimer<String, Instant>>();
    is_debug::<LocalTimer<Box<dyn Send>, Instant>>();
}

// --- auto traits and derived traits --------------------------------------------------------------

fn is_send_sync<T: Send + Sync + 'static>() {}
fn is_unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
fn is_unpin<T: Unpin>() {}
fn is_debug<T: Debug>() {}
fn is_copy_eq_hash<T: Copy + Eq + Hash>() {}
fn is_error<T: std::error::Error + Copy + Eq + Send + Sync + 'static>() {}

#[test]
fn public_types_have_these_traits() {
    is_send_sync::<Key>();
    is_send_sync::<HashedWheel<String>>();
    is_send_sync::<HierarchicalWheel<String>>();
    is_unwind_safe::<Key>();
    is_unwind_safe::<HashedWheel<String>>();
    is_unwind_safe::<HierarchicalWheel<String>>();
    is_unpin::<HashedWheel<String>>();
    is_unpin::<HierarchicalWheel<String>>();
    // Also for entries that do not implement it.
    is_debug::<HashedWheel<Box<dyn Send>>>();
    is_debug::<HierarchicalWheel<Box<dyn Send>>>();
    is_debug::<Key>();
    is_copy_eq_hash::<Key>();
    is_error::<SizeError>();
}
