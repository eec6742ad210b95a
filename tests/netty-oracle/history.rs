//! What a trace says of Netty, put together: which deadline each timeout had, and what Netty made of it.

use crate::trace::{Event, Op, Script, Task};

pub(crate) struct History {
    /// By id.
    pub(crate) timeouts: Vec<Known>,
    /// By step.
    pub(crate) ticks: Vec<Ticks>,
    pub(crate) cancels: Vec<Cancelled>,
}

/// Which ticks a step made.
pub(crate) struct Ticks {
    /// The last one of the step before.
    pub(crate) before: u64,
    pub(crate) last: u64,
    /// The worker came to this one in time, and to those after it: whatever it made before that, it made then.
    pub(crate) in_time: u64,
}

pub(crate) struct Known {
    pub(crate) deadline: i128,
    /// How many ticks had been made when it was scheduled.
    pub(crate) after: u64,
    task: Task,
}

/// A cancel that won.
pub(crate) struct Cancelled {
    pub(crate) step: usize,
    /// The tick in which Netty's worker sees to it.
    pub(crate) settled: u64,
    /// By a task in the very tick that comes upon it in its slot, too.
    pub(crate) within_reach: bool,
}

impl History {
    pub(crate) fn of(script: &Script) -> Self {
        let tick = script.netty.tick;
        let mut history = Self { timeouts: Vec::new(), ticks: Vec::new(), cancels: Vec::new() };
        let (mut now, mut made) = (script.from * tick, script.from);
        for (index, step) in script.steps.iter().enumerate() {
            let before = made;
            let mut in_time = made;
            match step.op {
                Op::Add { delay, ref task } => history.add(now, delay, made, task),
                Op::Fill { count, delay } => {
                    (0..count).for_each(|_| history.add(now, delay, made, &Task::default()));
                }
                Op::Stall(by) => now += by,
                Op::Turn(by) => {
                    now += by;
                    made = now / tick;
                    in_time = made;
                }
                Op::Run(count @ 1..) => {
                    in_time = now / tick + 1;
                    made = now / tick + count;
                    now = made * tick;
                }
                Op::Run(0) | Op::Cancel(_) | Op::Stop | Op::StopWithinAdd => {}
            }
            history.ticks.push(Ticks { before, last: made, in_time });
            let mut running = None;
            for event in &step.events {
                match *event {
                    Event::Fired { tick: at, id } => {
                        running = Some((at, id));
                        let now = if matches!(step.op, Op::Run(_)) { at.max(in_time) * tick } else { now };
                        if let Some((delay, next)) = history.timeouts[id].task.next.clone() {
                            history.add(now, delay, at, &next);
                        }
                    }
                    Event::Cancel { id, won: true } => {
                        let (settled, within_reach) = match running {
                            None => (before + 1, false),
                            Some((at, killer)) => (at + 1, history.is_within_reach(script, id, at, killer)),
                        };
                        history.cancels.push(Cancelled { step: index, settled, within_reach });
                    }
                    _ => {}
                }
            }
        }
        history
    }

    fn add(&mut self, now: u64, delay: i64, after: u64, task: &Task) {
        let deadline = i128::from(now) + i128::from(delay);
        self.timeouts.push(Known { deadline, after, task: task.clone() });
    }

    /// Whether Netty's worker comes upon `victim` when it goes on, after the task of `killer`, in the slot of this tick.
    fn is_within_reach(&self, script: &Script, victim: usize, tick: u64, killer: usize) -> bool {
        // Netty's tick n, counted from zero, ends where our tick n + 1 begins.
        let slot = |tick: u64| tick & (script.netty.slots as u64 - 1);
        let Known { deadline, after, .. } = self.timeouts[victim];
        let its_tick = (deadline / i128::from(script.netty.tick)).max(after.into()) as u64;
        slot(its_tick) == slot(tick - 1) && after < tick && victim > killer
    }
}
