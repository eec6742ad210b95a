//! Atomics of which the environment may weaken an order; how many threads were started.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::panic::Location;
use std::sync::LazyLock;

#[cfg(hashed_wheel_shuttle)]
use shuttle as loom;

use crate::inside::ASKED;
use crate::sync::Ordering;

/// loom's atomics, but for the [weakened] orders.
macro_rules! atomic {
    ($name:ident, $value:ty) => {
        pub(crate) struct $name(loom::sync::atomic::$name);

        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.0.load(weakened(order))
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, weakened(order));
            }

            #[track_caller]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, weakened(order))
            }

            #[track_caller]
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_add(value, weakened(order))
            }

            #[track_caller]
            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_sub(value, weakened(order))
            }

            #[track_caller]
            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_or(value, weakened(order))
            }

            #[track_caller]
            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_and(value, weakened(order))
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(current, new, weakened(success), weakened(failure))
            }

            #[track_caller]
            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.0.fetch_update(weakened(set), weakened(fetch), update)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);

/// The count of a `SharedCount`: to the models of whole timers an ordinary atomic, which loom does not
/// see. Only `node::timer_ref` changes it, and the models of that are given a modelled one.
pub(crate) enum Count {
    Unmodelled(std::sync::atomic::AtomicUsize),
    Modelled(AtomicUsize),
}

impl Default for Count {
    fn default() -> Self {
        Self::Unmodelled(std::sync::atomic::AtomicUsize::new(0))
    }
}

impl Count {
    pub(crate) fn modelled() -> Self {
        Self::Modelled(AtomicUsize::new(0))
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> usize {
        match self {
            Self::Unmodelled(count) => count.load(order),
            Self::Modelled(count) => count.load(order),
        }
    }

    #[track_caller]
    pub(crate) fn store(&self, value: usize, order: Ordering) {
        match self {
            Self::Unmodelled(count) => count.store(value, order),
            Self::Modelled(count) => count.store(value, order),
        }
    }

    #[track_caller]
    pub(crate) fn fetch_add(&self, value: usize, order: Ordering) -> usize {
        match self {
            Self::Unmodelled(count) => count.fetch_add(value, order),
            Self::Modelled(count) => count.fetch_add(value, order),
        }
    }

    #[track_caller]
    pub(crate) fn fetch_sub(&self, value: usize, order: Ordering) -> usize {
        match self {
            Self::Unmodelled(count) => count.fetch_sub(value, order),
            Self::Modelled(count) => count.fetch_sub(value, order),
        }
    }
}

/// One side of an order that the environment takes away from the atomic operations in some lines of a file:
/// `life.rs:149-153:release`.
struct Weakness {
    file: String,
    lines: RangeInclusive<u32>,
    releases: bool,
}

impl Weakness {
    fn from_environment() -> Option<Self> {
        let mut parts = ASKED.as_ref()?.split(':');
        let (file, lines, side) = (parts.next()?, parts.next()?, parts.next()?);
        let (first, last) = lines.split_once('-')?;
        let lines = first.parse().ok()?..=last.parse().ok()?;
        Some(Self { file: format!("/src/{file}"), lines, releases: side == "release" })
    }
}

/// The order that an operation has: the one it asks for, unless the environment weakens it.
#[track_caller]
fn weakened(order: Ordering) -> Ordering {
    static WEAKNESS: LazyLock<Option<Weakness>> = LazyLock::new(Weakness::from_environment);
    let at = Location::caller();
    let is_meant = |weak: &&Weakness| at.file().ends_with(&weak.file) && weak.lines.contains(&at.line());
    match (WEAKNESS.as_ref().filter(is_meant), order) {
        (None, _) => order,
        (Some(Weakness { releases: true, .. }), Ordering::AcqRel) => Ordering::Acquire,
        (Some(Weakness { releases: true, .. }), Ordering::Release) => Ordering::Relaxed,
        (Some(Weakness { releases: false, .. }), Ordering::AcqRel) => Ordering::Release,
        (Some(Weakness { releases: false, .. }), Ordering::Acquire) => Ordering::Relaxed,
        (Some(_), _) => order,
    }
}

std::thread_local!(static SPAWNED: Cell<usize> = const { Cell::new(0) });

/// How many threads the library has started since this was last called.
pub fn take_spawned() -> usize {
    SPAWNED.take()
}

pub(super) fn count_a_spawn() {
    SPAWNED.set(SPAWNED.get() + 1);
}
