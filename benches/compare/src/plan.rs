//! The plan: what is measured, how often, and which rows of the tables show it.

use std::time::Duration;

use crate::peers::is_netty;

/// One command, which all competitors get in each repetition.
pub(crate) struct Workload {
    /// The workload, and the parameter that distinguishes variants of it: `mixed threads=2`.
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
    /// The number of timeouts in the workload `burst`.
    most: usize,
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
    most: 10_000_000,
    seconds_after: 10,
    tick_us: 10_000,
    warms_up: true,
};

/// Approximate values in two or three minutes.
pub(crate) const QUICK: Size = Size {
    count: 300_000,
    repetitions: 2,
    seconds: 1,
    rate: 20_000,
    most: 1_000_000,
    ..FULL
};

/// Runs each workload once, without meaningful values.
pub(crate) const TEST: Size = Size {
    count: 2_000,
    repetitions: 1,
    seconds: 1,
    rate: 2_000,
    most: 2_000,
    seconds_after: 1,
    tick_us: 1_000,
    warms_up: false,
};

impl Size {
    pub(crate) fn plan(&self) -> Vec<Workload> {
        let Self {
            count,
            seconds,
            rate,
            most,
            tick_us,
            seconds_after,
            ..
        } = *self;
        let coarse = format!("tick_us={tick_us} slots=512");
        let fine = "tick_us=1000 slots=512";
        let workload = |name: &str, command: String| Workload {
            name: name.into(),
            command,
            repetitions: self.repetitions,
            is_primary_only: false,
        };
        let mut plan = vec![
            workload(
                "schedule",
                format!("schedule count={count} {coarse} warm=1"),
            ),
            workload(
                "schedule-cancel",
                format!("schedule-cancel count={count} {coarse}"),
            ),
            workload(
                "random-cancel",
                format!("random-cancel count={count} {coarse}"),
            ),
            workload(
                "rearm count=1",
                format!("rearm count=1 resets={count} {coarse}"),
            ),
            workload(
                "rearm",
                format!("rearm count={count} resets={count} {coarse}"),
            ),
            workload("expire", format!("expire count={count} {coarse}")),
        ];
        for name in [
            "concurrent-schedule threads=2",
            "mixed threads=1",
            "mixed threads=2",
        ] {
            plan.push(workload(
                name,
                format!("{name} count={count} {coarse} warm=1"),
            ));
        }
        for name in ["sleep", "timeout-ready", "timeout-pending"] {
            for threads in [1, 2] {
                let name = format!("{name} threads={threads}");
                plan.push(workload(
                    &name,
                    format!("{name} count={count} {coarse} warm=1"),
                ));
            }
        }
        plan.push(workload("memory", format!("memory count={count} {coarse}")));
        plan.push(workload("idle", format!("idle seconds={seconds} {fine}")));
        plan.push(workload(
            "lateness",
            format!("lateness rate={rate} seconds={} {fine}", 5 * seconds),
        ));
        // Netty's JVM cannot be new: it touches its heap when it starts. Only its timer is new.
        let primary_only = |name: &str, command| Workload {
            is_primary_only: true,
            ..workload(name, command)
        };
        plan.push(workload(
            "first-million",
            format!("schedule count={count} {coarse}"),
        ));
        for cancel in [0, 1] {
            let command =
                format!("burst count={most} seconds={seconds_after} cancel={cancel} {coarse}");
            plan.push(primary_only(&format!("burst cancel={cancel}"), command));
        }
        plan
    }
}

/// A row of the page.
pub(crate) struct Row {
    /// The name of the workload.
    pub(crate) workload: &'static str,
    /// The name of the value in the answers.
    pub(crate) key: &'static str,
    /// The name of the value in the answers of Netty's child. It differs from `key` in the row that
    /// shows Netty with a compacted heap.
    netty_key: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// Whether the table in the README contains the row.
    pub(crate) is_in_readme: bool,
}

const fn row(
    workload: &'static str,
    key: &'static str,
    title: &'static str,
    unit: &'static str,
) -> Row {
    Row {
        workload,
        key,
        netty_key: key,
        title,
        unit,
        is_in_readme: false,
    }
}

impl Row {
    /// Whether more is better.
    pub(crate) fn is_rate(&self) -> bool {
        self.unit == "M/s"
    }

    const fn in_readme(self) -> Self {
        Self {
            is_in_readme: true,
            ..self
        }
    }

    const fn against(self, netty_key: &'static str) -> Self {
        Self { netty_key, ..self }
    }

    /// The name of the value in the answers of a peer.
    pub(crate) fn key_of(&self, peer: &str) -> &'static str {
        if is_netty(peer) {
            self.netty_key
        } else {
            self.key
        }
    }
}

/// The rows of the page. docs/benchmarks.md says what each one measures.
pub(crate) const ROWS: [Row; 12] = [
    row("schedule", "ns", "schedule", "ns"),
    row(
        "first-million",
        "ns",
        "schedule the first million of a new timer",
        "ns",
    )
    .in_readme(),
    row("schedule-cancel", "ns", "schedule and cancel at once", "ns").in_readme(),
    row("random-cancel", "ns", "cancel in random order", "ns").in_readme(),
    row("rearm", "ns", "re-arm random timeouts", "ns"),
    row(
        "concurrent-schedule threads=2",
        "mops",
        "schedule, 2 threads",
        "M/s",
    ),
    row(
        "mixed threads=2",
        "mops",
        "schedule one and cancel another, 2 threads",
        "M/s",
    )
    .in_readme(),
    row(
        "expire",
        "life_ns",
        "schedule and expire (worker's CPU)",
        "ns",
    ),
    row(
        "expire",
        "life_ns",
        "schedule and expire, JVM heap compacted first",
        "ns",
    )
    .against("packed_life_ns")
    .in_readme(),
    row("memory", "bytes", "memory per pending timeout", "bytes"),
    row(
        "lateness",
        "p99",
        "lateness of 99 %, at a tick of 1 ms",
        "ms",
    ),
    row("idle", "wakeups", "wake-ups with nothing pending", "1/s"),
];
