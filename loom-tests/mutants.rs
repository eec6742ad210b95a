//! The mutants: changes that break a protocol of the library. For each mutant some model fails, so
//! the model is able to fail.
//!
//! A row names the mutant, the file, the text that changes, and the code that replaces it: see
//! [`Row`]. A mutant may have several rows.

use super::mutate::{Row, always, mutant};

pub const ROWS: &[Row] = &[
    // --- engine/caller.rs ------------------------------------------------------------------------
    // `cancel` leaves it to the worker to deregister the timeout, as in Netty.
    mutant(
        "CancelWithoutDeregister",
        "engine/caller.rs",
        "Some((task, «self.state.deregister()», was_in_wheel))",
        "self.state.snapshot()",
    ),
    // A caller that makes a deadline in a lane earlier does not check whether the driver's loop
    // sleeps.
    mutant("EarlierResetWithoutRead", "engine/caller.rs", "Reset::Earlier if «self.waker.is_none()»", "true"),
    // `reset` to an earlier deadline does not tell the worker; a run on another thread does not
    // either.
    mutant(
        "ResetWithoutPush",
        "engine/caller.rs",
        "«thread_cache::push(message); self.wake_for_earlier(handle);»",
        "",
    ),
    mutant("ResetWithoutPush", "node/transitions.rs", "push(unsafe { Message::new(handle, Kind::Moved) });", ""),
    // --- engine/sleep.rs -------------------------------------------------------------------------
    // A caller that has pushed a new timeout does not check whether the driver's loop sleeps.
    mutant("PushWithoutRead", "engine/sleep.rs", "if «self.waker.is_some()» {", "false"),
    // `cancel` does not wake the worker.
    mutant("CancelWithoutWake", "engine/sleep.rs", "state.is_asleep() && self.waker.is_none()", "false"),
    // A caller calls the waker even if another caller has cleared ASLEEP.
    mutant("WakeWithoutCheck", "engine/sleep.rs", "if «self.state.wake()» {", "self.state.wake(); true"),
    // The worker falls asleep even if the state has changed since it looked at the lanes.
    mutant(
        "SleepWithoutCompare",
        "engine/sleep.rs",
        "self.0.compare_exchange(seen.0, seen.0 | ASLEEP, Ordering::AcqRel, Ordering::Relaxed).is_ok()",
        "self.0.fetch_or(ASLEEP, Ordering::AcqRel); true",
    ),
    // The worker does not look at the lanes again after it has set ASLEEP.
    mutant("SleepWithoutSecondLook", "engine/sleep.rs", "if «lanes_are_empty()» {", "true"),
    // The second look of a driver may answer with a later turn than the announced one.
    mutant("AnnouncedTurnDropped", "engine/sleep.rs", "self.next_tick(shared).min(«next»)", "never"),
    // A driver does not look at the lanes again after it has announced its sleep.
    mutant("AnnounceWithoutSecondLook", "engine/sleep.rs", "next = self.next_tick(shared).min(next);", ""),
    // --- engine/worker.rs ------------------------------------------------------------------------
    // A worker drains messages although a step that was cut short has left nodes to `stop`.
    mutant("DrainBesideUnfinishedTurn", "engine/worker.rs", "if «nodes.has_unfinished_turn()» {", "false"),
    mutant(
        "DrainBesideUnfinishedTurn",
        "node/wheel.rs",
        "assert!(!self.has_unfinished_turn(), \"no turn has left nodes that it had taken out\");",
        "",
    ),
    // The worker counts the message of a `reset` as a new timeout.
    mutant("ResetTakenForNew", "engine/worker.rs", "Arrival::Known(node) => «(node, false)»", "(node, true)"),
    // --- engine/end.rs ---------------------------------------------------------------------------
    // The drop of the last handle waits for the worker even if this thread is the worker.
    mutant("LastDropOnWorkerWaits", "engine/end.rs", "if «self.worker.is_held_by_this_thread()» {", "false"),
    // The count of handles is lowered by a load and a store, with a gap in between.
    mutant(
        "DropHandleWithoutCompare",
        "engine/end.rs",
        "self.handles.fetch_sub(1, Ordering::AcqRel) == 1",
        "let handles = self.handles.load(Ordering::SeqCst);
        self.handles.store(handles.saturating_sub(1), Ordering::SeqCst);
        handles == 1",
    ),
    // `shutdown` does not wait for callers that have registered a timeout and not pushed it yet.
    mutant("ShutdownIgnoresRegistered", "engine/end.rs", "if «live == state.pending()» {", "true"),
    // `shutdown` waits for nothing: it stops immediately.
    mutant("ShutdownWithoutGrace", "engine/end.rs", "state.is_stopped() || state.pending() == 0", "true"),
    // `stop` leaves out the nodes that a step which was cut short had taken out of the wheel.
    mutant(
        "StopIgnoresUnfinishedTurn",
        "engine/end.rs",
        "«»nodes.stop_all(",
        "while nodes.next_due().is_some() {}",
    ),
    mutant("StopIgnoresUnfinishedTurn", "engine/end.rs", "shared.state.snapshot().pending() == 0", "true"),
    // `stop` does not wait for callers that have registered a timeout and not pushed it yet.
    mutant("StopWithoutWaiting", "engine/end.rs", "shared.state.snapshot().pending() == 0", "true"),
    // A `stop` that is not the first one drains the timer too.
    mutant("SecondStopDrains", "engine/end.rs", "if «!is_first» {", "false"),
    // A `stop` that is not the first one does not wait for the first.
    mutant("SecondStopWithoutWaiting", "engine/end.rs", "while «!self.worker.lock().has_ended_all» {", "false"),
    // `stop` does not wake the worker.
    mutant("StopWithoutNotify", "engine/end.rs", "self.notify_worker();", ""),
    // --- engine/state.rs -------------------------------------------------------------------------
    // A timeout is registered before the limit is checked, and deregistered if it is rejected, as
    // in Netty.
    mutant(
        "RegisterBeforeCheck",
        "engine/state.rs",
        "«»let mut word = self.0.load(Ordering::Relaxed);",
        "let word = StateSnapshot(self.0.fetch_add(PENDING, Ordering::AcqRel));
        self.deregister();
        if word.pending() >= limit { return Err(Rejection::Full); }",
    ),
    // A timeout is registered by a check and an addition, with a gap in between.
    mutant(
        "RegisterWithoutCompare",
        "engine/state.rs",
        "«»let counted = word.wrapping_add(PENDING + REGISTERED);",
        "return Ok(StateSnapshot(self.0.fetch_add(PENDING + REGISTERED, Ordering::AcqRel)));",
    ),
    // A timeout that is replaced is deregistered before the new one is registered.
    mutant(
        "ReplaceDeregistersFirst",
        "engine/state.rs",
        "StateSnapshot(self.0.fetch_add(REGISTERED, Ordering::AcqRel))",
        "self.deregister(); StateSnapshot(self.0.fetch_add(PENDING + REGISTERED, Ordering::AcqRel))",
    ),
    // --- engine/thread.rs, engine/timeouts.rs ----------------------------------------------------
    // `start` does not read the state again after it has taken the lock.
    mutant(
        "StartWithoutSecondLook",
        "engine/thread.rs",
        "let mut handle = self.thread.handle.lock(); if let Some(known) = «self.start_result()» {",
        "None",
    ),
    // The worker drops a retired lane that still has messages.
    mutant("RetiredLaneDroppedEarly", "engine/timeouts.rs", "lane.waiting() != (0, true)", "!lane.waiting().1"),
    // --- node/word.rs ----------------------------------------------------------------------------
    // The end of a run gives a periodic task its next deadline even if the timeout was cancelled.
    mutant("RunRevivesCancelled", "node/word.rs", "seen.is_in_wheel() && seen.is_running()", "true"),
    // The state word changes by a load and a store, with a gap in between.
    mutant(
        "ChangeWithoutCompare",
        "node/word.rs",
        "«»match self.0.compare_exchange_weak(",
        "self.0.store(after, Ordering::SeqCst); return Some(seen);",
    ),
    // --- node/transitions.rs ---------------------------------------------------------------------
    // A `cancel` or `stop` during a run takes the task of a periodic timeout too.
    mutant("CancelTakesRunningTask", "node/transitions.rs", "if «before.is_running()» {", "false"),
    mutant("CancelTakesRunningTask", "node/transitions.rs", "match «before.is_running()» {", "false"),
    // The worker expires a timeout with the reference that belongs to the message under way.
    mutant("ExpiryTakesLeftReference", "node/transitions.rs", "if «was_in_wheel» {", "true"),
    // The worker meets an ended timeout in the wheel, and releases the reference that belongs to
    // the message under way.
    mutant(
        "ReleaseLeftReference",
        "node/transitions.rs",
        "WordExpiry::LeftToMessage => «RefExpiry::LeftToMessage»",
        "_ = self.release(); RefExpiry::LeftToMessage",
    ),
    // `stop` takes the reference that belongs to the message under way.
    mutant("StopTakesLeftReference", "node/transitions.rs", "if «is_told» {", "true"),
    mutant("StopTakesLeftReference", "node/transitions.rs", "before.is_in_wheel() || is_told", "true"),
    // --- node/local.rs ---------------------------------------------------------------------------
    // `cancel` does not tell the worker about a timeout that is in the wheel.
    mutant("CancelWithoutPush", "node/local.rs", "self.push(unsafe { Message::new(handle, Kind::Ended) });", ""),
    // A thread that has taken its message back counts down by a load and a store, as if no other
    // thread could borrow the handle.
    mutant(
        "TakeBackWithoutMerge",
        "node/local.rs",
        "unsafe { handle.merge_wheel_ref() };",
        "use crate::sync::Ordering::SeqCst;
        let references = handle.references.load(SeqCst);
        handle.references.store(references - 1, SeqCst);",
    ),
    // --- node/refs.rs ----------------------------------------------------------------------------
    // The references of a node are counted down by a load and a store, with a gap in between.
    mutant(
        "ReleaseWithoutCompare",
        "node/refs.rs",
        "let mut count = references.load_count(Ordering::Acquire); «»",
        "references.store(count - 1, Ordering::Release); return (count == 1).then(|| unsafe { FreeNode::new(node) });",
    ),
    // `merged` is read after the reference was counted down, when the node may hold another
    // timeout.
    mutant(
        "MergedReadAfterRelease",
        "node/refs.rs",
        "let mut count = references.load_count(Ordering::Acquire); «»",
        "let is_last = |count| count == 1 || count == 2 && merged.load_of_another(Ordering::Relaxed) == 1;
        return (is_last(count) || is_last(references.fetch_sub(1, Ordering::AcqRel))).then(|| unsafe { FreeNode::new(node) });",
    ),
    // --- node/timer_ref.rs -----------------------------------------------------------------------
    // References are added to the shared count by a load and a store, with a gap in between.
    mutant(
        "SharedCountAddWithoutCompare",
        "node/timer_ref.rs",
        "self.0.fetch_add(references, Ordering::Relaxed)",
        "let before = self.0.load(Ordering::SeqCst);
        self.0.store(before + references, Ordering::SeqCst);
        before",
    ),
    // References are subtracted from the shared count by a load and a store, with a gap in between.
    mutant(
        "SharedCountReleaseWithoutCompare",
        "node/timer_ref.rs",
        "count.0.fetch_sub(references, Ordering::AcqRel) == references",
        "let before = count.0.load(Ordering::SeqCst);
        count.0.store(before - references, Ordering::SeqCst);
        before == references",
    ),
    // The first batch takes no strong reference.
    mutant(
        "FirstBatchTakesNoReference",
        "node/timer_ref.rs",
        "if «value.count().add_some(references) == 0» {",
        "value.count().add_some(references); false",
    ),
    // Whether a batch is the first one is decided before it is counted, with a gap in between.
    mutant(
        "FirstBatchDecidedBeforeAdd",
        "node/timer_ref.rs",
        "if «value.count().add_some(references) == 0» {",
        "let is_first = value.count().0.load(Ordering::SeqCst) == 0;
        value.count().add_some(references);
        is_first",
    ),
    // Each batch takes a strong reference.
    mutant(
        "EachBatchTakesReference",
        "node/timer_ref.rs",
        "if «value.count().add_some(references) == 0» {",
        "value.count().add_some(references); true",
    ),
    // --- node/lane.rs ----------------------------------------------------------------------------
    // A message is taken back by a load and a store, with a gap in between.
    mutant(
        "TakeBackWithoutCompare",
        "node/lane.rs",
        "slot.compare_exchange(message, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()",
        "let is_there = slot.load(Ordering::Relaxed) == message;
        if is_there { slot.store(0, Ordering::Relaxed); }
        is_there",
    ),
    // A lane gives out its messages in another order than they were pushed.
    mutant("LaneOutOfOrder", "node/lane.rs", "&self.block.slots[«place» as usize]", "place ^ 1"),
    // --- the others ------------------------------------------------------------------------------
    // `occupancy` reads the state before it takes the worker's lock, and not again.
    mutant(
        "StateReadBeforeLock",
        "stats.rs",
        "«»let worker = self.worker.try_look()?;",
        "let state = self.state.snapshot();
        let worker = self.worker.try_look()?;
        let (tick, levels, queued) = worker.occupancy(state, now);
        let levels = levels.into_iter().map(LevelOccupancy::of).collect();
        return (!state.is_stopped()).then_some(Occupancy { tick, levels, queued });",
    ),
    // A keyed timeout replaces another one in two steps, with a gap in between.
    mutant(
        "KeyedReplaceInTwoSteps",
        "keyed.rs",
        "«»if coming.is_some() {",
        "drop(items); items = shard.lock();",
    ),
    // An item becomes current although its timeout has ended.
    mutant("EndedItemStaysCurrent", "keyed.rs", "if «coming.is_some()» {", "true"),
    // The task of an item does not start while its `schedule` is in progress.
    mutant(
        "PendingItemDoesNotStart",
        "keyed.rs",
        "iter_mut().find(|coming| «coming.item == self.item»)",
        "false",
    ),
    // The task of an item starts although the item was replaced or removed.
    mutant("RemovedItemStarts", "keyed.rs", "(«own.is_some()», own)", "true"),
    // A future that is polled again keeps the waker of the first poll.
    mutant("RepollKeepsOldWaker", "future/sleep.rs", "*id == WakerId::of(waker)", "true"),
    // --- no mutants ------------------------------------------------------------------------------
    // Atomics whose orders the environment can weaken: inside/sync/model.rs.
    always("sync/model.rs", "struct $name(«loom::sync::atomic::$name», Gate)", "inside::$name"),
    always("sync/model.rs", "Self(«loom::sync::atomic::$name»::new(value)", "inside::$name"),
    // The batched reference counts, which loom explores only in their own models:
    // inside/sync/model.rs.
    always("node/timer_ref.rs", "Arc, «AtomicUsize», Ordering, Weak", "inside::Count as AtomicUsize"),
    // The number of started threads: inside/sync/model.rs.
    always("sync/model.rs", "«»Ok(loom::thread::spawn(body))", "inside::count_spawn();"),
];
