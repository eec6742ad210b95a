//! The races of the timer, explored over every execution that the memory model allows. (If
//! `explore` is given a number, over the executions with at most this many preemptions. `bound` is
//! a smaller number for expensive models, with which `.ci/run` explores them. `explore_in_deep`
//! checks the mutants of a model in `.ci/deep` alone.) Each model has mutants, with which it has to
//! fail.
//!
//! The models run the library's own code. The timer is driven, so a turn of the worker is a call,
//! and the model sets its clock. Only the models of starting and sleeping have a real worker
//! thread, which is one of loom's threads.
//!
//! # Pairs of operations
//!
//! Each pair of operations, and its models. *Drain* means that the worker takes a message out of a
//! lane and puts the node into the wheel; *turn* is drain and expiry; *last drop* is the drop of
//! the last handle. A dash means that the pair needs no model, and why.
//!
//! | | | models |
//! |---|---|---|
//! | new timeout | new timeout | `limit::limit_is_exact`, `sleep::two_new_timeouts_wake_a_worker_that_falls_asleep`, `announce::two_new_timeouts_wake_a_loop_that_turns_in_between`, `announce::loop_is_woken_once_per_announced_sleep` |
//! | | start | `start::start_and_new_timeout_start_one_worker` |
//! | | drain | `ends::timeouts_of_two_threads_fire_in_order_of_each`, `ends::cancel_in_lane_keeps_the_timeout_behind_it`; lanes alone: `lanes::messages_of_one_thread_arrive_in_order`, `lanes::messages_of_two_threads_arrive_in_order_of_each`, `lanes::portions_of_two_lanes_arrive_in_order_of_each` |
//! | | expiry | `limit::expiry_makes_room_before_the_task_runs`: they share the count alone |
//! | | falling asleep | `sleep::new_timeout_wakes_a_worker_that_falls_asleep`, `sleep::worker_sees_a_new_timeout_or_is_woken`, `sleep::worker_sees_two_new_timeouts_or_is_woken`; driver: `announce::new_timeout_wakes_a_loop_that_announced_a_later_turn`, with a cancel `announce::announced_turn_is_kept` |
//! | | stop | `stop::new_timeout_is_not_lost_by_stop`, `stop::two_new_timeouts_are_not_lost_by_stop`; with a turn: `stop::new_timeout_during_a_stopped_turn_ends_once`; timer not started: `start::timeout_that_starts_the_worker_ends_with_it` |
//! | | count of pending timeouts | `pending::count_is_never_negative`, `pending::count_includes_the_registration_of_what_another_thread_has_cancelled`; what the worker has ended: `pending::count_includes_the_registration_of_what_has_expired`, or an executor: `pending::count_includes_the_registration_of_what_has_ended_on_an_executor`, or `stop`: `pending::count_includes_the_registration_of_what_stop_has_cancelled` |
//! | | last drop | `stop::new_timeout_through_a_timeout_is_not_lost_by_last_drop`; –: a caller with a handle of the timer prevents the last drop |
//! | | driver's drop | `stop::new_timeout_is_not_lost_by_driver_drop` |
//! | | dispatch to an executor | –: they share the count alone, and the timeout is deregistered before the dispatch |
//! | cancel | new timeout | `limit::cancel_makes_room_before_it_returns`, `limit::cancel_makes_room_for_one_of_two` |
//! | | cancel | `ends::one_of_two_cancels_wins`, through one handle `ends::one_of_two_cancels_through_one_handle_wins` |
//! | | clone of the handle | `ends::merged_wheel_ref_is_not_taken_for_a_handle` |
//! | | reset, earlier | `reset::reset_does_not_revive_a_cancelled_timeout`, `reset::reset_does_not_revive_a_timeout_that_was_taken_back`; with a turn: `reset::cancel_during_reset_and_turn_leaves_nothing` |
//! | | reset, later | `reset::reset_to_later_deadline_does_not_revive_a_cancelled_timeout` |
//! | | drain | `ends::cancel_during_drain_leaves_nothing`, `ends::cancel_on_another_thread_during_drain_leaves_nothing`; with a new timeout: `ends::cancel_in_lane_keeps_the_timeout_behind_it`, in the same node: `refs::taken_back_node_is_recycled_once`; lanes alone: `lanes::message_is_taken_or_taken_back` |
//! | | expiry, dispatch, rejection by the executor | `ends::cancel_or_expiry_wins`, `dispatch::cancel_or_dispatch_wins`, `dispatch::cancel_or_rejection_by_executor_wins` |
//! | | falling asleep | `sleep::cancel_wakes_a_sleeping_worker`, `sleep::worker_sees_a_cancel_or_is_woken`; –: a cancel does not wake a driver's loop |
//! | | stop, last drop, driver's drop | `ends::cancel_or_stop_wins`, `ends::cancel_in_lane_or_stop_wins`, `ends::cancel_or_last_drop_wins`, `stop::cancel_or_driver_drop_wins` |
//! | cancel that gives up its handle | cancel, clone of the handle | `discard::discard_or_cancel_of_a_clone_wins`, `discard::discard_in_the_wheel_leaves_a_clone_alone`; its reference alone: `discard::handle_that_goes_with_a_message_is_released_once` |
//! | | drain, expiry | `discard::discard_during_drain_leaves_nothing`, `discard::discard_or_expiry_wins` |
//! | | run of a periodic task | `discard::discard_of_a_periodic_task_is_final` |
//! | | stop, cancel_all | `discard::discard_or_stop_wins`, `discard::discard_in_lane_or_stop_wins`, `discard::discard_or_cancel_all_wins` |
//! | | falling asleep | `discard::worker_sees_a_discard_or_is_woken` |
//! | | reset | –: one compare-exchange each; otherwise it is a cancel |
//! | cancel_each | stop, expiry | `groups::group_or_stop_cancels_each`, `groups::group_of_discards_or_stop_cancels_each`, `groups::group_or_expiry_ends_each` |
//! | | cancel_each, cancel of a clone | `groups::one_of_two_groups_cancels_each`, `groups::group_of_discards_or_cancel_of_a_clone_wins` |
//! | | falling asleep | `groups::worker_sees_a_group_or_is_woken`, `groups::worker_sees_a_group_of_discards_or_is_woken` |
//! | | all others | –: a cancel or a discard of each timeout |
//! | reset_each | drain, expiry | `groups::group_of_resets_reaches_the_worker` |
//! | | falling asleep, reset_each | `groups::group_of_resets_wakes_a_loop_that_announced_a_later_turn`, `groups::two_groups_of_resets_wake_a_loop_that_announced_a_later_turn` |
//! | | all others | –: a reset of each timeout |
//! | cancel_all | cancel, reset | `endings::cancel_or_cancel_all_wins`, `endings::reset_does_not_revive_what_cancel_all_has_cancelled` |
//! | | turn | `endings::cancel_all_or_expiry_wins` |
//! | | new timeout | `endings::new_timeout_beside_cancel_all_ends_once` |
//! | | stop, last drop, driver's drop | –: a cancel of each timeout; the handles are taken under the worker's lock |
//! | cancel_and_wait, too late to cancel | turn, run on an executor | `endings::task_on_the_worker_is_over_after_cancel_and_wait`, `endings::task_on_an_executor_is_over_after_cancel_and_wait` |
//! | | cancel_and_wait | `endings::two_threads_wait_for_a_task_on_an_executor`, `endings::two_threads_wait_for_different_tasks_on_an_executor` |
//! | new timeout whose task comes back | stop | `endings::rejected_task_comes_back_or_stop_has_it`; otherwise it is a new timeout |
//! | wait for an end on a thread of its own | that thread | `endings::thread_that_waits_for_the_end_is_woken` |
//! | | last drop | `endings::last_drop_leaves_the_end_to_its_thread` |
//! | reset, earlier | reset, either | `reset::resets_in_both_directions_leave_one_deadline`, `announce::two_resets_wake_a_loop_that_announced_a_later_turn` |
//! | | drain, expiry | `reset::reset_to_earlier_deadline_reaches_the_worker`, `reset::reset_to_earlier_deadline_during_expiry_ends_once`, `reset::reset_during_a_backlog_inserts_the_node_once` |
//! | | falling asleep | `sleep::reset_to_earlier_deadline_wakes_a_worker_that_falls_asleep`, `sleep::worker_sees_a_reset_or_is_woken`; driver: `announce::two_resets_wake_a_loop_that_announced_a_later_turn` |
//! | | stop | `reset::reset_keeps_nothing_from_stop`; –: the drops end in a stop |
//! | reset, later | reset, later | –: one compare-exchange each, as in two cancels |
//! | | drain, expiry | `reset::reset_to_later_deadline_during_drain_moves_the_deadline`, `reset::reset_in_time_moves_the_deadline` |
//! | | falling asleep | –: it tells the worker nothing |
//! | | stop | `reset::reset_to_later_deadline_keeps_nothing_from_stop` |
//! | reset, to the same deadline | drain, expiry | `reset::reset_to_the_same_deadline_during_drain_changes_nothing`; otherwise it is a reset to a later deadline |
//! | reset, either | run of a periodic task | `periodic::reset_of_a_periodic_task_is_refused_beside_its_run` |
//! | | drop of its handle, turn | `refs::reset_survives_drop_of_its_handle`, `refs::reset_and_drop_of_its_handle_move_the_deadline` |
//! | | new timeout, start, dispatch | –: they share only the state, which both read; the timeout has expired before the dispatch |
//! | turn | turn | –: a turn has the worker's lock, and a driver turns by `&mut self` |
//! | | stop, last drop | `stop::stop_returns_timeouts_that_a_turn_has_not_expired`, `stop::new_timeout_during_a_stopped_turn_ends_once`; `stop::last_drop_ends_the_rest` |
//! | turns that run at most one task | stop | `portions::stop_returns_what_a_portion_has_left` |
//! | | cancel | `portions::cancel_or_second_portion_wins`, `portions::cancel_during_portions_of_owed_timeouts_ends_that_one` |
//! | | driver's drop | –: a turn borrows the driver |
//! | dispatch, rejection by the executor | stop | `dispatch::stop_leaves_dispatched_tasks_alone`, `dispatch::rejecting_executor_keeps_nothing_from_stop` |
//! | | last drop | `dispatch::last_drop_leaves_dispatched_tasks_alone`, by a task itself: `stop::task_that_drops_the_last_handle_ends_the_worker` |
//! | start | start, stop | `start::two_starts_start_one_worker`, `start::stop_ends_a_worker_that_is_being_started` |
//! | | last drop | –: the caller of `start` has a handle |
//! | stop | stop | `stop::one_of_two_stops_returns_all_and_the_other_waits` |
//! | | falling asleep | `sleep::stop_wakes_a_worker_that_falls_asleep` |
//! | | last drop | `stop::stop_through_a_timeout_waits_for_the_last_drop`, by a task: `stop::stop_while_a_task_drops_the_last_handle_ends_each_once` |
//! | | driver's drop | `stop::stop_and_driver_drop_wait_for_each_other`, `stop::stop_of_a_loop_returns_the_rest` |
//! | | rejection by the limit | `limit::rejection_leaves_the_count_unchanged` |
//! | run of a periodic task, and its end | cancel | `periodic::cancel_during_run_is_final`, `periodic::cancel_during_run_on_executor_is_final`, `periodic::dropped_task_sees_writes_before_cancel`; with a panic: `periodic::cancel_or_panic_ends_the_task`, `periodic::cancel_or_panic_on_executor_ends_the_task`; if it ends itself: `periodic::cancel_or_break_ends_the_task`, `periodic::cancel_or_break_on_executor_ends_the_task` |
//! | | turn | `periodic::run_on_executor_is_followed_by_the_next` |
//! | | stop | `periodic::stop_during_a_turn_ends_the_task_once`, `periodic::stop_ends_a_task_that_runs_on_executor`; if it ends itself: `periodic::stop_or_break_ends_the_task` |
//! | | shutdown | `periodic::shutdown_returns_a_task_that_does_not_continue` |
//! | | falling asleep | –: the same as a reset to an earlier deadline |
//! | a task is asked whether it postpones itself | cancel | `postpone::cancel_of_a_task_that_is_asked_is_final`, `postpone::cancel_or_answer_wins` |
//! | | reset, either; reset_each | `postpone::reset_waits_for_the_answer` |
//! | | all others | –: a turn has the worker's lock; otherwise as the run of a periodic task |
//! | shutdown | new timeout | `shutdown::accepted_due_timeout_runs_before_shutdown_returns`, `shutdown::accepted_later_timeout_is_returned_by_shutdown`; the clock: `shutdown::accepted_caller_reads_the_clock_before_shutdown` |
//! | | cancel | `shutdown::cancel_or_shutdown_wins` |
//! | | reset, earlier | `shutdown::reset_keeps_nothing_from_shutdown`; –: later, it is one compare-exchange with the turn |
//! | | turn, falling asleep | `shutdown::shutdown_does_not_cut_a_turn_short`, `shutdown::shutdown_waits_for_a_worker_that_falls_asleep`; a turn that `stop` has cut short: `shutdown::shutdown_takes_messages_about_nodes_left_to_stop` |
//! | | poll with another waker | `shutdown::poll_with_another_waker_keeps_shutdown_waiting` |
//! | | start | `shutdown::shutdown_ends_a_worker_that_is_being_started` |
//! | | stop, driver's drop, shutdown | `shutdown::stop_ends_a_shutdown`, `shutdown::driver_drop_ends_a_shutdown`, `shutdown::one_of_two_shutdowns_returns_the_rest` |
//! | | last drop | –: the caller of `shutdown` has a handle |
//! | drop or clone of a timeout's handle | the same, turn | `refs::last_of_handle_and_wheel_ref_frees_the_node`, `refs::last_of_handle_clone_and_wheel_ref_frees_the_node`, `refs::cancelled_or_expired_node_is_recycled_once`; after its message was taken back: `refs::last_of_two_handles_frees_a_merged_node`, `refs::release_does_not_read_a_recycled_node` |
//! | its reference to the timer: take, clone, give back | the same | `timer_ref::last_of_two_references_drops_the_value`, `timer_ref::last_of_two_reserves_drops_the_value`, `timer_ref::new_references_keep_the_value_when_the_last_one_goes`, `timer_ref::clone_keeps_the_value_when_another_reference_goes`; that of a future: `wakers::future_keeps_the_timer_that_has_ended` |
//! | first operation of a thread | falling asleep | `begin_end::worker_sees_a_new_lane_or_is_woken` |
//! | | stop | `begin_end::first_timeout_of_a_thread_is_not_lost_by_stop` |
//! | | count of pending timeouts | `begin_end::counts_of_a_new_thread_are_seen_whole` |
//! | | first operation of another thread | `begin_end::first_timeouts_of_two_threads_are_counted`: they share the list of counts; nodes: `pages::chunk_is_allocated_by_one_of_two` |
//! | end of a thread | turn | `begin_end::timeouts_of_an_ended_thread_fire`, `begin_end::timeouts_of_a_thread_that_ends_fire`, `begin_end::nodes_of_an_ended_thread_are_used_again`; the lane alone: `lanes::retired_lane_is_dropped_when_it_is_empty` |
//! | | first operation of another thread | `begin_end::next_thread_goes_on_with_what_an_ended_thread_has_left`, with the worker falling asleep `begin_end::worker_sees_a_push_of_the_next_thread_or_is_woken`, with the count of pending timeouts `begin_end::count_includes_the_registration_of_what_the_next_thread_takes_back` |
//! | | falling asleep | `begin_end::worker_sees_what_a_thread_leaves_or_is_woken` |
//! | | stop | `begin_end::end_of_a_thread_during_stop_leaves_nothing` |
//! | first poll of a future | turn, stop | `wakers::first_poll_is_woken_or_ready`, `wakers::first_poll_during_stop_is_woken_or_rejected`; otherwise it is a new timeout |
//! | poll with another waker | turn | `wakers::last_waker_is_woken_or_its_poll_is_ready`, `wakers::last_waker_is_woken_although_the_worker_drains`, `wakers::last_waker_is_woken_after_a_poll_on_another_thread` |
//! | | new timeout | `wakers::poll_with_another_waker_takes_no_second_place`: they share the count alone |
//! | | falling asleep | `wakers::worker_sees_polls_or_is_woken`, `wakers::poll_with_another_waker_keeps_the_announced_turn` |
//! | | stop | `wakers::poll_with_another_waker_in_lane_is_ended_by_stop`, `wakers::poll_with_another_waker_in_wheel_is_ended_by_stop`; –: the drops end in a stop |
//! | reset of a future to a time that has passed | turn, stop | `wakers::reset_to_past_or_expiry_wakes_the_task`, `wakers::reset_to_past_or_stop_wakes_the_task`; otherwise it is a cancel |
//! | drop of a future | turn, stop | `wakers::drop_or_expiry_ends_the_sleep`, `wakers::drop_or_stop_ends_the_sleep`; otherwise it is a cancel |
//! | map: insert | schedule, expiry, stop | `expiring_map::one_of_two_schedules_of_a_key_remains`, `expiring_map::replacement_or_expiry_wins`, `expiring_map::task_that_starts_before_schedule_returns_runs_once`, `expiring_map::task_that_starts_before_schedule_returns_replaces_the_current_item`, `expiring_map::schedule_during_stop_leaves_nothing`, `expiring_map::replacement_during_stop_leaves_nothing` |
//! | map: insert if absent | the same, expiry | `expiring_map::one_of_two_insertions_finds_no_entry`, `expiring_map::insertion_leaves_a_dead_entry_to_its_task`, `expiring_map::insertion_that_expires_at_once_finds_an_entry` |
//! | map: remove, touch | expiry | `expiring_map::cancel_or_expiry_wins`, `expiring_map::touch_in_time_moves_the_deadline` |
//! | map: touch | expiry by the clock, touch | `expiring_map::touch_does_not_renew_what_another_call_has_found_dead`, `expiring_map::two_touches_to_earlier_deadlines_leave_the_last_one` |
//! | map: a touched entry is asked | earlier touch, entry, stop | `expiring_map::earlier_touch_of_a_touched_item_is_not_late`, `expiring_map::touched_entry_that_a_call_has_does_not_expire`, `expiring_map::touched_value_comes_out_once_when_the_timer_stops` |
//! | | all others | –: the task that is asked takes the same lock |
//! | map: insert that takes over a timeout | expiry, touch, stop | `expiring_map::replacement_or_expiry_wins`, `expiring_map::replacement_of_a_touched_item_has_one_timeout`, `expiring_map::replacement_of_a_touched_item_that_a_call_has_is_not_late`, `expiring_map::touch_moves_the_deadline_of_an_entry_or_of_its_replacement`, `expiring_map::replacement_during_stop_leaves_nothing` |
//! | | all others | –: the same as a touch, under the same lock |
//! | map: earlier touch | entry that goes back | `expiring_map::earlier_touch_of_an_item_that_a_call_has_is_not_late` |
//! | map: insert, touch, remove | expiry | `expiring_map::value_goes_to_insert_or_to_the_handler`, `expiring_map::insert_returns_the_value_that_its_early_expiry_has_replaced`, `expiring_map::value_goes_to_remove_or_to_the_handler` |
//! | map: touch | insert | `expiring_map::touch_moves_the_deadline_of_an_entry_or_of_its_replacement` |
//! | map: insert | stop | `expiring_map::each_value_comes_out_once_when_the_timer_stops` |
//! | map: evicting insert | remove | `expiring_map::eviction_or_remove_wins` |
//! | map: entry | entry; expiry, stop | `expiring_map::two_entries_of_a_key_change_it_one_after_the_other`; `expiring_map::entry_that_a_call_has_ends_once` |
//! | map: get | write-back | `expiring_map::get_waits_until_the_entry_is_written` |
//! | map: the end of a write | expiry, stop | `expiring_map::expired_entry_is_written_after_an_older_one`, `expiring_map::stopped_entry_is_written_after_an_older_one` |
//! | map: last drop | expiry | `expiring_map::value_goes_to_the_handler_once_at_the_end_of_the_map` |
//! | poll of the receiver of a map | expiry, last drop of the map | `expiring_map::receiver_has_the_entry_or_is_woken`, `expiring_map::receiver_sees_the_end_of_the_map_or_is_woken` |
//! | map: clear, retain, eviction | expiry | –: the same as a remove, under the same lock |
//! | queue of values: poll, receive | insert, reset | `delay_queue::insert_wakes_a_consumer_that_waits`, `delay_queue::insert_wakes_a_thread_that_waits`, `delay_queue::earlier_value_is_awaited`, `delay_queue::earlier_reset_is_awaited` |
//! | | poll, drop of a consumer | `delay_queue::two_values_wake_two_consumers`, `delay_queue::dropped_consumer_passes_its_wake_up_on` |
//! | | turn, with another waker | `delay_queue::last_waker_is_woken_or_its_poll_is_ready` |
//! | | remove | `delay_queue::value_is_received_or_removed`, with a turn `delay_queue::value_behind_a_removed_one_is_awaited` |
//! | | stop | `delay_queue::stop_ends_the_wait_of_two_threads` |
//! | queue of values: all others | the same | –: each is one critical section of the same lock |
//! | arm of an alarm | expiry | `alarm::arm_or_expiry_is_first_and_no_arming_is_lost`, `alarm::alarm_that_moves_to_earlier_during_a_turn_is_not_late`, `alarm::arming_by_the_task_is_later_than_the_one_that_runs_it` |
//! | | arm | `alarm::two_armings_at_a_time_are_one` |
//! | | disarm | `alarm::disarm_finds_an_arming_or_leaves_it`; armed: –: under the lock, and then as a reset and a cancel |
//! | | stop | `alarm::arming_is_ended_by_stop_or_rejected` |
//! | disarm of an alarm | expiry | `alarm::disarm_or_expiry_ends_the_arming` |
//! | | disarm | –: one of them takes the timeout, under the lock |
//! | cancel of an alarm | arm | `alarm::cancel_ends_an_arming_by_another_thread`, by the task `alarm::cancel_during_a_run_that_arms_is_final` |
//! | | expiry, run | `alarm::cancel_or_expiry_ends_the_arming` |
//! | | stop | `alarm::cancel_or_stop_ends_the_arming` |
//! | | cancel, disarm | –: one change of the alarm's word; otherwise it is a disarm |
//! | cancel_and_wait of an alarm | run | `alarm::run_is_over_after_cancel_and_wait`, `alarm::run_that_cancels_its_alarm_is_over_after_cancel_and_wait` |
//! | run of an alarm | run | `alarm::runs_on_executor_follow_each_other` |
//! | occupancy | turn | –: it takes the worker's lock, or returns `None` |
//! | | stop | `stop::occupancy_sees_the_whole_wheel_or_nothing` |
//! | last drop | last drop, drop of a timeout's handle | `stop::one_of_two_last_handles_stops_the_timer`, `stop::handle_from_a_timeout_does_not_undo_the_last_drop`; upgrade of a weak handle: `stop::upgraded_handle_keeps_the_timer_or_there_is_none` |
//! | | driver's drop | –: both end in a stop |
//! | time for a new timeout | update of the offset between clock and counter | `clocks::time_does_not_go_back_while_another_thread_updates_the_offset`, `clocks::time_does_not_go_back_while_the_clock_is_slewed`, `clocks::time_does_not_go_back_after_a_long_update`, `clocks::offset_that_is_valid_is_not_replaced` |
//! | manual clock: read | advance | `clocks::manual_time_carries_what_was_done_before` |
//! | a thread takes a page of nodes | the worker gives out nodes of it | `pages::page_is_taken_while_a_node_comes_back` |
//! | | the worker returns memory | `pages::memory_of_free_pages_is_returned`, `pages::page_of_returned_memory_is_taken_by_one_of_two` |
//! | | the worker makes a page without memory | `pages::page_is_made_by_one_of_two` |
//!
//! `orders` has the models of what one thread sees of another thread's writes. `lanes`, `refs` and
//! `timer_ref` have models of parts of the timer.
//!
//! A node's task is not an atomic. loom sees each access to it: in every model, an access fails if
//! no order puts it after the access before.
//!
//! In all models but those of `begin_end`, the worker knows all lanes and counts from the
//! beginning, and a thread that ends keeps what it has. Otherwise loom would explore each look of
//! the worker before and after the beginning and the end of each thread. For a similar reason loom
//! sees the pointers to chunks of nodes only in `pages::chunk_is_allocated_by_one_of_two` and in
//! `pages::page_is_made_by_one_of_two`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hashed_wheel::inside::{FreeNode, Nodes, take_spawned};
use hashed_wheel::{
    Builder, Clock, Driver, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout, TimerTask,
    executor,
};
use loom::thread;

use explore::{bound, explore, explore_in_deep, mutant, no_acquire, no_release};

mod alarm;
mod announce;
mod begin_end;
mod clocks;
mod delay_queue;
mod discard;
mod dispatch;
mod endings;
mod ends;
mod expiring_map;
mod explore;
mod groups;
mod lanes;
mod limit;
mod orders;
mod pages;
mod pending;
mod periodic;
mod portions;
mod postpone;
mod refs;
mod reset;
mod shutdown;
mod sleep;
mod start;
mod stop;
mod timer_ref;
mod wakers;

const TICK: Duration = Duration::from_millis(1);

// --- parts of the models -------------------------------------------------------------------------

/// How one timeout ended: counts of calls.
#[derive(Default)]
struct Outcome {
    runs: AtomicUsize,
    hooks: AtomicUsize,
    drops: AtomicUsize,
}

struct Task(Arc<Outcome>);

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

impl Outcome {
    #[track_caller]
    fn assert(&self, runs: usize, hooks: usize) {
        let outcome = (
            self.runs.load(Relaxed),
            self.hooks.load(Relaxed),
            self.drops.load(Relaxed),
        );
        assert_eq!(outcome, (runs, hooks, 1), "a timeout ends once");
    }
}

/// Returns a builder with the settings that all timers of the models have in common.
fn small_wheel() -> Builder {
    HashedWheelTimer::builder().tick(TICK).ticks_per_wheel(2)
}

fn schedule(timer: &HashedWheelTimer, ticks: u32) -> (Timeout, Arc<Outcome>) {
    let outcome = Arc::new(Outcome::default());
    (
        timer
            .new_timeout_task(Task(Arc::clone(&outcome)), TICK * ticks)
            .unwrap(),
        outcome,
    )
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
        Self::build(|builder| builder.max_pending_timeouts((limit > 0).then_some(limit)))
    }

    fn build(settings: impl FnOnce(Builder) -> Builder) -> Self {
        let clock = ManualClock::new();
        let (timer, driver) = settings(small_wheel().clock(clock.clone()))
            .build_driven()
            .unwrap();
        Self {
            timer,
            driver,
            clock,
        }
    }

    fn schedule(&self, ticks: u32) -> (Timeout, Arc<Outcome>) {
        schedule(&self.timer, ticks)
    }

    /// Turns `driver` on another thread. Returns how many timeouts expired, and the driver, because
    /// its drop would stop the timer.
    fn turn(mut driver: Driver) -> thread::JoinHandle<(usize, Driver)> {
        thread::spawn(move || (driver.turn(), driver))
    }

    /// Schedules a timeout, and lets the worker put it into the wheel.
    fn schedule_in_wheel(&mut self, ticks: u32) -> (Timeout, Arc<Outcome>) {
        let scheduled = self.schedule(ticks);
        assert_eq!(self.driver.turn(), 0);
        scheduled
    }
}

/// A clock that loom sees. So loom explores that time passes after a thread has read the clock.
#[derive(Clone, Default)]
struct ModelClock(Arc<loom::sync::atomic::AtomicU64>);

impl Clock for ModelClock {
    fn now(&self) -> Duration {
        TICK * self.0.fetch_add(0, AcqRel) as u32
    }
}

/// An event that threads wait for.
#[derive(Default)]
struct Event(loom::sync::Mutex<bool>, loom::sync::Condvar);

impl Event {
    fn set(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn set_after_drop(&self, handle: HashedWheelTimer) {
        drop(handle);
        self.set();
    }

    fn wait(&self) {
        let mut is_set = self.0.lock().unwrap();
        while !*is_set {
            is_set = self.1.wait(is_set).unwrap();
        }
    }
}
