//! The number of pending timeouts: a sum over the counts of threads.

use super::*;

#[test]
fn count_is_never_negative() {
    explore(
        None,
        [mutant("RegistrationsReadFirst"), no_acquire("engine/pending.rs ended_by_threads")],
        || {
            let driven = Driven::new();
            let other = driven.timer.clone();
            let caller = thread::spawn(move || {
                let timeout = other.new_timeout(|_| (), TICK).unwrap();
                assert_eq!(other.pending_timeouts(), 1, "it includes what this thread did");
                assert!(timeout.cancel());
                assert_eq!(other.pending_timeouts(), 0, "it includes what this thread did");
            });
            // A negative sum overflows, and panics.
            assert!(driven.timer.pending_timeouts() <= 1);
            caller.join().unwrap();
            assert_eq!(driven.timer.pending_timeouts(), 0);
        },
    );
}

/// The count never includes an end without its registration, which the thread that ends the timeout
/// has learnt of from another one.
#[test]
fn count_includes_the_registration_of_what_another_thread_has_cancelled() {
    explore(Some(3), [mutant("RegistrationsReadFirst")], || {
        let driven = Driven::new();
        let (other, slot) = (driven.timer.clone(), Arc::new(loom::sync::Mutex::new(None)));
        let place = Arc::clone(&slot);
        let caller =
            thread::spawn(move || *place.lock().unwrap() = Some(other.new_timeout(|_| (), TICK).unwrap()));
        let timer = driven.timer.clone();
        let reader = thread::spawn(move || assert!(timer.pending_timeouts() <= 1));
        let timeout = slot.lock().unwrap().take();
        if let Some(timeout) = &timeout {
            assert!(timeout.cancel());
        }
        caller.join().unwrap();
        reader.join().unwrap();
        assert_eq!(driven.timer.pending_timeouts(), usize::from(timeout.is_none()));
    });
}
