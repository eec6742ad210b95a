//! The mutants: ways to break the library's protocols. For each of them some model fails, which shows that the model can.
//!
//! A row names the mutant, the file, the text that changes, and what it changes into: [`Row`] has the rules. A mutant may have
//! several rows.

use super::mutate::{Row, always, mutant};

pub const ROWS: &[Row] = &[
    // --- engine/caller.rs -----------------------------------------------------------------------------------------
    // `cancel` leaves it to the worker to count the timeout out: Netty's way.
    mutant("CancelWithoutLeave", "engine/caller.rs", "let state = «self.state.deregister()»;", "self.state.snapshot()"),
    // A caller does not look whether a driver sleeps once it has made the deadline of what is in a lane earlier.
    mutant("EarlierWithoutLook", "engine/caller.rs", "Reset::Earlier if «self.waker.is_none()»", "true"),
    // `reset` to an earlier deadline does not tell the worker, nor does a run that is over elsewhere.
    mutant("ResetWithoutPush", "engine/caller.rs", "«»thread_cache::push(message);", "return;"),
    mutant("ResetWithoutPush", "node/transitions.rs", "push(Message { handle, kind: Kind::Moved });", ""),
    // --- engine/sleep.rs ------------------------------------------------------------------------------------------
    // A caller does not look whether a driver sleeps once it has pushed.
    mutant("PushWithoutLook", "engine/sleep.rs", "if «self.waker.is_some()» {", "false"),
    // `cancel` does not wake the worker.
    mutant("CancelWithoutWake", "engine/sleep.rs", "state.is_asleep() && self.waker.is_none()", "false"),
    // A caller calls the waker whether or not another one has.
    mutant("WakeWithoutCompare", "engine/sleep.rs", "if «self.state.wake()» {", "self.state.wake(); true"),
    // The worker falls asleep whatever has happened since it looked at the lanes.
    mutant(
        "SleepWithoutCompare",
        "engine/sleep.rs",
        "self.0.compare_exchange(seen.0, seen.0 | ASLEEP, Ordering::AcqRel, Ordering::Relaxed).is_ok()",
        "self.0.fetch_or(ASLEEP, Ordering::AcqRel); true",
    ),
    // The worker does not look at the lanes again once it has said that it sleeps.
    mutant("SleepWithoutSecondLook", "engine/sleep.rs", "if «lanes_are_empty()» {", "true"),
    // A driver that looks again goes by that alone, whatever could be seen of its promise.
    mutant("PromiseBroken", "engine/sleep.rs", "self.next_tick(shared).min(«next»)", "never"),
    // A driver does not look at the lanes again once its promise can be seen.
    mutant("PromiseWithoutSecondLook", "engine/sleep.rs", "next = self.next_tick(shared).min(next);", ""),
    // --- engine/worker.rs -----------------------------------------------------------------------------------------
    // A worker that was stopped in a turn takes messages in, beside what that has left to `stop`.
    mutant("TakeInBesideDue", "engine/worker.rs", "if «nodes.has_unfinished_step()» {", "false"),
    mutant("TakeInBesideDue", "node/wheel.rs", "«assert!(!self.has_unfinished_step(), \"no step has left nodes that it had taken out\");»", ""),
    // The worker counts what `reset` has pushed again as a new timeout.
    mutant("ResetTakenForNew", "engine/worker.rs", "Arrival::Known(node) => «(node, false)»", "(node, true)"),
    // --- engine/end.rs --------------------------------------------------------------------------------------------
    // Dropping the last handle does not ask whether it is the worker that does.
    mutant("DropWithoutAsking", "engine/end.rs", "if «self.worker.is_held_by_this_thread()» {", "false"),
    // A handle is counted out by a look and a store, with a gap in between.
    mutant(
        "DropWithoutCompare",
        "engine/end.rs",
        "self.handles.fetch_sub(1, Ordering::AcqRel) == 1",
        "let handles = self.handles.load(Ordering::SeqCst);
        self.handles.store(handles.saturating_sub(1), Ordering::SeqCst);
        handles == 1",
    ),
    // `shutdown` does not wait for those who were counted in.
    mutant("ShutdownWithoutThoseAdmitted", "engine/end.rs", "if «live == state.pending()» {", "true"),
    // `shutdown` does not wait for anything: it stops at once.
    mutant("ShutdownWithoutGrace", "engine/end.rs", "state.is_stopped() || state.pending() == 0", "true"),
    // `stop` leaves out what a turn had taken out of the wheel to expire it.
    mutant("StopWithoutDue", "engine/end.rs", "«»nodes.stop_all(", "while nodes.next_due().is_some() {}"),
    mutant("StopWithoutDue", "engine/end.rs", "shared.state.snapshot().pending() == 0", "true"),
    // `stop` does not wait for those who were counted in.
    mutant("StopWithoutWaiting", "engine/end.rs", "shared.state.snapshot().pending() == 0", "true"),
    // A `stop` that is not the first takes what is left as well.
    mutant("SecondStopTakes", "engine/end.rs", "if «!is_first» {", "false"),
    // A second `stop` does not wait for the first.
    mutant("SecondStopWithoutWaiting", "engine/end.rs", "while «!self.worker.lock().is_drained()» {", "false"),
    // `stop` does not wake the worker.
    mutant("StopWithoutUnparking", "engine/end.rs", "self.notify_worker();", ""),
    // --- engine/state.rs ------------------------------------------------------------------------------------------
    // A timeout is counted in by an addition and a look, and out again if it is refused: Netty's way.
    mutant(
        "AdmitBeforeLook",
        "engine/state.rs",
        "«»let mut word = self.0.load(Ordering::Relaxed);",
        "let word = StateSnapshot(self.0.fetch_add(PENDING, Ordering::AcqRel));
        self.deregister();
        if word.pending() >= limit { return Err(Rejection::Full); }",
    ),
    // A timeout is counted in by a look and an addition, with a gap in between.
    mutant(
        "AdmitWithoutCompare",
        "engine/state.rs",
        "«»let counted = word.wrapping_add(PENDING + REGISTERED);",
        "return Ok(StateSnapshot(self.0.fetch_add(PENDING + REGISTERED, Ordering::AcqRel)));",
    ),
    // A timeout that is replaced is counted out first, and the new one in.
    mutant(
        "ReplaceLeavesFirst",
        "engine/state.rs",
        "StateSnapshot(self.0.fetch_add(REGISTERED, Ordering::AcqRel))",
        "self.deregister(); StateSnapshot(self.0.fetch_add(PENDING + REGISTERED, Ordering::AcqRel))",
    ),
    // --- engine/thread.rs, engine/timeouts.rs ---------------------------------------------------------------------
    // Whoever starts the worker thread does not look again once it has the lock.
    mutant(
        "StartWithoutSecondLook",
        "engine/thread.rs",
        "let mut handle = self.thread.handle.lock(); if let Some(known) = «self.is_started()» {",
        "None",
    ),
    // A thread's lane goes when the thread has gone, whatever is in it.
    mutant("RetiredLaneGoes", "engine/timeouts.rs", "lane.waiting() != (0, true)", "!lane.waiting().1"),
    // --- node/word.rs ---------------------------------------------------------------------------------------------
    // The end of a run gives a task that repeats its next deadline whatever has become of it.
    mutant("RearmBringsBack", "node/word.rs", "seen.is_in_wheel() && seen.is_running()", "true"),
    // A node's word changes by a load and a store, with a gap in between.
    mutant(
        "ChangeWithoutCompare",
        "node/word.rs",
        "«»match self.0.compare_exchange_weak(",
        "self.0.store(after, Ordering::SeqCst); return Some(seen);",
    ),
    // --- node/transitions.rs --------------------------------------------------------------------------------------
    // Who cancels a task that repeats while it runs takes the task as well.
    mutant("CancelTakesWhatRuns", "node/transitions.rs", "if «before.is_running()» {", "false"),
    mutant("CancelTakesWhatRuns", "node/transitions.rs", "match «before.is_running()» {", "false"),
    // The worker does not leave the entry to the message that is under way when it expires what is due.
    mutant("ExpiryTakesTheEntry", "node/transitions.rs", "if «was_in_wheel» {", "true"),
    // The worker gives up the entry of what has ended when the wheel gives it out, though a message about it is under way.
    mutant(
        "GoneWithItsEntry",
        "node/transitions.rs",
        "Expire::LeftToMessage => «Expired::LeftToMessage»",
        "_ = self.release(); Expired::LeftToMessage",
    ),
    // `stop` does not leave the entry to the message that is under way.
    mutant("StopTakesTheEntry", "node/transitions.rs", "if «is_told» {", "true"),
    mutant("StopTakesTheEntry", "node/transitions.rs", "before.is_in_wheel() || is_told", "true"),
    // --- node/local.rs --------------------------------------------------------------------------------------------
    // `cancel` does not tell the worker of a timeout that is in the wheel.
    mutant("CancelWithoutPush", "node/local.rs", "self.push(Message { handle, kind: Kind::Ended });", ""),
    // Who takes a message back counts down, with a gap in between, as if a handle could not be lent to another thread.
    mutant(
        "TakeBackAsIfAlone",
        "node/local.rs",
        "unsafe { handle.merge_wheel_ref() };",
        "use crate::sync::Ordering::SeqCst;
        let references = handle.references.load(SeqCst);
        handle.references.store(references - 1, SeqCst);",
    ),
    // --- node/refs.rs ---------------------------------------------------------------------------------------------
    // A node's references are counted down by a look and a store, with a gap in between.
    mutant(
        "ReleaseWithoutCompare",
        "node/refs.rs",
        "let mut count = references.load_count(Ordering::Acquire); «»",
        "references.store(count - 1, Ordering::Release); return (count == 1).then_some(FreeNode(node));",
    ),
    // Whether the entry is merged is looked at when the reference is counted down already, and the node perhaps used again.
    mutant(
        "LookAfterRelease",
        "node/refs.rs",
        "let mut count = references.load_count(Ordering::Acquire); «»",
        "let is_last = |count| count == 1 || count == 2 && merged.load_of_another(Ordering::Relaxed) == 1;
        return (is_last(count) || is_last(references.fetch_sub(1, Ordering::AcqRel))).then_some(FreeNode(node));",
    ),
    // --- node/timer_ref.rs ----------------------------------------------------------------------------------------
    // References are added to a shared count by a load and a store, with a gap in between.
    mutant(
        "AddReferencesWithoutCompare",
        "node/timer_ref.rs",
        "self.0.fetch_add(references, Ordering::Relaxed)",
        "let before = self.0.load(Ordering::SeqCst);
        self.0.store(before + references, Ordering::SeqCst);
        before",
    ),
    // The first references take no strong reference.
    mutant("FirstReferencesKeepNothing", "node/timer_ref.rs", "if «value.count().add_some(references) == 0» {",
        "value.count().add_some(references); false"),
    // Whether references are the first ones is decided before they are counted, with a gap in between.
    mutant("FirstReferencesDecidedEarly", "node/timer_ref.rs", "if «value.count().add_some(references) == 0» {",
        "let are_first = value.count().0.load(Ordering::SeqCst) == 0;
        value.count().add_some(references);
        are_first"),
    // Each batch of references takes a strong reference.
    mutant("EachBatchKeepsValue", "node/timer_ref.rs", "if «value.count().add_some(references) == 0» {",
        "value.count().add_some(references); true"),
    // References are given back by a load and a store, with a gap in between.
    mutant(
        "GiveReferencesBackWithoutCompare",
        "node/timer_ref.rs",
        "count.0.fetch_sub(references, Ordering::AcqRel) == references",
        "let before = count.0.load(Ordering::SeqCst);
        count.0.store(before - references, Ordering::SeqCst);
        before == references",
    ),
    // --- node/lane.rs ---------------------------------------------------------------------------------------------
    // A message is taken back by a look and a store, with a gap in between.
    mutant(
        "TakeBackWithoutCompare",
        "node/lane.rs",
        "slot.compare_exchange(message, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()",
        "let is_there = slot.load(Ordering::Relaxed) == message;
        if is_there { slot.store(0, Ordering::Relaxed); }
        is_there",
    ),
    // A lane gives out its messages in another order than they were pushed in.
    mutant("LaneOutOfOrder", "node/lane.rs", "&self.block.slots[«place» as usize]", "place ^ 1"),
    // --- the others ---------------------------------------------------------------------------------------------------
    // Who asks what is in the wheel looks whether the timer is stopped before it has the worker's lock, and not again.
    mutant(
        "OccupancyBeforeLock",
        "stats.rs",
        "«»let worker = self.worker.try_look()?;",
        "let state = self.state.snapshot();
        let worker = self.worker.try_look()?;
        let (tick, levels, queued) = worker.occupancy(state, now);
        let levels = levels.into_iter().map(LevelOccupancy::of).collect();
        return (!state.is_stopped()).then_some(Occupancy { tick, levels, queued });",
    ),
    // A keyed timeout takes the place of another one in two steps, with a gap in between.
    mutant("ReplaceInTwoSteps", "keyed.rs", "«»if coming.is_some() {", "drop(items); items = shard.lock();"),
    // A keyed timeout is put under its key though it has ended meanwhile.
    mutant("PlacedForEver", "keyed.rs", "if «coming.is_some()» {", "true"),
    // A keyed timeout does not run its task if it is faster than the call that is to put it there.
    mutant("BeginOnlyPlaced", "keyed.rs", "iter_mut().find(|coming| «coming.item == self.item»)", "false"),
    // A keyed timeout runs its task whatever has become of its key.
    mutant("BeginWithoutLook", "keyed.rs", "(«own.is_some()», own)", "true"),
    // A future that is polled again keeps to the waker that it has.
    mutant("RepollKeepsTheWaker", "future/sleep.rs", "*id == WakerId::of(waker)", "true"),
    // --- no mutants ---------------------------------------------------------------------------------------------------
    // Atomics of which the environment may weaken an order: inside/sync/model.rs.
    always("sync/model.rs", "struct $name(«loom::sync::atomic::$name», Gate)", "inside::$name"),
    always("sync/model.rs", "Self(«loom::sync::atomic::$name»::new(value)", "inside::$name"),
    // The batched reference counts, which loom sees only in their own models: inside/sync/model.rs.
    always("node/timer_ref.rs", "Arc, «AtomicUsize», Ordering, Weak", "inside::Count as AtomicUsize"),
    // How many threads were started: inside/sync/model.rs.
    always("sync/model.rs", "«»Ok(loom::thread::spawn(body))", "inside::count_a_spawn();"),
];
