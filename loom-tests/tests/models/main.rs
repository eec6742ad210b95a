//! Each race that a reviewer would ask about, explored over every interleaving that the memory model allows (where `explore`
//! is given a number: over those with at most so many preemptions); and mutants of each, the same model over code
//! with one thing taken out, which has to fail.
//!
//! Everything runs the library's own code: the timer is driven, so that a turn of the worker is a call, and its clock stands
//! where the model puts it. Only the models of starting and sleeping have a real (loom) worker thread.
//!
//! # Who meets whom
//!
//! Each pair of operations, and the models of it (without their module where it is the row's). *Turn* is transfer and expiry;
//! *last drop* is that of the last handle.
//!
//! | | | models |
//! |---|---|---|
//! | new timeout | new timeout | `limit::the_limit_is_exact`, `sleep::two_new_timeouts_wake_…`, `promise::two_new_timeouts_wake_…` |
//! | | start | `start::a_start_and_a_new_timeout_start_one_worker` |
//! | | transfer | `ends::what_two_threads_schedule_fires_…`, `ends::a_cancel_in_the_queue_…`; by themselves, `lanes::what_two_threads_push_…` |
//! | | expiry | `limit::an_expiry_makes_room_…`: they share the count alone |
//! | | falling asleep | `sleep::a_new_timeout_wakes_…`, `a_worker_sees_two_new_timeouts_…`, `…_so_many_new_timeouts_…`; `promise::…`, with a cancel `a_promise_is_not_taken_back` |
//! | | stop | `stop::nothing_is_lost_between_…`, also of two; with a turn `what_comes_in_a_turn_…`; not started `start::a_new_timeout_that_starts_…` |
//! | | last drop | `stop::…_through_a_timeout_and_the_last_drop`; who has a handle of the other kind holds up the last drop |
//! | | driver's drop | `stop::…_and_the_drivers_drop` |
//! | | hand-off | –: they meet in the count alone, and it falls before the hand-off |
//! | cancel | new timeout | `limit::a_cancel_makes_room_…`, of one and of two |
//! | | cancel | `ends::one_of_two_cancels_wins`, through one handle `…_through_one_handle_wins` |
//! | | clone of the handle | `ends::a_handle_that_is_cloned_…` |
//! | | reset, earlier | `reset::a_reset_does_not_bring_back_…`, of what is in the wheel and of what is taken back; with a turn `a_cancel_against_a_reset_against_a_turn_…` |
//! | | reset, later | `reset::a_reset_to_a_later_deadline_does_not_bring_back_…` |
//! | | transfer | `ends::a_cancel_during_the_transfer_…`, `a_cancel_elsewhere_…`; with a new timeout `a_cancel_in_the_queue_…`, in the same node `arena::a_node_that_was_taken_back_…`; by itself, `lanes::a_message_is_taken_or_taken_back` |
//! | | expiry, hand-off, refusal | `ends::one_of_cancel_and_expire_wins`, `handoff::of_cancel_and_the_hand_off_…`, `of_cancel_and_a_refusal_…` |
//! | | falling asleep | `sleep::a_cancel_wakes_…`, `a_worker_sees_a_cancel_…`; –: a driver is not woken for it |
//! | | stop, last drop, driver's drop | `ends::one_of_cancel_and_stop_wins`, `one_of_cancel_in_the_queue_…`, `…_the_last_drop_wins`, `stop::…_the_drivers_drop_wins` |
//! | reset, earlier | reset, either | `reset::resets_both_ways_…`, `promise::two_resets_…` |
//! | | transfer, expiry | `reset::a_reset_to_an_earlier_deadline_reaches_…`, `…_meets_the_expiry`, `a_reset_while_a_backlog_…` |
//! | | falling asleep | `sleep::a_reset_to_an_earlier_…`, `a_worker_sees_a_reset_…`; `promise::two_resets_…` |
//! | | stop | `reset::a_reset_keeps_nothing_from_stop`; the drops end in a stop |
//! | reset, later | reset, later | –: one compare-exchange each, the same as of cancel and cancel |
//! | | transfer, expiry | `reset::a_reset_to_a_later_deadline_meets_the_transfer`, `a_reset_that_was_in_time_…` |
//! | | falling asleep | –: it tells nobody |
//! | | stop | `reset::a_reset_to_a_later_deadline_keeps_nothing_…` |
//! | reset, either | drop of its handle, turn | `arena::a_reset_is_not_undone_…`, `a_reset_whose_handle_goes_…` |
//! | | new timeout, start, hand-off | –: no word in common but `look`'s, which changes nothing; expired before the hand-off |
//! | turn | turn | –: the worker's lock; a driver turns by `&mut` |
//! | | stop, last drop | `stop::stop_takes_what_…`, `what_comes_in_a_turn_…`; `the_last_handle_ends_…` |
//! | | driver's drop | –: it has the driver |
//! | hand-off, refusal | stop | `handoff::stop_leaves_alone_…`, `a_refusal_keeps_nothing_from_stop` |
//! | | last drop | `handoff::the_last_drop_leaves_alone_…`, by a task itself `stop::a_task_that_drops_…` |
//! | start | start, stop | `start::two_starts_…`, `a_stop_ends_…` |
//! | | last drop | –: who starts has a handle |
//! | stop | stop | `stop::of_two_stops_…` |
//! | | falling asleep | `sleep::a_stop_wakes_…` |
//! | | last drop | `stop::a_stop_through_a_timeout_…`, by a task `a_task_that_drops_the_last_handle_meets_a_stop` |
//! | | driver's drop | `stop::a_stop_and_the_drivers_drop_…`, `who_stops_a_loop_…` |
//! | | limit's refusal | `limit::a_refusal_leaves_the_count_to_stop` |
//! | a run of what repeats, and its end | cancel | `periodic::a_cancel_during_…`, here and elsewhere; where it panics `of_a_cancel_and_a_panic_…` |
//! | | turn | `periodic::a_run_elsewhere_is_followed_…` |
//! | | stop | `periodic::of_stop_and_a_turn_…`, elsewhere `stop_ends_what_…` |
//! | | falling asleep | as a reset to an earlier deadline |
//! | shutdown | new timeout | `shutdown::what_is_accepted_and_due_…`, `what_is_accepted_and_not_due_…`; of its clock `…_has_read_the_clock_…` |
//! | | cancel | `shutdown::one_of_cancel_and_shutdown_wins` |
//! | | reset, earlier | `shutdown::a_reset_keeps_nothing_from_shutdown`; –: later, it is one compare-exchange with the turn |
//! | | turn, falling asleep | `shutdown::a_turn_is_not_cut_short_…`; `a_worker_that_falls_asleep_…`; one that `stop` has cut short `what_a_turn_leaves_…` |
//! | | poll with another waker | `shutdown::a_poll_with_another_waker_…` |
//! | | start | `shutdown::a_shutdown_ends_a_worker_…` |
//! | | stop, driver's drop, shutdown | `shutdown::a_stop_ends_…`, `the_drivers_drop_ends_…`, `of_two_shutdowns_…` |
//! | | last drop | –: who shuts it down has a handle |
//! | drop or clone of a timeout's handle | the same, turn | `arena::of_a_handle_and_the_entry_…`, `of_a_handle_its_clone_…`, `a_node_is_used_again_…`; of one that was taken back `of_two_handles_…`, `a_node_that_is_merged_…` |
//! | thread's end | turn | `lanes::a_lane_goes_…`; in a whole timer, only under shuttle |
//! | first poll of a future | turn, stop | `wakers::a_first_poll_…`; it is a new timeout, and meets all else as that does |
//! | poll with another waker | turn | `wakers::who_polls_last_…`: transfer by the same thread and another, expiry |
//! | | new timeout | `wakers::a_poll_with_another_waker_takes_no_second_place`: they share the count alone |
//! | | falling asleep | `wakers::a_worker_sees_so_many_polls_…`, `…_keeps_a_loop_to_its_promise` |
//! | | stop | `wakers::a_poll_with_another_waker_meets_a_stop`, `…_of_what_is_placed_…`; the drops end in a stop |
//! | drop of a future | turn, stop | `wakers::a_drop_meets_…`; it is a cancel, and meets all else as that does |
//! | by key: schedule | schedule, expiry, stop | `keyed::of_two_schedules_…`, `of_a_replacement_…`, `a_task_that_is_faster_…`, `a_schedule_leaves_…`, `a_replacement_and_stop_…` |
//! | by key: cancel, reset | expiry | `keyed::of_a_cancel_…`, `a_reset_that_was_…` |
//! | by key: clear, last drop | expiry | –: the same as of cancel, under the same lock |
//! | a look at the wheel | turn | –: the worker's lock; who finds it taken does not look |
//! | | stop | `stop::who_looks_at_the_wheel_…` |
//! | last drop | last drop, a timeout's handle | `stop::of_two_last_handles_…`, `a_handle_from_a_timeout_…` |
//! | | driver's drop | –: both are a stop and no more |
//!
//! What one sees of what another did before is in `orders`. In `lanes` and `arena` are parts of the timer by themselves. Where
//! a node has its task is no atomic, but loom sees who is there: in each model, nobody is who nothing orders after the one
//! before.
//!
//! In loom's models a thread that ends keeps its lane and its vacant nodes (or each look of the worker's would be tried before
//! and after each thread's end), and the worker knows all lanes from the beginning.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::time::Duration;

use hashed_wheel::inside::{FreeNode, Nodes, take_spawned};
use hashed_wheel::{
    Builder, Clock, Driver, ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout, TimerTask,
};
use loom::thread;

use explore::{explore, mutant, no_acquire, no_release};

mod arena;
mod ends;
mod explore;
mod handoff;
mod keyed;
mod lanes;
mod limit;
mod orders;
mod periodic;
mod promise;
mod reset;
mod shutdown;
mod sleep;
mod start;
mod stop;
mod timer_ref;
mod wakers;

const TICK: Duration = Duration::from_millis(1);

// --- what the models are made of --------------------------------------------------------------------------------------

/// What became of one timeout: each count is of calls, and all together may make one.
#[derive(Default)]
struct Ends {
    runs: AtomicUsize,
    hooks: AtomicUsize,
    drops: AtomicUsize,
}

struct Task(Arc<Ends>);

impl TimerTask for Task {
    fn run(self, _: &Timeout) {
        self.0.runs.fetch_add(1, Relaxed);
    }

    fn cancelled(self, _: &Timeout) {
        self.0.hooks.fetch_add(1, Relaxed);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Relaxed);
    }
}

impl Ends {
    #[track_caller]
    fn assert(&self, runs: usize, hooks: usize) {
        let ends = (self.runs.load(Relaxed), self.hooks.load(Relaxed), self.drops.load(Relaxed));
        assert_eq!(ends, (runs, hooks, 1), "exactly one end");
    }
}

/// What every timer here has in common.
fn small() -> Builder {
    HashedWheelTimer::builder().tick(TICK).ticks_per_wheel(2)
}

fn schedule(timer: &HashedWheelTimer, ticks: u32) -> (Timeout, Arc<Ends>) {
    let ends = Arc::new(Ends::default());
    (timer.new_timeout_task(Task(Arc::clone(&ends)), TICK * ticks).unwrap(), ends)
}

/// A timer that the model turns.
struct Driven {
    timer: HashedWheelTimer,
    driver: Driver,
    clock: ManualClock,
}

impl Driven {
    fn new() -> Self {
        Self::with_limit(0)
    }

    fn with_limit(limit: usize) -> Self {
        Self::build(|builder| builder.max_pending_timeouts(limit))
    }

    fn build(settings: impl FnOnce(Builder) -> Builder) -> Self {
        let clock = ManualClock::new();
        let (timer, driver) = settings(small().clock(clock.clone())).build_driven().unwrap();
        Self { timer, driver, clock }
    }

    fn schedule(&self, ticks: u32) -> (Timeout, Arc<Ends>) {
        schedule(&self.timer, ticks)
    }

    /// Turns `driver` on a thread of its own; how many timeouts expired. (The driver comes back, for dropping it stops the
    /// timer.)
    fn turn(mut driver: Driver) -> thread::JoinHandle<(usize, Driver)> {
        thread::spawn(move || (driver.turn(), driver))
    }

    /// A timeout that the worker has put into the wheel.
    fn schedule_placed(&mut self, ticks: u32) -> (Timeout, Arc<Ends>) {
        let scheduled = self.schedule(ticks);
        assert_eq!(self.driver.turn(), 0);
        scheduled
    }
}

/// A clock whose time the model sees: a thread may have read it and not gone on.
#[derive(Clone, Default)]
struct Seen(Arc<loom::sync::atomic::AtomicU64>);

impl Clock for Seen {
    fn now(&self) -> Duration {
        TICK * self.0.fetch_add(0, AcqRel) as u32
    }
}

/// Waited for, for as long as it takes.
#[derive(Default)]
struct Bell(loom::sync::Mutex<bool>, loom::sync::Condvar);

impl Bell {
    fn ring(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn ring_when_dropped(&self, handle: HashedWheelTimer) {
        drop(handle);
        self.ring();
    }

    fn wait(&self) {
        let mut rung = self.0.lock().unwrap();
        while !*rung {
            rung = self.1.wait(rung).unwrap();
        }
    }
}
