//! The received frames, and the values derived from them.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use crate::frame::{Frame, INTERVAL, Snapshot, Wheel};

use super::attach::{CAPACITY, MAX_LENGTH, Message, Why};

/// The period of the pending timeouts that are shown.
pub(crate) const PAST: Duration = Duration::from_secs(60);

/// A turn that has taken at least this long is shown as in progress.
const LONG_TURN: Duration = Duration::from_secs(1);

/// The period over which rates are computed.
const RATES: Duration = Duration::from_secs(1);

/// The period of the lateness that is shown.
pub(crate) const LATENESS: Duration = Duration::from_secs(10);

/// A program that has sent nothing for longer than this is shown as silent.
const SILENCE: Duration = Duration::from_secs(2);

pub(crate) struct State {
    address: SocketAddr,
    /// The name of the timer to show as soon as it exists.
    wanted: Option<String>,
    program: String,
    /// `None` while a program is connected.
    gone: Option<Why>,
    /// When the last message was received.
    messages: Option<Instant>,
    now: Option<Instant>,
    timers: Vec<Timer>,
    shown: usize,
    shows_legend: bool,
}

/// The current and the earlier states of a timer.
#[derive(Default)]
pub(crate) struct Timer {
    pub(crate) now: Snapshot,
    /// The last known state of its wheel.
    pub(crate) wheel: Option<Wheel>,
    /// The numbers of pending timeouts in [`PAST`], with their times since the start of the
    /// program.
    past: VecDeque<(Duration, u64)>,
    /// The states in [`LATENESS`], the longest period of the other values, without names and
    /// wheels.
    recent: VecDeque<(Duration, Snapshot)>,
    /// When it was last between two turns, or in another turn.
    turn: Duration,
}

impl State {
    pub(crate) fn new(address: SocketAddr, wanted: Option<String>) -> Self {
        Self {
            address,
            wanted,
            program: String::new(),
            gone: Some(Why::NotListening),
            messages: None,
            now: None,
            timers: Vec::new(),
            shown: 0,
            shows_legend: false,
        }
    }

    pub(crate) fn receive_all(&mut self, messages: &Receiver<Message>, now: Instant) {
        // The loop is bounded, because frames may arrive faster than they are processed.
        messages
            .try_iter()
            .take(CAPACITY)
            .for_each(|one| self.receive(one, now));
        self.now = Some(now);
    }

    pub(crate) fn receive(&mut self, messages: Message, now: Instant) {
        self.now = Some(now);
        match (messages, self.gone) {
            (Message::Frame(frame), gone) => {
                if gone.is_some() {
                    // Another program, whose counters start from zero.
                    self.wanted = self
                        .wanted
                        .take()
                        .or(self.shown().map(|timer| timer.now.name.clone()));
                    self.timers.clear();
                }
                self.messages = Some(now);
                self.gone = None;
                self.take(frame);
            }
            // After a program has ended, its last state stays.
            (Message::Gone(Why::NotListening), Some(Why::Ended)) => {}
            // Each attempt starts with this message. The result of the previous attempt is more
            // informative.
            (Message::Gone(Why::Silent), Some(Why::Ended | Why::TooLong | Why::Invalid)) => {}
            (Message::Gone(why), _) => self.gone = Some(why),
        }
    }

    fn take(&mut self, frame: Frame) {
        let shown = self.shown().map(|timer| timer.now.clone());
        self.program = frame.program;
        let before = self.timers.drain(..);
        let mut before: HashMap<_, _> = before.map(|timer| (timer.now.number, timer)).collect();
        for snapshot in frame.timers {
            let known = before.remove(&snapshot.number);
            let mut timer = known.unwrap_or_else(|| Timer {
                turn: frame.age,
                ..Timer::default()
            });
            timer.take(frame.age, snapshot);
            self.timers.push(timer);
        }
        let position = |is: &dyn Fn(&Snapshot) -> bool| {
            let mut timers = self.timers.iter();
            timers.position(|timer| is(&timer.now))
        };
        let wanted = self.wanted.as_ref();
        let wanted = wanted.and_then(|name| position(&|timer| timer.name == *name));
        // Names need not differ. After the end of the timer, another one may have its name.
        let shown = shown.and_then(|shown| {
            position(&|timer| timer.number == shown.number)
                .or_else(|| position(&|timer| timer.name == shown.name))
        });
        if wanted.is_some() {
            self.wanted = None;
        }
        self.shown = wanted.or(shown).unwrap_or(0);
    }

    pub(crate) fn show_next(&mut self) {
        // The user has chosen another one.
        self.wanted = None;
        self.shown = (self.shown + 1) % self.timers.len().max(1);
    }

    /// Shows the legend, or hides it.
    pub(crate) fn switch_legend(&mut self) {
        self.shows_legend = !self.shows_legend;
    }

    pub(crate) fn shows_legend(&self) -> bool {
        self.shows_legend
    }

    pub(crate) fn shown(&self) -> Option<&Timer> {
        self.timers.get(self.shown)
    }

    /// Whether enough frames were received for all values.
    pub(crate) fn has_rates(&self) -> bool {
        self.wanted.is_none()
            && self
                .shown()
                .is_some_and(|timer| timer.since(RATES).0 >= RATES)
    }

    /// Returns the requested name while there is no timer with this name.
    pub(crate) fn wanted(&self) -> Option<&str> {
        self.wanted.as_deref()
    }

    pub(crate) fn program(&self) -> &str {
        &self.program
    }

    /// Returns the position of the shown timer, counted from 1, and the number of timers.
    pub(crate) fn position_of_shown(&self) -> (usize, usize) {
        (self.shown + 1, self.timers.len())
    }

    pub(crate) fn is_live(&self) -> bool {
        self.gone.is_none() && self.silence().is_none()
    }

    fn silence(&self) -> Option<Duration> {
        Some(self.now? - self.messages?).filter(|silence| *silence > SILENCE)
    }

    /// Returns the state of the connection as text.
    pub(crate) fn status(&self) -> String {
        let address = self.address;
        match (self.gone, self.silence()) {
            (None, None) if self.timers.is_empty() => {
                format!("the program at {address} has no timer to show")
            }
            (None, None) => "live".into(),
            (None, Some(silence)) => format!("silent for {}s", silence.as_secs()),
            (Some(Why::Ended), _) => "the program has ended".into(),
            (Some(Why::NotListening), _) => {
                format!(
                    "no program listens on {address}: is it running, and does it call `wheel_top::watch`?"
                )
            }
            (Some(Why::Silent), _) => format!("the program at {address} sends nothing"),
            (Some(Why::TooLong), _) => {
                let max = MAX_LENGTH >> 20;
                format!("the program at {address} sends too much: above {max} MiB at a time")
            }
            (Some(Why::Invalid), _) => {
                format!("the program at {address} does not send timer states")
            }
        }
    }
}

impl Timer {
    fn take(&mut self, age: Duration, mut snapshot: Snapshot) {
        if snapshot.wheel.is_some()
            || snapshot.has_too_many_slots()
            || snapshot.turns != self.now.turns
        {
            self.turn = age;
        }
        // A frame in the middle of a turn contains no wheel. Then the previous one is shown.
        if let Some(wheel) = snapshot.wheel.take() {
            self.wheel = Some(wheel);
        } else if snapshot.is_stopped {
            self.wheel = None;
        }
        keep(&mut self.past, PAST, age, snapshot.pending);
        let nameless = Snapshot {
            name: String::new(),
            ..snapshot.clone()
        };
        keep(&mut self.recent, LATENESS, age, nameless);
        self.now = snapshot;
    }

    /// Returns the latest state that is at least this old, or the first one, and its age.
    fn since(&self, time: Duration) -> (Duration, &Snapshot) {
        let now = self.recent.back().map_or(Duration::ZERO, |(now, _)| *now);
        let is_old = |(then, _): &&(Duration, _)| now.saturating_sub(*then) >= time;
        let then = self.recent.iter().rev().find(is_old);
        let then = then.or(self.recent.front());
        then.map_or((Duration::ZERO, &self.now), |(then, snapshot)| {
            (now.saturating_sub(*then), snapshot)
        })
    }

    /// Returns the increase of a counter per second.
    pub(crate) fn rate(&self, count: impl Fn(&Snapshot) -> u64) -> f64 {
        let (time, then) = self.since(RATES);
        let grown = count(&self.now).saturating_sub(count(then));
        if time.is_zero() {
            0.0
        } else {
            grown as f64 / time.as_secs_f64()
        }
    }

    /// Returns how long the worker has been in its current turn, if that is long.
    pub(crate) fn long_turn(&self) -> Option<Duration> {
        let (now, _) = self.past.back()?;
        let time = now.saturating_sub(self.turn);
        (time >= LONG_TURN && !self.now.is_stopped).then_some(time)
    }

    /// Returns the share of the time that the worker was in turns.
    pub(crate) fn load(&self) -> f64 {
        // The busy time of a turn is counted only after the turn.
        if self.long_turn().is_some() {
            return 1.0;
        }
        self.rate(|timer| timer.busy.as_nanos() as u64) / 1e9
    }

    /// Returns the histogram of the last seconds.
    pub(crate) fn lateness(&self) -> Vec<(Option<Duration>, u64)> {
        let then = &self.since(LATENESS).1.lateness;
        let before = then
            .iter()
            .map(|(_, count)| *count)
            .chain(std::iter::repeat(0));
        let now = self.now.lateness.iter().zip(before);
        now.map(|((bound, count), before)| (*bound, count.saturating_sub(before)))
            .collect()
    }

    /// Returns a quantile of [`lateness`](Self::lateness), computed like `Lateness::quantile`.
    pub(crate) fn quantile(&self, part: f64) -> Duration {
        let lateness = self.lateness();
        let all: u64 = lateness.iter().map(|(_, count)| count).sum();
        let rank = ((part * all as f64).ceil() as u64).max(1);
        let mut so_far = 0;
        let reached = lateness.iter().find(|(_, count)| {
            so_far += count;
            so_far >= rank
        });
        let maximum = self.now.worst_lateness;
        reached
            .and_then(|(bound, _)| *bound)
            .map_or(maximum, |bound| bound.min(maximum))
    }

    /// Returns the maximum number of pending timeouts in each part of the past, the latest part
    /// last. Parts before the first frame are omitted.
    pub(crate) fn pending(&self, parts: usize) -> Vec<u64> {
        let now = self.past.back().map_or(Duration::ZERO, |(now, _)| *now);
        let mut max = vec![None; parts];
        for (then, pending) in &self.past {
            let ago = now.saturating_sub(*then).as_secs_f64() / PAST.as_secs_f64();
            let Some(part) = parts.checked_sub(1 + (ago.min(1.0) * parts as f64) as usize) else {
                continue;
            };
            max[part] = max[part].max(Some(*pending));
        }
        // A part without frames has the value of the previous part.
        let begin = max.iter().position(Option::is_some).unwrap_or(parts);
        let mut last = 0;
        let filled = max[begin..].iter().map(|max| {
            last = max.unwrap_or(last);
            last
        });
        filled.collect()
    }
}

/// The maximum number of values that are kept of a period: twice the expected number.
const fn max_kept(period: Duration) -> usize {
    2 * (period.as_millis() / INTERVAL.as_millis()) as usize
}

/// Adds a value, and removes those before the period that ends now. The last of these stays: it is
/// the value at the beginning of the period.
fn keep<T>(values: &mut VecDeque<(Duration, T)>, period: Duration, now: Duration, value: T) {
    let is_before = |(then, _): &(Duration, T)| now.saturating_sub(*then) >= period;
    while values.len() >= max_kept(period) || values.get(1).is_some_and(is_before) {
        values.pop_front();
    }
    values.push_back((now, value));
}

#[cfg(test)]
mod tests;
