//! Steps that the tests of a wheel and its model share.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::Wheel;

/// Advances and returns the values that come out.
pub(crate) fn fired<T>(wheel: &mut Wheel<T>, now: u64) -> Vec<T> {
    let mut fired = Vec::new();
    wheel.advance(now, |value| fired.push(value));
    fired
}

/// Advances with a callback that panics after `calls` entries. Returns those entries and the one
/// whose callback panicked.
pub(crate) fn fired_until_panic<T>(wheel: &mut Wheel<T>, now: u64, calls: usize) -> Vec<T> {
    let mut fired = Vec::new();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        wheel.advance(now, |value| {
            fired.push(value);
            if fired.len() > calls {
                // Unwinds without the panic hook, which would print.
                resume_unwind(Box::new("expired"));
            }
        });
    }));
    assert_eq!(unwound.is_err(), fired.len() > calls);
    fired
}

/// Checks `next_deadline` for a wheel whose first deadline is `first`.
pub(crate) fn check_next<T>(wheel: &Wheel<T>, first: Option<u64>) {
    match (wheel.next_deadline(), first) {
        (Some(next), Some(first)) if first <= wheel.tick() => {
            assert_eq!(next, wheel.tick(), "{wheel:?}");
        }
        (Some(next), Some(first)) => {
            assert!(next <= first, "too late for {first}: {wheel:?}");
            assert!(
                next > wheel.tick(),
                "nothing is due before {first}: {wheel:?}"
            );
        }
        (next, first) => assert_eq!(next, first),
    }
}
