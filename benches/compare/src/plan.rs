//! The plan: what is measured, how often, and which rows of the tables show it.

use std::time::Duration;

use crate::peers::is_netty;

/// One command, which all competitors get in each repetition.
pub(crate) struct Workload {
    /// The workload, and the parameter that distinguishes variants of it: `W3 threads=2`.
    pub(crate) name: String,
    /// The command without the seed. Each repetition appends its own seed.
    pub(crate) command: String,
    pub(crate) repetitions: usize,
    /// Whether only this crate and Netty get the command.
    pub(crate) is_primary_only: bool,
}

/// How long a child may take for one command.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// The parameters of all workloads.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// The number of timeouts or pairs in most workloads.
    count: usize,
    pub(crate) repetitions: usize,
    seconds: usize,
    /// Timeouts per second in the lateness workload.
    rate: usize,
    pending: &'static [usize],
    /// How long after a burst the memory is read.
    seconds_after: usize,
    tick_us: usize,
    pub(crate) warms_up: bool,
}

/// Takes about an hour with all competitors.
pub(crate) const FULL: Size = Size {
    count: 1_000_000,
    repetitions: 5,
    seconds: 2,
    rate: 100_000,
    pending: &[1_000, 1_000_000, 10_000_000],
    seconds_after: 10,
    tick_us: 10_000,
    warms_up: true,
};

/// Approximate values in two or three minutes.
pub(crate) const QUICK: Size =
    Size { count: 300_000, repetitions: 2, seconds: 1, rate: 20_000, pending: &[1_000, 1_000_000], ..FULL };

/// Runs each workload once, without meaningful values.
pub(crate) const TEST: Size = Size {
    count: 2_000,
    repetitions: 1,
    seconds: 1,
    rate: 2_000,
    pending: &[1_000, 2_000],
    seconds_after: 1,
    tick_us: 1_000,
    warms_up: false,
};

/// With this number of pending timeouts or more, only this crate and Netty are measured: the others
/// would take gigabytes.
const MANY: usize = 10_000_000;

impl Size {
    pub(crate) fn plan(&self) -> Vec<Workload> {
        let Self { count, seconds, rate, tick_us, seconds_after, .. } = *self;
        let coarse = format!("tick_us={tick_us} slots=512");
        let fine = "tick_us=1000 slots=512";
        let workload = |name: &str, command: String| Workload {
            name: name.into(),
            command,
            repetitions: self.repetitions,
            is_primary_only: false,
        };
        let mut plan = vec![
            workload("W1", format!("W1 count={count} {coarse} warm=1")),
            workload("W2", format!("W2 count={count} {coarse}")),
            workload("W2s", format!("W2s seconds={} {coarse}", 4 * seconds)),
            workload("W2b", format!("W2b count={count} {coarse}")),
            workload("W9 count=1", format!("W9 count=1 resets={count} {coarse}")),
            workload("W9", format!("W9 count={count} resets={count} {coarse}")),
            workload("W4", format!("W4 count={count} {coarse}")),
            workload("W4p", format!("W4p count={count} {coarse}")),
        ];
        for name in ["W3 threads=2", "MIX threads=1", "MIX threads=2"] {
            plan.push(workload(name, format!("{name} count={count} {coarse} warm=1")));
        }
        for name in ["SLEEP", "READY", "PENDING"] {
            for threads in [1, 2] {
                let name = format!("{name} threads={threads}");
                plan.push(workload(&name, format!("{name} count={count} {coarse} warm=1")));
            }
        }
        for &pending in self.pending {
            let command = format!("W10 count={count} threads=1 pending={pending} {coarse}");
            let workload = workload(&format!("W10 pending={pending}"), command);
            plan.push(Workload { is_primary_only: pending >= MANY, ..workload });
        }
        plan.push(workload("W6", format!("W6 count={count} {coarse}")));
        plan.push(workload("W5", format!("W5 count={count} seconds={} {coarse}", 2 * seconds)));
        plan.push(workload("W8", format!("W8 seconds={seconds} {fine}")));
        plan.push(workload("W7", format!("W7 rate={rate} seconds={} {fine}", 5 * seconds)));
        plan.push(workload("WAKES", format!("WAKES seconds={} {fine}", 2 * seconds)));
        // Netty's JVM cannot be new: it touches its heap when it starts. Only its timer is new.
        let primary_only =
            |name: &str, command| Workload { is_primary_only: true, ..workload(name, command) };
        plan.push(primary_only("FIRST", format!("W1 count={count} {coarse}")));
        for cancel in [0, 1] {
            let most = self.pending.last().unwrap_or(&count);
            let command = format!("BURST count={most} seconds={seconds_after} cancel={cancel} {coarse}");
            plan.push(primary_only(&format!("BURST cancel={cancel}"), command));
        }
        plan
    }
}

/// Rows that measure the same.
pub(crate) struct Topic {
    /// What the rows measure.
    pub(crate) meaning: &'static str,
    pub(crate) rows: &'static [Row],
}

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
    /// Whether the row shows the best repetition of each timer instead of the median.
    pub(crate) is_best: bool,
    /// Whether the table in the README contains the row.
    pub(crate) is_in_readme: bool,
}

const fn row(workload: &'static str, key: &'static str, title: &'static str, unit: &'static str) -> Row {
    Row { workload, key, netty_key: key, title, unit, is_best: false, is_in_readme: false }
}

impl Row {
    const fn in_readme(self) -> Self {
        Self { is_in_readme: true, ..self }
    }

    const fn best(self) -> Self {
        Self { is_best: true, ..self }
    }

    const fn against(self, netty_key: &'static str) -> Self {
        Self { netty_key, ..self }
    }

    /// The name of the value in the answers of a peer.
    pub(crate) fn key_of(&self, peer: &str) -> &'static str {
        if is_netty(peer) { self.netty_key } else { self.key }
    }
}

pub(crate) const TOPICS: [Topic; 15] = [
    Topic {
        meaning: "one thread calls `new_timeout` for each timeout. First: a new timer in a new process, whose memory was not used before (Netty: a new timer in a warm JVM). In the other rows the timer held and cancelled as many timeouts before",
        rows: &[
            row("W1", "ns", "schedule", "ns"),
            row("W1", "ns", "schedule, the best repetition of each", "ns").best(),
            row("FIRST", "ns", "schedule the first 10⁶ timeouts of a timer", "ns"),
        ],
    },
    Topic {
        meaning: "one thread schedules a timeout and cancels it before it schedules the next one. *Sustained*: for some seconds, so that the JVM collects garbage. *Sum*: the CPU time of all threads of the process until nothing is pending",
        rows: &[
            row("W2", "ns", "schedule and cancel immediately", "ns").in_readme(),
            row("W2s", "wall_ns", "schedule and cancel immediately, sustained", "ns"),
            row("W2s", "ns", "schedule and cancel immediately, sustained, sum", "ns"),
        ],
    },
    Topic {
        meaning: "one thread cancels all pending timeouts in random order, after the worker has taken them in; and the CPU time of the worker for removing them. *Sum*: of caller and worker until nothing is pending, without what a collection costs later",
        rows: &[
            row("W2b", "ns", "cancel in random order", "ns").in_readme(),
            row("W2b", "worker_ns", "cancel in random order, CPU time of the worker", "ns"),
            row("W2b", "sum_ns", "cancel in random order, sum", "ns"),
        ],
    },
    Topic {
        meaning: "one thread moves the deadline of one timeout, or of random pending ones, to 60 s from now. Netty stores the time in a plain field, as its `IdleStateHandler` does (not a volatile one), or cancels and schedules anew, as the row says",
        rows: &[
            row("W9 count=1", "ns", "re-arm one timeout repeatedly", "ns"),
            row("W9", "ns", "re-arm random timeouts", "ns").in_readme(),
            row("W9", "ns", "re-arm random timeouts, Netty with cancel and newTimeout", "ns")
                .against("replace_ns"),
            row(
                "W9",
                "cpu_ns",
                "re-arm random timeouts, CPU time of the process, Netty with cancel and newTimeout",
                "ns",
            )
            .against("replace_cpu_ns"),
        ],
    },
    Topic {
        meaning: "as *schedule*, with two threads on one timer that start at the same time; their throughput together",
        rows: &[row("W3 threads=2", "mops", "schedule, 2 threads", "M/s")],
    },
    Topic {
        meaning: "each thread schedules a timeout and cancels the one that it scheduled 64 timeouts earlier; the throughput of all threads",
        rows: &[
            row("MIX threads=1", "mops", "schedule one and cancel another, 1 thread", "M/s"),
            row("MIX threads=2", "mops", "schedule one and cancel another, 2 threads", "M/s").in_readme(),
        ],
    },
    Topic {
        meaning: "each thread makes futures, polls each one once, and drops it, as for a request with an immediate or an early answer; the throughput of all threads",
        rows: &[
            row("SLEEP threads=1", "mops", "`sleep` polled once and dropped, 1 thread", "M/s"),
            row("SLEEP threads=2", "mops", "`sleep` polled once and dropped, 2 threads", "M/s"),
            row("READY threads=1", "mops", "`timeout` of a ready future, 1 thread", "M/s"),
            row("READY threads=2", "mops", "`timeout` of a ready future, 2 threads", "M/s"),
            row("PENDING threads=1", "mops", "`timeout` of a pending future, dropped, 1 thread", "M/s"),
            row("PENDING threads=2", "mops", "`timeout` of a pending future, dropped, 2 threads", "M/s"),
        ],
    },
    Topic {
        meaning: "one thread schedules a timeout and cancels a random one of the 1 000 newest, while N others are pending for minutes",
        rows: &[
            row("W10 pending=1000", "ns", "schedule one and cancel another, 10³ pending", "ns"),
            row("W10 pending=1000000", "ns", "schedule one and cancel another, 10⁶ pending", "ns"),
            row("W10 pending=10000000", "ns", "schedule one and cancel another, 10⁷ pending", "ns"),
        ],
    },
    Topic {
        meaning: "the CPU time of the worker per timeout that fires, with deadlines spread over one second or all in one tick: from when all are in the wheel, or (*take in*) from before the first one is scheduled. *Compacted*: the JVM has compacted its heap after Netty inserted the timeouts, which puts the entries of a slot next to each other. *Sum*: of caller and worker from before the first one is scheduled until nothing is pending",
        rows: &[
            row("W4", "ns", "expire over one second, CPU time of the worker", "ns").in_readme(),
            row("W4", "ns", "expire over one second, Netty compacted", "ns").against("packed_ns").in_readme(),
            row("W4", "life_ns", "take in and expire over one second", "ns"),
            row("W4", "life_ns", "take in and expire over one second, Netty compacted", "ns")
                .against("packed_life_ns"),
            row("W4", "sum_ns", "schedule, take in and expire over one second, sum", "ns"),
            row("W4p", "life_ns", "take in and expire in one tick", "ns"),
            row("W4p", "life_ns", "take in and expire in one tick, Netty compacted", "ns")
                .against("packed_life_ns"),
        ],
    },
    Topic {
        meaning: "the CPU time of the process while nothing is called and nothing falls due for at least an hour",
        rows: &[row("W5", "percent", "CPU use while all timeouts are pending", "% of a core")],
    },
    Topic {
        meaning: "how much the resident memory of a new process grows by scheduling (Netty: the used heap)",
        rows: &[row("W6", "bytes", "memory per pending timeout", "bytes").in_readme()],
    },
    Topic {
        meaning: "the resident memory 10 s after ten million timeouts have fired, or were cancelled in random order. Smaller bursts leave a larger share: [operation](guide/operation.md#memory)",
        rows: &[
            row("BURST cancel=0", "percent", "memory 10 s after all have fired", "% of the peak"),
            row("BURST cancel=1", "percent", "memory 10 s after all were cancelled", "% of the peak"),
        ],
    },
    Topic {
        meaning: "the time from a deadline to its task, with delays of up to one second at a tick of 1 ms; some timeouts are scheduled in each millisecond",
        rows: &[
            row("W7", "p50", "lateness at a tick of 1 ms, median", "ms"),
            row("W7", "p99", "lateness at a tick of 1 ms, 99th percentile", "ms").in_readme(),
            row("W7", "p999", "lateness at a tick of 1 ms, 99.9th percentile", "ms"),
            row("W7", "max", "lateness at a tick of 1 ms, maximum", "ms"),
        ],
    },
    Topic {
        meaning: "how often the threads of the process go to sleep, and their CPU time, with a timer at a tick of 1 ms that has no timeouts (Netty: its worker alone)",
        rows: &[
            row("W8", "wakeups", "wake-ups per second with nothing pending", "1/s").in_readme(),
            row("W8", "cpu_ms", "CPU time per second with nothing pending", "ms"),
        ],
    },
    Topic {
        meaning: "the same while three timeouts per millisecond are scheduled and cancelled after 20 ms, with deadlines of 5 s",
        rows: &[
            row("WAKES", "wakeups", "wake-ups per second with 3 000 timeouts per second", "1/s"),
            row("WAKES", "cpu_ms", "CPU time of the worker per second, the same traffic", "ms"),
        ],
    },
];

pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    TOPICS.iter().flat_map(|topic| topic.rows)
}
