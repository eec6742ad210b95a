//! What was heard, and what follows from it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use hashed_wheel_examples::top::{Frame, INTERVAL, Snapshot, Wheel};

use crate::attach::{Heard, WAITING, Why};

/// So much of the past is kept.
pub(crate) const PAST: Duration = Duration::from_secs(60);

/// In so many frames at most: twice as many as come.
pub(crate) const MOST_FRAMES: usize = 2 * (PAST.as_millis() / INTERVAL.as_millis()) as usize;

/// A turn that has taken so long already is said to be in progress.
const LONG_TURN: Duration = Duration::from_secs(1);

/// Rates are of so long.
const RATES: Duration = Duration::from_secs(1);

/// The lateness that is shown is that of so long.
pub(crate) const LATENESS: Duration = Duration::from_secs(10);

/// Who says nothing for longer than this is said to be silent.
const SILENCE: Duration = Duration::from_secs(2);

pub(crate) struct State {
    address: SocketAddr,
    /// The timer that is to be shown as soon as there is one of that name.
    wanted: Option<String>,
    program: String,
    /// `None` while there is somebody.
    gone: Option<Why>,
    /// When anything was heard last.
    heard: Option<Instant>,
    now: Option<Instant>,
    timers: Vec<Timer>,
    shown: usize,
}

/// One timer, now and before.
pub(crate) struct Timer {
    pub(crate) now: Snapshot,
    /// What was seen last of its wheel.
    pub(crate) wheel: Option<Wheel>,
    /// When, since the program began, and what; without the names and the wheels.
    pub(crate) past: VecDeque<(Duration, Snapshot)>,
    /// When it was seen last between two turns, or in another one.
    turn: Duration,
}

impl State {
    pub(crate) fn new(address: SocketAddr, wanted: Option<String>) -> Self {
        Self {
            address,
            wanted,
            program: String::new(),
            gone: Some(Why::Nobody),
            heard: None,
            now: None,
            timers: Vec::new(),
            shown: 0,
        }
    }

    pub(crate) fn hear_all(&mut self, heard: &Receiver<Heard>, now: Instant) {
        // There may be more all the time.
        heard.try_iter().take(WAITING).for_each(|one| self.hear(one, now));
        self.now = Some(now);
    }

    pub(crate) fn hear(&mut self, heard: Heard, now: Instant) {
        self.now = Some(now);
        match (heard, self.gone) {
            (Heard::Frame(frame), gone) => {
                if gone.is_some() {
                    // Another one, which begins from zero.
                    self.wanted = self.wanted.take().or(self.shown().map(|timer| timer.now.name.clone()));
                    self.timers.clear();
                }
                self.heard = Some(now);
                self.gone = None;
                self.take(frame);
            }
            // Of what has ended the last picture stays.
            (Heard::Gone(Why::Nobody), Some(Why::Ended)) => {}
            // So each attempt begins: more is known from the one before.
            (Heard::Gone(Why::Silent), Some(Why::Ended | Why::Nonsense)) => {}
            (Heard::Gone(why), _) => self.gone = Some(why),
        }
    }

    fn take(&mut self, frame: Frame) {
        let shown = self.shown().map(|timer| timer.now.name.clone());
        self.program = frame.program;
        let mut before = std::mem::take(&mut self.timers);
        for snapshot in frame.timers {
            // Each after the one of that name before it.
            let known = before.iter().position(|timer| timer.now.name == snapshot.name);
            let mut timer = match known.map(|position| before.remove(position)) {
                Some(timer) if timer.can_become(&snapshot) => timer,
                _ => Timer { now: Snapshot::default(), wheel: None, past: VecDeque::new(), turn: frame.age },
            };
            timer.take(frame.age, snapshot);
            self.timers.push(timer);
        }
        let is = |name: &String| self.timers.iter().position(|timer| timer.now.name == *name);
        let wanted = self.wanted.as_ref().and_then(is);
        if wanted.is_some() {
            self.wanted = None;
        }
        self.shown = wanted.or(shown.as_ref().and_then(is)).unwrap_or(0);
    }

    pub(crate) fn show_next(&mut self) {
        self.shown = (self.shown + 1) % self.timers.len().max(1);
    }

    pub(crate) fn shown(&self) -> Option<&Timer> {
        self.timers.get(self.shown)
    }

    /// Whether enough was heard for all that is shown.
    pub(crate) fn has_rates(&self) -> bool {
        self.wanted.is_none() && self.shown().is_some_and(|timer| timer.since(RATES).0 >= RATES)
    }

    /// The timer that was asked for, while there is none of that name.
    pub(crate) fn wanted(&self) -> Option<&str> {
        self.wanted.as_deref()
    }

    pub(crate) fn program(&self) -> &str {
        &self.program
    }

    /// Where among the timers the one is that is shown, from 1, and how many there are.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.shown + 1, self.timers.len())
    }

    pub(crate) fn is_live(&self) -> bool {
        self.gone.is_none() && self.silence().is_none()
    }

    fn silence(&self) -> Option<Duration> {
        Some(self.now? - self.heard?).filter(|silence| *silence > SILENCE)
    }

    /// How it stands with the program.
    pub(crate) fn status(&self) -> String {
        let address = self.address;
        match (self.gone, self.silence()) {
            (None, None) => "live".into(),
            (None, Some(silence)) => format!("silent for {} s", silence.as_secs()),
            (Some(Why::Ended), _) => "the program has ended".into(),
            (Some(Why::Nobody), _) => {
                format!("nobody is at {address}: start an example with --top {address}")
            }
            (Some(Why::Silent), _) => format!("who is at {address} says nothing"),
            (Some(Why::Nonsense), _) => format!("who is at {address} does not speak of timers"),
        }
    }
}

impl Timer {
    /// Whether that may be the same one, later. Another one of its name begins from zero.
    fn can_become(&self, next: &Snapshot) -> bool {
        let now = &self.now;
        now.is_stopped <= next.is_stopped
            && now.scheduled <= next.scheduled
            && now.expired <= next.expired
            && now.turns <= next.turns
    }

    fn take(&mut self, age: Duration, mut snapshot: Snapshot) {
        if snapshot.wheel.is_some() || snapshot.has_too_many_slots() || snapshot.turns != self.now.turns {
            self.turn = age;
        }
        // In the middle of a turn there is none to be had: the one before is the next best.
        if let Some(wheel) = snapshot.wheel.take() {
            self.wheel = Some(wheel);
        } else if snapshot.is_stopped {
            self.wheel = None;
        }
        let is_over = |(then, _): &(Duration, _)| age.saturating_sub(*then) > PAST;
        while self.past.len() >= MOST_FRAMES || self.past.front().is_some_and(is_over) {
            self.past.pop_front();
        }
        self.past.push_back((age, Snapshot { name: String::new(), ..snapshot.clone() }));
        self.now = snapshot;
    }

    /// The latest one that is at least so old, or else the first; and how long it is ago.
    fn since(&self, time: Duration) -> (Duration, &Snapshot) {
        let now = self.past.back().map_or(Duration::ZERO, |(now, _)| *now);
        let is_old = |(then, _): &&(Duration, _)| now.saturating_sub(*then) >= time;
        let then = self.past.iter().rev().find(is_old).or(self.past.front());
        then.map_or((Duration::ZERO, &self.now), |(then, snapshot)| (now.saturating_sub(*then), snapshot))
    }

    /// How much a counter grows in a second.
    pub(crate) fn rate(&self, count: impl Fn(&Snapshot) -> u64) -> f64 {
        let (time, then) = self.since(RATES);
        let grown = count(&self.now).saturating_sub(count(then));
        if time.is_zero() { 0.0 } else { grown as f64 / time.as_secs_f64() }
    }

    /// How long the worker has been in the turn that it is in, if that is long.
    pub(crate) fn long_turn(&self) -> Option<Duration> {
        let (now, _) = self.past.back()?;
        let time = now.saturating_sub(self.turn);
        (time >= LONG_TURN && !self.now.is_stopped).then_some(time)
    }

    /// What part of the time the worker was in turns.
    pub(crate) fn load(&self) -> f64 {
        // Which counts as busy only when it is over.
        if self.long_turn().is_some() {
            return 1.0;
        }
        self.rate(|timer| timer.busy.as_nanos() as u64) / 1e9
    }

    /// How many were so late lately.
    pub(crate) fn lateness(&self) -> Vec<(Option<Duration>, u64)> {
        let then = &self.since(LATENESS).1.lateness;
        let before = then.iter().map(|(_, count)| *count).chain(std::iter::repeat(0));
        let now = self.now.lateness.iter().zip(before);
        now.map(|((bound, count), before)| (*bound, count.saturating_sub(before))).collect()
    }

    /// What this part of [`lateness`](Self::lateness) was at most, as `Lateness::quantile` says it.
    pub(crate) fn quantile(&self, part: f64) -> Duration {
        let lateness = self.lateness();
        let all: u64 = lateness.iter().map(|(_, count)| count).sum();
        let rank = ((part * all as f64).ceil() as u64).max(1);
        let mut so_far = 0;
        let reached = lateness.iter().find(|(_, count)| {
            so_far += count;
            so_far >= rank
        });
        let worst = self.now.worst_lateness;
        reached.and_then(|(bound, _)| *bound).map_or(worst, |bound| bound.min(worst))
    }

    /// How many were pending in each of so many parts of the past, the present last. At most as many as there are.
    pub(crate) fn pending(&self, parts: usize) -> Vec<u64> {
        let now = self.past.back().map_or(Duration::ZERO, |(now, _)| *now);
        let mut most = vec![None; parts];
        for (then, snapshot) in &self.past {
            let ago = now.saturating_sub(*then).as_secs_f64() / PAST.as_secs_f64();
            let Some(part) = parts.checked_sub(1 + (ago * parts as f64) as usize) else { continue };
            most[part] = most[part].max(Some(snapshot.pending));
        }
        // A part in which nothing was heard is as the one before.
        let begin = most.iter().position(Option::is_some).unwrap_or(parts);
        let mut last = 0;
        let filled = most[begin..].iter().map(|most| {
            last = most.unwrap_or(last);
            last
        });
        filled.collect()
    }
}
