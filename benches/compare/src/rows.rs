//! The rows of the tables, and the goals.

use crate::peers::{NETTY, OURS};
use crate::report::short;
use crate::summary::{Spread, Summary};

use Goal::{AtLeast, AtMost, RatioAtLeast, RatioAtMost, RatioAtMostOrBetter, ToOwnAtMost};

pub(crate) struct Row {
    /// The name of the workload.
    pub(crate) workload: &'static str,
    /// The name of the value in the answers.
    pub(crate) key: &'static str,
    /// The name of the value in the answers of Netty's child. It differs from `key` in the rows
    /// that show Netty with a compacted heap, or another way to re-arm a timeout.
    pub(crate) netty_key: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) goal: Goal,
    /// Whether the table in the README contains the row.
    pub(crate) is_in_readme: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum Goal {
    None,
    /// The ratio to Netty with `ParallelGC` in the same measurement.
    RatioAtMost(f64),
    /// As `RatioAtMost`, with a second bound that is desirable but not required.
    RatioAtMostOrBetter(f64, f64),
    RatioAtLeast(f64),
    /// The value of this crate, independent of Netty.
    AtMost(f64),
    AtLeast(f64),
    /// The ratio to this crate's own value in another workload.
    ToOwnAtMost(f64, &'static str),
}

impl Goal {
    /// Returns the bound if the goal is a ratio to Netty.
    pub(crate) fn ratio(self) -> Option<f64> {
        match self {
            RatioAtMost(bound) | RatioAtMostOrBetter(bound, _) | RatioAtLeast(bound) => Some(bound),
            Goal::None | AtMost(_) | AtLeast(_) | ToOwnAtMost(..) => None,
        }
    }
}

/// The result for a goal.
pub(crate) struct Outcome {
    pub(crate) goal: String,
    /// `None` if the value was not measured.
    pub(crate) is_met: Option<bool>,
    pub(crate) measured: String,
}

const fn row(
    workload: &'static str,
    key: &'static str,
    title: &'static str,
    unit: &'static str,
    goal: Goal,
) -> Row {
    Row { workload, key, netty_key: key, title, unit, goal, is_in_readme: false }
}

impl Row {
    const fn in_readme(self) -> Self {
        Self { is_in_readme: true, ..self }
    }

    const fn against(self, netty_key: &'static str) -> Self {
        Self { netty_key, ..self }
    }
}

pub(crate) const ROWS: [Row; 65] = [
    row("W1", "ns", "schedule", "ns", RatioAtMost(0.6)),
    row("W2", "ns", "schedule and cancel immediately", "ns", RatioAtMost(0.7)).in_readme(),
    row("W2s", "ns", "schedule and cancel immediately, CPU time of the process", "ns", RatioAtMost(0.4)),
    row("W2b", "ns", "cancel in random order", "ns", RatioAtMost(1.0)).in_readme(),
    row("W2b", "worker_ns", "cancel in random order, CPU time of the worker", "ns", Goal::None),
    row("W9 count=1", "ns", "re-arm one timeout repeatedly", "ns", ToOwnAtMost(0.35, "W2")),
    row("W9", "ns", "re-arm random timeouts", "ns", RatioAtMost(1.0)).in_readme(),
    row("W9", "ns", "re-arm random timeouts, Netty with cancel and newTimeout", "ns", Goal::None)
        .against("replace_ns"),
    row("W9", "cpu_ns", "re-arm random timeouts, CPU time of the process", "ns", Goal::None),
    row(
        "W9",
        "cpu_ns",
        "re-arm random timeouts, CPU time of the process, Netty with cancel and newTimeout",
        "ns",
        Goal::None,
    )
    .against("replace_cpu_ns"),
    row("FIRST", "ns", "schedule the first 10⁶ timeouts of a timer", "ns", Goal::None),
    row("W3 threads=1", "mops", "schedule, 1 thread", "M/s", Goal::None),
    row("W3 threads=2", "mops", "schedule, 2 threads", "M/s", RatioAtLeast(2.0)),
    row("W3 threads=4", "mops", "schedule, 4 threads", "M/s", Goal::None),
    row("W3 threads=8", "mops", "schedule, 8 threads", "M/s", Goal::None),
    row("W3 threads=16", "mops", "schedule, 16 threads", "M/s", Goal::None),
    row("FIRST2", "mops", "schedule the first 10⁶ timeouts of a timer, 2 threads", "M/s", RatioAtLeast(1.0)),
    row("MIX threads=1", "mops", "schedule one and cancel another, 1 thread", "M/s", Goal::None),
    row("MIX threads=2", "mops", "schedule one and cancel another, 2 threads", "M/s", Goal::None).in_readme(),
    row("MIX threads=4", "mops", "schedule one and cancel another, 4 threads", "M/s", Goal::None),
    row("MIX threads=8", "mops", "schedule one and cancel another, 8 threads", "M/s", Goal::None),
    row("MIX threads=16", "mops", "schedule one and cancel another, 16 threads", "M/s", Goal::None),
    row("SCALE", "one", "scaling: schedule one and cancel another, 1 thread", "M/s", Goal::None),
    row("SCALE", "shared", "scaling: 2 threads on one timer", "M/s", Goal::None),
    row("SCALE", "own", "scaling: 2 threads on a timer each", "M/s", Goal::None),
    row("SCALE", "shared_per_own", "scaling: 2 threads on one timer / on a timer each", "", AtLeast(0.9)),
    row("SCALE", "shared_per_one", "scaling: 2 threads on one timer / 1 thread", "", Goal::None),
    row("TIMERS timers=2", "ns", "schedule one and cancel another, 2 timers in turn", "ns", Goal::None),
    row("TIMERS timers=2", "ratio", "2 timers in turn / one timer", "", AtMost(1.3)),
    row("TIMERS timers=2", "allocations", "2 timers in turn, allocations per timeout", "", AtMost(0.01)),
    row("TIMERS timers=64", "ns", "schedule one and cancel another, 64 timers in turn", "ns", Goal::None),
    row("TIMERS timers=64", "ratio", "64 timers in turn / one timer", "", AtMost(1.3)),
    row("TIMERS timers=64", "allocations", "64 timers in turn, allocations per timeout", "", AtMost(0.01)),
    row("W10 pending=1000", "ns", "schedule one and cancel another, 10³ pending", "ns", Goal::None),
    row("W10 pending=10000", "ns", "schedule one and cancel another, 10⁴ pending", "ns", Goal::None),
    row("W10 pending=100000", "ns", "schedule one and cancel another, 10⁵ pending", "ns", Goal::None),
    row("W10 pending=1000000", "ns", "schedule one and cancel another, 10⁶ pending", "ns", Goal::None),
    row(
        "W10 pending=10000000",
        "ns",
        "schedule one and cancel another, 10⁷ pending",
        "ns",
        ToOwnAtMost(1.25, "W10 pending=1000"),
    ),
    row(
        "GROWTH",
        "ratio",
        "schedule one and cancel another, most / fewest pending (10⁷ / 10³)",
        "",
        AtMost(1.1),
    ),
    row("W4", "ns", "expire over one second, CPU time of the worker", "ns", RatioAtMost(0.4)).in_readme(),
    row("W4", "ns", "expire over one second, Netty with a compacted heap", "ns", Goal::None)
        .against("packed_ns")
        .in_readme(),
    row("W4", "life_ns", "take in and expire over one second, CPU time of the worker", "ns", Goal::None),
    row(
        "W4",
        "life_ns",
        "take in and expire over one second, Netty with a compacted heap",
        "ns",
        RatioAtMost(1.0),
    )
    .against("packed_life_ns"),
    row("W4p", "ns", "expire in one tick, CPU time of the worker", "ns", Goal::None),
    row("W4p", "ns", "expire in one tick, Netty with a compacted heap", "ns", RatioAtMost(0.85))
        .against("packed_ns"),
    row("W4p", "life_ns", "take in and expire in one tick, CPU time of the worker", "ns", Goal::None),
    row(
        "W4p",
        "life_ns",
        "take in and expire in one tick, Netty with a compacted heap",
        "ns",
        RatioAtMost(1.0),
    )
    .against("packed_life_ns"),
    row("W5", "percent", "CPU use while all timeouts are pending", "% of a core", AtMost(0.01)),
    row(
        "W5",
        "percent",
        "CPU use while all timeouts are pending, Netty with a compacted heap",
        "% of a core",
        Goal::None,
    )
    .against("packed_percent"),
    row("W6", "bytes", "memory per pending timeout", "bytes", RatioAtMostOrBetter(1.2, 1.0)).in_readme(),
    row("BURST cancel=0", "percent", "memory 10 s after all have fired", "% of the peak", AtMost(10.0)),
    row("BURST cancel=0", "peak_bytes", "peak of the memory per timeout that fires", "bytes", Goal::None),
    row("BURST cancel=1", "percent", "memory 10 s after all were cancelled", "% of the peak", AtMost(10.0)),
    row("BURST cancel=1", "peak_bytes", "peak of the memory per cancelled timeout", "bytes", Goal::None),
    row("W7", "p50", "lateness at a tick of 1 ms, median", "ms", RatioAtMost(0.7)),
    row("W7", "p99", "lateness at a tick of 1 ms, 99th percentile", "ms", RatioAtMost(0.7)).in_readme(),
    row("W7", "p999", "lateness at a tick of 1 ms, 99.9th percentile", "ms", RatioAtMost(1.0)),
    row("W7", "max", "lateness at a tick of 1 ms, maximum", "ms", RatioAtMost(1.0)),
    row("W8", "wakeups", "wake-ups per second with nothing pending", "1/s", AtMost(0.0)).in_readme(),
    row("W8", "cpu_ms", "CPU time per second with nothing pending", "ms", Goal::None),
    row(
        "WAKES",
        "wakeups",
        "wake-ups per second, 3 000 timeouts scheduled and cancelled per second",
        "1/s",
        AtMost(20.0),
    ),
    row("WAKES", "counted_wakeups", "wake-ups per second as the timer counts them", "1/s", Goal::None),
    row("WAKES", "cpu_ms", "CPU time of the worker per second, the same traffic", "ms", Goal::None),
    row(
        "THREADS",
        "ms",
        "CPU time of the worker per second, light traffic and 2 000 idle threads",
        "ms",
        Goal::None,
    ),
    row("THREADS", "ratio", "CPU time of the worker, 2 000 idle threads / none", "", AtMost(1.2)),
];

/// What the rows of a workload and its variants measure.
pub(crate) struct Meaning {
    /// The name of the workload without parameters, which `--only` takes.
    pub(crate) workload: &'static str,
    /// What the titles of its rows have in common.
    pub(crate) title: &'static str,
    pub(crate) text: &'static str,
}

/// In the order of the rows.
pub(crate) const MEANINGS: [Meaning; 22] = [
    Meaning {
        workload: "W1",
        title: "schedule",
        text: "one thread calls `new_timeout` for each timeout; the memory was used before",
    },
    Meaning {
        workload: "W2",
        title: "schedule and cancel immediately",
        text: "one thread schedules a timeout and cancels it before it schedules the next one",
    },
    Meaning {
        workload: "W2s",
        title: "schedule and cancel immediately, CPU time of the process",
        text: "the same for some seconds, with the CPU time of all threads of the process per pair",
    },
    Meaning {
        workload: "W2b",
        title: "cancel in random order",
        text: "one thread cancels all pending timeouts in random order, after the worker has taken them in; in another row the worker's CPU time for removing them",
    },
    Meaning {
        workload: "W9",
        title: "re-arm one timeout, re-arm random timeouts",
        text: "one thread moves the deadline of one timeout, or of random pending ones, to 60 s from now. Netty stores the time, as its `IdleStateHandler` does, or cancels and schedules anew, as the row says. The CPU time includes what the worker does afterwards",
    },
    Meaning {
        workload: "FIRST",
        title: "schedule the first 10⁶ timeouts of a timer",
        text: "as *schedule*, with a new timer in a new process, whose memory was not used before (Netty: a new timer in a warm JVM)",
    },
    Meaning {
        workload: "FIRST2",
        title: "schedule the first 10⁶ timeouts of a timer, 2 threads",
        text: "the same with two threads; their throughput together",
    },
    Meaning {
        workload: "W3",
        title: "schedule, N threads",
        text: "as *schedule*, with N threads on one timer that start at the same time; their throughput together",
    },
    Meaning {
        workload: "MIX",
        title: "schedule one and cancel another, N threads",
        text: "each thread schedules a timeout and cancels the one that it scheduled 64 timeouts earlier; the throughput of all threads",
    },
    Meaning {
        workload: "SCALE",
        title: "scaling",
        text: "the same for one thread, two threads on one timer, and two threads on a timer each, one after the other in one process, and the ratios of these",
    },
    Meaning {
        workload: "TIMERS",
        title: "N timers in turn",
        text: "the same on one thread that uses the next timer for each timeout, its ratio to the cost on one timer, and the allocations",
    },
    Meaning {
        workload: "W10",
        title: "schedule one and cancel another, N pending",
        text: "one thread schedules a timeout and cancels a random one of the 1 000 newest, while N others are pending for minutes",
    },
    Meaning {
        workload: "GROWTH",
        title: "most / fewest pending",
        text: "the same with most and with fewest pending timeouts, one after the other in one process, and the ratio",
    },
    Meaning {
        workload: "W4",
        title: "expire over one second; take in and expire",
        text: "the CPU time of the worker per timeout that fires, with deadlines spread over one second: from when all are in the wheel, or (*take in*) from before the first one is scheduled. In the rows *with a compacted heap* the JVM has compacted its heap after Netty inserted the timeouts, which puts the entries of a slot next to each other",
    },
    Meaning { workload: "W4p", title: "expire in one tick", text: "the same with one deadline for all" },
    Meaning {
        workload: "W5",
        title: "CPU use while all timeouts are pending",
        text: "the CPU time of the process while nothing is called and nothing falls due for at least an hour",
    },
    Meaning {
        workload: "W6",
        title: "memory per pending timeout",
        text: "how much the resident memory of a new process grows by scheduling (Netty: the used heap)",
    },
    Meaning {
        workload: "BURST",
        title: "memory 10 s after all have fired, or were cancelled",
        text: "the resident memory some seconds after ten million timeouts have fired, or were cancelled in random order, as a share of its peak; and that peak per timeout. Smaller bursts leave a larger share: [operation](guide/operation.md#memory)",
    },
    Meaning {
        workload: "W7",
        title: "lateness",
        text: "the time from a deadline to its task, with delays of up to one second at a tick of 1 ms; some timeouts are scheduled in each millisecond",
    },
    Meaning {
        workload: "W8",
        title: "with nothing pending",
        text: "how often per second the threads of the process go to sleep, and their CPU time, with a timer at a tick of 1 ms that has no timeouts (Netty: its worker alone)",
    },
    Meaning {
        workload: "WAKES",
        title: "wake-ups per second, 3 000 timeouts",
        text: "the same while three timeouts per millisecond are scheduled and cancelled after 20 ms, with deadlines of 5 s",
    },
    Meaning {
        workload: "THREADS",
        title: "2 000 idle threads",
        text: "the CPU time of the worker while one timeout per millisecond is scheduled and cancelled after 20 ms, when so many threads have used the timer once and sleep; and its ratio to that without these threads",
    },
];

impl Row {
    /// The name of the workload without parameters.
    pub(crate) fn family(&self) -> &'static str {
        self.workload.split(' ').next().unwrap_or(self.workload)
    }

    pub(crate) fn key_of(&self, peer: &str) -> &'static str {
        if peer.starts_with(NETTY) { self.netty_key } else { self.key }
    }

    pub(crate) fn spread(&self, summary: &Summary<'_>, peer: &str) -> Option<Spread> {
        summary.spread(self.workload, self.key_of(peer), peer)
    }

    /// Returns the ratios of this crate to a peer, computed per repetition.
    pub(crate) fn ratio(&self, summary: &Summary<'_>, peer: &str) -> Option<Spread> {
        summary.ratio(self.workload, (OURS, self.key), (peer, self.key_of(peer)))
    }

    pub(crate) fn outcome(&self, summary: &Summary<'_>) -> Option<Outcome> {
        let to_netty = || self.ratio(summary, NETTY);
        let ours = |workload| Some(summary.spread(workload, self.key, OURS)?.median);
        let (goal, bound, measured) = match self.goal {
            Goal::None => return None,
            RatioAtMost(max) => (format!("≤ {max} × Netty"), max, median(to_netty())),
            RatioAtMostOrBetter(max, better) => {
                (format!("≤ {max} × Netty, ideally ≤ {better}"), max, median(to_netty()))
            }
            RatioAtLeast(min) => (format!("≥ {min} × Netty"), min, median(to_netty())),
            AtMost(max) => (format!("≤ {max} {}", self.unit).trim_end().into(), max, ours(self.workload)),
            AtLeast(min) => (format!("≥ {min} {}", self.unit).trim_end().into(), min, ours(self.workload)),
            ToOwnAtMost(max, other) => {
                let ratio = ours(self.workload).zip(ours(other)).map(|(this, other)| this / other);
                (format!("≤ {max} × ours in “{}”", title_of(other)), max, ratio)
            }
        };
        let is_met = measured.map(|measured| match self.goal {
            RatioAtLeast(_) | AtLeast(_) => measured >= bound,
            _ => measured <= bound,
        });
        Some(Outcome { goal, is_met, measured: measured.map_or_else(|| "–".into(), short) })
    }
}

/// Returns the title of the first row of a workload.
fn title_of(workload: &'static str) -> &'static str {
    ROWS.iter().find(|row| row.workload == workload).map_or(workload, |row| row.title)
}

fn median(spread: Option<Spread>) -> Option<f64> {
    spread.map(|spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::{MEANINGS, ROWS};

    #[test]
    fn each_row_has_a_meaning_and_each_meaning_a_row() {
        let means = |family| MEANINGS.iter().filter(|meaning| meaning.workload == family).count();
        assert!(ROWS.iter().all(|row| means(row.family()) == 1));
        let has_row = |name| ROWS.iter().any(|row| row.family() == name);
        assert!(MEANINGS.iter().all(|meaning| has_row(meaning.workload)));
    }
}
