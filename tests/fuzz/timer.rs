//! A driven timer against a model of it, under the actions that some bytes stand for. Tasks and hooks act as well: they
//! read on where the bytes have come to when they are called.
#![allow(clippy::mutable_key_type, reason = "a timeout is itself, whatever becomes of it")]

mod keyed;
mod periodic;
#[cfg(feature = "async")]
mod sleeps;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use hashed_wheel::{
    Clock, Driver, ExpiredTask, HashedWheelTimer, KeyedTimeouts, ManualClock, NewTimeoutError, Timeout,
    TimerTask,
};

use self::periodic::Rhythm;
use super::bytes::Bytes;
use super::common::quietly;

/// In nanoseconds: the deadline that never comes.
const NEVER: u64 = (1 << 62) - 1;

/// The last nanosecond that comes.
const LAST: u64 = NEVER - 2;

/// In nanoseconds.
const TICKS: [u64; 4] = [1_000, 7_919, 1 << 20, 10_000_000];

const SLOTS: [usize; 4] = [1, 2, 8, 512];

/// Fewer than wake a loop for their number alone.
const MOST_TIMEOUTS: usize = 4_000;

/// How deep tasks and hooks may call each other.
const DEPTH: usize = 8;

/// The first bytes choose the timer, and how it ends.
pub(crate) fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let has = bytes.up_to(255);
    let (is_hierarchical, has_executor, has_waker) = (has & 1 > 0, has & 2 > 0, has & 4 > 0);
    let limit = if has & 8 > 0 { bytes.below(8) + 1 } else { 0 };
    let (tick, slots, end) = (bytes.one_of(&TICKS), bytes.one_of(&SLOTS), bytes.below(5));

    let clock = ManualClock::new();
    let origin = if has & 16 > 0 { 1 << 40 } else { 0 };
    clock.advance(Duration::from_nanos(origin));

    let wakes = Arc::new(AtomicUsize::new(0));
    let script = Script(Arc::new(Mutex::new(World {
        bytes,
        clock: clock.clone(),
        origin,
        tick,
        limit,
        has_executor,
        has_waker,
        has_taken_out: false,
        has_far: false,
        is_hierarchical,
        turn_of_wheel: tick * slots as u64,
        handles: Vec::new(),
        any: None,
        records: Vec::new(),
        pending: BTreeSet::new(),
        turned: 0,
        phase: Phase::Between,
        is_stopped: false,
        closing: None,
        turns: 0,
        stopping: BTreeSet::new(),
        returned: HashSet::new(),
        returned_unseen: 0,
        keyed: None,
        keys: BTreeMap::new(),
        #[cfg(feature = "async")]
        sleepers: Vec::new(),
        queue: Vec::new(),
        fired: Fired::default(),
        resets: 0,
        promised: None,
        may_wake: false,
        wakes: Arc::clone(&wakes),
        expected: Expected::default(),
        depth: 0,
    })));

    let builder = HashedWheelTimer::builder();
    let builder = builder.tick(Duration::from_nanos(tick)).ticks_per_wheel(slots).max_pending_timeouts(limit);
    let builder = if is_hierarchical { builder.hierarchical() } else { builder };
    let builder = match has_executor {
        true => {
            let script = script.clone();
            builder.task_executor(move |task| script.execute(task))
        }
        false => builder,
    };
    let builder = match has_waker {
        true => builder.waker(move || {
            wakes.fetch_add(1, SeqCst);
        }),
        false => builder,
    };
    let (timer, driver) = builder.clock(clock).build_driven().unwrap();
    script.world().keyed = (has & 32 > 0).then(|| KeyedTimeouts::new(&timer));
    script.world().handles.push(timer);

    let mut driver = Some(driver);
    while !script.world().bytes.is_empty() {
        script.step(&mut driver);
        script.check();
    }
    script.end(end, driver);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Pending,
    /// `cancel` is about to call its hook.
    Cancelling,
    /// `stop`, or the last handle, is about to.
    Stopping,
    /// By whoever: its hook was called, if it has one.
    Cancelled,
    /// Its task is the executor's, or runs.
    Handed,
    Ran,
    /// The executor dropped it.
    Dropped,
    /// It never was a timeout.
    Refused,
}

/// Whose a timeout is.
enum Kind {
    /// Of a task; its handle, unless that was dropped.
    Task(Option<Timeout>),
    Periodic(Rhythm),
    /// By key.
    Keyed(u8),
    #[cfg(feature = "async")]
    Sleep,
}

/// What the model knows of a timeout.
struct Record {
    state: State,
    kind: Kind,
    /// In nanoseconds.
    deadline: u64,
    /// The tick at which it is to fire.
    due: u64,
    /// It was re-armed in a turn for the tick at which this turn ends: it may fire there, or in the next one.
    may_be_now: bool,
    /// Or has run before: nobody says where it comes among those of its tick.
    was_reset: bool,
    task_is_gone: bool,
}

impl Record {
    fn handle(&self) -> Option<&Timeout> {
        match &self.kind {
            Kind::Task(handle) => handle.as_ref(),
            _ => None,
        }
    }

    fn rhythm(&mut self) -> Option<&mut Rhythm> {
        match &mut self.kind {
            Kind::Periodic(rhythm) => Some(rhythm),
            _ => None,
        }
    }

    fn repeats(&self) -> bool {
        matches!(self.kind, Kind::Periodic(_))
    }
}

/// Where the driver is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Between,
    /// In a turn, or in a `shutdown` that may turn.
    Turning,
    /// Calling the hooks of a timer that is stopped.
    Draining,
}

/// What has fired in the turn that is going on.
#[derive(Default)]
struct Fired {
    count: usize,
    /// The tick of the last one.
    tick: u64,
    /// The last one that was never re-armed.
    in_order: Option<(u64, usize)>,
}

/// What the timer should have counted.
#[derive(Default)]
struct Expected {
    wakes: usize,
    /// Turns of tasks, whether they end with it or run again.
    handed: u64,
    periodic_runs: u64,
    expired: u64,
    cancelled: u64,
    refused: u64,
    panicked: u64,
    dropped: u64,
}

struct World {
    bytes: Bytes,
    clock: ManualClock,
    origin: u64,
    /// In nanoseconds, like `turn_of_wheel`.
    tick: u64,
    turn_of_wheel: u64,
    /// 0 is none.
    limit: usize,
    has_executor: bool,
    has_waker: bool,
    is_hierarchical: bool,
    /// Something has been taken out of the wheel, so that it may wake in vain.
    has_taken_out: bool,
    /// In the hashed one something is billions of rounds off, so that it does now and then.
    has_far: bool,
    handles: Vec<HashedWheelTimer>,
    /// A way to the timer once there is no handle left.
    any: Option<Timeout>,
    records: Vec<Record>,
    pending: BTreeSet<usize>,
    /// The tick of the last turn, or of the one that is going on.
    turned: u64,
    phase: Phase,
    is_stopped: bool,
    /// A `shutdown` has begun: the last tick that it waits for.
    closing: Option<u64>,
    /// How many turns the timer had counted when a `shutdown` began, or its last turn.
    turns: u64,
    /// Whose hooks are still to be called by a `stop` that is going on.
    stopping: BTreeSet<usize>,
    /// Whose were.
    returned: HashSet<Timeout>,
    /// How many more it has ended, of which there is no handle.
    returned_unseen: usize,
    /// Goes before the last handle does, and is one itself.
    keyed: Option<KeyedTimeouts<u8>>,
    /// What is there by each key: it is pending, or in an executor's queue.
    keys: BTreeMap<u8, usize>,
    #[cfg(feature = "async")]
    sleepers: Vec<sleeps::Sleeper>,
    /// What the executor has kept.
    queue: Vec<(usize, ExpiredTask)>,
    fired: Fired,
    resets: usize,
    /// The tick of the turn that the driver has promised, while it sleeps; `u64::MAX` is none.
    promised: Option<u64>,
    /// Nothing of what was done since the last look had need of the waker, but it may have been called.
    may_wake: bool,
    wakes: Arc<AtomicUsize>,
    expected: Expected,
    depth: usize,
}

impl World {
    fn now(&self) -> u64 {
        (self.clock.now().as_nanos() as u64 - self.origin).min(LAST)
    }

    fn deadline(&self, delay: Duration) -> u64 {
        later(self.now(), delay)
    }

    /// The first tick at or after the deadline that no turn has come to.
    fn due(&self, deadline: u64) -> u64 {
        deadline.div_ceil(self.tick).max(self.turned + 1)
    }

    /// The time at which a tick begins, if it ever does.
    fn begins(&self, tick: u64) -> u64 {
        tick.saturating_mul(self.tick).min(NEVER)
    }

    /// A turn is needed for this one.
    fn needs_turn(&mut self, id: usize) {
        let Record { deadline, due, .. } = self.records[id];
        let reached = self.now() / self.tick;
        match self.promised {
            Some(promised) if due < promised => {
                self.expected.wakes += 1;
                self.promised = None;
            }
            // What was due before now is, to the timer, before a turn that is due now.
            Some(promised) if promised <= reached => self.may_wake |= deadline.div_ceil(self.tick) < reached,
            _ => {}
        }
        self.comes_to(due);
    }

    /// Something is in the wheel for this tick.
    fn comes_to(&mut self, due: u64) {
        let rounds = due.saturating_sub(self.turned) * self.tick / self.turn_of_wheel;
        self.has_far |= !self.is_hierarchical && rounds >= 1 << 30;
    }

    /// Nobody is let in any more.
    fn is_closed(&self) -> bool {
        self.is_stopped || self.closing.is_some()
    }

    fn is_full(&self) -> bool {
        self.limit > 0 && self.pending.len() == self.limit
    }

    /// One more timeout, or what is refused to be one.
    fn schedule(&mut self, kind: Kind, deadline: u64) -> usize {
        let is_refused = self.is_closed() || self.is_full();
        self.add(kind, deadline, is_refused)
    }

    fn add(&mut self, kind: Kind, deadline: u64, is_refused: bool) -> usize {
        let id = self.records.len();
        self.records.push(Record {
            state: if is_refused { State::Refused } else { State::Pending },
            kind,
            deadline,
            due: self.due(deadline),
            may_be_now: false,
            was_reset: false,
            task_is_gone: false,
        });
        if is_refused {
            self.expected.refused += 1;
        } else {
            self.pending.insert(id);
            self.needs_turn(id);
        }
        id
    }

    /// The timer has refused one, and says why.
    fn expect_refusal(&self, error: &NewTimeoutError) {
        match error {
            NewTimeoutError::Stopped => assert!(self.is_closed()),
            NewTimeoutError::TooManyPending { limit } => {
                assert!(self.is_full() && !self.is_closed() && *limit == self.limit);
            }
            error => panic!("{error}"),
        }
    }

    /// Somebody moves the deadline of one that is pending.
    fn rearm(&mut self, id: usize, deadline: u64) {
        let due = self.due(deadline);
        let is_in_turn = self.phase == Phase::Turning;
        let may_be_now = is_in_turn && deadline.div_ceil(self.tick) <= self.turned;
        let record = &mut self.records[id];
        (record.deadline, record.due, record.may_be_now) = (deadline, due, may_be_now);
        record.was_reset = true;
        self.resets += 1;
        self.has_taken_out = true;
        self.needs_turn(id);
    }

    /// Somebody ends one, if it has not ended. Says whether it had not.
    fn withdraw(&mut self, id: usize) -> bool {
        let wins = self.pending.remove(&id);
        if wins {
            self.records[id].state = State::Cancelling;
            self.expected.cancelled += 1;
            self.has_taken_out = true;
        }
        wins
    }

    fn timer(&self) -> Option<HashedWheelTimer> {
        self.handles.first().cloned().or_else(|| Some(self.any.as_ref()?.timer()))
    }

    fn delay(&mut self) -> Duration {
        let (tick, turn, bytes) = (self.tick, self.turn_of_wheel, &mut self.bytes);
        let nanos = match bytes.up_to(15) {
            0..3 => bytes.up_to(15) * tick,
            3 => 0,
            4 => bytes.up_to(tick),
            5 | 6 => bytes.up_to(255) * tick / 8,
            7 => turn - tick + bytes.up_to(2) * tick,
            8 | 9 => bytes.up_to(7) * turn + bytes.up_to(2) * tick,
            10 => bytes.any(),
            11 => bytes.up_to(7) << bytes.up_to(61),
            12 | 13 => self.first_due().map_or(0, |due| self.begins(due).saturating_sub(self.now())),
            14 => NEVER.saturating_sub(self.now()).saturating_sub(self.bytes.up_to(2)),
            _ => return Duration::MAX,
        };
        Duration::from_nanos(nanos)
    }

    /// The tick of the first pending timeout.
    fn first_due(&self) -> Option<u64> {
        self.pending.iter().map(|&id| self.records[id].due).min()
    }

    /// Any of them, more often one that is pending.
    fn pick(&mut self) -> Option<usize> {
        if self.records.is_empty() {
            return None;
        }
        let at = self.bytes.up_to(255) as usize;
        Some(match self.pending.len() {
            0 => at % self.records.len(),
            _ if at >= 192 => at % self.records.len(),
            count => *self.pending.iter().nth(at % count)?,
        })
    }

    /// It has expired, and its task is about to be handed to the executor.
    fn fire(&mut self, id: usize) {
        assert_eq!(self.phase, Phase::Turning, "{id} fires between turns");
        assert!(!self.is_stopped, "{id} fires after the end");
        assert!(self.pending.contains(&id));
        if self.closing.is_some() {
            self.shutdown_turns();
        }
        let record = &mut self.records[id];
        assert_eq!(record.state, State::Pending);
        record.state = State::Handed;
        self.expected.handed += 1;
        if !record.repeats() {
            self.pending.remove(&id);
            self.expected.expired += 1;
        }
        assert!(record.deadline.div_ceil(self.tick) <= self.turned, "{id} is early");
        assert!(record.due <= self.turned || record.may_be_now, "{id} is early");

        // Tick by tick; each in the order in which they were scheduled.
        let fired = &mut self.fired;
        let tick = match record.may_be_now {
            true => record.deadline.div_ceil(self.tick).max(fired.tick),
            false => record.due,
        };
        assert!(tick >= fired.tick, "{id} of tick {tick} fires after tick {}", fired.tick);
        if !record.was_reset {
            let this = Some((tick, id));
            assert!(this > fired.in_order, "{this:?} after {:?}", fired.in_order);
            fired.in_order = this;
        }
        fired.tick = tick;
        fired.count += 1;

        if self.has_executor && record.repeats() {
            // Until the executor is through with it.
            record.due = NEVER.div_ceil(self.tick);
            let never = record.due;
            self.comes_to(never);
        }
    }

    /// Something fires in a `shutdown`: perhaps it has begun another turn.
    fn shutdown_turns(&mut self) {
        let turns = self.timer().map_or(0, |timer| timer.stats().turns);
        if turns > self.turns {
            let reached = self.now() / self.tick;
            let has_reason = self.pending.iter().any(|&id| self.keeps_waiting(id, reached));
            assert!(has_reason, "only what keeps nobody waiting is due");
            (self.turns, self.turned, self.fired) = (turns, reached, Fired::default());
        }
    }

    /// Whether a `shutdown` turns for one.
    fn keeps_waiting(&self, id: usize, reached: u64) -> bool {
        let record = &self.records[id];
        let is_in_time = self.closing.is_some_and(|last| record.deadline.div_ceil(self.tick) <= last);
        record.due <= reached && is_in_time && !record.repeats()
    }

    /// All that have not ended are cancelled now, and their hooks about to be called.
    fn begin_to_drain(&mut self) {
        if self.closing.is_some() {
            let reached = self.now() / self.tick;
            for &id in &self.pending {
                assert!(!self.keeps_waiting(id, reached), "{id} is due within the grace");
            }
        }
        self.is_stopped = true;
        self.phase = Phase::Draining;
        self.expected.cancelled += self.pending.len() as u64;
        for id in std::mem::take(&mut self.pending) {
            let record = &mut self.records[id];
            if matches!(record.kind, Kind::Periodic(_) | Kind::Keyed(_)) {
                record.state = State::Cancelled;
                self.free_key(id);
                self.returned_unseen += 1;
            } else {
                record.state = State::Stopping;
                self.stopping.insert(id);
            }
        }
    }

    /// Whoever ends the timer ends this one with it, and calls its hook. Says whether that is so.
    fn sweep(&mut self, id: usize) -> bool {
        if self.is_closed() && self.phase == Phase::Turning && self.pending.contains(&id) {
            // A task has dropped the last handle, and the turn is over; or a `shutdown` has waited enough.
            self.begin_to_drain();
        }
        self.stopping.remove(&id)
    }

    /// It is the first who stops the timer, from outside.
    fn begin_to_stop(&mut self) {
        self.promised = None;
        self.begin_to_drain();
    }
}

/// The deadline so long after this one.
fn later(deadline: u64, delay: Duration) -> u64 {
    let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX).min(NEVER);
    if deadline + delay <= LAST { deadline + delay } else { NEVER }
}

#[derive(Clone)]
struct Script(Arc<Mutex<World>>);

impl Script {
    /// Not to be held while the timer may call back.
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What only the owner of the driver can do, or what anybody can.
    fn step(&self, driver: &mut Option<Driver>) {
        let choice = self.world().bytes.up_to(255);
        match (choice, driver.as_mut()) {
            (0..40, Some(driver)) => self.turn(driver),
            (40..52, Some(driver)) => drop(self.next_turn(driver)),
            (52..80, Some(driver)) => drop(self.sleep(driver)),
            (80, _) => self.drop_driver(driver.take()),
            _ => self.act(choice),
        }
    }

    fn act(&self, choice: u64) {
        match choice {
            0..40 => self.pass(),
            40..128 => self.schedule(1),
            128..134 => self.pass(),
            134..140 => self.schedule_many(),
            140..160 => self.cancel(),
            160..182 => self.reset(),
            182..187 => self.look(),
            187..191 => self.drop_or_clone(),
            191..199 => self.take_from_queue(),
            199..202 => self.clone_handle(),
            202 | 203 => self.drop_handle(),
            204 => self.stop(),
            205 => self.shutdown(),
            206..218 => self.schedule_periodic(),
            #[cfg(feature = "async")]
            218..244 => self.use_sleeper(choice - 218),
            244..=255 => self.use_key(choice - 244),
            _ => self.pass(),
        }
    }

    /// What a task or a hook does.
    fn nested(&self, most: u64) {
        let (depth, choice) = {
            let mut world = self.world();
            world.depth += 1;
            (world.depth, world.bytes.up_to(255))
        };
        if depth <= DEPTH {
            for _ in 0..(choice >> 5).min(most) {
                let choice = self.world().bytes.up_to(255);
                self.act(choice);
                self.check();
            }
        }
        self.world().depth -= 1;
        if choice % 32 == 31 {
            self.world().expected.panicked += 1;
            // Past the panic hook, which would print, or end a fuzzer.
            resume_unwind(Box::new("a task"));
        }
    }

    fn pass(&self) {
        let mut world = self.world();
        let (tick, turn) = (world.tick, world.turn_of_wheel);
        let until = world.first_due().map_or(0, |due| world.begins(due).saturating_sub(world.now()));
        let bytes = &mut world.bytes;
        let nanos = match bytes.up_to(31) {
            0..8 => (bytes.up_to(3) + 1) * tick,
            8..12 => bytes.up_to(tick),
            12..16 => until.min(tick << 40),
            16..20 => until.min(tick << 40).saturating_sub(1),
            20..24 => (bytes.up_to(3) + 1) * turn,
            24..28 => bytes.up_to(63) * turn + bytes.up_to(tick),
            28 => bytes.any() >> 2,
            29 => 1 << bytes.up_to(60),
            30 => until,
            _ => NEVER,
        };
        world.advance(nanos);
    }

    fn schedule_many(&self) {
        let count = self.world().bytes.up_to(15);
        self.schedule(count);
    }

    /// All with the same delay.
    fn schedule(&self, count: u64) {
        let (delay, temper) = {
            let mut world = self.world();
            (world.delay(), world.bytes.up_to(255))
        };
        for _ in 0..count {
            self.schedule_one(delay, temper);
        }
    }

    fn schedule_one(&self, delay: Duration, temper: u64) {
        let mut world = self.world();
        let Some(timer) = world.timer().filter(|_| world.records.len() < MOST_TIMEOUTS) else { return };
        let deadline = world.deadline(delay);
        let id = world.schedule(Kind::Task(None), deadline);
        let is_refused = world.records[id].state == State::Refused;
        drop(world);

        let outcome = timer.new_timeout_task(Task { id, temper, script: self.clone() }, delay);
        let mut world = self.world();
        match outcome {
            Ok(timeout) => {
                assert!(!is_refused);
                world.any.get_or_insert_with(|| timeout.clone());
                world.records[id].kind = Kind::Task(Some(timeout));
            }
            Err(error) => world.expect_refusal(&error),
        }
        assert_eq!(world.records[id].task_is_gone, is_refused);
    }

    /// Any timeout of which there is a handle.
    fn pick(&self) -> Option<(usize, Timeout)> {
        let mut world = self.world();
        let id = world.pick()?;
        let record = &mut world.records[id];
        if let Some(periodic) = record.rhythm().and_then(|rhythm| rhythm.handle.clone()) {
            drop(world);
            self.disturb(id, &periodic);
            return None;
        }
        Some((id, record.handle().cloned()?))
    }

    fn cancel(&self) {
        let Some((id, timeout)) = self.pick() else { return };
        let (wins, by_guard) = (self.world().withdraw(id), id % 4 == 3);
        if by_guard {
            drop(timeout.cancel_on_drop());
        } else {
            assert_eq!(timeout.cancel(), wins);
        }
        let world = self.world();
        let record = &world.records[id];
        assert!(!wins || record.state == State::Cancelled && record.task_is_gone);
    }

    fn reset(&self) {
        let Some((id, timeout)) = self.pick() else { return };
        let (delay, wins) = {
            let mut world = self.world();
            let delay = world.delay();
            let wins = world.pending.contains(&id);
            if wins {
                let deadline = world.deadline(delay);
                world.rearm(id, deadline);
            }
            (delay, wins)
        };
        assert_eq!(timeout.reset(delay), wins);
    }

    fn look(&self) {
        let Some((id, timeout)) = self.pick() else { return };
        let world = self.world();
        let record = &world.records[id];
        use State::{Cancelled, Cancelling, Dropped, Handed, Ran, Stopping};
        assert_eq!(timeout.is_cancelled(), matches!(record.state, Cancelling | Stopping | Cancelled));
        assert_eq!(timeout.is_expired(), matches!(record.state, Handed | Ran | Dropped));
        let remaining = match record.deadline {
            NEVER => Duration::MAX,
            deadline => Duration::from_nanos(deadline.saturating_sub(world.now())),
        };
        assert_eq!(timeout.remaining(), remaining);
    }

    fn drop_or_clone(&self) {
        let Some((id, timeout)) = self.pick() else { return };
        let mut world = self.world();
        // Without its handle nobody can say whose task it is that the executor gets.
        if !world.has_executor && id % 2 == 1 {
            world.records[id].kind = Kind::Task(None);
            drop(world);
            drop(timeout);
        } else {
            assert!(world.records[id].handle() == Some(&timeout));
        }
    }

    fn take_from_queue(&self) {
        let (id, task, runs) = {
            let mut world = self.world();
            if world.queue.is_empty() {
                return;
            }
            let (at, runs) = (world.queue.len() - 1, world.bytes.up_to(7) > 0);
            let at = world.bytes.below(at + 1);
            let (id, task) = world.queue.swap_remove(at);
            (id, task, runs)
        };
        self.see_to(id, task, runs);
    }

    /// Runs or drops a task.
    fn see_to(&self, id: usize, task: ExpiredTask, runs: bool) {
        if runs {
            task.run();
        } else {
            self.world().leave_out(id);
            drop(task);
        }
        let mut world = self.world();
        world.run_again_later(id);
        let record = &world.records[id];
        assert_eq!(record.task_is_gone, record.state != State::Pending);
    }

    fn clone_handle(&self) {
        let mut world = self.world();
        if let Some(timer) = world.handles.first().filter(|_| world.handles.len() < 4).cloned() {
            world.handles.push(timer);
        }
    }

    /// The last one stops the timer.
    fn drop_handle(&self) {
        if self.world().handles.len() == 1 {
            self.drop_keyed();
        }
        let mut world = self.world();
        let Some(handle) = world.handles.pop() else { return };
        // (Who shuts it down has one too.)
        let stops = world.handles.is_empty() && !world.is_closed();
        let is_outside = world.phase == Phase::Between;
        if stops && is_outside {
            world.begin_to_stop();
        }
        world.is_stopped |= stops;
        drop(world);
        drop(handle);
        if stops && is_outside {
            self.has_stopped(true);
        }
    }

    fn stop(&self) {
        let mut world = self.world();
        let Some(timer) = world.timer() else { return };
        match world.phase {
            Phase::Turning => {
                drop(world);
                let outcome = quietly(|| catch_unwind(AssertUnwindSafe(|| timer.stop())));
                assert!(outcome.is_err(), "it waits for itself");
            }
            Phase::Between if !world.is_stopped => {
                world.begin_to_stop();
                drop(world);
                let returned = timer.stop();
                self.has_stopped_with(returned);
            }
            _ => {
                drop(world);
                assert!(timer.stop().is_empty(), "it was stopped before");
            }
        }
    }

    fn shutdown(&self) {
        let mut world = self.world();
        let Some(timer) = world.timer() else { return };
        let grace = world.delay();
        match world.phase {
            Phase::Turning => {
                drop(world);
                let outcome = quietly(|| catch_unwind(AssertUnwindSafe(|| timer.shutdown(grace))));
                assert!(outcome.is_err(), "it waits for itself");
            }
            Phase::Between if !world.is_stopped => {
                world.closing = Some(world.deadline(grace).div_ceil(world.tick));
                (world.phase, world.turns) = (Phase::Turning, timer.stats().turns);
                drop(world);
                let returned = timer.shutdown(grace);
                let mut world = self.world();
                if world.phase == Phase::Turning {
                    world.begin_to_drain();
                }
                world.promised = None;
                // Its tasks may have called the waker as well, for a loop that cannot know that they run elsewhere.
                let wakes = world.wakes.load(SeqCst) - usize::from(world.has_waker);
                assert!(wakes >= world.expected.wakes);
                world.expected.wakes = wakes;
                drop(world);
                self.has_stopped_with(returned);
            }
            _ => {
                drop(world);
                assert!(timer.shutdown(grace).is_empty(), "it was stopped before");
            }
        }
    }

    /// A stop has returned what it has ended.
    fn has_stopped_with(&self, returned: Vec<Timeout>) {
        let (expected, unseen) = self.has_stopped(true);
        assert_eq!(returned.len(), expected.len() + unseen);
        let returned: HashSet<_> = returned.into_iter().collect();
        assert_eq!(returned.len(), expected.len() + unseen, "one twice");
        assert!(returned.is_superset(&expected), "{returned:?} instead of {expected:?}");
    }

    /// A stop is over. Says which timeouts it has ended, and how many others.
    fn has_stopped(&self, has_driver: bool) -> (HashSet<Timeout>, usize) {
        let mut world = self.world();
        assert_eq!((world.phase, world.stopping.len()), (Phase::Draining, 0));
        world.phase = Phase::Between;
        world.expected.wakes += usize::from(world.has_waker && has_driver);
        (std::mem::take(&mut world.returned), std::mem::take(&mut world.returned_unseen))
    }

    fn drop_driver(&self, driver: Option<Driver>) {
        let Some(driver) = driver else { return };
        let stops = {
            let mut world = self.world();
            let stops = !world.is_stopped;
            if stops {
                world.begin_to_stop();
            }
            stops
        };
        drop(driver);
        if stops {
            self.has_stopped(false);
        }
    }

    fn turn(&self, driver: &mut Driver) {
        let was_stopped = {
            let mut world = self.world();
            if !world.is_stopped {
                world.turned = world.now() / world.tick;
                world.phase = Phase::Turning;
                world.promised = None;
                world.fired = Fired::default();
            }
            world.is_stopped
        };
        let expired = driver.turn();
        let mut world = self.world();
        if was_stopped {
            assert_eq!(expired, 0);
            return;
        }
        assert_eq!(expired, world.fired.count);
        if world.is_stopped && world.phase == Phase::Turning {
            // There was nothing with a hook.
            world.begin_to_drain();
        }
        world.phase = Phase::Between;
        if world.is_stopped {
            assert_eq!((world.pending.len(), world.stopping.len()), (0, 0));
            world.returned.clear();
            world.returned_unseen = 0;
        }
        for &id in &world.pending {
            let due = world.records[id].due;
            assert!(due > world.turned, "{id} of tick {due} is late in tick {}", world.turned);
        }
    }

    fn next_turn(&self, driver: &Driver) -> Option<Duration> {
        let next = driver.next_turn();
        let mut world = self.world();
        if world.is_stopped {
            assert_eq!(next, None);
            return None;
        }
        let never = NEVER.div_ceil(world.tick);
        let promised = match next.map(|next| next.as_nanos() as u64) {
            None => never,
            // At once: the first that it can be.
            Some(0) => world.turned + 1,
            Some(next) => {
                let at = world.now() + next;
                assert_eq!(at % world.tick, 0, "not at the beginning of a tick");
                at / world.tick
            }
        };
        assert!(promised > world.turned, "there is nothing to do in a tick that is over");
        let first = world.first_due().unwrap_or(never);
        assert!(promised <= first, "the turn of tick {promised} is too late for {first}");
        assert!(promised == never || !world.pending.is_empty(), "nothing is pending");
        let is_exact = !world.has_taken_out && !world.has_far;
        if is_exact && next == Some(Duration::ZERO) {
            assert!(world.begins(first) <= world.now(), "nothing is due, and nothing was ever taken out");
        } else if is_exact {
            assert_eq!(promised, first, "nothing was ever taken out");
        }
        world.promised = world.has_waker.then_some(promised);
        next
    }

    /// Until the next turn, exactly. Says whether there is one.
    fn sleep(&self, driver: &mut Driver) -> bool {
        let next = self.next_turn(driver);
        if let Some(next) = next {
            self.world().advance(next.as_nanos() as u64);
            self.turn(driver);
        }
        next.is_some()
    }

    /// The executor.
    fn execute(&self, task: ExpiredTask) {
        let (id, choice) = {
            let mut world = self.world();
            let is_expired = |id: usize| world.records[id].handle().is_some_and(Timeout::is_expired);
            let mut expired: Vec<_> = world.pending.iter().copied().filter(|&id| is_expired(id)).collect();
            if expired.is_empty() {
                // There is no more than one, for nobody could tell them apart.
                let is_unseen = |kind: &Kind| matches!(kind, Kind::Periodic(_) | Kind::Keyed(_));
                expired.extend(world.pending.iter().filter(|&&id| is_unseen(&world.records[id].kind)));
            }
            assert_eq!(expired.len(), 1, "one after the other");
            world.fire(expired[0]);
            (expired[0], world.bytes.up_to(15))
        };
        match choice {
            0..8 => self.see_to(id, task, true),
            8..14 => self.world().queue.push((id, task)),
            14 => self.see_to(id, task, false),
            _ => {
                {
                    let mut world = self.world();
                    world.leave_out(id);
                    world.run_again_later(id);
                    world.expected.panicked += 1;
                }
                resume_unwind(Box::new("the executor"));
            }
        }
    }

    /// Whether the timer says of itself what the model does.
    fn check(&self) {
        let mut world = self.world();
        let is_closing = world.closing.is_some() && !(world.is_stopped && world.phase == Phase::Between);
        let wakes = world.wakes.load(SeqCst);
        if std::mem::take(&mut world.may_wake) && wakes == world.expected.wakes + 1 {
            world.expected.wakes = wakes;
            world.promised = None;
        }
        assert!(is_closing || wakes == world.expected.wakes, "{wakes} wakes for {}", world.expected.wakes);
        let Some(timer) = world.timer() else { return };
        assert_eq!(timer.is_stopped(), world.is_stopped);
        assert_eq!(timer.pending_timeouts(), world.pending.len());
        assert!(world.limit == 0 || world.pending.len() <= world.limit);
        let (stats, expected) = (timer.stats(), &world.expected);
        assert_eq!(stats.pending, world.pending.len() as u64);
        assert_eq!(stats.expired, expected.expired);
        assert_eq!(stats.cancelled, expected.cancelled);
        assert_eq!(stats.scheduled, stats.pending + stats.expired + stats.cancelled);
        assert_eq!(stats.rejected, expected.refused);
        assert_eq!(stats.panics, expected.panicked);
        assert_eq!(stats.dropped_tasks, expected.dropped);
        assert_eq!(stats.periodic_runs, expected.periodic_runs);
        assert_eq!(stats.resets, world.resets as u64);
        let counted: u64 = stats.lateness.buckets().map(|(_, count)| count).sum();
        assert!(counted == expected.handed || counted < expected.handed && world.phase == Phase::Turning);
    }

    /// Lets the timer run out, or stops it in some way; then nothing may be left of it.
    fn end(self, end: usize, mut driver: Option<Driver>) {
        match (end, &mut driver) {
            (0, Some(driver)) => {
                self.cancel_periodic();
                let most = {
                    let world = self.world();
                    2 * (world.records.len() + world.resets) + 8
                };
                let turns = (0..most).take_while(|_| self.sleep(driver)).count();
                let world = self.world();
                let is_never = |id: &usize| world.begins(world.records[*id].due) == NEVER;
                let is_quiet = turns < most && world.pending.iter().all(is_never);
                assert!(is_quiet || world.has_far, "{turns} turns in vain");
            }
            (1, driver) => self.drop_driver(driver.take()),
            (2, _) => (0..4).for_each(|_| self.drop_handle()),
            (3, _) => self.shutdown(),
            _ => self.stop(),
        }
        self.check();
        self.stop();
        self.check();
        drop(driver);
        while let Some((id, task)) = self.pop_queue() {
            self.see_to(id, task, true);
        }
        self.check();

        self.drop_keyed();
        #[cfg(feature = "async")]
        self.drop_sleepers();
        let (handles, any, records) = {
            let mut world = self.world();
            (std::mem::take(&mut world.handles), world.any.take(), std::mem::take(&mut world.records))
        };
        drop((handles, any));
        for (id, record) in records.iter().enumerate() {
            let has_ended =
                matches!(record.state, State::Cancelled | State::Ran | State::Dropped | State::Refused);
            assert!(has_ended && record.task_is_gone, "{id} is {:?}", record.state);
        }
        drop(records);
        assert_eq!(Arc::strong_count(&self.0), 1, "something still holds a task or the executor");
    }

    fn pop_queue(&self) -> Option<(usize, ExpiredTask)> {
        self.world().queue.pop()
    }
}

struct Task {
    id: usize,
    /// Whether it does anything, and whether it panics when it is dropped.
    temper: u64,
    script: Script,
}

impl TimerTask for Task {
    fn run(self, timeout: &Timeout) {
        {
            let mut world = self.script.world();
            if !world.has_executor {
                world.fire(self.id);
            }
            let state = &mut world.records[self.id].state;
            assert_eq!(*state, State::Handed);
            *state = State::Ran;
        }
        assert!(timeout.is_expired() && !timeout.is_cancelled());
        if self.temper >= 128 {
            self.script.nested(7);
        }
    }

    fn cancelled(self, timeout: &Timeout) {
        {
            let mut world = self.script.world();
            let by_stop = world.sweep(self.id);
            let record = &mut world.records[self.id];
            let expected = if by_stop { State::Stopping } else { State::Cancelling };
            assert_eq!(record.state, expected, "{}", self.id);
            record.state = State::Cancelled;
            if by_stop {
                assert!(world.returned.insert(timeout.clone()));
            }
        }
        assert!(timeout.is_cancelled() && !timeout.is_expired());
        if self.temper >= 192 {
            self.script.nested(2);
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut world = self.script.world();
        let Some(record) = world.records.get_mut(self.id) else { return };
        assert!(!record.task_is_gone, "{} was dropped before", self.id);
        record.task_is_gone = true;
        if self.temper % 64 == 63 && !thread::panicking() {
            world.expected.panicked += 1;
            drop(world);
            resume_unwind(Box::new("the drop of a task"));
        }
    }
}
