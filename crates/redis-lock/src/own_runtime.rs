//! The runtime of a client for code that is not async.

use tokio::runtime::{EnterGuard, Runtime};

/// The runtime of a blocking client, which the calls in the background keep until they have ended.
/// `None` while it is dropped.
#[derive(Debug)]
pub(crate) struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self(Some(runtime))
    }

    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        self.0.as_ref().map(Runtime::enter)
    }

    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.as_ref().expect("it is not dropped").block_on(future)
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        // Dropping a runtime would wait for its thread, and panic on a thread of another runtime.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
