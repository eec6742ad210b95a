//! The plan of the measurement: workloads, their parameters and the number of repetitions.

use std::time::Duration;

/// One command, which all competitors get in each repetition.
pub(crate) struct Workload {
    /// The workload, and the parameter that distinguishes variants of it: `W3 threads=2`.
    pub(crate) name: String,
    /// The command without the seed. Each repetition appends its own seed.
    pub(crate) command: String,
    pub(crate) repetitions: Repetitions,
    /// Whether each repetition needs a new child. Reused memory would hide the growth that the
    /// workload measures.
    pub(crate) needs_new_child: bool,
    /// Whether only the primary peers get the command.
    pub(crate) is_primary_only: bool,
    pub(crate) timeout: Duration,
}

/// The numbers of repetitions. Fewer are enough for the peers that are not primary, because no goal
/// refers to them.
#[derive(Clone, Copy)]
pub(crate) struct Repetitions {
    pub(crate) primary: usize,
    pub(crate) others: usize,
    pub(crate) warm_up: WarmUp,
}

/// The numbers of repetitions before those that count.
#[derive(Clone, Copy)]
pub(crate) struct WarmUp {
    pub(crate) primary: usize,
    pub(crate) others: usize,
    /// For Netty: the JVM compiles code only after it was executed often.
    pub(crate) jvm: usize,
}

const COLD: WarmUp = WarmUp { primary: 0, others: 0, jvm: 0 };

/// The parameters of all workloads.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// The number of timeouts or pairs in most workloads.
    count: usize,
    /// The number of repetitions of a short workload. Longer workloads get a fraction of it.
    pub(crate) repetitions: usize,
    seconds: usize,
    /// Timeouts per second in the lateness workload.
    rate: usize,
    pending: &'static [usize],
    threads: &'static [usize],
    idle_threads: usize,
    /// How long after a burst the memory is read.
    seconds_after: usize,
    tick_us: usize,
    warms_up: bool,
}

/// Takes about 25 minutes with all competitors.
pub(crate) const FULL: Size = Size {
    count: 1_000_000,
    repetitions: 5,
    seconds: 2,
    rate: 100_000,
    pending: &[1_000, 10_000, 100_000, 1_000_000, 10_000_000],
    threads: &[1, 2, 4, 8, 16],
    idle_threads: 2_000,
    seconds_after: 10,
    tick_us: 10_000,
    warms_up: true,
};

/// Approximate values for a few competitors in two or three minutes.
pub(crate) const QUICK: Size = Size {
    count: 300_000,
    repetitions: 2,
    seconds: 1,
    rate: 20_000,
    pending: &[1_000, 1_000_000],
    threads: &[2],
    idle_threads: 2_000,
    seconds_after: 10,
    tick_us: 10_000,
    warms_up: true,
};

/// Runs each workload once, without meaningful values.
pub(crate) const TEST: Size = Size {
    count: 2_000,
    repetitions: 1,
    seconds: 1,
    rate: 2_000,
    pending: &[1_000, 2_000],
    threads: &[2],
    idle_threads: 20,
    seconds_after: 1,
    tick_us: 1_000,
    warms_up: false,
};

/// With this number of pending timeouts or more, only the primary peers are measured: one tokio
/// task per timeout would take gigabytes.
const MANY: usize = 10_000_000;

impl Size {
    pub(crate) fn plan(&self) -> Vec<Workload> {
        let Self { count, seconds, rate, tick_us, .. } = *self;
        let (short, long) = (self.short_workload(), self.long_workload());
        let coarse = format!("tick_us={tick_us} slots=512");
        let kept = format!("{coarse} keep=1");
        let fine = "tick_us=1000 slots=512";
        let mut plan = vec![
            workload("W1", format!("W1 count={count} {kept}"), short),
            workload("W2", format!("W2 count={count} {kept}"), short),
            workload("W2s", format!("W2s seconds={} {kept}", 4 * seconds), long),
            workload("W2b", format!("W2b count={count} {kept}"), short),
            workload("W9 count=1", format!("W9 count=1 resets={count} {kept}"), short),
            workload("W9", format!("W9 count={count} resets={count} {kept}"), long),
            workload("W4", format!("W4 count={count} {coarse}"), long),
            workload("W4p", format!("W4p count={count} {coarse}"), long),
        ];
        for &threads in self.threads {
            let name = |name| format!("{name} threads={threads}");
            // A goal refers to two threads.
            let repetitions = if threads == 2 { short } else { self.sweep() };
            for workload_name in ["W3", "MIX"] {
                let command = format!("{workload_name} count={count} threads={threads} {kept}");
                plan.push(workload(&name(workload_name), command, repetitions));
            }
        }
        for &pending in self.pending {
            let command = format!("W10 count={count} threads=1 pending={pending} {coarse}");
            let workload = workload(&format!("W10 pending={pending}"), command, long);
            plan.push(Workload { is_primary_only: pending >= MANY, ..workload });
        }
        plan.extend(self.ratios_to_own(&kept, &coarse));
        // No warm-up: these workloads measure an idle timer or a new process.
        let cold = Repetitions { warm_up: COLD, ..self.sweep() };
        plan.push(Workload {
            needs_new_child: true,
            ..workload("W6", format!("W6 count={count} {coarse}"), cold)
        });
        plan.push(workload("W5", format!("W5 count={count} seconds={} {coarse}", 2 * seconds), cold));
        plan.push(workload("W8", format!("W8 seconds={seconds} {fine}"), cold));
        plan.push(workload("W7", format!("W7 rate={rate} seconds={} {fine}", 5 * seconds), self.sweep()));
        let cold = Repetitions { warm_up: COLD, ..long };
        plan.push(primary_only("WAKES", format!("WAKES seconds={} {fine}", 2 * seconds), cold));
        let threads = self.idle_threads;
        let command = format!("THREADS threads={threads} seconds={} {fine}", 2 * seconds);
        plan.push(primary_only("THREADS", command, cold));
        plan.extend(self.first_use(&coarse));
        plan
    }

    /// Workloads that compare this crate, or a competitor, with itself. Each command measures both
    /// values, because a ratio needs values that are close in time.
    fn ratios_to_own(&self, kept: &str, coarse: &str) -> Vec<Workload> {
        let Self { count, pending, .. } = *self;
        let (short, long) = (self.short_workload(), self.long_workload());
        let mut plan = vec![primary_only("SCALE", format!("SCALE count={} {kept}", 4 * count), short)];
        for timers in [2, 64] {
            let command = format!("TIMERS count={count} timers={timers} {kept}");
            plan.push(primary_only(&format!("TIMERS timers={timers}"), command, short));
        }
        if let [few, .., many] = pending {
            let command = format!("GROWTH count={count} few={few} many={many} {coarse}");
            plan.push(primary_only("GROWTH", command, long));
        }
        plan
    }

    /// Workloads that need a process whose memory was not used before. The commands have no
    /// `keep=1`, so the timer never held a timeout before either.
    ///
    /// Netty's JVM cannot be new: it has to warm up, and it touches its heap when it starts. Only
    /// its timer is new.
    fn first_use(&self, coarse: &str) -> Vec<Workload> {
        let Self { count, pending, seconds_after, .. } = *self;
        let jvm = if self.warms_up { 2 } else { 0 };
        let short = Repetitions { warm_up: WarmUp { jvm, ..COLD }, ..self.short_workload() };
        let long = Repetitions { warm_up: COLD, ..self.sweep() };
        let mut plan = vec![
            primary_only("FIRST", format!("W1 count={count} {coarse}"), short),
            primary_only("FIRST2", format!("W3 count={count} threads=2 {coarse}"), short),
        ];
        for cancel in [0, 1] {
            let most = pending.last().unwrap_or(&count);
            let command = format!("BURST count={most} seconds={seconds_after} cancel={cancel} {coarse}");
            plan.push(primary_only(&format!("BURST cancel={cancel}"), command, long));
        }
        plan.into_iter().map(|workload| Workload { needs_new_child: true, ..workload }).collect()
    }

    /// Repetitions of a workload that takes less than a second.
    fn short_workload(&self) -> Repetitions {
        let warm_up = if self.warms_up { WarmUp { primary: 1, others: 1, jvm: 3 } } else { COLD };
        Repetitions { primary: self.repetitions, others: self.repetitions.div_ceil(3), warm_up }
    }

    /// Repetitions of a workload that takes seconds.
    fn long_workload(&self) -> Repetitions {
        let warm_up = if self.warms_up { WarmUp { primary: 1, others: 0, jvm: 1 } } else { COLD };
        Repetitions { primary: self.repetitions.div_ceil(2), others: 1, warm_up }
    }

    /// Repetitions of a workload that is one of many variants, or whose values vary little.
    fn sweep(&self) -> Repetitions {
        let warm_up = if self.warms_up { WarmUp { jvm: 1, ..COLD } } else { COLD };
        Repetitions { primary: self.repetitions.div_ceil(3), others: 1, warm_up }
    }
}

fn workload(name: &str, command: String, repetitions: Repetitions) -> Workload {
    let timeout = Duration::from_secs(90);
    Workload {
        name: name.into(),
        command,
        repetitions,
        needs_new_child: false,
        is_primary_only: false,
        timeout,
    }
}

fn primary_only(name: &str, command: String, repetitions: Repetitions) -> Workload {
    Workload { is_primary_only: true, ..workload(name, command, repetitions) }
}
