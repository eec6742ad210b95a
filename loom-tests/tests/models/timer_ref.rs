//! Batched reference counts without a timer: the last reference to go drops the value, once. A batch
//! has two references in a model.

use hashed_wheel::inside::{LocalCount, SharedValue, TimerRef};

use super::*;

/// What a model knows of its value.
#[derive(Default)]
struct Log {
    /// How many references there are outside a reserve.
    references: AtomicUsize,
    drops: AtomicUsize,
}

/// A value that checks its drop.
struct Value(Arc<Log>);

impl Drop for Value {
    fn drop(&mut self) {
        // In front of all else that goes wrong with a value that is dropped too early.
        assert_eq!(self.0.references.load(Relaxed), 0, "the value is dropped after its references");
        self.0.drops.fetch_add(1, Relaxed);
    }
}

/// A reference, which the log knows of.
struct Reference {
    /// `None` when it is given back.
    reference: Option<TimerRef<Value>>,
    log: Arc<Log>,
}

impl Reference {
    fn of(reference: TimerRef<Value>) -> Self {
        let log = Arc::clone(&reference.get().0);
        log.references.fetch_add(1, Relaxed);
        Self { reference: Some(reference), log }
    }

    fn take(count: &mut LocalCount<Value>) -> Self {
        Self::of(count.take())
    }

    fn use_value(&self) {
        let log = &self.reference.as_ref().expect("it was not given back").get().0;
        assert_eq!(log.drops.load(Relaxed), 0, "a reference keeps the value");
    }

    fn put(mut self, count: &mut LocalCount<Value>) {
        self.log.references.fetch_sub(1, Relaxed);
        self.reference.take().into_iter().for_each(|reference| count.put(reference));
    }

    fn use_and_drop(self) {
        self.use_value();
        drop(self);
    }
}

impl Clone for Reference {
    fn clone(&self) -> Self {
        Self::of(self.reference.as_ref().expect("it was not given back").clone())
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

fn value() -> (Arc<SharedValue<Value>>, Arc<Log>) {
    let log = Arc::new(Log::default());
    (SharedValue::new(Value(Arc::clone(&log))), log)
}

impl Log {
    #[track_caller]
    fn assert_dropped(&self) {
        assert_eq!(self.drops.load(Relaxed), 1, "the last reference drops the value");
    }
}

#[test]
fn last_of_two_references_drops_the_value() {
    let mutants = [
        mutant("GiveReferencesBackWithoutCompare"),
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

/// One thread gives back a batch, and then the rest of its reserve. The other takes a batch, drops a
/// reference that the first one took, and gives its reserve back.
#[test]
fn last_of_two_reserves_drops_the_value() {
    let mutants = [
        mutant("GiveReferencesBackWithoutCompare"),
        mutant("AddReferencesWithoutCompare"),
        mutant("EachBatchKeepsValue"),
        no_release("node/timer_ref.rs release"),
        no_acquire("node/timer_ref.rs release"),
    ];
    explore(None, mutants, || {
        let (value, log) = value();
        let mut counts = [(); 2].map(|()| LocalCount::new(&value));
        let [first, second, third] = [(); 3].map(|()| Reference::take(&mut counts[0]));
        let [fourth, fifth] = [(); 2].map(|()| Reference::take(&mut counts[1]));
        let [mut mine, mut others] = counts;
        drop(value);
        let other = thread::spawn(move || {
            let sixth = Reference::take(&mut others);
            first.use_and_drop();
            sixth.use_value();
            sixth.put(&mut others);
        });
        for reference in [second, third, fourth, fifth] {
            reference.use_value();
            reference.put(&mut mine);
        }
        drop(mine);
        other.join().unwrap();
        log.assert_dropped();
    });
}

/// The count goes up from zero, or from one, while another thread drops the last reference.
#[test]
fn new_references_keep_the_value_when_the_last_one_goes() {
    let mutants = [
        mutant("FirstReferencesKeepNothing"),
        mutant("FirstReferencesDecidedEarly"),
        mutant("AddReferencesWithoutCompare"),
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
        new.use_value();
        new.put(&mut count);
        drop(count);
        other.join().unwrap();
        log.assert_dropped();
    });
}

#[test]
fn clone_keeps_the_value_when_another_reference_goes() {
    let mutants = [mutant("AddReferencesWithoutCompare"), mutant("GiveReferencesBackWithoutCompare")];
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
