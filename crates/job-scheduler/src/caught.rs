//! Panics as errors, and locks that no panic has left.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// Returns the output of a future, or what its panic says: "panicked", or "panicked: why".
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = pin!(future);
    poll_fn(|context| {
        let poll = || future.as_mut().poll(context).map(Ok);
        catch_unwind(AssertUnwindSafe(poll)).unwrap_or_else(|panic| {
            let text = message(&*panic);
            // Its destructor may panic too.
            mem::forget(panic);
            Poll::Ready(Err(text))
        })
    })
    .await
}

/// Locks a mutex. No code of this crate panics while it holds one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.map_or_else(|| "panicked".into(), |text| format!("panicked: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_a_panic_is_kept() {
        let panicked = |panic: Box<dyn Any + Send>| message(&*panic);
        assert_eq!(panicked(Box::new("why")), "panicked: why");
        assert_eq!(panicked(Box::new(String::from("why"))), "panicked: why");
        assert_eq!(panicked(Box::new(())), "panicked");
    }
}
