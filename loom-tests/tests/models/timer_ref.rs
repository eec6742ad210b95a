//! Batched reference counts without a timer: the last reference drops the value, once.
//!
//! A batch has two references in a model. loom sees the shared count, each use of the value, and
//! its drop.

use hashed_wheel::inside::{LocalCount, SharedValue, TimerRef};

use super::*;

/// The history of a model's value.
#[derive(Default)]
struct Log {
    /// The number of references outside a reserve.
    references: AtomicUsize,
    drops: AtomicUsize,
}

impl Log {
    #[track_caller]
    fn assert_dropped(&self) {
        assert_eq!(
            self.drops.load(Relaxed),
            1,
            "the last reference drops the value"
        );
    }
}

/// A value that checks its drop.
struct Value(Arc<Log>);

impl Drop for Value {
    fn drop(&mut self) {
        // A mutant fails here, before it uses memory that was freed.
        assert_eq!(
            self.0.references.load(Relaxed),
            0,
            "a reference keeps the value"
        );
        self.0.drops.fetch_add(1, Relaxed);
    }
}

fn value() -> (Arc<SharedValue<Value>>, Arc<Log>) {
    let log = Arc::new(Log::default());
    (SharedValue::new(Value(Arc::clone(&log))), log)
}

/// A reference that the log counts.
struct Reference {
    /// `None` once it was put into a reserve.
    reference: Option<TimerRef<Value>>,
    log: Arc<Log>,
}

impl Reference {
    fn of(reference: TimerRef<Value>) -> Self {
        let log = Arc::clone(&reference.get().0);
        log.references.fetch_add(1, Relaxed);
        Self {
            reference: Some(reference),
            log,
        }
    }

    fn take(count: &mut LocalCount<Value>) -> Self {
        Self::of(count.take())
    }

    fn reference(&self) -> &TimerRef<Value> {
        self.reference
            .as_ref()
            .expect("the reference is not in a reserve")
    }

    fn use_value(&self) {
        assert_eq!(
            self.reference().get().0.drops.load(Relaxed),
            0,
            "a reference keeps the value"
        );
    }

    fn use_and_drop(self) {
        self.use_value();
        drop(self);
    }

    fn use_and_put(mut self, count: &mut LocalCount<Value>) {
        self.use_value();
        self.log.references.fetch_sub(1, Relaxed);
        self.reference
            .take()
            .into_iter()
            .for_each(|reference| count.put(reference));
    }
}

impl Clone for Reference {
    fn clone(&self) -> Self {
        Self::of(self.reference().clone())
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if let Some(reference) = self.reference.take() {
            self.log.references.fetch_sub(1, Relaxed);
            drop(reference);
        }
    }
}

#[test]
fn last_of_two_references_drops_the_value() {
    let mutants = [
        mutant("SharedCountReleaseWithoutCompare"),
        no_release("node/timer_ref.rs release"),
        no_acquire("node/timer_ref.rs release"),
    ];
    explore(None, mutants, || {
        let (value, log) = value();
        let mut count = LocalCount::new(&value);
        let [first, second] = [(); 2].map(|()| Reference::take(&mut count));
        drop((count, value));
        let other = thread::spawn(move || first.use_and_drop());
        second.use_and_drop();
        other.join().unwrap();
        log.assert_dropped();
    });
}

/// One thread gives back a batch, and then the rest of its reserve. The other thread takes a batch,
/// drops a reference from the reserve of the first thread, and gives its own reserve back.
#[test]
fn last_of_two_reserves_drops_the_value() {
    let mutants = [
        mutant("SharedCountReleaseWithoutCompare"),
        mutant("SharedCountAddWithoutCompare"),
        mutant("EachBatchTakesReference"),
        no_release("node/timer_ref.rs release"),
        no_acquire("node/timer_ref.rs release"),
    ];
    explore(None, mutants, || {
        let (value, log) = value();
        let [mut mine, mut others] = [(); 2].map(|()| LocalCount::new(&value));
        let [first, second, third] = [(); 3].map(|()| Reference::take(&mut mine));
        let [fourth, fifth] = [(); 2].map(|()| Reference::take(&mut others));
        drop(value);
        let other = thread::spawn(move || {
            let sixth = Reference::take(&mut others);
            first.use_and_drop();
            sixth.use_and_put(&mut others);
        });
        for reference in [second, third, fourth, fifth] {
            reference.use_and_put(&mut mine);
        }
        drop(mine);
        other.join().unwrap();
        log.assert_dropped();
    });
}

/// The count is raised from zero, or from one, while another thread drops the last reference.
#[test]
fn new_references_keep_the_value_when_the_last_one_goes() {
    let mutants = [
        mutant("FirstBatchTakesNoReference"),
        mutant("FirstBatchDecidedBeforeAdd"),
        mutant("SharedCountAddWithoutCompare"),
        no_release("node/timer_ref.rs release"),
        no_acquire("node/timer_ref.rs release"),
    ];
    explore(None, mutants, || {
        let (value, log) = value();
        let last = Reference::of(TimerRef::new(&value));
        let other = thread::spawn(move || last.use_and_drop());
        let mut count = LocalCount::new(&value);
        let new = Reference::take(&mut count);
        drop(value);
        new.use_and_put(&mut count);
        drop(count);
        other.join().unwrap();
        log.assert_dropped();
    });
}

#[test]
fn clone_keeps_the_value_when_another_reference_goes() {
    let mutants = [
        mutant("SharedCountAddWithoutCompare"),
        mutant("SharedCountReleaseWithoutCompare"),
    ];
    explore(None, mutants, || {
        let (value, log) = value();
        let first = Reference::of(TimerRef::new(&value));
        let second = first.clone();
        drop(value);
        let other = thread::spawn(move || second.use_and_drop());
        let clone = first.clone();
        drop(first);
        clone.use_and_drop();
        other.join().unwrap();
        log.assert_dropped();
    });
}
