//! The timer of the module. Threads meet in std's `OnceLock` alone, so no model of loom uses it.

use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Sleep};

use crate::sync::OnceLock;

/// One timer of the process. The next one is for a process that was forked from this one.
struct Link {
    timer: OnceLock<HashedWheelTimer>,
    next: OnceLock<Box<Link>>,
}

impl Link {
    const fn new() -> Self {
        Self {
            timer: OnceLock::new(),
            next: OnceLock::new(),
        }
    }
}

static FIRST: Link = Link::new();

/// Returns the last link, whose timer no code can stop: nothing gives out a handle to it.
fn last() -> &'static Link {
    let mut link = &FIRST;
    while let Some(next) = link.next.get() {
        link = next;
    }
    link
}

fn timer_of(link: &Link) -> &HashedWheelTimer {
    link.timer.get_or_init(|| {
        let builder = HashedWheelTimer::builder().tick(Duration::from_millis(1));
        let named = builder.thread_name("wheel-time");
        named.build().expect("these settings can be built")
    })
}

/// Returns a sleep on the timer of the module.
pub(super) fn sleep_until(deadline: Instant) -> Sleep {
    timer_of(last()).sleep_until(deadline)
}

/// Returns a sleep in place of one that has failed. `None` if another timer would not help.
pub(super) fn after_failure(error: &NewTimeoutError, deadline: Instant) -> Option<Sleep> {
    if *error != NewTimeoutError::Forked {
        return None;
    }
    let link = last();
    if timer_of(link).start() == Err(NewTimeoutError::Forked) {
        link.next.get_or_init(|| Box::new(Link::new()));
    }
    Some(sleep_until(deadline))
}
