//! What is measured, how much of it, and how often.

use std::time::Duration;

/// One command, asked of all in each round.
pub(crate) struct Workload {
    /// The workload and what tells it from others of its kind: `W3 threads=2`.
    pub(crate) name: String,
    /// Without the seed, which is the round's.
    pub(crate) command: String,
    pub(crate) rounds: Rounds,
    /// A child for each round: memory that was used before is not seen to grow.
    pub(crate) is_fresh: bool,
    /// Only the core is asked.
    pub(crate) is_for_core: bool,
    pub(crate) patience: Duration,
}

/// How many. Those who are not of the core show where they stand with fewer.
#[derive(Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) core: usize,
    pub(crate) others: usize,
    pub(crate) warm_up: WarmUp,
}

/// Rounds before those that count.
#[derive(Clone, Copy)]
pub(crate) struct WarmUp {
    pub(crate) core: usize,
    pub(crate) others: usize,
    /// It compiles what it finds to be used much.
    pub(crate) jvm: usize,
}

const COLD: WarmUp = WarmUp { core: 0, others: 0, jvm: 0 };

/// How much of everything.
pub(crate) struct Size {
    /// For most workloads, how many timeouts or pairs.
    count: usize,
    /// How often each is measured, in proportion.
    rounds: usize,
    seconds: usize,
    /// A second, for the lateness.
    rate: usize,
    pending: &'static [usize],
    threads: &'static [usize],
    tick_us: usize,
    warms_up: bool,
}

/// Some twenty minutes with all of them.
pub(crate) const FULL: Size = Size {
    count: 1_000_000,
    rounds: 5,
    seconds: 2,
    rate: 100_000,
    pending: &[1_000, 10_000, 100_000, 1_000_000, 10_000_000],
    threads: &[1, 2, 4, 8, 16],
    tick_us: 10_000,
    warms_up: true,
};

/// Rough figures in two or three minutes, of a few.
pub(crate) const QUICK: Size = Size {
    count: 300_000,
    rounds: 2,
    seconds: 1,
    rate: 20_000,
    pending: &[1_000, 1_000_000],
    threads: &[2],
    tick_us: 10_000,
    warms_up: true,
};

/// No figures, but each question is asked once.
pub(crate) const TEST: Size = Size {
    count: 2_000,
    rounds: 1,
    seconds: 1,
    rate: 2_000,
    pending: &[1_000, 2_000],
    threads: &[2],
    tick_us: 1_000,
    warms_up: false,
};

/// From so many on only the core is asked: a task for each takes gigabytes.
const MANY: usize = 10_000_000;

impl Size {
    pub(crate) fn plan(&self) -> Vec<Workload> {
        let Self { count, seconds, rate, tick_us, .. } = *self;
        let (often, seldom) = (self.often(), self.seldom());
        let coarse = format!("tick_us={tick_us} slots=512");
        let kept = format!("{coarse} keep=1");
        let fine = "tick_us=1000 slots=512";
        let mut plan = vec![
            workload("W1", format!("W1 count={count} {kept}"), often),
            workload("W2", format!("W2 count={count} {kept}"), often),
            workload("W2s", format!("W2s seconds={} {kept}", 4 * seconds), seldom),
            workload("W2b", format!("W2b count={count} {kept}"), often),
            workload("W9 count=1", format!("W9 count=1 resets={count} {kept}"), often),
            workload("W9", format!("W9 count={count} resets={count} {kept}"), seldom),
            workload("W4", format!("W4 count={count} {coarse}"), seldom),
            workload("W4p", format!("W4p count={count} {coarse}"), seldom),
        ];
        for &threads in self.threads {
            let name = |name| format!("{name} threads={threads}");
            // Two threads are what a goal is about.
            let rounds = if threads == 2 { often } else { self.sweep() };
            for which in ["W3", "MIX"] {
                let command = format!("{which} count={count} threads={threads} {kept}");
                plan.push(workload(&name(which), command, rounds));
            }
        }
        for &pending in self.pending {
            let command = format!("W10 count={count} threads=1 pending={pending} {coarse}");
            let workload = workload(&format!("W10 pending={pending}"), command, seldom);
            plan.push(Workload { is_for_core: pending >= MANY, ..workload });
        }
        // There is nothing to warm up: they measure rest, and a process that has just begun.
        let cold = Rounds { warm_up: COLD, ..self.sweep() };
        plan.push(Workload { is_fresh: true, ..workload("W6", format!("W6 count={count} {coarse}"), cold) });
        plan.push(workload("W5", format!("W5 count={count} seconds={} {coarse}", 2 * seconds), cold));
        plan.push(workload("W8", format!("W8 seconds={seconds} {fine}"), cold));
        plan.push(workload("W7", format!("W7 rate={rate} seconds={} {fine}", 5 * seconds), self.sweep()));
        plan
    }

    /// For what is soon over.
    fn often(&self) -> Rounds {
        let warm_up = if self.warms_up { WarmUp { core: 1, others: 1, jvm: 3 } } else { COLD };
        Rounds { core: self.rounds, others: self.rounds.div_ceil(3), warm_up }
    }

    /// For what takes seconds.
    fn seldom(&self) -> Rounds {
        let warm_up = if self.warms_up { WarmUp { core: 1, others: 0, jvm: 1 } } else { COLD };
        Rounds { core: self.rounds.div_ceil(2), others: 1, warm_up }
    }

    /// For what is one of many, or much the same each time.
    fn sweep(&self) -> Rounds {
        let warm_up = if self.warms_up { WarmUp { jvm: 1, ..COLD } } else { COLD };
        Rounds { core: self.rounds.div_ceil(3), others: 1, warm_up }
    }
}

fn workload(name: &str, command: String, rounds: Rounds) -> Workload {
    let patience = Duration::from_secs(90);
    Workload { name: name.into(), command, rounds, is_fresh: false, is_for_core: false, patience }
}
