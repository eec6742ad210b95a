//! The questions, as the tables have them, and what the answers should be.

use crate::peers::{NETTY, OURS};
use crate::report::short;
use crate::summary::{Spread, Summary};

use Goal::{AtMost, RatioAtLeast, RatioAtMost, RatioAtMostOrBetter, ToOwnAtMost};

pub(crate) struct Row {
    /// Whose workload's name begins so.
    pub(crate) workload: &'static str,
    pub(crate) key: &'static str,
    /// What Netty's child calls its own best case, where it has one besides.
    pub(crate) netty_key: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) goal: Goal,
    /// Whether the README has it too.
    pub(crate) is_in_readme: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum Goal {
    None,
    /// Of ours to Netty, with the same collector in the same run.
    RatioAtMost(f64),
    /// And one that would be better still.
    RatioAtMostOrBetter(f64, f64),
    RatioAtLeast(f64),
    /// Of ours, whatever Netty's is.
    AtMost(f64),
    /// Of ours to ours in another row.
    ToOwnAtMost(f64, &'static str),
}

impl Goal {
    /// To Netty.
    pub(crate) fn ratio(self) -> Option<f64> {
        match self {
            RatioAtMost(bound) | RatioAtMostOrBetter(bound, _) | RatioAtLeast(bound) => Some(bound),
            Goal::None | AtMost(_) | ToOwnAtMost(..) => None,
        }
    }
}

/// What has come of a goal.
pub(crate) struct Outcome {
    pub(crate) goal: String,
    /// None where it could not be measured.
    pub(crate) is_met: Option<bool>,
    pub(crate) found: String,
}

const fn row(
    workload: &'static str,
    key: &'static str,
    title: &'static str,
    unit: &'static str,
    goal: Goal,
) -> Row {
    Row { workload, key, netty_key: key, title, unit, goal, is_in_readme: true }
}

impl Row {
    const fn detail(self) -> Self {
        Self { is_in_readme: false, ..self }
    }

    const fn against(self, netty_key: &'static str) -> Self {
        Self { netty_key, ..self }
    }
}

pub(crate) const ROWS: [Row; 35] = [
    row("W1", "ns", "schedule", "ns", RatioAtMost(0.95)),
    row("W2", "ns", "schedule and cancel at once", "ns", RatioAtMost(0.9)),
    row("W2s", "ns", "the same, CPU time of the process", "ns", RatioAtMost(0.4)),
    row("W2b", "ns", "cancel in random order", "ns", RatioAtMost(0.8)),
    row("W2b", "worker_ns", "what its worker does for that, CPU time", "ns", Goal::None).detail(),
    row("W9 count=1", "ns", "re-arm one again and again", "ns", ToOwnAtMost(0.35, "W2")),
    row("W9", "ns", "re-arm one of all pending", "ns", Goal::None),
    row("W9", "cpu_ns", "the same, CPU time of the process", "ns", Goal::None).detail(),
    row("W3 threads=1", "mops", "schedule, 1 thread", "M/s", Goal::None).detail(),
    row("W3 threads=2", "mops", "schedule, 2 threads", "M/s", RatioAtLeast(1.1)),
    row("W3 threads=4", "mops", "schedule, 4 threads", "M/s", Goal::None).detail(),
    row("W3 threads=8", "mops", "schedule, 8 threads", "M/s", Goal::None).detail(),
    row("W3 threads=16", "mops", "schedule, 16 threads", "M/s", Goal::None).detail(),
    row("MIX threads=1", "mops", "schedule one and cancel another, 1 thread", "M/s", Goal::None).detail(),
    row("MIX threads=2", "mops", "schedule one and cancel another, 2 threads", "M/s", Goal::None),
    row("MIX threads=4", "mops", "schedule one and cancel another, 4 threads", "M/s", Goal::None).detail(),
    row("MIX threads=8", "mops", "schedule one and cancel another, 8 threads", "M/s", Goal::None).detail(),
    row("MIX threads=16", "mops", "schedule one and cancel another, 16 threads", "M/s", Goal::None).detail(),
    row("W10 pending=1000", "ns", "schedule one and cancel another, 10³ pending", "ns", Goal::None),
    row("W10 pending=10000", "ns", "schedule one and cancel another, 10⁴ pending", "ns", Goal::None).detail(),
    row("W10 pending=100000", "ns", "schedule one and cancel another, 10⁵ pending", "ns", Goal::None)
        .detail(),
    row("W10 pending=1000000", "ns", "schedule one and cancel another, 10⁶ pending", "ns", Goal::None),
    row(
        "W10 pending=10000000",
        "ns",
        "schedule one and cancel another, 10⁷ pending",
        "ns",
        ToOwnAtMost(1.25, "W10 pending=1000"),
    ),
    row("W4", "ns", "expire over a second, CPU time of the worker", "ns", RatioAtMost(0.4)),
    row("W4", "ns", "the same, after Netty's heap was compacted", "ns", Goal::None)
        .against("packed_ns")
        .detail(),
    row("W4p", "ns", "expire in one tick, CPU time of the worker", "ns", RatioAtMost(1.0)),
    row("W5", "percent", "upkeep while all are pending", "% of a core", AtMost(0.01)),
    row("W5", "percent", "the same, after Netty's heap was compacted", "% of a core", Goal::None)
        .against("packed_percent")
        .detail(),
    row("W6", "bytes", "memory of a pending timeout", "bytes", RatioAtMostOrBetter(1.2, 1.0)),
    row("W7", "p50", "lateness at a tick of 1 ms, median", "ms", RatioAtMost(0.7)),
    row("W7", "p99", "lateness, 99 %", "ms", RatioAtMost(0.7)),
    row("W7", "p999", "lateness, 99.9 %", "ms", Goal::None).detail(),
    row("W7", "max", "lateness, at most", "ms", Goal::None).detail(),
    row("W8", "wakeups", "wake-ups a second with nothing pending", "1/s", AtMost(0.0)),
    row("W8", "cpu_ms", "CPU time a second with nothing pending", "ms", Goal::None).detail(),
];

impl Row {
    pub(crate) fn key_of(&self, peer: &str) -> &'static str {
        if peer.starts_with(NETTY) { self.netty_key } else { self.key }
    }

    pub(crate) fn spread(&self, summary: &Summary<'_>, peer: &str) -> Option<Spread> {
        summary.spread(self.workload, self.key_of(peer), peer)
    }

    /// Of ours to a peer's, round by round.
    pub(crate) fn ratio(&self, summary: &Summary<'_>, peer: &str) -> Option<Spread> {
        summary.ratio(self.workload, (OURS, self.key), (peer, self.key_of(peer)))
    }

    pub(crate) fn outcome(&self, summary: &Summary<'_>) -> Option<Outcome> {
        let to_netty = || self.ratio(summary, NETTY);
        let ours = |workload| Some(summary.spread(workload, self.key, OURS)?.median);
        let (goal, bound, found) = match self.goal {
            Goal::None => return None,
            RatioAtMost(most) => (format!("≤ {most} × Netty"), most, median(to_netty())),
            RatioAtMostOrBetter(most, better) => {
                (format!("≤ {most} × Netty, better {better}"), most, median(to_netty()))
            }
            RatioAtLeast(least) => (format!("≥ {least} × Netty"), least, median(to_netty())),
            AtMost(most) => (format!("≤ {most} {}", self.unit), most, ours(self.workload)),
            ToOwnAtMost(most, other) => {
                let ratio = ours(self.workload).zip(ours(other)).map(|(this, other)| this / other);
                (format!("≤ {most} × its {other}"), most, ratio)
            }
        };
        let is_met = found.map(|found| match self.goal {
            RatioAtLeast(_) => found >= bound,
            _ => found <= bound,
        });
        Some(Outcome { goal, is_met, found: found.map_or_else(|| "–".into(), short) })
    }
}

fn median(spread: Option<Spread>) -> Option<f64> {
    spread.map(|spread| spread.median)
}
