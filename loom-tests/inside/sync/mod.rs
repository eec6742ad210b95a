//! Atomics whose orders the environment can weaken, loads and queues of which loom explores less,
//! accesses to memory that is not atomic, and a count of started threads.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::panic::Location;
use std::sync::{Arc, LazyLock};

#[cfg(hashed_wheel_shuttle)]
use shuttle as loom;

use crate::sync::Ordering;
use crate::sync::unmodelled::AtomicPtr;

/// Defines a wrapper of one of loom's atomics, with [weakened] orders.
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
                self.0
                    .compare_exchange(current, new, weakened(success), weakened(failure))
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

/// Defines loads that take the place of `load`: see the rows of `mutants.rs`.
macro_rules! loads {
    ($name:ident, $value:ty) => {
        #[allow(dead_code, reason = "each atomic has all loads")]
        impl super::$name {
            /// Loads a value that no thread loads before it changes it. Without the gate, which
            /// such a load does not need.
            #[track_caller]
            pub(crate) fn load_of_another(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            /// Loads a count for which an older value is as good as the newest. loom explores only
            /// the newest.
            #[track_caller]
            pub(crate) fn load_count(&self, order: Ordering) -> $value {
                self.0.fetch_add(0, order)
            }
        }
    };
}

loads!(AtomicU32, u32);
loads!(AtomicU64, u64);

/// The word of a `SharedCount`. The models of `node::timer_ref` use a modelled one. In all other
/// models it is an ordinary atomic, which loom does not explore: it is part of none of their
/// protocols.
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

std::thread_local!(static THREADS_COME_AND_GO: Cell<bool> = const { Cell::new(false) });

/// While it exists, threads begin and end in this model.
///
/// In most of loom's models all is there from the beginning, and what a thread caches is dropped at
/// its end: otherwise loom would explore each look of the worker before and after the beginning and
/// the end of each thread.
pub struct Threads(());

impl Threads {
    pub fn come_and_go() -> Self {
        THREADS_COME_AND_GO.set(true);
        Self(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        THREADS_COME_AND_GO.set(false);
    }
}

pub(crate) fn threads_come_and_go() -> bool {
    cfg!(hashed_wheel_shuttle) || THREADS_COME_AND_GO.get()
}

/// A queue of what threads leave when they end. loom sees it if [`threads_come_and_go`], and then
/// also a look at an empty queue.
///
/// A `pop` is ordered after every `push` before it, in crossbeam's queue only after that of its
/// value. No model has two threads that have ended, so no proof depends on that.
pub(crate) struct IdleQueue<T> {
    values: std::sync::Mutex<VecDeque<T>>,
    order: loom::sync::atomic::AtomicUsize,
}

impl<T> IdleQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            values: std::sync::Mutex::default(),
            order: loom::sync::atomic::AtomicUsize::new(0),
        }
    }

    pub(crate) fn push(&self, value: T) {
        self.reach(Ordering::Release);
        self.values.lock().unwrap().push_back(value);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.reach(Ordering::Relaxed);
        let value = self.values.lock().unwrap().pop_front()?;
        self.reach(Ordering::Acquire);
        Some(value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reach(Ordering::Relaxed);
        self.values.lock().unwrap().is_empty()
    }

    fn reach(&self, order: Ordering) {
        if threads_come_and_go() {
            self.order.fetch_add(0, order);
        }
    }
}

/// Tells loom about accesses to memory that is not atomic. The model fails if two accesses are
/// concurrent and one of them is a change, or if a value is taken out that is not there.
pub(crate) struct Access {
    is_full: std::sync::atomic::AtomicBool,
    #[cfg(not(hashed_wheel_shuttle))]
    cell: loom::cell::UnsafeCell<()>,
}

// SAFETY: loom's cell has no value, and the model fails if two uses of it are concurrent.
#[cfg(not(hashed_wheel_shuttle))]
unsafe impl Sync for Access {}

impl Access {
    pub(crate) fn new() -> Self {
        Self {
            is_full: std::sync::atomic::AtomicBool::new(false),
            #[cfg(not(hashed_wheel_shuttle))]
            cell: loom::cell::UnsafeCell::new(()),
        }
    }

    /// A value was put in.
    pub(crate) fn fill(&self) {
        self.is_full.store(true, Ordering::Relaxed);
    }

    /// The value is taken out.
    #[track_caller]
    pub(crate) fn empty(&self) {
        assert!(
            self.is_full.swap(false, Ordering::Relaxed),
            "a value is taken out once"
        );
    }

    #[track_caller]
    pub(crate) fn change(&self) {
        #[cfg(not(hashed_wheel_shuttle))]
        self.cell.with_mut(|_| ());
    }

    #[track_caller]
    pub(crate) fn look(&self) {
        #[cfg(not(hashed_wheel_shuttle))]
        self.cell.with(|_| ());
    }
}

/// A queue whose consumer depends on whether it is empty: loom explores what it sees of each push.
/// It has one consumer at a time.
#[cfg(not(hashed_wheel_shuttle))]
pub(crate) struct SeenQueue<T> {
    /// The values, and how many were ever taken out.
    values: std::sync::Mutex<(VecDeque<T>, u64)>,
    pushed: super::AtomicU64,
}

#[cfg(not(hashed_wheel_shuttle))]
impl<T> SeenQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            values: std::sync::Mutex::default(),
            pushed: super::AtomicU64::new(0),
        }
    }

    pub(crate) fn push(&self, value: T) {
        // loom switches threads before an operation on an atomic only, so no thread sees the count
        // without the value.
        self.pushed.fetch_add(1, Ordering::Release);
        self.values.lock().unwrap().0.push_back(value);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let (values, popped) = &mut *self.values.lock().unwrap();
        *popped += 1;
        values.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        // Only the consumer loads it.
        let pushed = self.pushed.load_of_another(Ordering::Acquire);
        pushed == self.values.lock().unwrap().1
    }
}

#[cfg(hashed_wheel_shuttle)]
pub(crate) use super::SegQueue as SeenQueue;

/// The place of a thread's counts in the list of all counts. loom sees it if threads come and go.
pub(crate) struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    is_set: Option<AtomicUsize>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        let is_set = threads_come_and_go().then(|| AtomicUsize::new(0));
        Self {
            value: std::sync::OnceLock::new(),
            is_set,
        }
    }

    #[track_caller]
    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        // loom switches threads before an operation on an atomic only, so no thread finds it set
        // without the value.
        if let Some(is_set) = &self.is_set {
            // (A failure is found by the value.)
            let _ = is_set.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
        }
        self.value.set(value)
    }

    #[track_caller]
    pub(crate) fn get(&self) -> Option<&T> {
        match &self.is_set {
            Some(is_set) if is_set.load(Ordering::Acquire) == 0 => None,
            _ => self.value.get(),
        }
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        self.value.take()
    }
}

/// The pointer to a chunk of nodes. The models of chunks use a modelled one. In all other models it
/// is an ordinary atomic.
pub(crate) enum ChunkPtr<T> {
    Unmodelled(AtomicPtr<T>),
    Modelled {
        pointer: loom::sync::atomic::AtomicPtr<T>,
        /// So that loom explores loads in both orders: see `Gate`.
        gate: loom::sync::atomic::AtomicUsize,
        /// The value for the owner.
        owned: *mut T,
    },
}

// SAFETY: the pointer is only stored here, and its user vouches for what it points to.
unsafe impl<T> Send for ChunkPtr<T> {}
// SAFETY: `owned` is used by the owner alone, through `&mut`.
unsafe impl<T> Sync for ChunkPtr<T> {}

impl<T> ChunkPtr<T> {
    pub(crate) fn new(value: *mut T) -> Self {
        match MODELS_CHUNKS.get() {
            true => Self::Modelled {
                pointer: loom::sync::atomic::AtomicPtr::new(value),
                gate: loom::sync::atomic::AtomicUsize::new(0),
                owned: value,
            },
            false => Self::Unmodelled(AtomicPtr::new(value)),
        }
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> *mut T {
        match self {
            Self::Unmodelled(pointer) => pointer.load(order),
            Self::Modelled { pointer, gate, .. } => {
                gate.fetch_add(0, Ordering::Relaxed);
                pointer.load(weakened(order))
            }
        }
    }

    #[track_caller]
    pub(crate) fn store(&self, value: *mut T, order: Ordering) {
        match self {
            Self::Unmodelled(pointer) => pointer.store(value, order),
            Self::Modelled { pointer, .. } => pointer.store(value, weakened(order)),
        }
    }

    #[track_caller]
    pub(crate) fn compare_exchange(
        &self,
        current: *mut T,
        new: *mut T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<*mut T, *mut T> {
        match self {
            Self::Unmodelled(pointer) => pointer.compare_exchange(current, new, success, failure),
            Self::Modelled { pointer, .. } => {
                pointer.compare_exchange(current, new, weakened(success), weakened(failure))
            }
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut *mut T {
        match self {
            Self::Unmodelled(pointer) => pointer.get_mut(),
            Self::Modelled { pointer, owned, .. } => {
                *owned = pointer.load(Ordering::Acquire);
                owned
            }
        }
    }
}

std::thread_local! {
    static MODELS_PAGE_WORDS: Cell<bool> = const { Cell::new(false) };
    static MODELS_CHUNKS: Cell<bool> = const { Cell::new(false) };
}

/// From now on loom sees the words of pages that are made, or it does not.
pub(crate) fn model_page_words(are_modelled: bool) {
    MODELS_PAGE_WORDS.set(are_modelled);
}

/// From now on loom sees the pointers to chunks of arenas that are made, or it does not.
pub(crate) fn model_chunks(are_modelled: bool) {
    MODELS_CHUNKS.set(are_modelled);
}

/// An atomic of `node/arena.rs`. The models of pages use modelled words `available`, and the models
/// of chunks also a modelled count of nodes that were made. In all other models it is an ordinary
/// atomic.
pub(crate) enum PageWord {
    Unmodelled(std::sync::atomic::AtomicU64),
    /// The second field is the value for the owner.
    Modelled(AtomicU64, u64),
}

impl PageWord {
    pub(crate) fn new(value: u64) -> Self {
        match MODELS_PAGE_WORDS.get() {
            true => Self::Modelled(AtomicU64::new(value), value),
            false => Self::Unmodelled(std::sync::atomic::AtomicU64::new(value)),
        }
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        match self {
            Self::Unmodelled(word) => word.load(order),
            Self::Modelled(word, _) => word.load(order),
        }
    }

    #[track_caller]
    pub(crate) fn store(&self, value: u64, order: Ordering) {
        match self {
            Self::Unmodelled(word) => word.store(value, order),
            Self::Modelled(word, _) => word.store(value, order),
        }
    }

    #[track_caller]
    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        match self {
            Self::Unmodelled(word) => word.swap(value, order),
            Self::Modelled(word, _) => word.swap(value, order),
        }
    }

    #[track_caller]
    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        match self {
            Self::Unmodelled(word) => word.fetch_or(value, order),
            Self::Modelled(word, _) => word.fetch_or(value, order),
        }
    }

    #[track_caller]
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        match self {
            Self::Unmodelled(word) => word.fetch_add(value, order),
            Self::Modelled(word, _) => word.fetch_add(value, order),
        }
    }

    #[track_caller]
    pub(crate) fn compare_exchange(
        &self,
        from: u64,
        to: u64,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u64, u64> {
        match self {
            Self::Unmodelled(word) => word.compare_exchange(from, to, done, failed),
            Self::Modelled(word, _) => word.compare_exchange(from, to, done, failed),
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut u64 {
        match self {
            Self::Unmodelled(word) => word.get_mut(),
            Self::Modelled(word, owned) => {
                *owned = word.load(Ordering::Acquire);
                owned
            }
        }
    }
}

std::thread_local! {
    /// Belongs to the timer that was built last.
    static FENCES: RefCell<Option<Arc<loom::sync::atomic::AtomicUsize>>> = const { RefCell::new(None) };
}

/// From now on fences are those of another timer.
pub(crate) fn set_fences() {
    FENCES.set(Some(Arc::default()));
}

/// A fence. loom takes no two fences for dependent, so it would not explore both orders of them. A
/// relaxed read-modify-write operation before each fence makes it do so, and orders nothing else.
pub(crate) fn fence(order: Ordering) {
    if let Some(fences) = FENCES.with_borrow(Option::clone) {
        fences.fetch_add(0, Ordering::Relaxed);
    }
    loom::sync::atomic::fence(order);
}

/// The request to take one side of an order away from the atomic operations in some lines of a
/// file, for example `engine/state.rs:149-153:release`.
struct Weakness {
    file: String,
    lines: RangeInclusive<u32>,
    releases: bool,
}

impl Weakness {
    fn from_environment() -> Option<Self> {
        let mut parts = mutants::requested()?.split(':');
        let (file, lines, side) = (parts.next()?, parts.next()?, parts.next()?);
        let (first, last) = lines.split_once('-')?;
        let lines = first.parse().ok()?..=last.parse().ok()?;
        Some(Self {
            file: format!("/src/{file}"),
            lines,
            releases: side == "release",
        })
    }
}

/// Returns the order of an operation: the given one, unless the environment weakens it.
#[track_caller]
fn weakened(order: Ordering) -> Ordering {
    static WEAKNESS: LazyLock<Option<Weakness>> = LazyLock::new(Weakness::from_environment);
    let at = Location::caller();
    let is_here =
        |weak: &&Weakness| at.file().ends_with(&weak.file) && weak.lines.contains(&at.line());
    match (WEAKNESS.as_ref().filter(is_here), order) {
        (None, _) => order,
        (Some(Weakness { releases: true, .. }), Ordering::AcqRel) => Ordering::Acquire,
        (Some(Weakness { releases: true, .. }), Ordering::Release) => Ordering::Relaxed,
        (
            Some(Weakness {
                releases: false, ..
            }),
            Ordering::AcqRel,
        ) => Ordering::Release,
        (
            Some(Weakness {
                releases: false, ..
            }),
            Ordering::Acquire,
        ) => Ordering::Relaxed,
        (Some(_), _) => order,
    }
}

std::thread_local!(static SPAWNED: Cell<usize> = const { Cell::new(0) });

/// Returns how many threads the library has started since the last call.
pub fn take_spawned() -> usize {
    SPAWNED.take()
}

pub(super) fn count_spawn() {
    SPAWNED.set(SPAWNED.get() + 1);
}
