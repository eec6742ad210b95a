//! A task of any type in a place of fixed size.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, align_of, size_of};
use std::ptr;

use crate::core::Core;
use crate::sync::Access;
use crate::task::{Next, Task};
use crate::timeout::Timeout;

/// What is left of a cache line: a task of up to three words needs no memory of its own, others are boxed.
type Space = [usize; 3];

/// What can be done with a task once its type is forgotten. Each takes it out, but for `repeat`.
struct Ops {
    run: unsafe fn(*mut Space, &Timeout),
    /// Of a task that runs again and again.
    repeat: Option<Repeat>,
    cancelled: unsafe fn(*mut Space, &Timeout),
    discard: unsafe fn(*mut Space),
    name: fn() -> &'static str,
    is_plain: bool,
    runs_on_worker: bool,
}

type Repeat = unsafe fn(*mut Space, &Core, bool) -> Option<Next>;

/// Holds a task, or what is left of one that was taken out.
pub(super) struct TaskCell {
    ops: UnsafeCell<&'static Ops>,
    space: UnsafeCell<MaybeUninit<Space>>,
    /// To the models, `ops` and `space`.
    seen: [Access; 2],
}

// SAFETY: tasks are `Send`, and the methods say who may call them: never two at once, but for `name`, which reads what only
// `put` writes.
unsafe impl Send for TaskCell {}
// SAFETY: as above.
unsafe impl Sync for TaskCell {}

struct Of<T>(T);

impl<T: Task> Of<T> {
    const FITS: bool = size_of::<T>() <= size_of::<Space>() && align_of::<T>() <= align_of::<Space>();

    const OPS: &'static Ops = &Ops {
        // SAFETY: the caller's, as of `take`.
        run: |space, timeout| unsafe { Self::take(space) }.run(timeout),
        repeat: match T::REPEATS {
            // SAFETY: the caller's, as of `borrow`.
            true => Some(|space, core, runs| unsafe { Self::borrow(space) }.repeat(core, runs)),
            false => None,
        },
        // SAFETY: as above.
        cancelled: |space, timeout| unsafe { Self::take(space) }.cancelled(timeout),
        // SAFETY: as above.
        discard: |space| drop(unsafe { Self::take(space) }),
        name: T::name,
        is_plain: T::IS_PLAIN && Self::FITS,
        runs_on_worker: T::RUNS_ON_WORKER,
    };

    /// Moves the task out.
    ///
    /// # Safety
    ///
    /// A `T` that `put` has written is there, and nobody else reads it, now or later.
    unsafe fn take(space: *mut Space) -> T {
        if Self::FITS {
            // SAFETY: the caller's; `FITS` says that it lies there itself.
            unsafe { space.cast::<T>().read() }
        } else {
            // SAFETY: the caller's; `put` has left the box there.
            *unsafe { space.cast::<Box<T>>().read() }
        }
    }

    /// Leaves the task where it is.
    ///
    /// # Safety
    ///
    /// A `T` that `put` has written is there, and nobody else has it until the reference is gone.
    unsafe fn borrow<'a>(space: *mut Space) -> &'a mut T {
        if Self::FITS {
            // SAFETY: as of `take`.
            unsafe { &mut *space.cast::<T>() }
        } else {
            // SAFETY: as of `take`.
            unsafe { &mut *space.cast::<Box<T>>() }
        }
    }
}

impl TaskCell {
    pub(super) fn empty() -> Self {
        const NOTHING: &Ops = &Ops {
            run: |_, _| (),
            repeat: None,
            cancelled: |_, _| (),
            discard: |_| (),
            name: || "(none)",
            is_plain: true,
            runs_on_worker: false,
        };
        Self {
            ops: UnsafeCell::new(NOTHING),
            space: UnsafeCell::new(MaybeUninit::uninit()),
            seen: [Access::new(), Access::new()],
        }
    }

    /// Puts a task in.
    ///
    /// # Safety
    ///
    /// Nobody else has the cell, and none is in it.
    #[inline]
    pub(super) unsafe fn put<T: Task>(&self, task: T) {
        self.seen.iter().for_each(Access::change);
        let space = self.space.get().cast::<Space>();
        // SAFETY: the caller's; the place is large enough and aligned, as `FITS` says, or as a box needs it.
        unsafe {
            *self.ops.get() = Of::<T>::OPS;
            if Of::<T>::FITS {
                ptr::write(space.cast::<T>(), task);
            } else {
                ptr::write(space.cast::<Box<T>>(), Box::new(task));
            }
        }
    }

    /// # Safety
    ///
    /// A task is in the cell, and it is the caller's.
    pub(super) unsafe fn run(&self, timeout: &Timeout) {
        self.take();
        // SAFETY: the caller's; `ops` are those of the task's type.
        unsafe { ((*self.ops.get()).run)(self.space.get().cast(), timeout) }
    }

    /// A run of a task that repeats, which stays in the cell; or none, if it is not to run this time. Says when the next one
    /// is due, unless there is none.
    ///
    /// # Safety
    ///
    /// As of [`run`](Self::run).
    pub(super) unsafe fn repeat(&self, core: &Core, runs: bool) -> Option<Next> {
        self.take();
        // SAFETY: as there.
        unsafe { ((*self.ops.get()).repeat?)(self.space.get().cast(), core, runs) }
    }

    /// Whether the task that is or was in it runs again and again.
    ///
    /// # Safety
    ///
    /// Nobody puts one in at the same time.
    #[inline]
    pub(super) unsafe fn repeats(&self) -> bool {
        // SAFETY: the caller's.
        unsafe { (*self.ops.get()).repeat.is_some() }
    }

    /// # Safety
    ///
    /// As of [`run`](Self::run).
    pub(super) unsafe fn cancelled(&self, timeout: &Timeout) {
        self.take();
        // SAFETY: as there.
        unsafe { ((*self.ops.get()).cancelled)(self.space.get().cast(), timeout) }
    }

    /// # Safety
    ///
    /// As of [`run`](Self::run).
    pub(super) unsafe fn discard(&self) {
        self.take();
        // SAFETY: as there.
        unsafe { ((*self.ops.get()).discard)(self.space.get().cast()) }
    }

    /// Whether nothing happens when the task that is or was in it is dropped.
    ///
    /// # Safety
    ///
    /// Nobody puts one in at the same time.
    #[inline]
    pub(super) unsafe fn is_plain(&self) -> bool {
        // SAFETY: the caller's.
        unsafe { (*self.ops.get()).is_plain }
    }

    /// Whether the task that is or was in it is not for a task executor.
    ///
    /// # Safety
    ///
    /// Nobody puts one in at the same time.
    pub(super) unsafe fn runs_on_worker(&self) -> bool {
        // SAFETY: the caller's.
        unsafe { (*self.ops.get()).runs_on_worker }
    }

    /// The type of the task that is or was in it.
    ///
    /// # Safety
    ///
    /// Nobody puts one in at the same time.
    pub(super) unsafe fn name(&self) -> &'static str {
        self.seen[0].look();
        // SAFETY: the caller's.
        unsafe { ((*self.ops.get()).name)() }
    }

    #[inline]
    #[track_caller]
    fn take(&self) {
        self.seen[0].look();
        self.seen[1].change();
    }
}
