//! Programs that the compiler must reject. Each stands next to a program that compiles and differs
//! from it only in the detail that is wrong.
//!
//! Only a nightly rustdoc checks the error codes; `.ci/deep` runs it.

/// A task must be `Send`, because it runs on another thread.
///
/// ```
/// # use {hashed_wheel::HashedWheelTimer, std::sync::Arc, std::time::Duration};
/// let name = Arc::new("ring");
/// let _ = HashedWheelTimer::default().new_timeout(move |_| println!("{name}"), Duration::ZERO);
/// ```
///
/// ```compile_fail,E0277
/// # use {hashed_wheel::HashedWheelTimer, std::rc::Rc, std::time::Duration};
/// let name = Rc::new("ring");
/// let _ = HashedWheelTimer::default().new_timeout(move |_| println!("{name}"), Duration::ZERO);
/// ```
struct TaskIsNotSend;

/// A task must be `'static`, because it outlives the function that schedules it.
///
/// ```
/// # use {hashed_wheel::HashedWheelTimer, std::time::Duration};
/// let name = "ring";
/// let _ = HashedWheelTimer::default().new_timeout(move |_| println!("{name}"), Duration::ZERO);
/// ```
///
/// ```compile_fail,E0597
/// # use {hashed_wheel::HashedWheelTimer, std::time::Duration};
/// # let owner = String::from("ring");
/// let name = &*owner;
/// let _ = HashedWheelTimer::default().new_timeout(move |_| println!("{name}"), Duration::ZERO);
/// ```
struct TaskBorrows;

/// A type that implements `TimerTask` must be `Send`.
///
/// ```
/// # use {hashed_wheel::{Timeout, TimerTask}, std::sync::Arc};
/// struct Task(Arc<str>);
///
/// impl TimerTask for Task {
///     fn run(self, _: &Timeout) {}
/// }
/// ```
///
/// ```compile_fail,E0277
/// # use {hashed_wheel::{Timeout, TimerTask}, std::rc::Rc};
/// struct Task(Rc<str>);
///
/// impl TimerTask for Task {
///     fn run(self, _: &Timeout) {}
/// }
/// ```
struct TaskTypeIsNotSend;

/// A task executor must be `Sync`: the worker calls it, and the worker can be on several threads
/// over time.
///
/// ```
/// # use {hashed_wheel::executor::from_fn, std::sync::atomic::{AtomicU32, Ordering::Relaxed}};
/// let runs = AtomicU32::new(0);
/// let _ = from_fn(move |task| { runs.fetch_add(1, Relaxed); task.run(); Ok(()) });
/// ```
///
/// ```compile_fail,E0277
/// # use {hashed_wheel::executor::from_fn, std::cell::Cell};
/// let runs = Cell::new(0);
/// let _ = from_fn(move |task| { runs.set(1); task.run(); Ok(()) });
/// ```
struct ExecutorIsNotSync;

/// A waker must be `Sync`, because several threads can call it at the same time.
///
/// ```
/// # use {hashed_wheel::HashedWheelTimer, std::sync::atomic::{AtomicU32, Ordering::Relaxed}};
/// let calls = AtomicU32::new(0);
/// let _ = HashedWheelTimer::builder().waker(move || { calls.fetch_add(1, Relaxed); });
/// ```
///
/// ```compile_fail,E0277
/// # use {hashed_wheel::HashedWheelTimer, std::cell::Cell};
/// let calls = Cell::new(0);
/// let _ = HashedWheelTimer::builder().waker(move || { calls.set(1); });
/// ```
struct WakerIsNotSync;

/// An expired task runs at most once.
///
/// ```
/// # use hashed_wheel::ExpiredTask;
/// fn execute(task: ExpiredTask) {
///     task.run();
/// }
/// ```
///
/// ```compile_fail,E0382
/// # use hashed_wheel::ExpiredTask;
/// fn execute(task: ExpiredTask) {
///     task.run();
///     task.run();
/// }
/// ```
struct TaskRunsTwice;

/// Only one thread at a time can turn a driver.
///
/// ```
/// # use hashed_wheel::Driver;
/// fn turn(driver: &mut Driver) -> usize { driver.turn() }
/// ```
///
/// ```compile_fail,E0596
/// # use hashed_wheel::Driver;
/// fn turn(driver: &Driver) -> usize { driver.turn() }
/// ```
struct DriverTurnsThroughSharedReference;

/// A timer has one driver, which cannot be cloned.
///
/// ```
/// # use hashed_wheel::HashedWheelTimer;
/// fn another(timer: &HashedWheelTimer) -> HashedWheelTimer { timer.clone() }
/// ```
///
/// ```compile_fail,E0308
/// # use hashed_wheel::Driver;
/// fn another(driver: &Driver) -> Driver { driver.clone() }
/// ```
struct DriverIsCloned;

/// `cancel_on_drop` moves the timeout into the guard.
///
/// ```
/// # use hashed_wheel::Timeout;
/// fn guard(timeout: Timeout) -> bool {
///     let _guard = timeout.clone().cancel_on_drop();
///     timeout.is_expired()
/// }
/// ```
///
/// ```compile_fail,E0382
/// # use hashed_wheel::Timeout;
/// fn guard(timeout: Timeout) -> bool {
///     let _guard = timeout.cancel_on_drop();
///     timeout.is_expired()
/// }
/// ```
struct TimeoutIsUsedAfterCancelOnDrop;

/// A later version may add variants to `NewTimeoutError`.
///
/// ```
/// # use hashed_wheel::NewTimeoutError;
/// fn is_permanent(error: NewTimeoutError) -> bool {
///     match error {
///         NewTimeoutError::Stopped => true,
///         NewTimeoutError::TooManyPending { .. } | NewTimeoutError::Spawn { .. } => false,
///         _ => false,
///     }
/// }
/// ```
///
/// ```compile_fail,E0004
/// # use hashed_wheel::NewTimeoutError;
/// fn is_permanent(error: NewTimeoutError) -> bool {
///     match error {
///         NewTimeoutError::Stopped => true,
///         NewTimeoutError::TooManyPending { .. } | NewTimeoutError::Spawn { .. } => false,
///     }
/// }
/// ```
struct ErrorsAreMatchedExhaustively;

/// A later version may add fields to `Stats`.
///
/// ```
/// # use hashed_wheel::Stats;
/// fn pending(Stats { pending, .. }: Stats) -> u64 { pending }
/// let none = Stats::default();
/// ```
///
/// ```compile_fail,E0639
/// # use hashed_wheel::Stats;
/// fn pending(Stats { pending, .. }: Stats) -> u64 { pending }
/// let none = Stats { ..Stats::default() };
/// ```
struct StatsAreConstructed;

/// The callback of `advance` cannot access the wheel.
///
/// ```
/// # use hashed_wheel::wheel::HashedWheel;
/// let (mut wheel, mut again) = (HashedWheel::new(8), Vec::new());
/// wheel.insert(1, "ring");
/// wheel.advance(1, |entry| again.push((2, entry)));
/// ```
///
/// ```compile_fail,E0499
/// # use hashed_wheel::wheel::HashedWheel;
/// let mut wheel = HashedWheel::new(8);
/// wheel.insert(1, "ring");
/// wheel.advance(1, |entry| drop(wheel.insert(2, entry)));
/// ```
struct WheelIsChangedWhileItAdvances;

/// A wheel is `Send` only if its values are.
///
/// ```
/// # use {hashed_wheel::wheel::HierarchicalWheel, std::sync::Arc};
/// let wheel = HierarchicalWheel::<Arc<str>>::new(8);
/// std::thread::spawn(move || wheel.len());
/// ```
///
/// ```compile_fail,E0277
/// # use {hashed_wheel::wheel::HierarchicalWheel, std::rc::Rc};
/// let wheel = HierarchicalWheel::<Rc<str>>::new(8);
/// std::thread::spawn(move || wheel.len());
/// ```
struct WheelOfValuesThatAreNotSend;

/// The compiler warns if a guard, an expired task or a builder is dropped without use.
///
/// ```
/// #![deny(unused_must_use)]
/// # use hashed_wheel::{Builder, ExpiredTask, Timeout};
/// fn ignores_results(builder: Builder, task: ExpiredTask, timeout: Timeout) {
///     let _ = builder.ticks_per_wheel(8);
///     let _ = timeout.cancel_on_drop();
/// }
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use hashed_wheel::{Builder, ExpiredTask, Timeout};
/// fn ignores_results(builder: Builder, task: ExpiredTask, timeout: Timeout) {
///     builder.ticks_per_wheel(8);
///     let _ = timeout.cancel_on_drop();
/// }
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use hashed_wheel::{Builder, ExpiredTask, Timeout};
/// fn ignores_results(builder: Builder, task: ExpiredTask, timeout: Timeout) {
///     let _ = builder.ticks_per_wheel(8);
///     timeout.cancel_on_drop();
/// }
/// ```
struct MustUseIsIgnored;
