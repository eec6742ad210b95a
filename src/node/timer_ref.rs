//! Batched reference counts: an `Arc` whose references are counted per thread.
//!
//! A [`TimerRef`] keeps a value that is in an `Arc`. Taking one from a thread's [`LocalCount`], and
//! giving it back there, is a plain addition; the [`SharedCount`] in the value is changed once per
//! [`BATCH`] references. All `TimerRef`s and local counts of a value together own *one* strong
//! reference of its `Arc`. The component knows nothing of timers; it has a loom model of its own,
//! `loom-tests/tests/models/timer_ref.rs`.
//!
//! | `SharedCount` | changed by | order | pairs with |
//! |---|---|---|---|
//! | 0 → n | a thread that has a strong reference; takes one more for all n | `Relaxed` | nothing: the caller's own reference keeps the value |
//! | n → n + m | a thread that has a strong reference or a `TimerRef` | `Relaxed` | the same |
//! | n → n − m | a thread that gives m references back | `AcqRel` | itself: the thread that finds m sees all uses of the others before it drops the strong reference |
//!
//! A thread may find 0 and take a strong reference while another thread, which has just counted
//! down to 0, still drops its own. That is another strong reference, so the order of the two is
//! irrelevant.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::sync::{Arc, AtomicUsize, Ordering, Weak};

/// How many references a thread takes from the shared count at a time.
const BATCH: usize = if cfg!(hashed_wheel_loom) { 2 } else { 1_024 };

/// More references than this are leaked ones: the process ends before the count overflows, as with
/// an `Arc`.
const MAX_COUNT: usize = usize::MAX / 2;

/// A value that has a [`SharedCount`].
///
/// # Safety
///
/// `count` returns the same `SharedCount` at each call, and no other value returns that one.
pub(crate) unsafe trait Counted {
    fn count(&self) -> &SharedCount;
}

/// The number of references to the value that has this count.
#[derive(Default)]
pub(crate) struct SharedCount(AtomicUsize);

impl SharedCount {
    /// Adds references to `value`, which owns this count.
    fn add<T: Counted>(value: &Arc<T>, references: usize) {
        if value.count().add_some(references) == 0 {
            // The one strong reference of all `TimerRef`s. (The one of an earlier batch may not be
            // dropped yet; this is another.)
            std::mem::forget(Arc::clone(value));
        }
    }

    /// Returns the count before.
    fn add_some(&self, references: usize) -> usize {
        let before = self.0.fetch_add(references, Ordering::Relaxed);
        if before >= MAX_COUNT {
            std::process::abort();
        }
        before
    }

    /// Gives references back.
    ///
    /// # Safety
    ///
    /// `value` comes from `Arc::as_ptr` or `Weak::as_ptr`. The caller owns this many counted
    /// references to it, which it does not use afterwards.
    unsafe fn release<T: Counted>(value: NonNull<T>, references: usize) {
        if references == 0 {
            return;
        }
        // SAFETY: the caller's references are counted until the subtraction, so the value is there.
        let count = unsafe { value.as_ref() }.count();
        if count.0.fetch_sub(references, Ordering::AcqRel) == references {
            // SAFETY: `add` has forgotten one strong reference when the count left zero. The count
            // is zero again, so this thread, and no other, drops it. An `add` that has not
            // forgotten its strong reference yet has not given out its references either, so the
            // count does not reach zero before it has.
            unsafe { Arc::decrement_strong_count(value.as_ptr()) };
        }
    }
}

/// A counted reference, which keeps its value.
pub(crate) struct TimerRef<T: Counted>(NonNull<T>);

// SAFETY: it gives out `&T` and `Arc<T>`, as an `Arc` does.
unsafe impl<T: Counted + Send + Sync> Send for TimerRef<T> {}
// SAFETY: a shared `TimerRef` gives out `&T` and `Arc<T>`, as a shared `Arc` does.
unsafe impl<T: Counted + Send + Sync> Sync for TimerRef<T> {}

impl<T: Counted> TimerRef<T> {
    /// A reference that comes from no [`LocalCount`].
    pub(crate) fn new(value: &Arc<T>) -> Self {
        SharedCount::add(value, 1);
        Self(NonNull::new(Arc::as_ptr(value).cast_mut()).expect("an Arc is not null"))
    }

    #[inline]
    pub(crate) fn get(&self) -> &T {
        // SAFETY: this reference is counted, so the value is there.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Counted> Clone for TimerRef<T> {
    fn clone(&self) -> Self {
        // The count is not zero, so the strong reference of all `TimerRef`s is there, or the thread
        // that is about to add it borrows an `Arc`.
        self.get().count().add_some(1);
        Self(self.0)
    }
}

impl<T: Counted> Drop for TimerRef<T> {
    fn drop(&mut self) {
        // SAFETY: this reference is one, it came from an `Arc`, and it is not used afterwards.
        unsafe { SharedCount::release(self.0, 1) };
    }
}

/// The references that one thread, or the worker, has in reserve for one value.
pub(crate) struct LocalCount<T: Counted> {
    value: Weak<T>,
    /// The address of the value. `value` keeps it, so that no other value can have it.
    address: NonNull<T>,
    /// How many of the counted references belong to this reserve.
    references: usize,
}

// SAFETY: it gives out `TimerRef<T>` and `Arc<T>`, which are `Send` and `Sync` then.
unsafe impl<T: Counted + Send + Sync> Send for LocalCount<T> {}
// SAFETY: a shared one gives out `Arc<T>`, which is `Send` and `Sync` then.
unsafe impl<T: Counted + Send + Sync> Sync for LocalCount<T> {}

impl<T: Counted> LocalCount<T> {
    pub(crate) fn new(value: Weak<T>) -> Self {
        let address = NonNull::new(value.as_ptr().cast_mut()).expect("a Weak is not null");
        Self {
            value,
            address,
            references: 0,
        }
    }

    /// The value, unless it is gone.
    pub(crate) fn value(&self) -> Option<Arc<T>> {
        self.value.upgrade()
    }

    /// Whether this is the reserve of the value at this address.
    #[inline]
    pub(crate) fn is_of(&self, value: *const T) -> bool {
        std::ptr::eq(self.address.as_ptr(), value)
    }

    /// The address of the value.
    pub(crate) fn address(&self) -> usize {
        self.address.as_ptr().addr()
    }

    /// Takes a reference.
    ///
    /// # Panics
    ///
    /// If the value is gone.
    #[inline]
    pub(crate) fn take(&mut self) -> TimerRef<T> {
        if self.references == 0 {
            self.refill();
        }
        self.references -= 1;
        // One of the counted references of this reserve passes to the new `TimerRef`.
        TimerRef(self.address)
    }

    #[cold]
    fn refill(&mut self) {
        let value = self.value().expect("the caller has the value");
        SharedCount::add(&value, BATCH);
        self.references = BATCH;
    }

    /// Takes a reference in, and returns true. Drops it, and returns false, if it is one to another
    /// value.
    #[inline]
    pub(crate) fn put(&mut self, reference: TimerRef<T>) -> bool {
        if reference.0 != self.address {
            return false;
        }
        std::mem::forget(reference);
        self.references += 1;
        if self.references > 2 * BATCH {
            self.release_batch();
        }
        true
    }

    #[cold]
    fn release_batch(&mut self) {
        self.references -= BATCH;
        // SAFETY: the reserve had more than a batch of references to this value, and has just given
        // up a batch of them.
        unsafe { SharedCount::release(self.address, BATCH) };
    }

    /// Gives all references back.
    pub(crate) fn empty(&mut self) {
        let references = std::mem::take(&mut self.references);
        // SAFETY: these references belonged to this reserve, whose number is zero now. They were
        // counted for the value of this `Weak`, which has the same address as its `Arc`.
        unsafe { SharedCount::release(self.address, references) };
    }
}

impl<T: Counted> Drop for LocalCount<T> {
    fn drop(&mut self) {
        self.empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Value(SharedCount);

    // SAFETY: the count is a field, which no other value has.
    unsafe impl Counted for Value {
        fn count(&self) -> &SharedCount {
            &self.0
        }
    }

    impl Value {
        fn references(&self) -> usize {
            self.0.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn reserve_takes_in_references_to_its_own_value_only() {
        let [value, other] = [(); 2].map(|()| Arc::new(Value::default()));
        let mut local = LocalCount::new(Arc::downgrade(&value));
        assert!(local.is_of(Arc::as_ptr(&value)) && !local.is_of(Arc::as_ptr(&other)));
        let (own, foreign) = (TimerRef::new(&value), TimerRef::new(&other));
        assert_eq!(
            [own.0, foreign.0].map(|own| own.as_ptr().cast_const()),
            [&value, &other].map(Arc::as_ptr)
        );
        assert!(!local.put(foreign));
        assert_eq!(
            (
                other.references(),
                Arc::strong_count(&other),
                local.references
            ),
            (0, 1, 0)
        );
        assert!(local.put(own));
        assert_eq!((value.references(), local.references), (1, 1));
    }

    #[test]
    fn shared_count_changes_once_for_hundreds_of_references() {
        let value = Arc::new(Value::default());
        let mut local = LocalCount::new(Arc::downgrade(&value));
        let taken: Vec<_> = (0..500)
            .map(|_| (local.take(), value.references()))
            .collect();
        let first = taken[0].1;
        assert!(taken.iter().all(|(_, references)| *references == first));
        for (reference, _) in taken {
            assert!(local.put(reference));
            assert_eq!(value.references(), first);
        }
    }

    /// One batch stays, so that the next references need not change the shared count either.
    #[test]
    fn more_than_two_batches_in_reserve_give_one_back() {
        let value = Arc::new(Value::default());
        let mut local = LocalCount::new(Arc::downgrade(&value));
        for expected in 1..=2 * BATCH {
            assert!(local.put(TimerRef::new(&value)));
            assert_eq!((local.references, value.references()), (expected, expected));
        }
        assert!(local.put(TimerRef::new(&value)));
        assert_eq!(
            (local.references, value.references()),
            (BATCH + 1, BATCH + 1)
        );
    }

    #[test]
    fn reserve_that_is_dropped_gives_its_references_back() {
        let value = Arc::new(Value::default());
        let mut local = LocalCount::new(Arc::downgrade(&value));
        let reference = local.take();
        assert_eq!((value.references(), Arc::strong_count(&value)), (BATCH, 2));
        drop(local);
        assert_eq!((value.references(), Arc::strong_count(&value)), (1, 2));
        drop(reference);
        assert_eq!((value.references(), Arc::strong_count(&value)), (0, 1));
    }
}
