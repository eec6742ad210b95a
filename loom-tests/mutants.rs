//! The mutants: ways to break the library's protocols. For each of them some model fails, which shows that the model can.
//!
//! A row names the mutant, the file, the text that changes, and what it changes into: [`Row`] has the rules. A mutant may have
//! several rows.

use super::mutate::{Row, always, mutant};

pub const ROWS: &[Row] = &[
    // --- core.rs ------------------------------------------------------------------------------------------------------
    // A caller does not look whether a driver sleeps once it has pushed.
    mutant("PushWithoutLook", "core.rs", "if «self.waker.is_some()» { self.life.look() }", "false"),
    // `cancel` leaves it to the worker to count the timeout out: Netty's way.
    mutant("CancelWithoutLeave", "core.rs", "let word = «self.life.leave()»;", "self.life.word()"),
    // `cancel` does not wake the worker.
    mutant("CancelWithoutWake", "core.rs", "word.is_asleep() && self.waker.is_none()", "false"),
    // A caller does not look whether a driver sleeps once it has made the deadline of what is in a lane earlier.
    mutant("EarlierWithoutLook", "core.rs", "Reset::Earlier if «self.waker.is_none()»", "true"),
    // `reset` to an earlier deadline does not tell the worker, nor does a run that is over elsewhere.
    mutant("ResetWithoutPush", "core.rs", "«»let again = Message::Again", "return;"),
    // A caller calls the waker whether or not another one has.
    mutant("WakeWithoutCompare", "core.rs", "if «self.life.wake()» {", "self.life.wake(); true"),
    // Dropping the last handle does not ask whether it is the worker that does.
    mutant("DropWithoutAsking", "core.rs", "if «self.post.is_mine()» {", "false"),
    // A handle is counted out by a look and a store, with a gap in between.
    mutant(
        "DropWithoutCompare",
        "core.rs",
        "self.handles.fetch_sub(1, Ordering::AcqRel) == 1",
        "let handles = self.handles.load(Ordering::SeqCst);
        self.handles.store(handles.saturating_sub(1), Ordering::SeqCst);
        handles == 1",
    ),
    // `cancel` does not tell the worker of a timeout that is in the wheel.
    mutant("CancelWithoutPush", "core.rs", "if «placed» { desk.lane.push(", "false"),
    // --- worker.rs ----------------------------------------------------------------------------------------------------
    // A worker that was stopped in a turn takes messages in, beside what that has left to `stop`.
    mutant("TakeInBesideDue", "worker.rs", "self.over || «!self.due.is_empty()»", "false"),
    // A driver that looks again goes by that alone, whatever could be seen of its promise.
    mutant("PromiseBroken", "worker.rs", "next = self.next_tick(core).min(«next»);", "never"),
    // A driver does not look at the lanes again once its promise can be seen.
    mutant("PromiseWithoutSecondLook", "worker.rs", "next = self.next_tick(core).min(next);", ""),
    // `shutdown` does not wait for those who were counted in.
    mutant("ShutdownWithoutThoseAdmitted", "worker.rs", "if «live == word.pending()» {", "true"),
    // The worker does not look at the lanes again once it has said that it sleeps.
    mutant("SleepWithoutSecondLook", "worker.rs", "if «nothing_waits()» {", "true"),
    // `stop` leaves out what a turn had taken out of the wheel to expire it.
    mutant(
        "StopWithoutDue",
        "worker.rs",
        "«»let mut end = |entry: Entry, is_told|",
        "self.due.clear(); while self.wheel.pop_due(&core.arena).is_some() {}",
    ),
    mutant("StopWithoutDue", "worker.rs", "core.life.word().pending() == 0", "true"),
    // `stop` does not wait for those who were counted in.
    mutant("StopWithoutWaiting", "worker.rs", "core.life.word().pending() == 0", "true"),
    // The worker counts what `reset` has pushed again as a new timeout.
    mutant("ResetTakenForNew", "worker.rs", "matches!(message, Message::New(_))", "true"),
    // --- node.rs ------------------------------------------------------------------------------------------------------
    // Who cancels a task that repeats while it runs takes the task as well.
    mutant("CancelTakesWhatRuns", "node.rs", "deadline_of(before) != RUNNING", "true"),
    // The end of a run gives a task that repeats its next deadline whatever has become of it.
    mutant("RearmBringsBack", "node.rs", "((state, deadline) == (PLACED, RUNNING))", "true"),
    // A node's word changes by a load and a store, with a gap in between.
    mutant(
        "ChangeWithoutCompare",
        "node.rs",
        "«»match self.word.compare_exchange_weak(",
        "self.word.store(after, Ordering::SeqCst); return Some(before);",
    ),
    // Who takes a message back counts down, with a gap in between, as if a handle could not be lent to another thread.
    mutant(
        "TakeBackAsIfAlone",
        "node.rs",
        "self.merge_entry();",
        "let refs = self.refs.load(Ordering::SeqCst); self.refs.store(refs - 1, Ordering::SeqCst);",
    ),
    // The worker does not leave the entry to the message that is under way when it expires what is due.
    mutant("ExpiryTakesTheEntry", "node.rs", "if «state_of(before) == PLACED» {", "true"),
    // The worker gives up the entry of what has ended when the wheel gives it out, though a message about it is under way.
    mutant(
        "GoneWithItsEntry",
        "node.rs",
        "(None, None) => «Expiry::Gone»",
        "_ = self.release(); Expiry::Gone",
    ),
    // `stop` does not leave the entry to the message that is under way.
    mutant("StopTakesTheEntry", "node.rs", "if «is_told» {", "true"),
    mutant("StopTakesTheEntry", "node.rs", "was_placed || is_told", "true"),
    // --- node/arena.rs ------------------------------------------------------------------------------------------------
    // A node's references are counted down by a look and a store, with a gap in between.
    mutant(
        "ReleaseWithoutCompare",
        "node/arena.rs",
        "let mut count = refs.load_count(Ordering::Acquire); «»",
        "refs.store(count - 1, Ordering::Release); return (count == 1).then_some(Vacant(node));",
    ),
    // Whether the entry is merged is looked at when the reference is counted down already, and the node perhaps used again.
    mutant(
        "LookAfterRelease",
        "node/arena.rs",
        "let mut count = refs.load_count(Ordering::Acquire); «»",
        "let is_last = |count| count == 1 || count == 2 && merged.load_of_another(Ordering::Relaxed) == 1;
        return (is_last(count) || is_last(refs.fetch_sub(1, Ordering::AcqRel))).then_some(Vacant(node));",
    ),
    // --- lanes.rs -----------------------------------------------------------------------------------------------------
    // A message is taken back by a look and a store, with a gap in between.
    mutant(
        "TakeBackWithoutCompare",
        "lanes.rs",
        "slot.compare_exchange(message, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()",
        "let is_there = slot.load(Ordering::Relaxed) == message;
        if is_there { slot.store(0, Ordering::Relaxed); }
        is_there",
    ),
    // A lane gives out its messages in another order than they were pushed in.
    mutant("LaneOutOfOrder", "lanes.rs", "&self.block.slots[«place» as usize]", "place ^ 1"),
    // A thread's lane goes when the thread has gone, whatever is in it.
    mutant("RetiredLaneGoes", "lanes.rs", "lane.waiting() != (0, true)", "!lane.waiting().1"),
    // --- life.rs ------------------------------------------------------------------------------------------------------
    // A timeout is counted in by an addition and a look, and out again if it is refused: Netty's way.
    mutant(
        "AdmitBeforeLook",
        "life.rs",
        "«»let mut word = self.0.load(Ordering::Relaxed);",
        "let word = Word(self.0.fetch_add(PENDING, Ordering::AcqRel));
        self.leave();
        if word.pending() >= limit { return Err(Refusal::Full); }",
    ),
    // A timeout is counted in by a look and an addition, with a gap in between.
    mutant(
        "AdmitWithoutCompare",
        "life.rs",
        "«»let counted = word.wrapping_add(PENDING + ADMITTED);",
        "return Ok(Word(self.0.fetch_add(PENDING + ADMITTED, Ordering::AcqRel)));",
    ),
    // A timeout that is replaced is counted out first, and the new one in.
    mutant(
        "ReplaceLeavesFirst",
        "life.rs",
        "Word(self.0.fetch_add(ADMITTED, Ordering::AcqRel))",
        "self.leave(); Word(self.0.fetch_add(PENDING + ADMITTED, Ordering::AcqRel))",
    ),
    // The worker falls asleep whatever has happened since it looked at the lanes.
    mutant(
        "SleepWithoutCompare",
        "life.rs",
        "self.0.compare_exchange(seen.0, seen.0 | ASLEEP, Ordering::AcqRel, Ordering::Relaxed).is_ok()",
        "self.0.fetch_or(ASLEEP, Ordering::AcqRel); true",
    ),
    // --- thread.rs ----------------------------------------------------------------------------------------------------
    // Whoever starts the worker thread does not look again once it has the lock.
    mutant(
        "StartWithoutSecondLook",
        "thread.rs",
        "let mut handle = self.thread.handle.lock(); if let Some(known) = «self.is_started()» {",
        "None",
    ),
    // A `stop` that is not the first takes what is left as well.
    mutant("SecondStopTakes", "thread.rs", "if «!is_first» {", "false"),
    // A second `stop` does not wait for the first.
    mutant("SecondStopWithoutWaiting", "thread.rs", "while «!self.post.enter().is_over()» {", "false"),
    // `stop` does not wake the worker.
    mutant("StopWithoutUnparking", "thread.rs", "self.rouse();", ""),
    // --- the others ---------------------------------------------------------------------------------------------------
    // `shutdown` does not wait for anything: it stops at once.
    mutant("ShutdownWithoutGrace", "shutdown.rs", "word.is_stopped() || word.pending() == 0", "true"),
    // Who asks what is in the wheel looks whether the timer is stopped before it has the worker's lock, and not again.
    mutant(
        "OccupancyBeforeLock",
        "occupancy.rs",
        "«»let worker = self.post.try_enter()?;",
        "let word = self.life.word();
        let worker = self.post.try_enter()?;
        return (!word.is_stopped()).then(|| worker.occupancy(word, now));",
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
    // How many threads were started: inside/sync/model.rs.
    always("sync/model.rs", "«»Ok(loom::thread::spawn(body))", "inside::count_a_spawn();"),
];
