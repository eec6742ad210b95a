//! Compares one or two driven timers with models of them, under actions that follow from bytes.
//! Tasks and hooks act as well: they continue to read the bytes where the caller has stopped.
//!
//! Left to tests of their own: calls that wait for another thread (`recv`, or a `cancel_and_wait`
//! of a task that the executor has), because a script has one thread; runs of periodic tasks that
//! are refused under `or_run_here` or `or_retry`, several refused tasks that wait at the same time
//! (`crates/util/tests/it/refused.rs`); the adapters, `client` and `timeout`, which are made of
//! what is compared here; of periodic tasks, `jitter`, policies for missed runs,
//! `continue_after_shutdown` and an end by themselves; texts, such as `Debug` and reports.
#![allow(clippy::mutable_key_type, reason = "a timeout is hashed by identity")]

mod periodic;
mod queue;
mod refused;
mod several;
mod sleeps;
mod values;
mod whole;

use std::collections::{BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use hashed_wheel::{
    Clock, Driver, Ending, ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout,
    TimerTask,
};
use hashed_wheel_ledger::{self as ledger, Count, Ledger, Ticket};

use self::periodic::PeriodicModel;
use self::queue::QueueModel;
use self::refused::Policy;
use self::several::SharedBytes;
use self::values::ValuesModel;
use super::common::{TEST_TIMEOUT, quietly};

/// In nanoseconds: the deadline that is never reached.
const NEVER: u64 = (1 << 62) - 1;

/// The last nanosecond that the clock reaches.
const LAST: u64 = NEVER - 2;

/// In nanoseconds.
const TICKS: [u64; 4] = [1_000, 7_919, 1 << 20, 10_000_000];

const SLOTS: [usize; 4] = [1, 2, 8, 512];

/// Fewer timeouts than would wake a loop by their number alone.
const MAX_TIMEOUTS: usize = 4_000;

/// In nanoseconds: shorter delays are also given as deadlines, by a clock that is before this.
const MAX_INSTANT: u64 = 1 << 60;

/// The maximum depth of calls between tasks and hooks.
const DEPTH: usize = 8;

/// The first bytes choose the timers and how they end.
pub(crate) fn run(input: &[u8]) {
    let bytes = SharedBytes::new(input);
    let has = bytes.up_to(255);
    let mut timers = vec![Timer::new(has, &bytes)];
    if has & 64 > 0 {
        timers.push(Timer::new(bytes.up_to(255), &bytes));
        timers[0].script.introduce(&timers[1].script);
    }
    while !bytes.is_empty() {
        let Timer { script, driver, .. } = match &mut timers[..] {
            [timer] => timer,
            timers => &mut timers[bytes.below(2)],
        };
        script.step(driver);
        script.check();
    }
    for timer in timers {
        timer.script.end(timer.end, timer.driver);
    }
}

/// A driven timer.
struct Timer {
    script: Script,
    driver: Option<Driver>,
    /// Chooses how it ends.
    end: usize,
}

impl Timer {
    fn new(has: u64, bytes: &SharedBytes) -> Self {
        let (script, driver) = build(has, bytes);
        Self {
            script,
            driver: Some(driver),
            end: bytes.below(6),
        }
    }
}

fn build(has: u64, bytes: &SharedBytes) -> (Script, Driver) {
    let (is_hierarchical, has_executor, has_waker) = (has & 1 > 0, has & 2 > 0, has & 4 > 0);
    let limit = if has & 8 > 0 { bytes.below(8) + 1 } else { 0 };
    let (tick, slots) = (bytes.one_of(&TICKS), bytes.one_of(&SLOTS));
    let (output, policy) = (bytes.up_to(3), Policy::of(bytes.up_to(15), tick));

    let clock = ManualClock::new();
    let origin = if has & 16 > 0 { 1 << 40 } else { 0 };
    clock.advance(Duration::from_nanos(origin));

    let wakes = Arc::new(AtomicUsize::new(0));
    let script = Script(Arc::new(Mutex::new(Model {
        bytes: bytes.clone(),
        other: None,
        is_on_another_thread: false,
        clock: clock.clone(),
        origin,
        tick,
        limit,
        has_executor,
        has_waker,
        has_removed: false,
        has_far: false,
        is_hierarchical,
        round: tick * slots as u64,
        handles: Vec::new(),
        any: None,
        records: Vec::new(),
        // The model knows the deadlines, so the tickets do not need the time.
        ledger: Ledger::new(String::new(), Duration::MAX, || Duration::ZERO),
        pending: BTreeSet::new(),
        turned: 0,
        is_cut: false,
        added_in_turn: Vec::new(),
        phase: Phase::Idle,
        is_stopped: false,
        closing: None,
        closing_handle: None,
        turns: 0,
        stopping: BTreeSet::new(),
        returned: HashSet::new(),
        returned_hidden: 0,
        values: None,
        delay_queue: None,
        live_values: Arc::default(),
        sleepers: Vec::new(),
        queue: Vec::new(),
        policy: if has_executor { policy } else { Policy::Drop },
        refused: None,
        cancelled_by_all: Vec::new(),
        hooks_are_quiet: false,
        fired: Fired::default(),
        resets: 0,
        announced: None,
        may_wake: false,
        wakes: Arc::clone(&wakes),
        expected: Expected::default(),
        depth: 0,
    })));

    let mut builder = HashedWheelTimer::builder()
        .tick(Duration::from_nanos(tick))
        .ticks_per_wheel(slots)
        .max_pending_timeouts((limit > 0).then_some(limit))
        .hierarchical(is_hierarchical);
    if has_executor {
        builder = policy.set_executor(builder, &script);
    }
    if has_waker {
        builder = builder.waker(move || _ = wakes.fetch_add(1, SeqCst));
    }
    let (timer, driver) = builder.clock(clock).build_driven().unwrap();
    {
        let mut model = script.model();
        model.values = ValuesModel::new(output, &timer);
        model.delay_queue = (has & 128 > 0).then(|| QueueModel::new(&timer));
        model.handles.push(timer);
    }
    (script, driver)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Pending,
    /// `cancel` is about to call its hook.
    Cancelling,
    /// `stop`, or the drop of the last handle, is about to call its hook.
    Stopping,
    /// Cancelled in any way. The hook was called, if there is one.
    Cancelled,
    /// The task was handed to the executor, or runs.
    HandedOver,
    Ran,
    /// The executor dropped the task.
    Dropped,
    /// The timeout was rejected.
    Rejected,
}

/// The call that created a timeout.
enum Kind {
    /// A task, and its handle unless that was dropped.
    Task(Option<Timeout>),
    Periodic(PeriodicModel),
    /// An entry of the map.
    Value {
        key: u8,
        /// It expires without a call of the user's code.
        is_silent: bool,
    },
    /// The executor has refused the task of this timeout, and will be offered it again.
    Retry(usize),
    /// Wakes a consumer of the queue.
    Alarm,
    Sleep,
}

impl Kind {
    fn of_ticket(&self) -> ledger::Kind {
        match self {
            Self::Task(_) => ledger::Kind::Plain,
            Self::Periodic(_) => ledger::Kind::Periodic,
            Self::Value { .. } => ledger::Kind::Map,
            Self::Retry(_) | Self::Sleep => ledger::Kind::Sleep,
            Self::Alarm => ledger::Kind::Queue,
        }
    }
}

/// The model's state of a timeout.
struct Record {
    state: State,
    kind: Kind,
    /// In nanoseconds.
    deadline: u64,
    /// The tick at which it should fire.
    due: u64,
    /// It was reset, during a turn, to the tick at which this turn ends. It may fire in this turn
    /// or in the next.
    may_fire_now: bool,
    /// It was reset or has run before. Its position among the timeouts of one tick is not
    /// specified.
    was_reset: bool,
    ticket: Ticket,
}

impl Record {
    fn is_dropped(&self) -> bool {
        self.ticket.get(Count::TaskDrop) > 0
    }

    fn drop_task(&self) {
        assert!(!self.is_dropped(), "a task was dropped before");
        self.ticket.count(Count::TaskDrop);
    }

    /// The task has been dropped without a call of the user's code.
    fn end(&mut self, state: State) {
        self.state = state;
        self.drop_task();
    }

    fn handle(&self) -> Option<&Timeout> {
        match &self.kind {
            Kind::Task(handle) => handle.as_ref(),
            _ => None,
        }
    }

    fn periodic_model(&mut self) -> Option<&mut PeriodicModel> {
        match &mut self.kind {
            Kind::Periodic(periodic_model) => Some(periodic_model),
            _ => None,
        }
    }

    fn periodic(&mut self) -> &mut PeriodicModel {
        self.periodic_model().expect("the task is periodic")
    }

    fn is_periodic(&self) -> bool {
        matches!(self.kind, Kind::Periodic(_))
    }

    /// Has no handle that would tell the executor's model which timeout has expired.
    fn is_hidden(&self) -> bool {
        match self.kind {
            Kind::Periodic(_) | Kind::Retry(_) => true,
            Kind::Value { is_silent, .. } => !is_silent,
            _ => false,
        }
    }
}

/// The state of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    /// In a turn, or in a `shutdown` that may turn.
    Turning,
    /// Calls the hooks of a timer that is stopped.
    Draining,
}

/// The timeouts that have fired in the turn in progress.
#[derive(Default)]
struct Fired {
    count: usize,
    /// The tick of the last timeout that fired.
    tick: u64,
    /// The last timeout that fired and was never reset.
    in_order: Option<(u64, usize)>,
    /// The last timeout may have fired one tick after `tick`.
    is_tick_uncertain: bool,
}

/// The counts that the timer should report, apart from those of the ledger.
#[derive(Default)]
struct Expected {
    wakes: usize,
    /// Executions of tasks, final or not.
    handed_over: u64,
    periodic_runs: u64,
    panicked: u64,
    dropped: u64,
}

struct Model {
    bytes: SharedBytes,
    /// The script of another timer.
    other: Option<WeakScript>,
    /// The tasks and hooks run on the thread of an `Ending` now.
    is_on_another_thread: bool,
    clock: ManualClock,
    origin: u64,
    /// In nanoseconds, like `round`.
    tick: u64,
    round: u64,
    /// 0 means no limit.
    limit: usize,
    has_executor: bool,
    has_waker: bool,
    is_hierarchical: bool,
    /// An entry was removed from the wheel, so unnecessary wake-ups are possible.
    has_removed: bool,
    /// In the hashed wheel an entry is billions of rounds away, so unnecessary wake-ups are
    /// possible.
    has_far: bool,
    handles: Vec<HashedWheelTimer>,
    /// Gives access to the timer when no handle is left.
    any: Option<Timeout>,
    records: Vec<Record>,
    ledger: Arc<Ledger>,
    pending: BTreeSet<usize>,
    /// The tick of the last turn, or of the turn in progress. If the last turn was cut short, the
    /// tick of the last timeout that fired.
    turned: u64,
    /// The last turn has run as many tasks as it might. Others may be left, also of its last tick.
    is_cut: bool,
    /// The timeouts that were scheduled or reset in the turn in progress. They fall due at its end
    /// at the earliest, and that is not known yet.
    added_in_turn: Vec<usize>,
    phase: Phase,
    is_stopped: bool,
    /// The last tick that the `shutdown` in progress waits for.
    closing: Option<u64>,
    /// The handle of the caller of that `shutdown`.
    closing_handle: Option<HashedWheelTimer>,
    /// The number of turns that the timer had counted when a `shutdown` began, or at its last turn.
    turns: u64,
    /// The timeouts whose hooks a `stop` in progress has not called yet.
    stopping: BTreeSet<usize>,
    /// The timeouts whose hooks the `stop` has called.
    returned: HashSet<Timeout>,
    /// The number of further timeouts that the `stop` has ended, which have no handle.
    returned_hidden: usize,
    /// Counts as a handle of the timer and is dropped before the last handle.
    values: Option<ValuesModel>,
    /// Counts as a handle of the timer and is dropped before the last handle.
    delay_queue: Option<QueueModel>,
    /// Each value of the queue has a reference.
    live_values: Arc<()>,
    sleepers: Vec<sleeps::Sleeper>,
    /// The tasks that the executor has kept.
    queue: Vec<(usize, ExpiredTask)>,
    /// `Drop` if there is no executor.
    policy: Policy,
    /// The task that the executor has just refused.
    refused: Option<usize>,
    /// How many timeouts each `cancel_all` in progress has cancelled.
    cancelled_by_all: Vec<usize>,
    hooks_are_quiet: bool,
    fired: Fired,
    resets: usize,
    /// The tick of the turn until which the loop has announced to sleep. `u64::MAX` means no turn.
    announced: Option<u64>,
    /// No operation since the last check needed the waker, but the timer may have called it.
    may_wake: bool,
    wakes: Arc<AtomicUsize>,
    expected: Expected,
    depth: usize,
}

impl Model {
    fn now(&self) -> u64 {
        (self.clock.now().as_nanos() as u64 - self.origin).min(LAST)
    }

    fn deadline(&self, delay: Duration) -> u64 {
        later(self.now(), delay)
    }

    /// Whether the timer can represent the time after this delay as an `Instant`.
    fn is_instant(&self, delay: Duration) -> bool {
        self.now() < MAX_INSTANT && delay < Duration::from_nanos(MAX_INSTANT)
    }

    /// The first tick at or after the deadline that no turn has reached.
    fn due(&self, deadline: u64) -> u64 {
        deadline.div_ceil(self.tick).max(self.turned + 1)
    }

    /// Whether a `cancel_and_wait` would wait for a task that the executor has.
    fn would_wait(&self, id: usize) -> bool {
        let record = &self.records[id];
        self.has_executor && record.state != State::Pending && !record.is_dropped()
    }

    /// The time at which a tick begins, or `NEVER`.
    fn begins(&self, tick: u64) -> u64 {
        tick.saturating_mul(self.tick).min(NEVER)
    }

    /// This timeout needs a turn at its tick.
    fn needs_turn(&mut self, id: usize) {
        let Record { deadline, due, .. } = self.records[id];
        let reached = self.now() / self.tick;
        match self.announced {
            Some(announced) if due < announced => {
                self.expected.wakes += 1;
                self.announced = None;
            }
            // The timer treats a timeout due before now as earlier than a turn that is due now.
            Some(announced) if announced <= reached => {
                self.may_wake |= deadline.div_ceil(self.tick) < reached;
            }
            _ => {}
        }
        self.note_far_entry(due);
    }

    /// The wheel has an entry for this tick.
    fn note_far_entry(&mut self, due: u64) {
        let rounds = due.saturating_sub(self.turned) * self.tick / self.round;
        self.has_far |= !self.is_hierarchical && rounds >= 1 << 30;
    }

    /// Whether new timeouts are rejected because the timer ends.
    fn is_closed(&self) -> bool {
        self.is_stopped || self.closing.is_some()
    }

    fn is_full(&self) -> bool {
        self.limit > 0 && self.pending.len() == self.limit
    }

    /// Adds a timeout, which may be rejected.
    fn schedule(&mut self, kind: Kind, deadline: u64) -> usize {
        let is_rejected = self.is_closed() || self.is_full();
        self.add(kind, deadline, is_rejected)
    }

    fn add(&mut self, kind: Kind, deadline: u64, is_rejected: bool) -> usize {
        let id = self.records.len();
        let ticket = Ticket::new(&self.ledger, kind.of_ticket(), Default::default());
        if is_rejected {
            ticket.count(Count::Rejected);
        }
        use State::{Pending, Rejected};
        self.records.push(Record {
            state: if is_rejected { Rejected } else { Pending },
            kind,
            deadline,
            due: self.due(deadline),
            may_fire_now: false,
            was_reset: false,
            ticket,
        });
        if !is_rejected {
            self.pending.insert(id);
            self.note_addition(id);
            self.needs_turn(id);
        }
        id
    }

    /// The timeout has got a new due time.
    fn note_addition(&mut self, id: usize) {
        if self.phase == Phase::Turning {
            self.added_in_turn.push(id);
        }
    }

    /// Checks the error of a rejection.
    fn expect_rejection(&self, error: &NewTimeoutError) {
        match error {
            NewTimeoutError::Stopped => assert!(self.is_closed()),
            NewTimeoutError::TooManyPending { limit } => {
                assert!(self.is_full() && !self.is_closed() && *limit == self.limit);
            }
            error => panic!("{error}"),
        }
    }

    /// The deadline of a pending timeout is moved.
    fn reset_record(&mut self, id: usize, deadline: u64) {
        let due = self.due(deadline);
        let is_in_turn = self.phase == Phase::Turning;
        // If the last turn was cut short, the timeout may still be among those of the last tick.
        let may_fire_now =
            (is_in_turn || self.is_cut) && deadline.div_ceil(self.tick) <= self.turned;
        let record = &mut self.records[id];
        (record.deadline, record.due, record.may_fire_now) = (deadline, due, may_fire_now);
        record.was_reset = true;
        self.resets += 1;
        self.has_removed = true;
        self.note_addition(id);
        self.needs_turn(id);
    }

    /// Cancels a timeout if it is pending. Returns whether it was.
    fn cancel_record(&mut self, id: usize) -> bool {
        let succeeds = self.pending.remove(&id);
        if succeeds {
            self.records[id].state = State::Cancelling;
            self.records[id].ticket.count(Count::Cancelled);
            self.has_removed = true;
        }
        succeeds
    }

    fn is_over(&self) -> bool {
        self.is_stopped || self.timer().is_some_and(|timer| timer.is_stopped())
    }

    fn timer(&self) -> Option<HashedWheelTimer> {
        let handle = self.handles.first().or(self.closing_handle.as_ref());
        handle.cloned().or_else(|| Some(self.any.as_ref()?.timer()))
    }

    fn delay(&mut self) -> Duration {
        let (tick, round, bytes) = (self.tick, self.round, &self.bytes);
        let nanos = match bytes.up_to(15) {
            0..3 => bytes.up_to(15) * tick,
            3 => 0,
            4 => bytes.up_to(tick),
            5 | 6 => bytes.up_to(255) * tick / 8,
            7 => round - tick + bytes.up_to(2) * tick,
            8 | 9 => bytes.up_to(7) * round + bytes.up_to(2) * tick,
            10 => bytes.any(),
            11 => bytes.up_to(7) << bytes.up_to(61),
            12 | 13 => self
                .first_due()
                .map_or(0, |due| self.begins(due).saturating_sub(self.now())),
            14 => NEVER
                .saturating_sub(self.now())
                .saturating_sub(self.bytes.up_to(2)),
            _ => return Duration::MAX,
        };
        Duration::from_nanos(nanos)
    }

    /// The tick of the first pending timeout.
    fn first_due(&self) -> Option<u64> {
        self.pending.iter().map(|&id| self.records[id].due).min()
    }

    /// A random timeout, more often a pending one.
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

    fn has_room(&self) -> bool {
        self.records.len() < MAX_TIMEOUTS
    }

    /// A timeout has expired, and its task is about to be handed to the executor.
    fn fire(&mut self, id: usize) {
        self.settle_values();
        self.fire_next(id);
    }

    /// The same, after all that have expired before it.
    fn fire_next(&mut self, id: usize) {
        let phase = self.phase;
        assert_eq!(phase, Phase::Turning, "timeout {id} fires between turns");
        assert!(!self.is_stopped, "timeout {id} fires after the end");
        assert!(self.pending.contains(&id));
        if self.closing.is_some() {
            self.shutdown_turns();
        }
        let record = &mut self.records[id];
        assert_eq!(record.state, State::Pending);
        record.state = State::HandedOver;
        self.expected.handed_over += 1;
        if !record.is_periodic() {
            self.pending.remove(&id);
            record.ticket.count(Count::Expired);
        }
        let is_reached = record.deadline.div_ceil(self.tick) <= self.turned;
        assert!(is_reached, "timeout {id} is early");
        let is_due = record.due <= self.turned || record.may_fire_now;
        assert!(is_due, "timeout {id} is early");

        // Timeouts fire tick by tick, and within a tick in the order of scheduling.
        let fired = &mut self.fired;
        let tick = match record.may_fire_now {
            true => record.deadline.div_ceil(self.tick).max(fired.tick),
            false => record.due,
        };
        assert!(
            tick >= fired.tick,
            "timeout {id} of tick {tick} fires after tick {}",
            fired.tick
        );
        if !record.was_reset {
            let this = Some((tick, id));
            assert!(this > fired.in_order, "{this:?} after {:?}", fired.in_order);
            fired.in_order = this;
        }
        fired.tick = tick;
        fired.count += 1;
        fired.is_tick_uncertain = record.may_fire_now && !self.added_in_turn.contains(&id);

        if self.has_executor && record.is_periodic() {
            // The executor's run ends first.
            record.due = NEVER.div_ceil(self.tick);
            let never = record.due;
            self.note_far_entry(never);
        }
    }

    /// A timeout fires during a `shutdown`, which may have begun another turn.
    fn shutdown_turns(&mut self) {
        let turns = self.timer().map_or(0, |timer| timer.stats().turns);
        if turns > self.turns {
            let reached = self.now() / self.tick;
            let is_reason = |&id: &usize| {
                self.delays_shutdown(id, reached) || self.may_delay_shutdown(id, reached)
            };
            let has_reason = self.pending.iter().any(is_reason);
            assert!(
                has_reason,
                "no due timeout delays the shutdown, but it made a turn"
            );
            self.turns = turns;
            self.start_turn();
            assert_eq!(self.turned, reached);
        }
    }

    /// Whether a `shutdown` makes a turn for this timeout.
    fn delays_shutdown(&self, id: usize, reached: u64) -> bool {
        let record = &self.records[id];
        let is_in_time = self
            .closing
            .is_some_and(|last| record.deadline.div_ceil(self.tick) <= last);
        record.due <= reached && is_in_time && !record.is_periodic()
    }

    /// The same for a timeout that may be among those that a turn has left.
    fn may_delay_shutdown(&self, id: usize, reached: u64) -> bool {
        let record = &self.records[id];
        record.may_fire_now && record.deadline.div_ceil(self.tick) <= reached
    }

    fn start_turn(&mut self) {
        self.turned = self.now() / self.tick;
        self.added_in_turn.clear();
        // After a turn that was cut short, the timeouts go on in the same order.
        self.fired = match std::mem::take(&mut self.is_cut) {
            true => Fired {
                count: 0,
                ..self.fired
            },
            false => Fired::default(),
        };
    }

    /// The turn has run as many tasks as it may.
    fn cut_turn(&mut self) {
        self.is_cut = true;
        self.turned = self.fired.tick;
        // At the latest.
        let first = self.turned + 1 + u64::from(self.fired.is_tick_uncertain);
        for id in std::mem::take(&mut self.added_in_turn) {
            if self.records[id].state == State::Pending {
                let due = self.due(self.records[id].deadline).max(first);
                let record = &mut self.records[id];
                record.due = due;
                record.may_fire_now |= self.fired.is_tick_uncertain;
                record.was_reset |= self.fired.is_tick_uncertain;
            }
        }
    }

    /// The first tick that may have timeouts.
    fn first_possible(&self) -> u64 {
        self.turned + u64::from(!self.is_cut)
    }

    /// Checks that no timeout is left that should have fired in the turn.
    fn check_left(&self) {
        let first = self.first_possible();
        for &id in &self.pending {
            let due = self.records[id].due;
            assert!(
                due >= first,
                "timeout {id} of tick {due} is late in tick {}",
                self.turned
            );
        }
    }

    /// All pending timeouts are cancelled now, and their hooks are about to be called.
    fn start_drain(&mut self) {
        self.settle_values();
        if self.closing.is_some() {
            let reached = self.now() / self.tick;
            for &id in &self.pending {
                let is_late = self.delays_shutdown(id, reached);
                assert!(!is_late, "timeout {id} is due within the grace");
            }
        }
        self.is_stopped = true;
        self.phase = Phase::Draining;
        for id in std::mem::take(&mut self.pending) {
            let record = &mut self.records[id];
            record.ticket.count(Count::Left);
            if record.is_hidden() || matches!(record.kind, Kind::Value { .. }) {
                record.state = State::Cancelled;
                self.drop_retried(id);
                self.free_key(id);
                self.returned_hidden += 1;
            } else {
                record.state = State::Stopping;
                self.stopping.insert(id);
            }
        }
    }

    /// Returns whether the end of the timer ends this timeout and calls its hook.
    fn end_by_stop(&mut self, id: usize) -> bool {
        if self.is_closed() && self.phase == Phase::Turning && self.pending.contains(&id) {
            // A task has dropped the last handle and the turn is over, or a `shutdown` has waited
            // long enough.
            self.start_drain();
        }
        self.stopping.remove(&id)
    }

    /// A `shutdown` has returned.
    fn finish_shutdown(&mut self) {
        self.closing_handle = None;
        if self.phase == Phase::Turning {
            self.start_drain();
        }
        self.announced = None;
        // Tasks during the shutdown may have called the waker as well. The timer cannot know that
        // these tasks do not run in the loop.
        let wakes = self.wakes.load(SeqCst) - usize::from(self.has_waker);
        assert!(wakes >= self.expected.wakes);
        self.expected.wakes = wakes;
    }

    /// The first stop of the timer, from outside a turn.
    fn start_stop(&mut self) {
        self.announced = None;
        self.start_drain();
    }
}

/// How a timer is stopped or shut down.
#[derive(Clone, Copy, PartialEq)]
enum WayToEnd {
    Here,
    /// On another thread, which this one waits for.
    WithLimit,
    /// On another thread, which this one waits for later.
    Later,
}

impl WayToEnd {
    fn of(bytes: &SharedBytes) -> Self {
        match bytes.up_to(15) {
            13 | 14 => Self::WithLimit,
            15 => Self::Later,
            _ => Self::Here,
        }
    }

    /// Stops the timer, or shuts it down with some grace.
    fn end(self, timer: &HashedWheelTimer, grace: Option<Duration>) -> Vec<Timeout> {
        let begin = || match grace {
            Some(grace) => timer.begin_shutdown(grace),
            None => timer.begin_stop(),
        };
        match self {
            Self::Here => grace.map_or_else(|| timer.stop(), |grace| timer.shutdown(grace)),
            Self::WithLimit => begin().wait_timeout(TEST_TIMEOUT).expect("no task blocks"),
            Self::Later => wait_for(begin().wait_timeout(Duration::ZERO)),
        }
    }
}

fn wait_for(ended: Result<Vec<Timeout>, Ending>) -> Vec<Timeout> {
    ended.unwrap_or_else(|ending| {
        let all = ending.wait_timeout(TEST_TIMEOUT).expect("no task blocks");
        assert!(all.iter().all(Timeout::is_cancelled));
        all
    })
}

/// The deadline plus the delay, or `NEVER`.
fn later(deadline: u64, delay: Duration) -> u64 {
    let delay = u64::try_from(delay.as_nanos())
        .unwrap_or(u64::MAX)
        .min(NEVER);
    let at = deadline + delay;
    if at <= LAST { at } else { NEVER }
}

#[derive(Clone)]
struct Script(Arc<Mutex<Model>>);

struct WeakScript(Weak<Mutex<Model>>);

impl WeakScript {
    /// Returns nothing if the timer has ended and everything was checked.
    fn upgrade(&self) -> Option<Script> {
        self.0.upgrade().map(Script)
    }
}

impl Script {
    fn downgrade(&self) -> WeakScript {
        WeakScript(Arc::downgrade(&self.0))
    }

    /// The lock must not be held while the timer may call back.
    fn model(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs one action, of the driver's owner or of any thread.
    fn step(&self, driver: &mut Option<Driver>) {
        let choice = self.model().bytes.up_to(255);
        match (choice, driver.as_mut()) {
            (0..34, Some(driver)) => self.turn(driver),
            (34..40, Some(driver)) => self.turn_at_most(driver),
            (40..52, Some(driver)) => drop(self.next_turn(driver)),
            (52..80, Some(driver)) => drop(self.sleep(driver)),
            (80, _) => self.drop_driver(driver.take()),
            (138..140, Some(driver)) => {
                // It takes in the messages.
                self.next_turn(driver);
                self.check_occupancy(true);
            }
            _ => self.act(choice),
        }
    }

    fn act(&self, choice: u64) {
        self.model().settle_values();
        match choice {
            0..30 => self.advance_clock(),
            30..40 => self.use_other_timer(),
            40..102 => self.schedule(1),
            102..112 => self.use_value_map(choice - 102 + 6),
            112..128 => self.use_queue(choice - 112),
            128..130 => self.advance_clock(),
            130..134 => self.cancel_all(),
            134..138 => self.schedule_many(),
            138..140 => self.check_occupancy(false),
            140..158 => self.cancel(),
            158..176 => self.reset(),
            176..182 => self.use_value_map(choice - 176),
            182..187 => self.check_handle(),
            187..191 => self.drop_or_clone(),
            191..199 => self.take_from_queue(),
            199..202 => self.clone_handle(),
            202 | 203 => self.drop_handle(),
            204 => self.stop(),
            205 => self.shutdown(),
            206..218 => self.schedule_periodic(),
            218..244 => self.use_sleeper(choice - 218),
            244..=255 => self.use_value_map(choice - 240),
            _ => self.advance_clock(),
        }
    }

    fn is_for_other_timer(choice: u64) -> bool {
        (30..40).contains(&choice)
    }

    /// The actions of a task or a hook.
    fn act_nested(&self, max: u64) {
        let (depth, choice) = {
            let mut model = self.model();
            model.depth += 1;
            (model.depth, model.bytes.up_to(255))
        };
        if depth <= DEPTH && !self.model().hooks_are_quiet {
            for _ in 0..(choice >> 5).min(max) {
                let choice = self.model().bytes.up_to(255);
                self.act(choice);
                self.check();
            }
        }
        self.model().depth -= 1;
        if choice % 32 == 31 {
            self.model().expected.panicked += 1;
            // Unwinds without the panic hook, which would print, or end a fuzzer.
            resume_unwind(Box::new("a task"));
        }
    }

    fn advance_clock(&self) {
        let mut model = self.model();
        let (tick, round) = (model.tick, model.round);
        let until = model
            .first_due()
            .map_or(0, |due| model.begins(due).saturating_sub(model.now()));
        let bytes = &model.bytes;
        let nanos = match bytes.up_to(31) {
            0..8 => (bytes.up_to(3) + 1) * tick,
            8..12 => bytes.up_to(tick),
            12..16 => until.min(tick << 40),
            16..20 => until.min(tick << 40).saturating_sub(1),
            20..24 => (bytes.up_to(3) + 1) * round,
            24..28 => bytes.up_to(63) * round + bytes.up_to(tick),
            28 => bytes.any() >> 2,
            29 => 1 << bytes.up_to(60),
            30 => until,
            _ => NEVER,
        };
        model.advance(nanos);
    }

    fn schedule_many(&self) {
        let count = self.model().bytes.up_to(15);
        self.schedule(count);
    }

    /// Schedules timeouts with the same delay.
    fn schedule(&self, count: u64) {
        let (delay, behaviour) = {
            let mut model = self.model();
            (model.delay(), model.bytes.up_to(255))
        };
        for _ in 0..count {
            self.schedule_one(delay, behaviour);
        }
    }

    fn schedule_one(&self, delay: Duration, behaviour: u64) {
        let mut model = self.model();
        let Some(timer) = model.timer().filter(|_| model.records.len() < MAX_TIMEOUTS) else {
            return;
        };
        let deadline = model.deadline(delay);
        let is_instant = model.is_instant(delay);
        let id = model.schedule(Kind::Task(None), deadline);
        let is_rejected = model.records[id].state == State::Rejected;
        drop(model);

        let task = Task {
            id,
            behaviour,
            script: self.clone(),
        };
        let outcome = match id % 4 {
            1 => timer
                .try_new_timeout_task(task, delay)
                .map_err(|mut rejected| {
                    assert!(rejected.task.id == id && !self.model().records[id].is_dropped());
                    // Nothing would catch a panic of its drop.
                    rejected.task.behaviour = 0;
                    rejected.into()
                }),
            2 if is_instant => timer.new_timeout_task_at(task, timer.now() + delay),
            _ => timer.new_timeout_task(task, delay),
        };
        let mut model = self.model();
        match outcome {
            Ok(timeout) => {
                assert!(!is_rejected);
                model.any.get_or_insert_with(|| timeout.clone());
                model.records[id].kind = Kind::Task(Some(timeout));
            }
            Err(error) => model.expect_rejection(&error),
        }
        assert_eq!(model.records[id].is_dropped(), is_rejected);
    }

    /// A random timeout that has a handle.
    fn pick(&self) -> Option<(usize, Timeout)> {
        let mut model = self.model();
        let id = model.pick()?;
        let record = &mut model.records[id];
        let periodic = record.periodic_model();
        if let Some(periodic) = periodic.and_then(|periodic| periodic.handle.clone()) {
            drop(model);
            self.check_periodic(id, &periodic);
            return None;
        }
        Some((id, record.handle().cloned()?))
    }

    fn cancel(&self) {
        let Some((id, timeout)) = self.pick() else {
            return;
        };
        let mut model = self.model();
        let would_wait = model.would_wait(id);
        let succeeds = model.cancel_record(id);
        drop(model);
        match id % 4 {
            3 => drop(timeout.cancel_on_drop()),
            1 if !would_wait => assert_eq!(timeout.cancel_and_wait(), succeeds),
            _ => assert_eq!(timeout.cancel(), succeeds),
        }
        let model = self.model();
        let record = &model.records[id];
        assert!(!succeeds || record.state == State::Cancelled && record.is_dropped());
    }

    fn reset(&self) {
        let Some((id, timeout)) = self.pick() else {
            return;
        };
        let (delay, as_instant, succeeds) = {
            let mut model = self.model();
            let delay = model.delay();
            let succeeds = model.pending.contains(&id);
            if succeeds {
                let deadline = model.deadline(delay);
                model.reset_record(id, deadline);
            }
            (delay, model.is_instant(delay) && id % 2 == 0, succeeds)
        };
        let is_reset = match as_instant {
            true => timeout.reset_at(timeout.timer().now() + delay),
            false => timeout.reset(delay),
        };
        assert_eq!(is_reset, succeeds);
    }

    fn check_handle(&self) {
        let Some((id, timeout)) = self.pick() else {
            return;
        };
        let model = self.model();
        let record = &model.records[id];
        use State::{Cancelled, Cancelling, Dropped, HandedOver, Ran, Stopping};
        assert_eq!(
            timeout.is_cancelled(),
            matches!(record.state, Cancelling | Stopping | Cancelled)
        );
        let is_expired = timeout.is_expired();
        assert_eq!(
            is_expired,
            matches!(record.state, HandedOver | Ran | Dropped)
        );
        let remaining = model.remaining(id);
        assert_eq!(timeout.remaining(), remaining);
        if !remaining.is_zero() && model.is_instant(remaining) {
            assert_eq!(timeout.deadline(), timeout.timer().now() + remaining);
        }
    }

    fn drop_or_clone(&self) {
        let Some((id, timeout)) = self.pick() else {
            return;
        };
        let mut model = self.model();
        // Without a handle, the executor's model cannot identify the task.
        if !model.has_executor && id % 2 == 1 {
            model.records[id].kind = Kind::Task(None);
            drop(model);
            drop(timeout);
        } else {
            assert!(model.records[id].handle() == Some(&timeout));
        }
    }

    fn take_from_queue(&self) {
        let (id, task, runs) = {
            let mut model = self.model();
            if model.queue.is_empty() {
                return;
            }
            let (at, runs) = (model.queue.len() - 1, model.bytes.up_to(7) > 0);
            let at = model.bytes.below(at + 1);
            let (id, task) = model.queue.swap_remove(at);
            (id, task, runs)
        };
        self.finish_task(id, task, runs);
    }

    /// Runs or drops a task.
    fn finish_task(&self, id: usize, task: ExpiredTask, runs: bool) {
        if runs {
            task.run();
        } else {
            self.model().skip_run(id);
            drop(task);
            self.drop_dead();
        }
        let mut model = self.model();
        model.schedule_next_run(id);
        let record = &model.records[id];
        assert_eq!(record.is_dropped(), record.state != State::Pending);
    }

    fn clone_handle(&self) {
        let mut model = self.model();
        if model.handles.len() < 4 {
            let another = model.handles.first().cloned();
            model.handles.extend(another);
        }
    }

    /// The drop of the last handle stops the timer.
    fn drop_handle(&self) {
        if self.model().handles.len() == 1 {
            self.drop_values();
            self.drop_queue();
        }
        let mut model = self.model();
        let Some(handle) = model.handles.pop() else {
            return;
        };
        // During a `shutdown` or a `cancel_all`, its caller has a handle as well.
        let stops =
            model.handles.is_empty() && model.cancelled_by_all.is_empty() && !model.is_closed();
        let is_outside = model.phase == Phase::Idle;
        if stops && is_outside {
            model.start_stop();
        }
        model.is_stopped |= stops;
        drop(model);
        drop(handle);
        if stops && is_outside {
            self.finish_stop(true);
        }
    }

    fn stop(&self) {
        self.end_timer(false);
    }

    fn shutdown(&self) {
        self.end_timer(true);
    }

    /// Stops the timer or, if it is `graceful`, shuts it down.
    fn end_timer(&self, graceful: bool) {
        let mut model = self.model();
        let Some(timer) = model.timer() else { return };
        let grace = graceful.then(|| model.delay());
        let end_here = || WayToEnd::Here.end(&timer, grace);
        match model.phase {
            Phase::Turning => {
                drop(model);
                let outcome = quietly(|| catch_unwind(AssertUnwindSafe(end_here)));
                assert!(outcome.is_err(), "the call would wait for itself");
            }
            Phase::Idle if !model.is_stopped => {
                let way = WayToEnd::of(&model.bytes);
                model.is_on_another_thread = way != WayToEnd::Here;
                if let Some(grace) = grace {
                    model.closing = Some(model.deadline(grace).div_ceil(model.tick));
                    (model.phase, model.turns) = (Phase::Turning, timer.stats().turns);
                    model.closing_handle = Some(timer.clone());
                } else {
                    model.start_stop();
                }
                drop(model);
                let returned = way.end(&timer, grace);
                if graceful {
                    self.model().finish_shutdown();
                }
                self.finish_stop_with(returned);
            }
            _ => {
                drop(model);
                assert!(end_here().is_empty(), "the timer was stopped before");
            }
        }
    }

    /// Checks what a stop has returned.
    fn finish_stop_with(&self, returned: Vec<Timeout>) {
        let (expected, hidden) = self.finish_stop(true);
        assert_eq!(returned.len(), expected.len() + hidden);
        let returned: HashSet<_> = returned.into_iter().collect();
        assert_eq!(
            returned.len(),
            expected.len() + hidden,
            "a timeout was returned twice"
        );
        let has_all = returned.is_superset(&expected);
        assert!(has_all, "{returned:?} instead of {expected:?}");
    }

    /// A stop is complete. Returns the timeouts that it has ended, and the number of those without
    /// a handle.
    fn finish_stop(&self, has_driver: bool) -> (HashSet<Timeout>, usize) {
        self.drop_dead();
        let mut model = self.model();
        assert_eq!((model.phase, model.stopping.len()), (Phase::Draining, 0));
        (model.phase, model.is_on_another_thread) = (Phase::Idle, false);
        model.expected.wakes += usize::from(model.has_waker && has_driver);
        (
            std::mem::take(&mut model.returned),
            std::mem::take(&mut model.returned_hidden),
        )
    }

    fn drop_driver(&self, driver: Option<Driver>) {
        let Some(driver) = driver else { return };
        let stops = {
            let mut model = self.model();
            let stops = !model.is_stopped;
            if stops {
                model.start_stop();
            }
            stops
        };
        drop(driver);
        if stops {
            self.finish_stop(false);
        }
    }

    fn turn(&self, driver: &mut Driver) {
        self.turn_by(|driver| driver.turn(), usize::MAX, driver);
    }

    fn turn_at_most(&self, driver: &mut Driver) {
        let most = self.model().bytes.up_to(3) as usize;
        if most == 0 {
            // Only drains messages.
            self.model().announced = None;
            assert_eq!(driver.turn_at_most(0), 0);
            return;
        }
        self.turn_by(|driver| driver.turn_at_most(most), most, driver);
        if self.model().is_cut && self.model().fired.is_tick_uncertain {
            // The model does not know the tick at which the next timeouts may fire.
            self.turn(driver);
        }
    }

    fn turn_by(&self, turn: impl FnOnce(&mut Driver) -> usize, most: usize, driver: &mut Driver) {
        let was_stopped = {
            let mut model = self.model();
            if !model.is_stopped {
                model.start_turn();
                (model.phase, model.announced) = (Phase::Turning, None);
            }
            model.is_stopped
        };
        let expired = turn(driver);
        let mut model = self.model();
        model.check_values();
        if was_stopped {
            assert_eq!(expired, 0);
            return;
        }
        assert_eq!(expired, model.fired.count);
        assert!(expired <= most);
        if model.is_stopped && model.phase == Phase::Turning {
            // There was no timeout with a hook.
            model.start_drain();
        }
        model.phase = Phase::Idle;
        if model.is_stopped {
            assert_eq!((model.pending.len(), model.stopping.len()), (0, 0));
            model.returned.clear();
            model.returned_hidden = 0;
        } else if expired == most {
            model.cut_turn();
        }
        model.check_left();
    }

    fn next_turn(&self, driver: &Driver) -> Option<Duration> {
        let next = driver.next_turn();
        let mut model = self.model();
        if model.is_stopped {
            assert_eq!(next, None);
            return None;
        }
        let never = NEVER.div_ceil(model.tick);
        let announced = match next.map(|next| next.as_nanos() as u64) {
            None => never,
            // Zero means the first tick that is possible.
            Some(0) => model.first_possible(),
            Some(next) => {
                let at = model.now() + next;
                let within = at % model.tick;
                assert_eq!(within, 0, "the turn is not at the beginning of a tick");
                at / model.tick
            }
        };
        assert!(
            announced >= model.first_possible(),
            "the announced turn is for a tick that has been processed"
        );
        let first = model.first_due().unwrap_or(never);
        assert!(
            announced <= first,
            "the turn of tick {announced} is too late for {first}"
        );
        let has_reason = announced == never || !model.pending.is_empty();
        assert!(has_reason, "nothing is pending");
        let is_exact = !model.has_removed && !model.has_far;
        if is_exact && next == Some(Duration::ZERO) {
            assert!(
                model.begins(first) <= model.now(),
                "a turn is due although no timeout is due and none was removed"
            );
        } else if is_exact {
            assert_eq!(
                announced, first,
                "next_turn is exact if no timeout was removed"
            );
        }
        model.announced = model.has_waker.then_some(announced);
        next
    }

    /// Sleeps exactly until the next turn. Returns whether there is one.
    fn sleep(&self, driver: &mut Driver) -> bool {
        let next = self.next_turn(driver);
        if let Some(next) = next {
            self.model().advance(next.as_nanos() as u64);
            self.turn(driver);
        }
        next.is_some()
    }

    /// The executor.
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        let (id, choice) = {
            let mut model = self.model();
            model.settle_values();
            let is_expired =
                |id: usize| model.records[id].handle().is_some_and(Timeout::is_expired);
            let pending = || model.pending.iter().copied();
            let mut expired: Vec<_> = pending().filter(|&id| is_expired(id)).collect();
            if expired.is_empty() {
                // At most one is pending, because several could not be told apart.
                expired.extend(pending().filter(|&id| model.records[id].is_hidden()));
            }
            let count = expired.len();
            assert_eq!(count, 1, "tasks are handed over one after the other");
            model.fire(expired[0]);
            (model.offered(expired[0]), model.bytes.up_to(15))
        };
        match choice {
            0..8 => self.finish_task(id, task, true),
            8..12 => self.model().queue.push((id, task)),
            12..15 => return self.refuse(id, task),
            _ => {
                {
                    let mut model = self.model();
                    model.skip_run(id);
                    model.schedule_next_run(id);
                    model.expected.panicked += 1;
                }
                resume_unwind(Box::new("the executor"));
            }
        }
        Ok(())
    }

    /// Compares the timer's reports with the model.
    fn check(&self) {
        let mut model = self.model();
        let is_closing =
            model.closing.is_some() && !(model.is_stopped && model.phase == Phase::Idle);
        let wakes = model.wakes.load(SeqCst);
        if std::mem::take(&mut model.may_wake) && wakes == model.expected.wakes + 1 {
            model.expected.wakes = wakes;
            model.announced = None;
        }
        assert!(
            is_closing || wakes == model.expected.wakes,
            "{wakes} wakes for {}",
            model.expected.wakes
        );
        let Some(timer) = model.timer() else { return };
        assert_eq!(timer.is_stopped(), model.is_stopped);
        assert_eq!(timer.pending_timeouts(), model.pending.len());
        assert!(model.limit == 0 || model.pending.len() <= model.limit);
        let (stats, expected) = (timer.stats(), &model.expected);
        assert_eq!(stats.pending, model.pending.len() as u64);
        let of = |end| model.ledger.total(end);
        assert_eq!(stats.expired, of(Count::Expired));
        assert_eq!(stats.cancelled, of(Count::Cancelled) + of(Count::Left));
        assert_eq!(stats.rejected, of(Count::Rejected));
        let accepted = stats.pending + stats.expired + stats.cancelled;
        assert_eq!(stats.scheduled, accepted);
        assert_eq!(stats.panics, expected.panicked);
        // A stop in progress drops the tasks that wait to be offered again one by one.
        assert!(stats.dropped_tasks == expected.dropped || model.phase == Phase::Draining);
        assert_eq!(stats.periodic_runs, expected.periodic_runs);
        let counted: u64 = stats.lateness.buckets().map(|(_, count)| count).sum();
        assert!(
            counted == expected.handed_over
                || counted < expected.handed_over && model.phase == Phase::Turning
        );
    }

    /// Lets all timeouts fire, or stops the timer in one of several ways. Afterwards nothing may be
    /// leaked.
    fn end(self, end: usize, mut driver: Option<Driver>) {
        match (end, &mut driver) {
            (0, Some(driver)) => {
                self.cancel_periodic();
                let max = {
                    let model = self.model();
                    2 * (model.records.len() + model.resets) + 8
                };
                let turns = (0..max).take_while(|_| self.sleep(driver)).count();
                let model = self.model();
                let is_never = |id: &usize| model.begins(model.records[*id].due) == NEVER;
                let is_quiet = turns < max && model.pending.iter().all(is_never);
                assert!(
                    is_quiet || model.has_far,
                    "{turns} turns, and timeouts are still pending"
                );
            }
            (1, driver) => self.drop_driver(driver.take()),
            (2, _) => (0..4).for_each(|_| self.drop_handle()),
            (3 | 4, _) => self.shutdown(),
            _ => self.stop(),
        }
        self.check();
        self.stop();
        self.check();
        drop(driver);
        while let Some((id, task)) = self.pop_queue() {
            self.finish_task(id, task, true);
        }
        self.check();

        self.end_values();
        self.drop_queue();
        self.drop_sleepers();
        let mut model = self.model();
        let handles = std::mem::take(&mut model.handles);
        let (any, records) = (model.any.take(), std::mem::take(&mut model.records));
        drop(model);
        drop((handles, any));
        let kept = records.iter().position(|record| !record.is_dropped());
        assert_eq!(kept, None, "a task was not dropped");
        drop(records);
        let (faults, _) = self.model().ledger.errors();
        assert!(faults.is_empty(), "{faults:#?}");
        let live = Arc::strong_count(&self.model().live_values);
        assert_eq!(live, 1, "a value was leaked");
        let scripts = Arc::strong_count(&self.0);
        assert_eq!(scripts, 1, "a task or the executor was leaked");
    }

    fn pop_queue(&self) -> Option<(usize, ExpiredTask)> {
        self.model().queue.pop()
    }
}

struct Task {
    id: usize,
    /// Chooses whether the task acts, and whether it panics when it is dropped.
    behaviour: u64,
    script: Script,
}

impl TimerTask for Task {
    fn run(self, timeout: &Timeout) {
        {
            let mut model = self.script.model();
            if !model.has_executor {
                model.fire(self.id);
            }
            let state = &mut model.records[self.id].state;
            assert_eq!(*state, State::HandedOver);
            *state = State::Ran;
        }
        assert!(timeout.is_expired() && !timeout.is_cancelled());
        if self.behaviour % 4 == 1 {
            let waits = timeout.cancel_and_wait();
            assert!(!waits, "a task does not wait for itself");
        }
        self.act();
    }

    fn cancelled(self, timeout: &Timeout) {
        {
            let mut model = self.script.model();
            let by_stop = model.end_by_stop(self.id);
            model.end_by_cancel_all(self.id);
            let record = &mut model.records[self.id];
            record.ticket.call_hook();
            use State::{Cancelling, Stopping};
            let expected = if by_stop { Stopping } else { Cancelling };
            assert_eq!(record.state, expected, "{}", self.id);
            record.state = State::Cancelled;
            if by_stop {
                assert!(model.returned.insert(timeout.clone()));
            }
        }
        assert!(timeout.is_cancelled() && !timeout.is_expired());
        if self.behaviour >= 192 {
            self.script.act_nested(2);
        }
    }
}

impl Task {
    /// The actions of a run.
    fn act(self) {
        if self.behaviour >= 128 {
            self.script.act_nested(7);
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut model = self.script.model();
        let Some(record) = model.records.get(self.id) else {
            return;
        };
        record.drop_task();
        model.end_by_cancel_all(self.id);
        if self.behaviour % 64 == 63 && !thread::panicking() {
            model.expected.panicked += 1;
            drop(model);
            resume_unwind(Box::new("the drop of a task"));
        }
    }
}
