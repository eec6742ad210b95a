//! Compares either wheel with the model, under actions that follow from bytes.

#[path = "wheel/model.rs"]
mod model;
#[path = "wheel/steps.rs"]
mod steps;

use std::fmt;

use timing_wheels::{HashedWheel, HierarchicalWheel, Iter, Key};

use super::bytes::{self, Bytes};
use model::Script;
use steps::{check_next, fired, fired_until_panic};

const SIZES: [usize; 5] = [1, 2, 4, 64, 512];

/// The first byte chooses the wheel and its size.
pub(crate) fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let choice = bytes.below(2 * SIZES.len());
    let slots = SIZES[choice / 2];
    let wheel = match choice % 2 {
        0 => Wheel::Hashed(HashedWheel::new(slots)),
        _ => Wheel::Hierarchical(HierarchicalWheel::new(slots)),
    };
    Script::new(wheel, slots, bytes).run();
}

/// Either wheel, with the same methods.
pub(crate) enum Wheel<T> {
    Hashed(HashedWheel<T>),
    Hierarchical(HierarchicalWheel<T>),
}

macro_rules! either {
    ($either:expr, $wheel:ident => $call:expr) => {
        match $either {
            Self::Hashed($wheel) => $call,
            Self::Hierarchical($wheel) => $call,
        }
    };
}

impl<T> Wheel<T> {
    fn insert(&mut self, deadline: u64, value: T) -> Key {
        either!(self, wheel => wheel.insert(deadline, value))
    }

    fn remove(&mut self, key: Key) -> Option<T> {
        either!(self, wheel => wheel.remove(key))
    }

    fn get(&self, key: Key) -> Option<&T> {
        either!(self, wheel => wheel.get(key))
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        either!(self, wheel => wheel.get_mut(key))
    }

    fn deadline(&self, key: Key) -> Option<u64> {
        either!(self, wheel => wheel.deadline(key))
    }

    fn reset(&mut self, key: Key, deadline: u64) -> bool {
        either!(self, wheel => wheel.reset(key, deadline))
    }

    fn peek(&self) -> Option<(Key, u64, &T)> {
        either!(self, wheel => wheel.peek())
    }

    fn iter(&self) -> Iter<'_, T> {
        either!(self, wheel => wheel.iter())
    }

    fn pop_expired(&mut self, now: u64) -> Option<(Key, u64, T)> {
        either!(self, wheel => wheel.pop_expired(now))
    }

    fn peek_expired(&mut self, now: u64) -> Option<(Key, u64, &mut T)> {
        either!(self, wheel => wheel.peek_expired(now))
    }

    fn shrink_to_fit(&mut self) {
        either!(self, wheel => wheel.shrink_to_fit());
    }

    fn clear(&mut self) {
        either!(self, wheel => wheel.clear());
    }

    fn advance(&mut self, now: u64, expired: impl FnMut(T)) {
        either!(self, wheel => wheel.advance(now, expired));
    }

    fn next_deadline(&self) -> Option<u64> {
        either!(self, wheel => wheel.next_deadline())
    }

    fn drain(&mut self) -> Box<dyn Iterator<Item = T> + '_> {
        either!(self, wheel => Box::new(wheel.drain()))
    }

    fn tick(&self) -> u64 {
        either!(self, wheel => wheel.tick())
    }

    fn len(&self) -> usize {
        either!(self, wheel => wheel.len())
    }

    fn is_empty(&self) -> bool {
        either!(self, wheel => wheel.is_empty())
    }
}

impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        either!(self, wheel => wheel.fmt(f))
    }
}
