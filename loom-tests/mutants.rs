//! The mutants: changes that break a protocol of the library. For each mutant some model fails, so
//! the model is able to fail.
//!
//! A row names the mutant, the file, the text that changes, and the code that replaces it: see
//! [`Mutant`]. A mutant may have several rows.

use mutants::{Mutant, always, mutant};

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    // --- alarm/ ----------------------------------------------------------------------------------
    // An alarm whose last timeout has expired counts as armed.
    mutant("AlarmTrustsLastTimeout", "alarm/mod.rs arm_to", "«drop(last);» }", "return Ok(());"),
    // The worker does not learn that an alarm is due earlier.
    mutant("AlarmMovesSilently", "alarm/mod.rs arm_to", "shared.timer.reset(…)",
        "!matches!(timeout.handle.reset(deadline), Reset::Refused)"),
    // Of two threads that arm an alarm at the same time, both leave their timeouts.
    mutant("AlarmKeepsBoth", "alarm/mod.rs arm_to", "Timeout::cancel_and_drop",
        "|timeout| { drop(timeout); false }"),
    mutant("AlarmInstallsOverAnother", "alarm/mod.rs arm_to", "live(&last).is_some()", "false"),
    // A disarm returns true although the task runs.
    mutant("DisarmIgnoresExpiry", "alarm/mod.rs disarm", "Timeout::cancel_and_drop",
        "|timeout: Timeout| timeout.cancel_and_drop() | true"),
    // An arming that is rejected looks like one that is accepted.
    mutant("AlarmHidesRejection", "alarm/mod.rs arm_to", "(shared.schedule)(self, deadline)?",
        "match (shared.schedule)(self, deadline) { Ok(timeout) => timeout, Err(_) => return Ok(()) }"),
    // Two threads run the task of an alarm at the same time.
    mutant("AlarmRunsOverlap", "alarm/runs.rs", "if «before >= RUN» {",
        "before >= RUN && { shared.task.try_lock().unwrap().run(self); shared.state.fetch_sub(RUN, Ordering::AcqRel); true }"),
    // The thread that runs the task does not run it for another arming.
    mutant("AlarmForgetsRun", "alarm/runs.rs", "if «before < 2 * RUN» {",
        "{ shared.state.store(before & (RUN - 1), Ordering::Release); true }"),
    // The lock of the task is given back after the next run may have begun.
    mutant("TaskLockGivenBackLate", "alarm/runs.rs use_task", "drop(…);", ""),
    // An arming during a cancel of the alarm stays.
    mutant("AlarmInstallsAfterCancel", "alarm/mod.rs arm_to", "«self.is_cancelled()»;", "false"),
    mutant("CancelDisarmsFirst", "alarm/runs.rs cancel", "self.0.state.fetch_or(…)",
        "{ self.disarm(); self.0.state.fetch_or(CANCELLED, Ordering::Release) }"),
    mutant("CancelDisarmsFirst", "alarm/runs.rs cancel", "self.disarm();", ""),
    // A run begins after the cancel of the alarm.
    mutant("CancelledAlarmRuns", "alarm/runs.rs use_task", "before & CANCELLED", "0"),
    // A cancel drops the task of an alarm although it runs; or leaves it where it is.
    mutant("CancelDropsRunningTask", "alarm/runs.rs cancel", "self.use_task();",
        "self.0.task.try_lock().unwrap().drop_task();"),
    mutant("CancelKeepsTask", "alarm/runs.rs cancel", "self.use_task();", ""),
    // A thread that waits for the run of an alarm is not woken, or does not wait.
    mutant("AlarmRunEndWithoutWake", "alarm/runs.rs", "if «before & AWAITED != 0» {", "false"),
    mutant("AlarmWaitsForNoRun", "alarm/runs.rs cancel_and_wait", "shared.timer.run_waiters.wait_until(…);",
        "_ = is_over;"),
    // --- clock/counter.rs ------------------------------------------------------------------------
    // A thread that finds the new offset does not see the floor that belongs to it.
    mutant("OffsetWithoutRelease", "clock/counter.rs",
        "self.offset.store(now.wrapping_sub(counted), «Ordering::Release»)", "Ordering::Relaxed"),
    mutant("OffsetWithoutAcquire", "clock/counter.rs",
        "counted.wrapping_add(self.offset.load(«Ordering::Acquire»))", "Ordering::Relaxed"),
    // A thread that finds the new `valid_until` does not see the new offset.
    mutant("ValidityWithoutRelease", "clock/counter.rs synchronise", "COUNTER_VALIDITY, «Ordering::Release»",
        "Ordering::Relaxed"),
    mutant("ValidityWithoutAcquire", "clock/counter.rs deadline_base",
        "self.valid_until.load(«Ordering::Acquire»", "Ordering::Relaxed"),
    // The latest time of the old offset is not in the floor.
    mutant("OffsetWithoutFloor", "clock/counter.rs", "latest = latest.max(of_offset);", ""),
    // A time that a thread returns without an update of the offset is not in the floor.
    mutant("TimeWithoutFloor", "clock/counter.rs synchronise", "«latest»,",
        "if valid_until == UPDATING { 0 } else { latest }"),
    // A thread replaces an offset that another thread has just set.
    mutant("ValidOffsetReplaced", "clock/counter.rs synchronise", "!is_valid(…)", "true"),
    // The time of an offset may be behind the clock.
    mutant("OffsetWithoutDrift", "clock/counter.rs synchronise", "MAX_DRIFT", "0"),
    // --- engine/caller.rs ------------------------------------------------------------------------
    // `new_timeout` does not look at the state before it pushes.
    mutant("NewTimeoutWithoutFirstLook", "engine/caller.rs", "!state.accepts_all() || self.pending_counts.limit().is_some()",
        "false"),
    // A timer that closes does not take a new timeout back.
    mutant("NewTimeoutNotWithdrawn", "engine/caller.rs", "!cache.look_after_push().is_closing()",
        "cache.look_after_push(); true"),
    // `cancel` leaves it to the worker to free the place under the limit, as in Netty.
    mutant("CancelKeepsPlace", "engine/caller.rs end_by_cancel", "self.pending_counts.release_places(1);", ""),
    // The end of a timeout that is replaced is counted before the new one is registered.
    mutant("ReplaceCountsEndFirst", "engine/caller.rs replace", "cache.counts.register();",
        "cache.counts.cancel(1); cache.counts.register();"),
    mutant("ReplaceCountsEndFirst", "engine/caller.rs replace", "cache.counts.cancel(1);", ""),
    // A thread that has replaced a timeout does not look whether the worker sleeps.
    mutant("ReplaceWithoutLook", "engine/caller.rs replace", "self.wake_for_pushed(…);", ""),
    // A timeout that is replaced gives its place back, and the new one takes it again.
    mutant("ReplaceFreesPlace", "engine/caller.rs replace",
        "«»let handle = cache.nodes.schedule_replacement(task,",
        "self.pending_counts.release_places(1); let _ = self.pending_counts.take_place();"),
    // A caller that makes a deadline in a lane earlier does not look whether the worker sleeps.
    mutant("EarlierResetWithoutLook", "engine/caller.rs reset", "Reset::Earlier => «self.wake_for_pushed(…)»", "_ = handle"),
    // `reset` to an earlier deadline does not tell the worker; a run on another thread does not
    // either.
    mutant("ResetWithoutPush", "engine/caller.rs reset",
        "let state = thread_cache::with(self, |cache| cache.push(message)); self.wake_for_pushed(state, handle);", ""),
    mutant("ResetWithoutPush", "engine/dispatch.rs finish_run", "cache.push(message)",
        "{ _ = message; timer.state.snapshot() }"),
    // The end of the last run on another thread is counted before it.
    mutant("LastRunCountedFirst", "engine/dispatch.rs finish_run", "«»match",
        "_ = next.is_none().then(|| claimed.timeout().handle.timer().counters.ended_on_executor.add(1));"),
    mutant("LastRunCountedFirst", "engine/dispatch.rs", "timer.counters.ended_on_executor.add(1);", ""),
    // --- engine/group.rs -------------------------------------------------------------------------
    // A group is counted before its messages are pushed.
    mutant("GroupCountedFirst", "engine/group.rs cancel_with_cache", "«»let (count, leaves_memory)",
        "cache.counts.cancel(1);"),
    mutant("GroupCountedFirst", "engine/group.rs cancel_with_cache", "cache.counts.cancel(«count»);",
        "count.saturating_sub(1)"),
    // A group of cancels does not wake the worker.
    mutant("GroupWithoutWake", "engine/group.rs cancel_with_cache", "if «wakes» {", "false"),
    // A group is counted as one.
    mutant("GroupCountedAsOne", "engine/group.rs cancel_with_cache", "cache.counts.cancel(«count»);",
        "count.min(1)"),
    // A group of resets does not tell the worker; or does not look whether it sleeps, after a
    // message or without one; or looks at its own deadline alone.
    mutant("ResetsWithoutPush", "engine/group.rs reset_plain", "cache.nodes.push(message)", "_ = message"),
    mutant("ResetsWithoutLook", "engine/group.rs reset_plain", "if «state.is_asleep()» {", "false"),
    mutant("EarlierResetsWithoutLook", "engine/group.rs reset_plain", "«is_earlier» {", "false"),
    mutant("ResetsTrustTheirDeadline", "engine/group.rs reset_plain", "self.wake_if_needed(…)",
        "{ _ = first; self.wake_if_needed(state, deadline) }"),
    // --- engine/sleep.rs -------------------------------------------------------------------------
    // A caller that has pushed a new timeout does not look whether the worker sleeps.
    mutant("PushWithoutLook", "engine/caller.rs try_schedule_by", "self.wake_if_needed(…);", ""),
    // `cancel` does not wake the worker.
    mutant("CancelWithoutWake", "engine/caller.rs end_by_cancel", "if «cancelled.leaves_memory»", "false"),
    // A caller calls the waker even if another caller has cleared ASLEEP.
    mutant("WakeWithoutCheck", "engine/sleep.rs wake", "self.state.wake()", "self.state.wake(); true"),
    // The worker does not look at the lanes again after it has set ASLEEP.
    mutant("SleepWithoutSecondLook", "engine/sleep.rs", "self.next_tick(inner).min(next)", "next"),
    // The second look may answer with a later turn than the announced one.
    mutant("AnnouncedTurnDropped", "engine/sleep.rs", "self.next_tick(inner).min(«next»)", "u64::MAX"),
    // --- engine/state.rs -------------------------------------------------------------------------
    // A caller executes no fence between its push and its look.
    mutant("PushWithoutFence", "engine/state.rs fence_after_push", "fence(…);", ""),
    // A thread that closes the timer, or falls asleep, executes no fence before its look.
    mutant("ChangeWithoutFence", "engine/state.rs fence_after_change", "fence(…);", ""),
    // --- engine/pending.rs -----------------------------------------------------------------------
    // A place is taken before the limit is checked, and given back if there is none, as in Netty.
    mutant("PlaceTakenBeforeCheck", "engine/pending.rs",
        "self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()",
        "{ let before = self.taken.fetch_add(1, Ordering::Relaxed); if before >= self.most { self.release(1); } more(before).is_some() }"),
    // A place is taken by a check and an addition, with a gap in between.
    mutant("PlaceTakenWithoutCompare", "engine/pending.rs",
        "self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()",
        "more(self.taken.load(Ordering::Relaxed)).is_some() && { self.taken.fetch_add(1, Ordering::Relaxed); true }"),
    // The registrations are read before the ends.
    mutant("RegistrationsReadFirst", "engine/pending.rs balance", "self.since(self.ended(counters))",
        "{ let registered = self.ever_registered(); let ended = self.ended(counters); let pending = registered - ended.withdrawn - ended.expired - ended.cancelled; Balance { pending, ..ended } }"),
    // Of two threads that list their counts, the second one does not.
    mutant("SecondCountsNotListed", "engine/pending.rs take", "place.set(Arc::clone(&counts)).is_err()",
        "_ = place.set(Arc::clone(&counts)); false"),
    // A thread that takes the counts of an ended thread counts from zero.
    mutant("CountsStartAtZero", "engine/pending.rs take", "self.free.pop()",
        "self.free.pop().map(|counts| OwnCounts { registered: 0, cancelled: 0, withdrawn: 0, ..counts })"),
    // --- engine/worker.rs ------------------------------------------------------------------------
    // A message about a node that is in the wheel does not take it out.
    mutant("KnownNodeStaysInWheel", "node/wheel.rs next_arrival", "self.own.wheel.remove(…);", "_ = &mut nodes;"),
    // A node that the wheel moves, as a sort of those that are due does, keeps its old position.
    mutant("MoveWithoutPosition", "node/wheel.rs set_position",
        "self.node(entry).position.store(position, Ordering::Relaxed);",
        "let _: (u32, u32) = (entry, position);"),
    // The worker counts the message of a `reset` as a new timeout.
    mutant("ResetTakenForNew", "engine/worker.rs apply", "(node, false)", "(node, true)"),
    // `cancel_all` takes in no messages.
    mutant("CancelAllIgnoresLanes", "engine/worker.rs pending", "self.receiver.drain_all(…);", ""),
    // --- ending.rs -------------------------------------------------------------------------------
    // The thread that has ended the timer does not wake the thread that waits for it.
    mutant("EndWithoutWake", "ending.rs finish", "waker.wake();", "drop(waker);"),
    // --- engine/dispatch.rs ----------------------------------------------------------------------
    // `cancel_and_wait` does not wait for the turn in which the task may run.
    mutant("WaitForNoTurn", "engine/dispatch.rs wait_for_run", "drop(…);", ""),
    // `cancel_and_wait` does not wait for a task that an executor has.
    mutant("WaitForNoRun", "engine/dispatch.rs wait_for_run", "!handle.await_run()", "true"),
    // The end of a run wakes no thread that waits for it.
    mutant("RunEndWithoutWake", "engine/dispatch.rs", "if «timeout.handle.end_run()» {",
        "{ _ = timeout.handle.end_run(); false }"),
    // --- engine/end.rs ---------------------------------------------------------------------------
    // The drop of the last handle waits for the worker even if this thread is the worker.
    mutant("LastDropOnWorkerWaits", "engine/end.rs", "if «self.is_worker()» {", "false"),
    // The count of handles is lowered by a load and a store, with a gap in between.
    mutant("DropHandleWithoutCompare", "engine/state.rs remove", "self.0.fetch_sub(1, Ordering::AcqRel) == 1",
        "let handles = self.0.load(Ordering::SeqCst); self.0.store(handles.saturating_sub(1), Ordering::SeqCst); handles == 1"),
    // A weak handle raises the count of handles from zero.
    mutant("UpgradeFromZero", "engine/state.rs", "«(handles > 0).then(|| handles + 1)»", "Some(handles + 1)"),
    // `shutdown` does not wait for a thread that is replacing a timeout.
    mutant("ShutdownIgnoresRegistered", "engine/end.rs", "if «live == pending» {", "true"),
    // `shutdown` waits for nothing: it stops immediately.
    mutant("ShutdownWithoutGrace", "engine/end.rs next_due", "self.state.snapshot().is_stopped()", "true"),
    // A timer that closes takes new timeouts in after those that it has accepted.
    mutant("ClosedTimerTakesNew", "engine/worker.rs apply", "if «refuses_new»", "false"),
    // `stop` leaves out the nodes that a step which was cut short had taken out of the wheel.
    mutant("StopIgnoresUnfinishedTurn", "engine/end.rs", "«»nodes.stop_all(",
        "while nodes.next_due().is_some() {}"),
    mutant("StopIgnoresUnfinishedTurn", "engine/end.rs",
        "inner.pending_counts.at_most(&inner.counters) == 0", "true"),
    // `stop` does not wait for a thread that is replacing a timeout.
    mutant("StopWithoutWaiting", "engine/end.rs", "inner.pending_counts.at_most(&inner.counters) == 0",
        "true"),
    // A `stop` that is not the first one drains the timer too.
    mutant("SecondStopDrains", "engine/end.rs stop", "!is_first", "false"),
    // A `stop` that is not the first one does not wait for the first.
    mutant("SecondStopWithoutWaiting", "engine/end.rs stop", "!self.worker.lock().has_ended", "false"),
    // `stop` does not wake the worker.
    mutant("StopWithoutNotify", "engine/end.rs", "self.notify_worker();", ""),
    // --- engine/thread.rs, engine/timeouts.rs ----------------------------------------------------
    // `start` does not read the state again after it has taken the lock.
    mutant("StartWithoutSecondLook", "engine/thread.rs start",
        "self.thread.handle.lock(); if let Some(known) = «self.start_result()»", "None"),
    // The worker adopts new lanes after it has looked at the others.
    mutant("NewLanesAdoptedLate", "engine/timeouts.rs scan", "self.adopt_new_lanes(…);", ""),
    mutant("NewLanesAdoptedLate", "engine/timeouts.rs end", "«»((self.most",
        "queue.adopt_new_lanes(new)"),
    // A scan that leaves messages in a lane, because it takes a portion of each, leaves no backlog.
    mutant("PortionWithoutBacklog", "engine/timeouts.rs next_lane", "self.has_more |= count > most;", ""),
    // Messages that wait when the wheel leaves a tick are not carried over.
    mutant("NothingCarriedOver", "engine/timeouts.rs carry_over",
        "self.lanes.iter_mut().for_each(Consumer::carry_over);", ""),
    // The worker drops a retired lane that still has messages.
    mutant("RetiredLaneDroppedEarly", "engine/timeouts.rs", "lane.waiting() != (0, true)",
        "!lane.waiting().1"),
    // --- engine/thread_cache.rs ------------------------------------------------------------------
    // A discard does not wake the worker.
    mutant("DiscardWithoutWake", "engine/thread_cache.rs discard", "timer.wake()", "_ = timer;"),
    // A thread that ends does not wake a worker that sleeps.
    mutant("ThreadEndWithoutWake", "engine/thread_cache.rs drop", "timer.wake_to_reclaim();", ""),
    // --- sync/mod.rs -----------------------------------------------------------------------------
    // The end of a run wakes only the first thread that waits for it.
    mutant("RunEndWakesOneWaiter", "sync/mod.rs wake_all",
        "waiters.iter().for_each(|(_, waiter)| waiter.unpark());",
        "waiters.iter().take(1).for_each(|(_, waiter)| waiter.unpark());"),
    // A thread that waits for a run gives up when another one ends.
    mutant("AnotherRunEndsTheWait", "sync/mod.rs wait_until", "«parker.park();» } }", "parker.park(); return;"),
    // --- node/word.rs ----------------------------------------------------------------------------
    // The end of a run gives the task its next deadline even if the timeout was cancelled.
    mutant("RunRevivesCancelled", "node/word.rs", "seen.is_in_wheel() && seen.is_running()", "true"),
    // The state word changes by a load and a store, with a gap in between.
    mutant("ChangeWithoutCompare", "node/word.rs change_seen", "«»match",
        "self.0.store(after, Ordering::SeqCst); return Ok(seen);"),
    // A discard ends a timeout by a load and a store, with a gap in between.
    mutant("DiscardWithoutCompare", "node/word.rs cancel_unchanged", "«»self.0.compare_exchange(seen.0,",
        "if self.0.load(Ordering::SeqCst) == seen.0 { self.0.store(cancelled, Ordering::SeqCst); return true; }"),
    // A reset to the same deadline only reads the word.
    mutant("EqualResetWithoutChange", "node/word.rs", "«»self.change(Ordering::Release,",
        "let seen = SeenWord(self.0.load(Ordering::Acquire)); if !seen.has_ended() && seen.deadline() == to { return Ok(seen); }"),
    // A reset to the same deadline takes the node out of the wheel as an earlier one does, and
    // sends no message.
    mutant("EqualResetTakesNode", "node/word.rs reset", "to < seen.deadline()", "to <= seen.deadline()"),
    // --- node/transitions.rs ---------------------------------------------------------------------
    // A `reset` moves the deadline of a periodic task.
    mutant("PeriodicIsReset", "node/transitions.rs reset_staying", "self.is_periodic()", "false"),
    // A `reset` moves the deadline of a task while the worker asks it.
    mutant("AskedIsReset", "node/word.rs reset", "«is_asked» && seen.is_running()", "false"),
    // A `reset` of a task that is asked has no effect.
    mutant("ResetOfAskedIsRefused", "engine/caller.rs reset", "Reset::Stays => return «self.reset_staying(…)»", "false"),
    mutant("ResetOfAskedIsRefused", "engine/group.rs reset_group", "self.reset_staying(&timeout.handle, deadline)", "true"),
    // A `cancel` or `stop` during a run takes the task of a periodic timeout too.
    mutant("CancelTakesRunningTask", "node/local.rs", "(«!before.is_running()»)", "true"),
    mutant("CancelTakesRunningTask", "node/transitions.rs stop", "before.is_running()", "false"),
    // `stop` takes the reference that belongs to the message under way.
    mutant("StopTakesLeftReference", "node/transitions.rs stop", "self.word.cancel()?",
        "match self.word.cancel() { Some(before) => before, None => { let _ = self.release(); return None; } }"),
    mutant("StopTakesLeftReference", "node/transitions.rs stop", "before.is_in_wheel()", "true"),
    // --- node/wheel.rs ---------------------------------------------------------------------------
    // The worker expires a timeout with the reference that belongs to the message under way.
    mutant("ExpiryTakesLeftReference", "node/wheel.rs expire", "before.is_in_wheel()", "true"),
    // The worker meets an ended timeout in the wheel, and releases the reference that belongs to
    // the message under way.
    mutant("ReleaseLeftReference", "node/wheel.rs", "Err(_) => «Expiry::LeftToMessage»",
        "{ Self { wheel, node }.release(); Expiry::LeftToMessage }"),
    // The same for a task that is asked.
    mutant("ReleaseLeftReference", "node/wheel.rs begin_run", "Err(_) => «Err(None)»",
        "{ self.release(); Err(None) }"),
    // The worker does not release the reference of a handle that comes with a message.
    mutant("DiscardKeepsReference", "node/wheel.rs", "if «kind == Kind::DISCARDED» {", "false"),
    // --- node/local.rs ---------------------------------------------------------------------------
    // `cancel` does not tell the worker about a timeout that is in the wheel.
    mutant("CancelWithoutPush", "node/local.rs cancel", "self.push(…);", ""),
    // A thread that has taken its message back counts down by a load and a store, as if no other
    // thread could borrow the handle.
    mutant("TakeBackWithoutMerge", "node/local.rs cancel", "unsafe { handle.merge_wheel_ref() };",
        "use crate::sync::Ordering::SeqCst; let references = handle.references.load(SeqCst); handle.references.store(references - 1, SeqCst);"),
    // A discard frees a node although there are other handles.
    mutant("DiscardIgnoresHandles", "node/local.rs discard", "«is_only_handle» &&", "true"),
    // A discard reads the word before the count.
    mutant("DiscardReadsWordFirst", "node/local.rs discard", "handle.is_only_handle()", "true"),
    mutant("DiscardReadsWordFirst", "node/local.rs discard", "«is_only_handle» &&",
        "handle.is_only_handle()"),
    // A discard takes the task of a periodic timeout during its run.
    mutant("DiscardTakesRunningTask", "node/local.rs", "|| «seen.is_running()»", "false"),
    // A discard does not tell the worker about a timeout that is in the wheel.
    mutant("DiscardWithoutPush", "node/local.rs", "«unsafe { self.push(Kind::DISCARDED.encode(number)) };»",
        "_ = number;"),
    // The nodes that a thread leaves keep their references to the timer.
    mutant("EndKeepsReferences", "node/local.rs put", "nodes.count.empty();", ""),
    // The reference of a future to the timer is not taken from the thread's reserve.
    mutant("FutureDoesNotKeepTimer", "node/local.rs timer_handle", "self.nodes.count.take()",
        "{ let taken = self.nodes.count.take(); let copy = unsafe { std::ptr::read(&taken) }; self.nodes.count.put(taken); copy }"),
    // The nodes that a thread leaves are dropped.
    mutant("EndForgetsNodes", "node/local.rs put", "self.0.push(…);", "drop(nodes);"),
    // The worker does not recycle the nodes that a thread has left.
    mutant("IdleNodesNotRecycled", "node/local.rs", "nodes.empty(timer);", "_ = (&mut nodes, timer);"),
    // --- node/refs.rs ----------------------------------------------------------------------------
    // The drop of a future does not give up its reference to the timer.
    mutant("FutureKeepsTimerForGood", "node/refs.rs", "«S::recycle»(Released::of(", "std::mem::forget"),
    // The references of a node are counted down by a load and a store, with a gap in between.
    mutant("ReleaseWithoutCompare", "node/refs.rs release", "references.load(Ordering::Acquire); «»",
        "references.store(count - 1, Ordering::Release); return (count == 1).then(|| unsafe { FreeNode::new(node) });"),
    // `mark` is read after the reference was counted down, when the node may hold another
    // timeout.
    mutant("MergedReadAfterRelease", "node/refs.rs release", "references.load(Ordering::Acquire); «»",
        "let is_last = |count| count == 1 || count == 2 && mark.load_of_another(Ordering::Relaxed) == 1; return (is_last(count) || is_last(references.fetch_sub(1, Ordering::AcqRel))) .then(|| unsafe { FreeNode::new(node) });"),
    // The reference of a handle that comes with a message is released as if there were no other.
    mutant("HandleReleasedWithoutCount", "node/refs.rs release_handle",
        "self.references.load(Ordering::Acquire) == 2", "true"),
    // --- node/timer_ref.rs -----------------------------------------------------------------------
    // References are added to the shared count by a load and a store, with a gap in between.
    mutant("SharedCountAddWithoutCompare", "node/timer_ref.rs add_some", "self.0.fetch_add(…)",
        "let before = self.0.load(Ordering::SeqCst); self.0.store(before + references, Ordering::SeqCst); before"),
    // References are subtracted from the shared count by a load and a store, with a gap in between.
    mutant("SharedCountReleaseWithoutCompare", "node/timer_ref.rs",
        "count.0.fetch_sub(references, Ordering::AcqRel) == references",
        "let before = count.0.load(Ordering::SeqCst); count.0.store(before - references, Ordering::SeqCst); before == references"),
    // The first batch takes no strong reference.
    mutant("FirstBatchTakesNoReference", "node/timer_ref.rs add", "value.count().add_some(references) == 0",
        "value.count().add_some(references); false"),
    // Whether a batch is the first one is decided before it is counted, with a gap in between.
    mutant("FirstBatchDecidedBeforeAdd", "node/timer_ref.rs add", "value.count().add_some(references) == 0",
        "let is_first = value.count().0.load(Ordering::SeqCst) == 0; value.count().add_some(references); is_first"),
    // Each batch takes a strong reference.
    mutant("EachBatchTakesReference", "node/timer_ref.rs add", "value.count().add_some(references) == 0",
        "value.count().add_some(references); true"),
    // --- node/lane.rs ----------------------------------------------------------------------------
    // A message is taken back by a load and a store, with a gap in between.
    mutant("TakeBackWithoutCompare", "node/lane.rs take_back", "«»let take",
        "let is_there = slot.load(Ordering::Relaxed) == message; if is_there { slot.store(0, Ordering::Relaxed); } return is_there;"),
    // The worker believes that the block before the last one is not taken back from.
    mutant("SettledTooEarly", "node/lane.rs",
        "«(pushed.saturating_sub(1) / BLOCK).saturating_sub(1)» * BLOCK", "pushed.saturating_sub(1) / BLOCK"),
    // A lane gives out its messages in another order than they were pushed.
    mutant("LaneOutOfOrder", "node/lane.rs next", "«place» as", "place ^ 1"),
    // A lane that no thread goes on with is not retired.
    mutant("IdleLaneNotRetired", "node/lane.rs drop", "self.retire();", ""),
    // --- node/arena.rs, node/surplus.rs ----------------------------------------------------------
    // A page is pushed to the queue although it is there.
    mutant("PageQueuedTwice", "node/arena.rs", "if «available.fetch_or(free, Ordering::Release) == 0» {",
        "available.fetch_or(free, Ordering::Release); true"),
    // The available nodes of a page are taken by a load and a store, with a gap in between.
    mutant("AvailableTakenInTwoSteps", "node/arena.rs take_available", "available.swap(…)",
        "let nodes = available.load(Ordering::Acquire); available.store(0, Ordering::Relaxed); nodes"),
    // The pointer to a chunk is read and written, with a gap in between.
    mutant("ChunkSetWithoutCompare", "node/arena.rs allocate",
        "self.chunks[chunk].compare_exchange(null, first, Ordering::Release, Ordering::Relaxed)",
        "self.chunks[chunk].store(first, Ordering::Release); Ok::<_, *mut _>(null)"),
    // The nodes of a page are not written after its memory was returned.
    mutant("ReturnedPageNotWritten", "node/arena.rs take_page", "«»let page = self",
        "if let Some(page) = self.returned.pop() { return Page { first: self.at(page * PAGE as u32), free: ALL_FREE }; }"),
    // The worker makes pages that another thread has made meanwhile.
    mutant("MadeWithoutCompare", "node/arena.rs",
        "«self.made.compare_exchange(made, end, Ordering::Relaxed, Ordering::Relaxed).is_ok()»",
        "self.made.store(end, Ordering::Relaxed); true"),
    // The worker returns the memory of a page of which it has some nodes.
    mutant("PageInUseReturned", "node/surplus.rs return_whole",
        "«self.list.held(page_at(place)) == WHOLE»", "self.list.held(page_at(place)) > 0"),
    // A page is in the queue of returned ones before its memory is returned.
    mutant("ReturnedBeforeItsMemory", "node/surplus.rs return_run", "«»let is_returned =",
        "{ run.clone().for_each(|place| arena.returned.push(page_at(place) as u32)); inside::return_pages(page_at(run.start), run.len()); return; }"),
    // --- util/executor/refused.rs ----------------------------------------------------------------
    // A refused task is not offered to the executor again.
    mutant("RefusedTaskIsNotOfferedAgain", "util/executor/refused.rs execute",
        "timer.try_new_timeout_task(…)", "{ drop(retry); return Ok(()); }"),
    // --- the others ------------------------------------------------------------------------------
    // `occupancy` reads the state before it takes the worker's lock, and not again.
    mutant("StateReadBeforeLock", "engine/worker.rs look_at_wheel", "«»let",
        "let state = self.state.snapshot(); let worker = self.worker.worker.try_lock()?; return (!state.is_stopped()).then_some(worker);"),
    // A new item does not take the key in the step in which the old one leaves it.
    mutant("ReplaceInTwoSteps", "util/expiring_map/by_key.rs insert_by", "«»let replaced = replaced",
        "drop(table); table = shard.lock();"),
    // An item goes into the table although its timeout has ended, and stays there.
    mutant("EndedItemIsInserted", "util/expiring_map/items.rs put", "item.has_ended()", "false"),
    // An item goes back to the table, and a touch meanwhile could not tell the timer its deadline.
    mutant("ReturnedItemIsLate", "util/expiring_map/items.rs settle", "table.ask_later(…);", ""),
    // The value of an item whose timeout has ended is dropped.
    mutant("EndedValueIsLost", "util/expiring_map/items.rs end", "self.output.pass_on(…);",
        "drop(leaving)"),
    // The task of an item takes another one with the same key.
    mutant("RemovedItemStarts", "util/expiring_map/item.rs is_of", "self.timeout() == own",
        "{ _ = own; true }"),
    // A touched item ends at its old deadline.
    mutant("MovedItemEnds", "util/expiring_map/items.rs postpone", "item.is_alive(now)", "false"),
    // The same, if a call has the item at that moment.
    mutant("HeldItemEnds", "util/expiring_map/items.rs postpone", "table.reserved.contains_key(…)", "false"),
    // The timer does not ask again for an item that a call gives back.
    mutant("ReturnedItemStays", "util/expiring_map/items.rs postpone", "table.ask_later(…);", ""),
    // An earlier deadline is stored, and the timer is not told.
    mutant("EarlierTouchIsNotTold", "util/expiring_map/by_key.rs touch_by", "shard.settle(…)", "_ = own"),
    // Of two calls that tell the timer earlier deadlines, the one with the later one is the last.
    mutant("TouchOverwritesAnother", "util/expiring_map/items.rs settle",
        "«deadline = item.deadline»", "return"),
    // A new entry replaces a living one although it must not.
    mutant("PresentEntryIsReplaced", "util/expiring_map/by_key.rs insert_by",
        "Some(_) if «!replaces» => {", "false"),
    // An item is found after its time.
    mutant("DeadItemIsFound", "util/expiring_map/table.rs find", "item.is_alive(now)", "true"),
    // Another call gets a reserved key.
    mutant("ReservedKeyIsGivenOut", "util/expiring_map/shard.rs try_lock_key",
        "table.reserved.contains_key(…)", "false"),
    // The key of an entry that is written back is free before that.
    mutant("KeyIsFreeBeforeTheWrite", "util/expiring_map/shard.rs leave", "«self.output.reserves_keys» &&", "false"),
    // An entry is written while an older one of its key is.
    mutant("NewerEntryDoesNotWait", "util/expiring_map/shard.rs leave",
        "reserved.next.extend(leaving.entry.take())", "_ = reserved"),
    // A call finds no entry, because its time has come, although it was not written back.
    mutant("DeadEntryIsNotWritten", "util/expiring_map/shard.rs try_lock_key",
        "!self.output.reserves_keys", "true"),
    // A call that waits for a key is not woken.
    mutant("FreedKeyDoesNotWake", "util/expiring_map/shard.rs drop",
        "waker.wake()", "drop(waker)"),
    // The drop of the last handle drops the values.
    mutant("LastDropLosesValues", "util/expiring_map/mod.rs drop", "self.output.pass_on_all(…);", "drop(all);"),
    // A call that has read the clock before another one, and got the lock after it, finds an entry
    // alive that the other one has found dead.
    mutant("MapClockGoesBack", "util/expiring_map/shard.rs lock_at", "table.now.max(…)", "now"),
    // `remove` looks whether there is an entry, and then removes it.
    mutant("RemoveInTwoSteps", "util/expiring_map/by_key.rs remove", "«»let removed",
        "let is_there = table.find(hash, key).is_some(); drop(table); table = self.lock_key(key).2; assert!(!is_there || table.find(hash, key).is_some());"),
    // A poll for an expired entry finds none, and then leaves its waker without a second look.
    mutant("PollWithoutSecondLook", "util/expiring_map/receiver.rs poll_recv",
        "«»mem::swap", "drop(state); state = self.queue.lock();"),
    // An expired entry does not wake the receiver.
    mutant("ExpiredEntryDoesNotWake", "util/expiring_map/receiver.rs send", "self.update(…);",
        "if let Some(queue) = self.0.upgrade() { queue.lock().entries.push_back(entry); }"),
    // The end of the map does not wake the receiver.
    mutant("ClosedMapDoesNotWake", "util/expiring_map/receiver.rs drop", "self.update(…);",
        "if let Some(queue) = self.0.upgrade() { queue.lock().is_closed = true; }"),
    // A future that is polled again keeps the waker of the first poll.
    mutant("RepollKeepsOldWaker", "future/sleep.rs", "*id == waker_id(waker)", "true"),
    // A reset to a time that has passed does not wake the task that waits.
    mutant("ResetToPastWithoutWake", "future/sleep.rs reset_to", "timeout.cancel()",
        "{ self.timer().discard_without_hook(timeout.clone()); true }"),
    // --- periodic/ -------------------------------------------------------------------------------
    // A task that ends itself runs again.
    mutant("BreakRunsAgain", "periodic/mod.rs step", "(self.task)(&run)",
        "{ _ = (self.task)(&run); false }"),
    // A task that does not continue after shutdown ends, and is not left to `stop`.
    mutant("ShutdownForgetsTask", "periodic/mod.rs repeat", "return «Some(…)»", "None"),
    // --- util/delay_queue/ -----------------------------------------------------------------------
    // A producer does not wake the consumer that waits for a later deadline.
    mutant("InsertWithoutNotify", "util/delay_queue/change.rs insert_by", "state.waiters.notify_of(…)",
        "None"),
    // A reset to an earlier deadline does not either.
    mutant("QueueResetWithoutNotify", "util/delay_queue/change.rs", "if «is_reset» { state", "false"),
    // A consumer looks for a value and begins to wait in two steps.
    mutant("WaitInTwoSteps", "util/delay_queue/receive.rs poll_by", "waiters.wait(…)",
        "{ let first = values.first_deadline(); drop(state); state = self.state.lock(); state.waiters.wait(place, waker, first) }"),
    // A producer does not know for which deadline the first consumer waits.
    mutant("AwaitedNotStored", "util/delay_queue/waiters.rs", "self.awaited = first;", ""),
    // A poll with another waker keeps the waker of the first poll.
    mutant("QueueRepollKeepsOldWaker", "util/delay_queue/waiters.rs",
        "self.wakers.insert(place, Some(waker)).flatten()",
        "{ self.wakers.entry(place).or_insert(Some(waker)); None }"),
    // A consumer that leaves does not wake the next one.
    mutant("LeaveWithoutNotify", "util/delay_queue/waiters.rs", "if «was_first» {", "false"),
    // A consumer takes an alarm that has ended for one that is set.
    mutant("EndedAlarmIsKept", "util/delay_queue/receive.rs",
        "if «self.timer.now_nanos() as i64 >= deadline» {", "return Ok(true)"),
    // `stop` does not wake a consumer.
    mutant("AlarmIgnoresStop", "util/delay_queue/receive.rs cancelled", "self.ring();", ""),
    // A value is looked up and removed in two steps.
    mutant("TakeInTwoSteps", "util/delay_queue/receive.rs try_recv",
        "self.state.lock().values.take_due(now)?",
        "{ let key = self.state.lock().values.first()?; (key, now, self.state.lock().values.remove(key).unwrap()) }"),
    // --- no mutants ------------------------------------------------------------------------------
    // Fences whose order loom explores: inside/sync/mod.rs.
    always("engine/state.rs new", "-> Self { «»Self { word", "crate::sync::inside::set_fences();"),
    // The batched reference counts, which loom explores only in their own models:
    // inside/sync/mod.rs.
    always("node/timer_ref.rs", "Arc, «AtomicUsize», Ordering, Weak", "inside::Count as AtomicUsize"),
    // The pointers to chunks, and the words of pages, which loom explores only in their own models:
    // inside/sync/mod.rs.
    always("node/arena.rs", "use crate::sync::unmodelled::{AtomicPtr, AtomicU64};",
        "use crate::sync::inside::{ChunkPtr as AtomicPtr, PageWord as AtomicU64};"),
    // The words of the clocks: inside/clock/mod.rs.
    always("clock/counter.rs", "use crate::sync::unmodelled::AtomicU64;",
        "use crate::clock::inside::ClockWord as AtomicU64;"),
    always("clock/manual.rs", "use crate::sync::unmodelled::AtomicU64;",
        "use crate::clock::inside::ClockWord as AtomicU64;"),
    // The time of their models: inside/clock/counter.rs.
    always("clock/counter.rs now", "{ «»", "if let Some(now) = inside::now() { return now; }"),
    always("platform/mod.rs nanos", "«»self.clock.delta_as_nanos(self.zero,",
        "if let Some(counted) = crate::clock::inside::counted() { return counted; }"),
    // The counters, which loom explores only in models of what they order:
    // inside/engine/counters.rs.
    always("engine/counters.rs", "use crate::sync::unmodelled::AtomicU64;",
        "use self::inside::CounterWord as AtomicU64;"),
    // The memory of chunks in these models: inside/node/arena.rs.
    always("node/arena.rs allocate", "«»let words", "inside::allocated(new, layout);"),
    always("node/arena.rs allocate", "«»unsafe { std::alloc::dealloc(new.as_ptr(),", "inside::freed(new);"),
    always("node/arena.rs available", "«»unsafe {", "inside::used(words);"),
    always("node/arena.rs write_page", "«»for", "inside::used(first.as_ptr());"),
    // Threads that begin and end in their models: inside/sync/mod.rs. In all other models what a
    // thread caches is dropped at its end, and what it uses is there from the beginning:
    // inside/engine/pending.rs, inside/engine/timeouts.rs.
    always("engine/thread_cache.rs drop", "«»let nodes",
        "if !crate::sync::inside::threads_come_and_go() { return; }"),
    // loom destroys all that is thread-local.
    always("engine/thread_cache.rs", "use std::mem::{self, «ManuallyDrop»};", ""),
    always("engine/thread_cache.rs", "type ThreadCaches = RefCell<«ManuallyDrop<Caches>»>;", "Caches"),
    always("engine/thread_cache.rs", "ThreadCaches::new(«ManuallyDrop::new(Caches::NONE)»)", "Caches::NONE"),
    always("engine/thread_cache.rs with_caches", "let result = CACHES.try_with(work);",
        "let mut work = Some(work);
        let mut work = |caches: &ThreadCaches| (work.take().unwrap())(caches);
        let result = CACHES.try_with(&mut work).or_else(|_| Ok::<_, ()>(work(&ThreadCaches::new(Caches::NONE))));"),
    always("node/lane.rs drop", "self.retire();",
        "if crate::sync::inside::threads_come_and_go() { self.retire(); }"),
    always("engine/pending.rs", "Ordering, «SegQueue», drop_list", "inside::IdleQueue as SegQueue"),
    always("node/local.rs", "use crate::sync::{Arc, «SegQueue»};", "inside::IdleQueue as SegQueue"),
    always("engine/pending.rs",
        "Self { first: OnceLock::new(), free: SegQueue::new(), stopped: AtomicU64::new(0), limit: limit.map(|most| Limit { most: most as u64, taken: CachePadded::default() }) }",
        "inside::with_counts(Self { first: OnceLock::new(), free: SegQueue::new(), stopped: AtomicU64::new(0), limit: limit.map(|most| Limit { most: most as u64, taken: CachePadded::default() }) })"),
    always("engine/timeouts.rs", "use crate::sync::«SegQueue»;", "inside::SeenQueue as SegQueue"),
    always("engine/timeouts.rs", "lanes: SegQueue<Consumer>, pool: PoolId«»", "made: inside::MadeLanes,"),
    always("engine/timeouts.rs", "«Self { lanes: SegQueue::new(), pool }»",
        "inside::with_lanes(Self { lanes: SegQueue::new(), pool, made: inside::MadeLanes::default() })"),
    always("engine/timeouts.rs open", "«»let (producer,",
        "if let Some(made) = inside::made_lane(self) { return made; }"),
    always("engine/pending.rs", "use crate::sync::unmodelled::OnceLock;",
        "use crate::sync::inside::OnceLock;"),
    // Loads of a value that no thread loads before it changes it: inside/sync/mod.rs.
    always("engine/pending.rs ever_registered", "load", "load_of_another"),
    always("engine/pending.rs ended", "load", "load_of_another"),
    always("node/lane.rs waiting", "load", "load_of_another"),
    always("node/refs.rs release", "mark.«load»", "load_of_another"),
    // Loads of a count for which an older value is as good as the newest: inside/sync/mod.rs.
    always("node/refs.rs release", "references.«load»", "load_count"),
    always("node/refs.rs is_last_reference", "load", "load_count"),
    // A prefetch reads what is taken later.
    always("node/lane.rs", "«group.iter().map(|slot| slot.load(Ordering::Relaxed)).for_each(prefetch);»",
        "_ = (group, prefetch);"),
    // The swap that this look saves has the same result.
    always("node/lane.rs next", "|| slot.load(Ordering::Relaxed) == 0", ""),
    // The orders of these changes, which the environment can weaken, are named by their callers.
    always("node/word.rs change", "«»fn", "#[track_caller]"),
    always("node/word.rs change_seen", "«»fn", "#[track_caller]"),
    // The uses of the task in a cell: inside/node/task.rs.
    always("node/task.rs", "space: UnsafeCell<MaybeUninit<Space>>«»", "observed: inside::Observed,"),
    always("node/task.rs empty", "«»operations:", "observed: inside::Observed::new(),"),
    always("node/task.rs put", "«»let", "self.observed.put();"),
    always("node/task.rs run", "«»unsafe {", "self.observed.take();"),
    always("node/task.rs repeat", "«»unsafe {", "self.observed.use_task();"),
    always("node/task.rs", "«»unsafe { (self.operations().postpone)(", "self.observed.use_task();"),
    always("node/task.rs cancelled", "«»unsafe {", "self.observed.take();"),
    always("node/task.rs", "«»unsafe { (self.operations().drop_task)(", "self.observed.take();"),
    always("node/task.rs detach", "«»unsafe {", "self.observed.take();"),
    always("node/task.rs take", "«»unsafe { Typed::<S,", "self.observed.take();"),
    always("node/task.rs operations", "«»unsafe {", "self.observed.look();"),
    // The return of memory in these models: inside/node/surplus.rs.
    always("node/arena.rs write_page", "«»let number", "super::surplus::inside::write_page(page);"),
    always("node/arena.rs write_page", "ALL_FREE", "super::surplus::inside::given_out(ALL_FREE)"),
    always("node/surplus.rs is_possible", "«»CAN_RETURN_MEMORY", "inside::returns_memory() ||"),
    always("node/surplus.rs return_run", "«»return_memory(address(arena, page_at(run.start)),",
        "inside::return_pages(page_at(run.start), run.len()) ||"),
];
