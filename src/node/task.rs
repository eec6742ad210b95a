//! The fields of a node: everything that the timer knows about one timeout, in one cache line. The
//! task of any type among them, in a cell of fixed size.

#![allow(unsafe_code)]

use std::any::TypeId;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, align_of, size_of};
use std::panic::RefUnwindSafe;
use std::ptr;

use super::word::StateWord;
use crate::platform::prefetch_word;
use crate::sync::unmodelled;
use crate::sync::{AtomicU32, Ordering};

/// The position of a node that is not in the wheel.
pub(super) const NOT_IN_WHEEL: u32 = u32::MAX;

/// One timeout: shared by its handles, the lanes and the wheel.
#[repr(align(64))]
pub(crate) struct Node<S: TaskContext> {
    pub(super) word: StateWord,
    /// In the wheel, the tick; before the worker has the node, the ticket of its message. The tick
    /// is read under the worker's lock. The ticket decides nothing alone: a thread that reads
    /// another value finds another message, or none, in its lane.
    pub(super) tick: unmodelled::AtomicU64,
    /// The position in the slot. Read and written only under the worker's lock.
    pub(super) position: unmodelled::AtomicU32,
    /// See [`refs`](super::refs).
    pub(super) references: AtomicU32,
    pub(super) mark: AtomicU32,
    pub(super) number: u32,
    pub(super) task: TaskCell<S>,
}

// A task is moved out before it runs, and a periodic one ends with its panic: no thread finds a
// task that a panic has left half changed.
impl<S: TaskContext> RefUnwindSafe for Node<S> {}

impl<S: TaskContext> Node<S> {
    /// Checked where the size matters: loom's atomics are larger, and with addresses of 32 bits
    /// nothing depends on the size.
    const IS_ONE_CACHE_LINE: () =
        assert!(cfg!(hashed_wheel_loom) || size_of::<Self>() == 64 || size_of::<usize>() < 8);

    pub(super) fn unused(number: u32) -> Self {
        let () = Self::IS_ONE_CACHE_LINE;
        Self {
            word: StateWord::unused(),
            tick: unmodelled::AtomicU64::new(0),
            position: unmodelled::AtomicU32::new(NOT_IN_WHEEL),
            references: AtomicU32::new(1),
            mark: AtomicU32::new(0),
            number,
            task: TaskCell::empty(),
        }
    }

    #[inline]
    pub(super) fn ticket(&self) -> u64 {
        self.tick.load(Ordering::Relaxed)
    }

    /// # Safety
    ///
    /// The node is not in the wheel, which would look for it at this tick.
    #[inline]
    pub(super) unsafe fn set_ticket(&self, ticket: u64) {
        self.tick.store(ticket, Ordering::Relaxed);
    }

    pub(crate) fn deadline(&self) -> u64 {
        self.word.deadline()
    }

    /// Returns the name of the task's type, for reports.
    pub(crate) fn name(&self) -> &'static str {
        // SAFETY: a `&Node` outside `fill` comes from a counted reference. A task is put into a
        // node before it has one, and not while it has.
        unsafe { (self.task.operations().name)() }
    }

    /// Whether the task stays in the node when it is due: a periodic one, or one that is asked.
    #[inline]
    pub(crate) fn stays(&self) -> bool {
        // SAFETY: a `&Node` outside `fill` comes from a counted reference. A task is put into a
        // node before it has one, and not while it has.
        unsafe { self.task.operations().stays }
    }

    /// Whether the task is a periodic one.
    #[inline]
    pub(crate) fn is_periodic(&self) -> bool {
        // SAFETY: a `&Node` outside `fill` comes from a counted reference. A task is put into a
        // node before it has one, and not while it has.
        unsafe { self.task.operations().repeat.is_some() }
    }
}

/// A timer, as its tasks meet it.
pub(crate) trait TaskContext: Sized + 'static {
    /// The user's handle, which a task receives.
    type Timeout;
}

/// The contents of a node: a closure, a `TimerTask`, a waker or a periodic task.
pub(crate) trait Task<S: TaskContext>: Send + Sized + 'static {
    /// The duty of a cancellation.
    const ON_CANCEL: OnCancel;

    /// Whether the worker runs it even if there is a task executor, which may refuse tasks.
    const RUNS_ON_WORKER: bool = false;

    /// Whether a future waits for it. `cancel_all` leaves it alone.
    const IS_AWAITED: bool = false;

    /// Whether it runs periodically, by [`repeat`](Self::repeat) instead of [`run`](Self::run).
    const IS_PERIODIC: bool = false;

    /// Whether it can be stored in a node. Its owner boxes one that cannot.
    const FITS: bool =
        size_of::<Self>() <= size_of::<Space>() && align_of::<Self>() <= align_of::<Space>();

    fn run(self, timeout: &S::Timeout);
    fn cancelled(self, timeout: &S::Timeout);

    /// Runs a periodic task once, or leaves this run out if `runs` is false. Returns when the next
    /// run is due, or `None` if there is none: the task has ended itself, or panicked. Does not
    /// panic.
    fn repeat(&mut self, timer: &S, runs: bool) -> Option<NextRun> {
        let _ = (timer, runs);
        None
    }

    /// Whether the worker asks [`postpone`](Self::postpone) before the timeout expires.
    const POSTPONES: bool = false;

    /// Returns the deadline to which the task postpones itself, or `None` if it is due. Does not
    /// panic.
    fn postpone(&self, timeout: &S::Timeout) -> Option<u64> {
        let _ = timeout;
        None
    }

    /// The name of the type, for reports.
    fn name() -> &'static str;
}

/// The duty of a cancellation towards the task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum OnCancel {
    Nothing,
    /// [`Task::cancelled`] only drops the task.
    Drop,
    /// The hook needs the timeout.
    CallHook,
}

/// When a periodic task is due next.
#[derive(Clone, Copy)]
pub(crate) struct NextRun {
    pub(crate) deadline: u64,
    /// The beginning of the tick in which the last run was over.
    pub(crate) tick_began: u64,
}

/// The rest of a cache line: tasks of up to three words.
type Space = [usize; 3];

/// The operations on a task of an erased type. Each but `repeat` and `postpone` moves the task out.
///
/// # Safety
///
/// The unsafe functions require a space in which `put` has written a task of their type, and a
/// caller that owns this task.
pub(super) struct Operations<S: TaskContext> {
    run: unsafe fn(*mut Space, &S::Timeout),
    /// `None` if the task is not periodic.
    pub(super) repeat: Option<Repeat<S>>,
    postpone: unsafe fn(*mut Space, &S::Timeout) -> Option<u64>,
    stays: bool,
    cancelled: unsafe fn(*mut Space, &S::Timeout),
    drop_task: unsafe fn(*mut Space),
    pub(super) name: fn() -> &'static str,
    type_id: fn() -> TypeId,
    pub(super) on_cancel: OnCancel,
    pub(super) runs_on_worker: bool,
    pub(super) is_awaited: bool,
}

type Repeat<S> = unsafe fn(*mut Space, &S, bool) -> Option<NextRun>;

/// Holds a task, or the bytes of one that was moved out; nothing before the first one.
pub(super) struct TaskCell<S: TaskContext> {
    operations: UnsafeCell<MaybeUninit<&'static Operations<S>>>,
    space: UnsafeCell<MaybeUninit<Space>>,
}

// SAFETY: a task is `Send`.
unsafe impl<S: TaskContext> Send for TaskCell<S> {}
// SAFETY: every method that reads or writes the cell is unsafe. The callers promise that one thread
// at a time uses the task, and that none reads `operations` while `put` writes them.
unsafe impl<S: TaskContext> Sync for TaskCell<S> {}

/// A task of type `T` in a cell.
struct Typed<S, T>(PhantomData<(S, T)>);

impl<S: TaskContext, T: Task<S>> Typed<S, T> {
    const OPERATIONS: &'static Operations<S> = &Operations {
        // SAFETY: the caller of `run` promises what `move_out` requires.
        run: |space, timeout| unsafe { Self::move_out(space) }.run(timeout),
        repeat: match T::IS_PERIODIC {
            true => Some(|space, timer, runs| {
                // SAFETY: the caller of `repeat` promises that a `T` is there, and that it has it.
                unsafe { &mut *space.cast::<T>() }.repeat(timer, runs)
            }),
            false => None,
        },
        // SAFETY: the caller of `postpone` promises that a `T` is there, and that it has it.
        postpone: |space, timeout| unsafe { &*space.cast::<T>() }.postpone(timeout),
        stays: T::IS_PERIODIC || T::POSTPONES,
        // SAFETY: the caller of `cancelled` promises what `move_out` requires.
        cancelled: |space, timeout| unsafe { Self::move_out(space) }.cancelled(timeout),
        // SAFETY: the caller of `drop_task` promises what `move_out` requires.
        drop_task: |space| drop(unsafe { Self::move_out(space) }),
        name: T::name,
        type_id: TypeId::of::<T>,
        on_cancel: T::ON_CANCEL,
        runs_on_worker: T::RUNS_ON_WORKER,
        is_awaited: T::IS_AWAITED,
    };

    /// Moves the task out.
    ///
    /// # Safety
    ///
    /// `put` has written a `T` there, and no other call reads it, now or later.
    unsafe fn move_out(space: *mut Space) -> T {
        // SAFETY: a `T` lies in the space, and the caller owns it.
        unsafe { space.cast::<T>().read() }
    }
}

impl<S: TaskContext> TaskCell<S> {
    pub(super) fn empty() -> Self {
        Self {
            operations: UnsafeCell::new(MaybeUninit::uninit()),
            space: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Puts a task in.
    ///
    /// # Panics
    ///
    /// If the task does not fit.
    ///
    /// # Safety
    ///
    /// No other thread uses the cell. (A task that is in it is never dropped.)
    #[inline]
    pub(super) unsafe fn put<T: Task<S>>(&self, task: T) {
        assert!(T::FITS, "the task fits into a node");
        let space = self.space.get().cast::<Space>();
        // SAFETY: the caller has the cell alone, and a `T` has room and alignment there.
        unsafe {
            *self.operations.get() = MaybeUninit::new(Typed::<S, T>::OPERATIONS);
            ptr::write(space.cast::<T>(), task);
        }
    }

    /// Runs the task, which leaves the cell.
    ///
    /// # Safety
    ///
    /// A task is in the cell, and the caller owns it.
    pub(super) unsafe fn run(&self, timeout: &S::Timeout) {
        // SAFETY: the operations are those of the type of the task, which the caller owns.
        unsafe { (self.operations().run)(self.space.get().cast(), timeout) }
    }

    /// Runs a periodic task once, or leaves out a run. The task stays in the cell. Returns when the
    /// next run is due, unless there is none.
    ///
    /// # Safety
    ///
    /// A task is in the cell, and the caller owns it.
    pub(super) unsafe fn repeat(&self, timer: &S, runs: bool) -> Option<NextRun> {
        // SAFETY: the operations are those of the type of the task, which the caller owns.
        unsafe { (self.operations().repeat?)(self.space.get().cast(), timer, runs) }
    }

    /// Asks a task whether it postpones itself: see [`Task::postpone`]. It stays in the cell.
    ///
    /// # Safety
    ///
    /// A task is in the cell, and the caller owns it.
    pub(super) unsafe fn postpone(&self, timeout: &S::Timeout) -> Option<u64> {
        // SAFETY: the operations are those of the type of the task, which the caller owns.
        unsafe { (self.operations().postpone)(self.space.get().cast(), timeout) }
    }

    /// Calls the task's hook for a cancellation. The task leaves the cell.
    ///
    /// # Safety
    ///
    /// A task is in the cell, and the caller owns it.
    pub(super) unsafe fn cancelled(&self, timeout: &S::Timeout) {
        // SAFETY: the operations are those of the type of the task, which the caller owns.
        unsafe { (self.operations().cancelled)(self.space.get().cast(), timeout) }
    }

    /// Drops the task.
    ///
    /// # Safety
    ///
    /// A task is in the cell, and the caller owns it.
    pub(super) unsafe fn drop_task(&self) {
        // SAFETY: the operations are those of the type of the task, which the caller owns.
        unsafe { (self.operations().drop_task)(self.space.get().cast()) }
    }

    /// Takes the task out.
    ///
    /// # Panics
    ///
    /// If it is of another type.
    ///
    /// # Safety
    ///
    /// A task is in the cell, and the caller owns it.
    pub(super) unsafe fn take<T: Task<S>>(&self) -> T {
        // SAFETY: only `put` writes the operations, which the owner of the task excludes.
        let type_id = unsafe { (self.operations().type_id)() };
        assert_eq!(
            type_id,
            TypeId::of::<T>(),
            "the task is of the type that was scheduled"
        );
        // SAFETY: `put` has written a `T`, as its operations say, and the caller owns it.
        unsafe { Typed::<S, T>::move_out(self.space.get().cast()) }
    }

    /// Takes the task out, to be dropped elsewhere.
    ///
    /// # Safety
    ///
    /// A task is in the cell, and the caller owns it.
    #[inline]
    pub(super) unsafe fn detach(&self) -> DetachedTask<S> {
        // SAFETY: only `put` writes the cell, which the owner of the task excludes. The task is
        // moved, and not used here any more.
        unsafe {
            DetachedTask {
                operations: self.operations(),
                space: *self.space.get(),
            }
        }
    }

    /// Prefetches what the first words of the task point to: a closure's object, a box, a waker's
    /// task. If they are no addresses, this has no effect.
    ///
    /// # Safety
    ///
    /// No thread puts a task in meanwhile.
    #[inline]
    pub(super) unsafe fn prefetch_target(&self) {
        let words = self.space.get().cast::<[MaybeUninit<usize>; 2]>();
        // SAFETY: the words may be uninitialised. They are only copied, and no other thread writes
        // them while there is a reference: a periodic task is in a box, and the worker asks.
        unsafe { words.read() }.into_iter().for_each(prefetch_word);
    }

    /// Those of the task that is or was in the cell.
    ///
    /// # Safety
    ///
    /// A task was put in, and no thread puts one in while the cell is borrowed.
    #[inline]
    pub(super) unsafe fn operations(&self) -> &'static Operations<S> {
        // SAFETY: only `put` writes the operations. It has, and no thread calls it now.
        unsafe { (*self.operations.get()).assume_init() }
    }
}

/// A task of a timeout that was cancelled, moved out of its node.
#[must_use = "a task that is lost is never dropped"]
pub(crate) struct DetachedTask<S: TaskContext> {
    operations: &'static Operations<S>,
    space: MaybeUninit<Space>,
}

impl<S: TaskContext> DetachedTask<S> {
    /// Drops the task, which may panic.
    pub(crate) fn drop_task(mut self) {
        // SAFETY: `detach` has moved a task of this type into the space, and it is dropped once.
        unsafe { (self.operations.drop_task)(self.space.as_mut_ptr()) }
    }

    /// Returns the name of its type when it is called, for reports.
    pub(crate) fn name(&self) -> fn() -> &'static str {
        self.operations.name
    }
}
