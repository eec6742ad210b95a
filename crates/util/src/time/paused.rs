//! Whether the clock of a tokio runtime may be paused.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Stands for the functions that tokio has only with its feature `test-util`.
struct Missing;

/// Is named below if tokio has no function of this name.
#[allow(dead_code, reason = "depends on a feature of tokio")]
fn resume() -> Missing {
    Missing
}

trait Exists {
    const ANSWER: bool;
}

impl Exists for Missing {
    const ANSWER: bool = false;
}

/// The type that tokio's `resume` returns.
impl Exists for () {
    const ANSWER: bool = true;
}

const fn exists<T: Exists>(_: fn() -> T) -> bool {
    T::ANSWER
}

/// Whether this build of tokio has the feature `test-util`. A name from a glob import hides one
/// that is further out.
const HAS_TEST_UTIL: bool = {
    #[allow(unused_imports, reason = "depends on a feature of tokio")]
    use tokio::time::*;
    exists(resume)
};

/// Whether the caller is within a runtime whose clock is paused, or may be paused later. tokio
/// pauses the clocks of current-thread runtimes only.
pub(super) fn may_be_paused() -> bool {
    HAS_TEST_UTIL
        && Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread)
}
