//! Either wheel behind one face: what a timer's worker owns.

use super::{HashedWheel, HierarchicalWheel, Key};

pub(crate) enum EitherWheel<T> {
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

impl<T> EitherWheel<T> {
    pub(crate) fn insert(&mut self, deadline: u64, value: T) -> Key {
        either!(self, wheel => wheel.insert(deadline, value))
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        either!(self, wheel => wheel.remove(key))
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        either!(self, wheel => wheel.get(key))
    }

    pub(crate) fn advance(&mut self, now: u64, expired: impl FnMut(T)) {
        either!(self, wheel => wheel.advance(now, expired));
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        either!(self, wheel => wheel.next_deadline())
    }

    pub(crate) fn tick(&self) -> u64 {
        either!(self, wheel => wheel.tick())
    }

    pub(crate) fn ticks_per_wheel(&self) -> usize {
        either!(self, wheel => wheel.ticks_per_wheel())
    }

    pub(crate) fn drain(&mut self) -> Vec<T> {
        either!(self, wheel => wheel.drain().collect())
    }
}
