//! One type for the orders of both wheels, which the worker of a timer uses.

use timing_wheels::SizeError;
use timing_wheels::order::{Entries, Hashed, Hierarchical, SlotCounts};

/// The order of a hashed or of a hierarchical wheel. The methods are those of [`Hashed`].
pub(crate) enum EitherWheel {
    Hashed(Hashed),
    Hierarchical(Hierarchical),
}

macro_rules! either {
    ($either:expr, $wheel:ident => $call:expr) => {
        match $either {
            Self::Hashed($wheel) => $call,
            Self::Hierarchical($wheel) => $call,
        }
    };
}

impl EitherWheel {
    /// Makes an empty wheel.
    pub(crate) fn try_new(
        is_hierarchical: bool,
        ticks_per_wheel: usize,
    ) -> Result<Self, SizeError> {
        Ok(if is_hierarchical {
            Self::Hierarchical(Hierarchical::try_new(ticks_per_wheel)?)
        } else {
            Self::Hashed(Hashed::try_new(ticks_per_wheel)?)
        })
    }

    #[inline(always)]
    pub(crate) fn insert(&mut self, deadline: u64, entry: u32) -> u32 {
        either!(self, wheel => wheel.insert(deadline, entry))
    }

    #[inline(always)]
    pub(crate) fn remove(&mut self, deadline: u64, position: u32, entries: &mut impl Entries) {
        either!(self, wheel => wheel.remove(deadline, position, entries));
    }

    #[inline(always)]
    pub(crate) fn advance(&mut self, entries: &mut impl Entries, now: u64) {
        either!(self, wheel => wheel.advance(entries, now));
    }

    #[inline]
    pub(crate) fn pop_due(&mut self, entries: &impl Entries) -> Option<u32> {
        either!(self, wheel => wheel.pop_due(entries))
    }

    pub(crate) fn first_due(&mut self) -> Option<u32> {
        either!(self, wheel => wheel.first_due())
    }

    pub(crate) fn sort_due_by_key(&mut self, key: impl Fn(u32) -> u64, entries: &mut impl Entries) {
        either!(self, wheel => wheel.sort_due_by_key(key, entries));
    }

    // A call costs an empty turn 20 instructions.
    #[inline(always)]
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        either!(self, wheel => wheel.next_deadline())
    }

    pub(crate) fn tick(&self) -> u64 {
        either!(self, wheel => wheel.tick())
    }

    pub(crate) fn ticks_per_wheel(&self) -> usize {
        either!(self, wheel => wheel.ticks_per_wheel())
    }

    pub(crate) fn len(&self) -> usize {
        either!(self, wheel => wheel.len())
    }

    pub(crate) fn levels(&self, now: u64) -> Option<Vec<SlotCounts>> {
        either!(self, wheel => wheel.levels(now))
    }

    /// Returns the name of the wheel's type, for `Debug` output.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Hashed(_) => "hashed",
            Self::Hierarchical(_) => "hierarchical",
        }
    }

    pub(crate) fn for_each(&self, visit: impl FnMut(u32)) {
        either!(self, wheel => wheel.for_each(visit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_that_of_the_wheel() {
        let name = |is_hierarchical| {
            EitherWheel::try_new(is_hierarchical, 8)
                .expect("memory")
                .name()
        };
        assert_eq!([false, true].map(name), ["hashed", "hierarchical"]);
    }
}
