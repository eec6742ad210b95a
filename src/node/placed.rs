//! The nodes that are in the wheel.

use super::{Arena, Entry, NOWHERE, PLACED, QUEUED, deadline_of, state_of};
use crate::stats::LevelOccupancy;
use crate::sync::Ordering;
use crate::ticks::Ticks;
use crate::wheel::entries::Entries;
use crate::wheel::{EitherWheel, Hashed};

/// The wheel of a timer. It keeps the entries that are put into it, by number, and gives each out once.
pub(crate) struct Placed {
    wheel: EitherWheel,
}

/// What the wheel has to know of an entry is in its node.
struct Nodes<'a>(&'a Arena);

impl Entries for Nodes<'_> {
    #[inline]
    fn deadline(&self, entry: u32) -> u64 {
        self.0.node(entry).tick.load(Ordering::Relaxed)
    }

    #[inline]
    fn position(&self, entry: u32) -> u32 {
        self.0.node(entry).position.load(Ordering::Relaxed)
    }

    #[inline]
    fn set_position(&mut self, entry: u32, position: u32) {
        self.0.node(entry).position.store(position, Ordering::Relaxed);
    }

    #[inline]
    fn prefetch(&self, entry: u32) {
        self.0.prefetch(entry);
    }
}

impl Placed {
    pub(crate) fn new(wheel: EitherWheel) -> Self {
        Self { wheel }
    }

    #[inline]
    pub(crate) fn insert(&mut self, arena: &Arena, tick: u64, entry: Entry) {
        entry.tick.store(tick, Ordering::Relaxed);
        self.wheel.insert(&mut Nodes(arena), entry.number());
    }

    /// The entry of a node about which a message has come, out of the wheel if it is there.
    pub(crate) fn take(&mut self, arena: &Arena, number: u32) -> Entry {
        let entry = arena.entry(number);
        if entry.position.load(Ordering::Relaxed) != NOWHERE {
            self.wheel.remove(&mut Nodes(arena), number);
            entry.position.store(NOWHERE, Ordering::Relaxed);
        }
        entry
    }

    /// Moves the time on: what is due then is for [`pop_due`](Self::pop_due).
    pub(crate) fn advance(&mut self, arena: &Arena, tick: u64) {
        self.wheel.advance(&mut Nodes(arena), tick);
    }

    #[inline]
    pub(crate) fn pop_due(&mut self, arena: &Arena) -> Option<Entry> {
        let entry = arena.entry(self.wheel.pop_due(&Nodes(arena))?);
        entry.position.store(NOWHERE, Ordering::Relaxed);
        Some(entry)
    }

    /// Takes everything out, in no particular order, and gives the memory back.
    pub(crate) fn take_all(&mut self, arena: &Arena) -> Vec<Entry> {
        let mut all = Vec::with_capacity(self.wheel.len());
        self.wheel.for_each(|number| {
            let entry = arena.entry(number);
            entry.position.store(NOWHERE, Ordering::Relaxed);
            all.push(entry);
        });
        self.wheel = EitherWheel::Hashed(Hashed::new(1));
        all
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.wheel.next_deadline()
    }

    /// The tick at which the first of them fires that falls due up to the tick `last`; zero if a message about it is under
    /// way. Looks at each: `next_deadline` also goes by those that have ended, and by what was the deadline before a `reset`.
    /// And how many have not ended.
    pub(crate) fn first_due(&self, arena: &Arena, ticks: Ticks, last: u64) -> (Option<u64>, u64) {
        let (mut first, mut live) = (None, 0);
        self.wheel.for_each(|number| {
            let node = arena.node(number);
            let word = node.word.load(Ordering::Relaxed);
            let due = ticks.of(deadline_of(word));
            let fires = match state_of(word) {
                QUEUED => 0,
                // It may have come too late for its own tick.
                PLACED => due.max(node.tick.load(Ordering::Relaxed)),
                _ => return,
            };
            live += 1;
            // What repeats is over when the timer is, not before: it keeps nobody waiting.
            if due <= last && !node.repeats() {
                first = Some(first.map_or(fires, |first: u64| first.min(fires)));
            }
        });
        (first, live)
    }

    /// How full each level is at tick `now`, which is not before [`tick`](Self::tick).
    pub(crate) fn levels(&self, now: u64) -> Vec<LevelOccupancy> {
        self.wheel.levels(now).into_iter().map(LevelOccupancy::from).collect()
    }

    pub(crate) fn tick(&self) -> u64 {
        self.wheel.tick()
    }

    pub(crate) fn len(&self) -> usize {
        self.wheel.len()
    }
}
