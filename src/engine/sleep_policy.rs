//! The sleep policy: from traffic, unreclaimed memory and the next deadline to how the worker
//! sleeps. It is arithmetic. How the worker falls asleep and is woken is in
//! [`sleep`](super::sleep).
//!
//! # The worker thread
//!
//! After a turn, the first row that applies ([`SleepPolicy::plan`]):
//!
//! | the next deadline | the thread sleeps | announced |
//! |---|---|---|
//! | has passed | not at all: it makes another turn | no |
//! | is at the wheel's next tick, and at most [`HEAVY_TRAFFIC_INTERVAL`] away | until then | no |
//! | is later, but callers have woken the thread twice in a tick that is at most as long | until the wheel's next tick | no |
//! | is later, or there is none | until then, or for the longest sleep of the next table | yes |
//!
//! A sleep that is not announced costs no fence. No caller ends it, because nothing can fire before
//! the wheel's next tick.
//!
//! A caller that needs an earlier turn than an announced one wakes the worker. What else wakes it
//! from an announced sleep, and how long that sleep is at most ([`limits`]):
//!
//! | messages per [`HEAVY_TRAFFIC_INTERVAL`] | the turn has reclaimed memory | the longest sleep | a batch of messages in one lane | a message that lets it reclaim memory |
//! |---|---|---|---|---|
//! | at least [`EXTREME_TRAFFIC`] | – | [`EXTREME_TRAFFIC_INTERVAL`] | – | – |
//! | at least [`HEAVY_TRAFFIC`] | – | [`HEAVY_TRAFFIC_INTERVAL`] | – | – |
//! | fewer | yes | [`RECLAIM_INTERVAL`] | wakes it | – |
//! | fewer | no | has no limit | wakes it | wakes it |
//!
//! While there is memory to return to the operating system, no sleep of the thread is longer than
//! two seconds. While the clock reads an earlier time than before and something is pending, none is
//! longer than [`HEAVY_TRAFFIC_INTERVAL`]: see [`time_until`].
//!
//! So steady traffic with far deadlines wakes the thread about once per second, and each time a
//! thread has pushed a batch: in all one to two times per second with 3 000 timeouts per second.
//! With more than 20 000 messages per second it wakes every [`HEAVY_TRAFFIC_INTERVAL`], and with
//! more than 300 000 every [`EXTREME_TRAFFIC_INTERVAL`]. What has ended is reclaimed within a
//! second, except a message of eight bytes that its thread has taken back: these wait until a batch
//! of them is full.
//!
//! A caller that wakes the thread for its deadline requests that deadline, and the thread wakes
//! then although the timeout may be cancelled by that time. Otherwise each of many timeouts that
//! are scheduled and soon cancelled would wake it, if the next deadline in the wheel is far.
//!
//! # A driver's loop
//!
//! The loop sleeps until the next deadline. A batch of messages in one lane calls the waker, unless
//! the next deadline is at the wheel's next tick and ticks are at most
//! [`HEAVY_TRAFFIC_INTERVAL`] long. Unreclaimed memory never does.

use std::time::Duration;

use super::state::{WAKE_FOR_BATCH, WAKE_TO_RECLAIM};
use crate::ticks::{DEADLINE_NEVER, Ticks};

/// The worker thread makes a turn after this time, if its last turn has reclaimed something: there
/// may soon be more, and callers do not wake it for that.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(1);

/// With heavy traffic the worker thread makes a turn after this time, and callers do not wake it
/// for their messages.
const HEAVY_TRAFFIC_INTERVAL: Duration = Duration::from_millis(50);

/// The same for this many messages: their memory would not stay in the processor's cache.
/// Wake-ups do not matter then, because the worker is busy anyway.
const EXTREME_TRAFFIC_INTERVAL: Duration = Duration::from_millis(5);

/// Heavy traffic is this many messages per [`HEAVY_TRAFFIC_INTERVAL`].
const HEAVY_TRAFFIC: u64 = 1_024;
const EXTREME_TRAFFIC: u64 = 16_384;

/// The worker's knowledge after a turn.
pub(super) struct AfterTurn {
    pub(super) now: u64,
    /// How many messages were taken since the last plan.
    pub(super) messages: u64,
    /// Whether the turn has reclaimed memory.
    pub(super) has_reclaimed: bool,
    /// The earliest deadline that a caller has requested since the last plan, or `DEADLINE_NEVER`.
    pub(super) requested: u64,
    /// The tick of the wheel.
    pub(super) tick: u64,
    /// The tick of the wheel's next deadline; `u64::MAX` is none.
    pub(super) next: u64,
}

/// The action of the worker thread after a turn.
#[derive(Debug, PartialEq)]
pub(crate) enum Sleep {
    /// Sleep for this time, until the next tick; zero is another turn at once. Callers rely on it
    /// and do not wake the worker.
    UntilNextTick(Duration),
    /// Sleep for this time. `ASLEEP` is set, so a caller that needs the worker wakes it.
    Parked(Duration),
}

/// How the worker thread sleeps, in ticks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Plan {
    /// The tick of the next turn.
    pub(super) next: u64,
    /// The tick of the wheel.
    tick: u64,
    /// The longest sleep.
    at_most: Option<Duration>,
    /// If the sleep is announced: which messages end it, as bits of the state word.
    pub(super) announced: Option<u64>,
}

impl Plan {
    /// A sleep until the tick `next` that is not announced. A tick that has passed, such as 0, is
    /// another turn.
    pub(super) fn until(next: u64, tick: u64) -> Self {
        Self {
            next,
            tick,
            at_most: None,
            announced: None,
        }
    }

    /// The plan after it was announced. The worker has taken in messages meanwhile: the next turn
    /// is at the tick `next`, it may have reclaimed memory, and memory may be returned after
    /// `surplus_wait`.
    pub(super) fn after_announcement(
        self,
        next: u64,
        has_reclaimed: bool,
        surplus_wait: Option<Duration>,
    ) -> Self {
        let reclaims = has_reclaimed.then_some(RECLAIM_INTERVAL);
        let at_most = [self.at_most, reclaims, surplus_wait]
            .into_iter()
            .flatten()
            .min();
        Self {
            next,
            at_most,
            ..self
        }
    }

    /// The action of the thread if it is `now`.
    pub(super) fn resolve(self, ticks: Ticks, now: u64) -> Sleep {
        let time = time_until(ticks, self.next, self.tick, now);
        let time = self.at_most.map_or(time, |at_most| at_most.min(time));
        match self.announced {
            Some(_) if !time.is_zero() => Sleep::Parked(time),
            _ => Sleep::UntilNextTick(time),
        }
    }
}

/// The policy's memory between two sleeps of the worker thread.
pub(super) struct SleepPolicy {
    /// When the last plan was made.
    last_plan: u64,
    /// The earliest deadline that callers have requested, and that has not passed.
    requested: u64,
    /// The tick in which a caller last woke the thread.
    woken_in: Option<u64>,
}

impl SleepPolicy {
    pub(super) fn new() -> Self {
        Self {
            last_plan: 0,
            requested: DEADLINE_NEVER,
            woken_in: None,
        }
    }

    /// Decides how the worker thread sleeps after a turn that has left no backlog: see the head of
    /// this file.
    pub(super) fn plan(&mut self, ticks: Ticks, turn: &AfterTurn) -> Plan {
        let messages = self.messages_per_interval(turn.messages, turn.now);
        let (wakes, at_most) = limits(messages, turn.has_reclaimed);
        let is_woken_again = self.take_request(turn, at_most.is_some());
        let earliest = turn.tick + 1;
        let next = turn.next.min(ticks.of(self.requested));
        let until = ticks.until(next, turn.now);
        if until.is_zero() || next <= earliest && until <= HEAVY_TRAFFIC_INTERVAL {
            return Plan::until(next, turn.tick);
        }
        if is_woken_again && ticks.duration() <= HEAVY_TRAFFIC_INTERVAL {
            // Callers with earlier and earlier deadlines would wake it again and again.
            return Plan::until(earliest, turn.tick);
        }
        Plan {
            next,
            tick: turn.tick,
            at_most,
            announced: Some(wakes),
        }
    }

    /// How many messages came per [`HEAVY_TRAFFIC_INTERVAL`] since the last plan. (If that was less
    /// than a millisecond ago, as if it was a millisecond.)
    fn messages_per_interval(&mut self, messages: u64, now: u64) -> u64 {
        const INTERVAL: u64 = HEAVY_TRAFFIC_INTERVAL.as_nanos() as u64;

        let elapsed = now.saturating_sub(self.last_plan).max(INTERVAL / 50);
        self.last_plan = now;
        messages.saturating_mul(INTERVAL) / elapsed
    }

    /// Takes the deadline for which a caller has woken the thread, if it is earlier than the known
    /// one. It is forgotten once it has passed, or there is no traffic. Returns whether this was
    /// not the first time in this tick.
    fn take_request(&mut self, turn: &AfterTurn, has_traffic: bool) -> bool {
        let requested = turn.requested.min(self.requested);
        self.requested = if has_traffic && requested > turn.now {
            requested
        } else {
            DEADLINE_NEVER
        };
        if turn.requested == DEADLINE_NEVER {
            return false;
        }
        self.woken_in.replace(turn.tick) == Some(turn.tick)
    }
}

/// Which messages end an announced sleep, as bits of the state word, and the longest such sleep.
fn limits(messages_per_interval: u64, has_reclaimed: bool) -> (u64, Option<Duration>) {
    match messages_per_interval {
        EXTREME_TRAFFIC.. => (0, Some(EXTREME_TRAFFIC_INTERVAL)),
        HEAVY_TRAFFIC.. => (0, Some(HEAVY_TRAFFIC_INTERVAL)),
        _ if has_reclaimed => (WAKE_FOR_BATCH, Some(RECLAIM_INTERVAL)),
        _ => (WAKE_FOR_BATCH | WAKE_TO_RECLAIM, None),
    }
}

/// Which messages end the announced sleep of a driver's loop until the tick `next`, as bits of the
/// state word, if the wheel is at `tick`.
pub(super) fn wakes_driver(ticks: Ticks, next: u64, tick: u64) -> u64 {
    let is_near = next <= tick + 1 && ticks.duration() <= HEAVY_TRAFFIC_INTERVAL;
    if is_near { 0 } else { WAKE_FOR_BATCH }
}

/// How long the worker may sleep until the tick `next`, if the wheel is at `tick` and the clock
/// reads `now`.
///
/// The clock has reached the wheel's tick before. If it reads an earlier time now, it has stepped
/// back, perhaps for a moment only: then the worker looks again soon, if anything is pending.
pub(super) fn time_until(ticks: Ticks, next: u64, tick: u64, now: u64) -> Duration {
    let time = ticks.until(next, now);
    let is_pending = next < ticks.of(DEADLINE_NEVER);
    if time > HEAVY_TRAFFIC_INTERVAL && tick > ticks.reached(now) && is_pending {
        return HEAVY_TRAFFIC_INTERVAL;
    }
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(10);
    const INTERVAL: u64 = HEAVY_TRAFFIC_INTERVAL.as_nanos() as u64;
    const ALL: u64 = WAKE_FOR_BATCH | WAKE_TO_RECLAIM;

    /// At the beginning, with a timeout in the wheel.
    fn turn(next: u64) -> AfterTurn {
        AfterTurn {
            now: 0,
            messages: 0,
            has_reclaimed: false,
            requested: DEADLINE_NEVER,
            tick: 0,
            next,
        }
    }

    fn plan(tick: Duration, turn: &AfterTurn) -> Plan {
        SleepPolicy::new().plan(Ticks::new(tick), turn)
    }

    #[test]
    fn only_a_sleep_until_the_next_tick_that_is_near_is_not_announced() {
        const LONG: Duration = Duration::from_millis(100);

        for (tick, next, announced) in [
            (TICK, 1, None),
            (TICK, 2, Some(ALL)),
            (HEAVY_TRAFFIC_INTERVAL, 1, None),
            (LONG, 1, Some(ALL)),
        ] {
            let expected = Plan {
                announced,
                ..Plan::until(next, 0)
            };
            assert_eq!(plan(tick, &turn(next)), expected, "{tick:?}, {next}");
        }
    }

    #[test]
    fn a_deadline_that_has_passed_is_another_turn() {
        let late = AfterTurn {
            now: TICK.as_nanos() as u64 * 3,
            tick: 1,
            ..turn(3)
        };
        let another = plan(TICK, &late);
        assert_eq!(another, Plan::until(3, 1));
        assert_eq!(
            another.resolve(Ticks::new(TICK), late.now),
            Sleep::UntilNextTick(Duration::ZERO)
        );
    }

    /// The rows of the second table at the head of this file.
    #[test]
    fn the_last_messages_decide_how_long_the_worker_sleeps_and_what_wakes_it() {
        for (messages, has_reclaimed, wakes, at_most) in [
            (0, false, ALL, None),
            (HEAVY_TRAFFIC - 1, false, ALL, None),
            (0, true, WAKE_FOR_BATCH, Some(RECLAIM_INTERVAL)),
            (
                HEAVY_TRAFFIC - 1,
                true,
                WAKE_FOR_BATCH,
                Some(RECLAIM_INTERVAL),
            ),
            (HEAVY_TRAFFIC, false, 0, Some(HEAVY_TRAFFIC_INTERVAL)),
            (EXTREME_TRAFFIC - 1, true, 0, Some(HEAVY_TRAFFIC_INTERVAL)),
            (EXTREME_TRAFFIC, false, 0, Some(EXTREME_TRAFFIC_INTERVAL)),
        ] {
            let turn = AfterTurn {
                now: INTERVAL,
                messages,
                has_reclaimed,
                ..turn(u64::MAX)
            };
            let never = Ticks::new(TICK).of(DEADLINE_NEVER);
            let expected = Plan {
                at_most,
                announced: Some(wakes),
                ..Plan::until(never, 0)
            };
            assert_eq!(plan(TICK, &turn), expected, "{messages} messages");
        }
    }

    #[test]
    fn the_shortest_limit_of_a_sleep_holds() {
        let (ticks, second) = (Ticks::new(TICK), Duration::from_secs(1));
        for (next, at_most, has_reclaimed, surplus_wait, time) in [
            (1_000, None, false, None, second * 10),
            (1_000, None, false, Some(second * 2), second * 2),
            (1_000, None, true, Some(second * 2), RECLAIM_INTERVAL),
            (
                1_000,
                Some(HEAVY_TRAFFIC_INTERVAL),
                true,
                None,
                HEAVY_TRAFFIC_INTERVAL,
            ),
            (3, None, true, Some(second * 2), TICK * 3),
        ] {
            let plan = Plan {
                at_most,
                announced: Some(ALL),
                ..Plan::until(u64::MAX, 0)
            };
            let plan = plan.after_announcement(next, has_reclaimed, surplus_wait);
            assert_eq!(plan.resolve(ticks, 0), Sleep::Parked(time));
        }
    }

    #[test]
    fn messages_are_counted_per_interval() {
        let mut policy = SleepPolicy::new();
        assert_eq!(policy.messages_per_interval(3_001, INTERVAL * 2), 1_500);
        assert_eq!(
            policy.messages_per_interval(3, INTERVAL * 2),
            150,
            "as if a millisecond had passed"
        );
        assert_eq!(policy.messages_per_interval(0, INTERVAL * 2 + 1), 0);
    }

    #[test]
    fn a_requested_deadline_is_kept_until_it_has_passed() {
        let mut policy = SleepPolicy::new();
        let mut take = |requested: Option<u64>, now, has_traffic| {
            let requested = requested.unwrap_or(DEADLINE_NEVER);
            let again = policy.take_request(
                &AfterTurn {
                    now,
                    requested,
                    ..turn(9)
                },
                has_traffic,
            );
            (again, policy.requested)
        };
        assert_eq!(take(None, 100, true), (false, DEADLINE_NEVER));
        assert_eq!(
            take(None, 100, true),
            (false, DEADLINE_NEVER),
            "no caller has woken the thread"
        );
        assert_eq!(take(Some(500), 100, true), (false, 500));
        assert_eq!(
            take(Some(700), 100, true),
            (true, 500),
            "the second time in this tick"
        );
        assert_eq!(take(None, 499, true), (false, 500));
        assert_eq!(
            take(None, 500, true),
            (false, DEADLINE_NEVER),
            "it has passed"
        );
        assert_eq!(
            take(Some(900), 500, false),
            (true, DEADLINE_NEVER),
            "there is no traffic"
        );
    }

    #[test]
    fn the_worker_wakes_for_a_requested_deadline_that_is_earlier() {
        let requested = TICK.as_nanos() as u64 * 4;
        let with_request = AfterTurn {
            messages: HEAVY_TRAFFIC,
            requested,
            ..turn(9)
        };
        assert_eq!(plan(TICK, &with_request).next, 4);
        assert_eq!(
            plan(
                TICK,
                &AfterTurn {
                    next: 3,
                    ..with_request
                }
            )
            .next,
            3
        );
    }

    /// Callers with earlier and earlier deadlines do not wake it again and again in a short tick.
    #[test]
    fn a_worker_that_is_woken_again_in_a_short_tick_sleeps_until_the_next_one() {
        for (tick, next) in [(HEAVY_TRAFFIC_INTERVAL, 1), (HEAVY_TRAFFIC_INTERVAL * 2, 9)] {
            let mut policy = SleepPolicy::new();
            let woken = AfterTurn {
                requested: 500,
                ..turn(9)
            };
            let mut woken = || policy.plan(Ticks::new(tick), &woken);
            assert_eq!(woken().next, 9, "{tick:?}, the first time");
            let plan = woken();
            assert_eq!(
                (plan.next, plan.announced.is_some()),
                (next, next > 1),
                "{tick:?}, again"
            );
        }
    }

    #[test]
    fn many_messages_call_the_waker_unless_the_next_tick_is_near() {
        for (tick, next, wakes) in [
            (HEAVY_TRAFFIC_INTERVAL, 5, 0),
            (HEAVY_TRAFFIC_INTERVAL, 6, 0),
            (HEAVY_TRAFFIC_INTERVAL, 7, WAKE_FOR_BATCH),
            (HEAVY_TRAFFIC_INTERVAL * 2, 6, WAKE_FOR_BATCH),
        ] {
            assert_eq!(
                wakes_driver(Ticks::new(tick), next, 5),
                wakes,
                "{tick:?}, {next}"
            );
        }
    }

    #[test]
    fn a_worker_whose_clock_has_stepped_back_looks_again_soon() {
        let ticks = Ticks::new(TICK);
        let now = TICK.as_nanos() as u64 * 5;
        assert_eq!(time_until(ticks, 20, 5, now), TICK * 15);
        assert_eq!(time_until(ticks, 20, 6, now), HEAVY_TRAFFIC_INTERVAL);
        assert_eq!(time_until(ticks, 8, 6, now), TICK * 3);
        let never = ticks.of(DEADLINE_NEVER);
        assert!(
            time_until(ticks, never, 6, now) > HEAVY_TRAFFIC_INTERVAL,
            "nothing is pending"
        );
    }
}
