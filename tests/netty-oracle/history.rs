//! Reconstructs from a trace which deadline each timeout had, and what Netty did with it.

use super::trace::{Event, Op, Script, Task};

pub(crate) struct History {
    /// Indexed by id.
    pub(crate) timeouts: Vec<Known>,
    /// Indexed by step.
    pub(crate) ticks: Vec<Ticks>,
    pub(crate) cancels: Vec<Cancelled>,
}

/// The ticks that a step processed.
pub(crate) struct Ticks {
    /// The last tick of the previous step.
    pub(crate) before: u64,
    pub(crate) last: u64,
    /// The first tick that the worker processed on time. Earlier ticks of this step were processed
    /// at the same time as this one.
    pub(crate) in_time: u64,
}

pub(crate) struct Known {
    pub(crate) deadline: i128,
    /// The number of ticks that had been processed when it was scheduled.
    pub(crate) after: u64,
    task: Task,
}

/// A successful cancel.
pub(crate) struct Cancelled {
    pub(crate) step: usize,
    /// The tick in which Netty's worker processes the cancellation.
    pub(crate) processed: u64,
    /// Whether a task cancelled it in the same tick in which the worker then reaches it in its
    /// slot.
    pub(crate) in_current_slot: bool,
}

impl History {
    pub(crate) fn of(script: &Script) -> Self {
        let tick = script.netty.tick;
        let mut history = Self {
            timeouts: Vec::new(),
            ticks: Vec::new(),
            cancels: Vec::new(),
        };
        let (mut now, mut processed_ticks) = (script.from * tick, script.from);
        for (index, step) in script.steps.iter().enumerate() {
            let before = processed_ticks;
            let mut in_time = processed_ticks;
            match step.op {
                Op::Add { delay, ref task } => history.add(now, delay, processed_ticks, task),
                Op::Fill { count, delay } => (0..count)
                    .for_each(|_| history.add(now, delay, processed_ticks, &Task::default())),
                Op::Stall(by) => now += by,
                Op::Turn(by) => {
                    now += by;
                    processed_ticks = now / tick;
                    in_time = processed_ticks;
                }
                Op::Run(count @ 1..) => {
                    in_time = now / tick + 1;
                    processed_ticks = now / tick + count;
                    now = processed_ticks * tick;
                }
                Op::Run(0) | Op::Cancel(_) | Op::Stop | Op::StopWithinAdd => {}
            }
            history.ticks.push(Ticks {
                before,
                last: processed_ticks,
                in_time,
            });
            let mut running = None;
            for event in &step.events {
                match *event {
                    Event::Fired { tick: at, id } => {
                        running = Some((at, id));
                        let now = match step.op {
                            Op::Run(_) => at.max(in_time) * tick,
                            _ => now,
                        };
                        if let Some((delay, next)) = history.timeouts[id].task.next.clone() {
                            history.add(now, delay, at, &next);
                        }
                    }
                    Event::Cancel {
                        id,
                        succeeded: true,
                    } => {
                        let (processed, in_current_slot) = match running {
                            None => (before + 1, false),
                            Some(running) => {
                                let is_here = history.is_in_current_slot(script, id, running);
                                (running.0 + 1, is_here)
                            }
                        };
                        history.cancels.push(Cancelled {
                            step: index,
                            processed,
                            in_current_slot,
                        });
                    }
                    _ => {}
                }
            }
        }
        history
    }

    fn add(&mut self, now: u64, delay: i64, after: u64, task: &Task) {
        let deadline = i128::from(now) + i128::from(delay);
        self.timeouts.push(Known {
            deadline,
            after,
            task: task.clone(),
        });
    }

    /// Whether Netty's worker reaches `target` in the slot of this tick, after the task of
    /// `canceller`.
    fn is_in_current_slot(
        &self,
        script: &Script,
        target: usize,
        (tick, canceller): (u64, usize),
    ) -> bool {
        // Netty's tick n, counted from zero, ends where our tick n + 1 begins.
        let slot = |tick: u64| tick & (script.netty.slots as u64 - 1);
        let target_known = &self.timeouts[target];
        let (deadline, after) = (target_known.deadline, target_known.after);
        let its_tick = (deadline / i128::from(script.netty.tick)).max(after.into()) as u64;
        slot(its_tick) == slot(tick - 1) && after < tick && target > canceller
    }
}
