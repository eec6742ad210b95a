//! The plan: what is measured, how often, and which rows of the tables show it.

use std::borrow::Cow;
use std::thread;
use std::time::Duration;

use crate::peers::{MAP, NETTY, OURS, Peer};

/// One command, which all competitors get in each repetition.
pub(crate) struct Workload {
    /// The workload, and the parameter that distinguishes variants of it: `mixed threads=2`.
    pub(crate) name: String,
    /// The command without the seed. Each repetition appends its own seed.
    pub(crate) command: String,
    pub(crate) repetitions: usize,
    /// Which competitors get the command.
    pub(crate) asks: fn(&Peer) -> bool,
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
    /// How long the callers of a row by number of threads run.
    millis: usize,
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
    millis: 600,
    warms_up: true,
};

/// Approximate values in two or three minutes.
pub(crate) const QUICK: Size = Size {
    count: 300_000,
    repetitions: 2,
    seconds: 1,
    rate: 20_000,
    most: 1_000_000,
    millis: 300,
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
    millis: 30,
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
            asks: |peer| !peer.is_map(),
        };
        // Each is called as its command, except those with a name of their own.
        let commands = [
            format!("schedule count={count} {coarse} warm=1"),
            format!("random-cancel count={count} {coarse}"),
            format!("rearm count={count} resets={count} {coarse}"),
            format!("expire count={count} {coarse}"),
            format!("memory count={count} {coarse}"),
            format!("idle seconds={seconds} {fine}"),
            format!("lateness rate={rate} seconds={} {fine}", 5 * seconds),
        ];
        let named = |command: String| {
            let (name, _) = command.split_once(' ').expect("it has parameters");
            workload(name, command.clone())
        };
        let mut plan: Vec<_> = commands.map(named).into();
        let one = format!("rearm count=1 resets={count} {coarse}");
        plan.insert(2, workload("rearm count=1", one));
        // Netty's JVM cannot be new: it touches its heap when it starts. Only its timer is new.
        let first = format!("schedule count={count} {coarse}");
        plan.push(workload("first-million", first));
        for cancel in [0, 1] {
            let command =
                format!("burst count={most} seconds={seconds_after} cancel={cancel} {coarse}");
            plan.push(Workload {
                asks: Peer::is_primary,
                ..workload(&format!("burst cancel={cancel}"), command)
            });
        }
        plan.extend(self.threads_plan());
        plan
    }

    /// The rows by number of threads: 1, 2, 4 and so on, up to the cores.
    pub(crate) fn threads_plan(&self) -> Vec<Workload> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let powers = (0..).map(|power| 1 << power);
        let workload = |name: String, asks, keys: String| Workload {
            command: format!("{name} {keys}"),
            name,
            repetitions: self.repetitions,
            asks,
        };
        let mut plan = Vec::new();
        for threads in powers.take_while(|threads| *threads <= cores) {
            for operation in &OPERATIONS {
                let asks = if operation.is_of_maps() {
                    Peer::is_map
                } else {
                    Peer::has_threads
                };
                // Timeouts that stay take memory: as many of each caller on a warm timer.
                let keys = if operation.name == "schedule-many" {
                    format!("count={} most={} warm=1", threads * self.count, self.count)
                } else {
                    format!("count={}", self.count)
                };
                let keys = format!("{keys} millis={} tick_us=1000", self.millis);
                let name = format!("{} threads={threads}", operation.name);
                plan.push(workload(name, asks, keys));
            }
        }
        let keys = format!("count={}", self.count);
        plan.push(workload("map-memory".into(), Peer::is_map, keys));
        plan
    }
}

/// An operation that some threads repeat.
pub(crate) struct Operation {
    /// The name of the workload, without the number of threads.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    is_in_readme: bool,
}

impl Operation {
    pub(crate) fn is_of_maps(&self) -> bool {
        self.name.starts_with("map-")
    }

    /// The peer that the others are compared with.
    pub(crate) fn this(&self) -> &'static str {
        if self.is_of_maps() { MAP } else { OURS }
    }
}

const fn operation(name: &'static str, title: &'static str, is_in_readme: bool) -> Operation {
    Operation {
        name,
        title,
        is_in_readme,
    }
}

pub(crate) const OPERATIONS: [Operation; 9] = [
    operation("schedule-cancel", "schedule and cancel at once", true),
    operation("mixed", "schedule one, cancel another", false),
    operation("schedule-many", "schedule only", false),
    operation("sleep", "`Sleep`, polled once, dropped", true),
    operation("timeout-ready", "`timeout` of a ready future", false),
    operation("timeout-pending", "`timeout` of a pending future", false),
    operation("map-get", "get an entry", false),
    operation("map-touch", "touch an entry", false),
    operation("map-insert", "insert a new entry", false),
];

/// A row of a table.
pub(crate) struct Row {
    /// The name of the workload.
    pub(crate) workload: Cow<'static, str>,
    /// The name of the value in the answers.
    pub(crate) key: &'static str,
    /// The name of the value in the answers of Netty's child. It differs from `key` in the row that
    /// shows Netty with a compacted heap.
    netty_key: &'static str,
    pub(crate) title: Cow<'static, str>,
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
        workload: Cow::Borrowed(workload),
        key,
        netty_key: key,
        title: Cow::Borrowed(title),
        unit,
        is_in_readme: false,
    }
}

impl Row {
    /// The throughput of an operation with a number of threads.
    pub(crate) fn of_threads(operation: &Operation, threads: usize) -> Self {
        let plural = if threads == 1 { "" } else { "s" };
        Self {
            workload: format!("{} threads={threads}", operation.name).into(),
            title: format!("{}, {threads} thread{plural}", operation.title).into(),
            is_in_readme: operation.is_in_readme,
            ..row("", "mops", "", "M/s")
        }
    }

    /// Whether more is better.
    pub(crate) fn is_rate(&self) -> bool {
        self.unit == "M/s"
    }

    const fn in_readme(mut self) -> Self {
        self.is_in_readme = true;
        self
    }

    const fn against(mut self, netty_key: &'static str) -> Self {
        self.netty_key = netty_key;
        self
    }

    /// The name of the value in the answers of a peer.
    pub(crate) fn key_of(&self, peer: &str) -> &'static str {
        if peer == NETTY {
            self.netty_key
        } else {
            self.key
        }
    }
}

/// The rows without a number of threads. docs/benchmarks.md says what each one measures.
pub(crate) const ROWS: [Row; 9] = [
    row("schedule", "ns", "schedule", "ns"),
    row(
        "first-million",
        "ns",
        "schedule the first million of a new timer",
        "ns",
    )
    .in_readme(),
    row("random-cancel", "ns", "cancel in random order", "ns"),
    row("rearm", "ns", "re-arm random timeouts", "ns").in_readme(),
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
