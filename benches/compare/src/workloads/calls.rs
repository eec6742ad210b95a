//! Costs of the callers.

use std::time::Duration;

use super::{WorkloadResult, nanos_each};
use crate::command::{Answer, Command};
use crate::competitors::{Caller, Competitor};
use crate::process;
use crate::session::{self, LONG, fill, timed, wait_until_freed, wait_until_inserted, with_timer};

/// `schedule`: with `warm=1` on a timer that held and cancelled as many timeouts before.
/// `first-million` is the same without: a new timer in a new process (Netty: in a warm JVM).
pub(super) fn schedule<C: Competitor>(command: &Command) -> WorkloadResult {
    let count = command.get("count")?;
    let delays = command.random().delays(count, LONG);
    with_timer::<C>(command, |timer| {
        let (mut caller, mut kept) = (timer.caller(), session::kept::<C>(count));
        let elapsed = timed(|| session::schedule::<C>(&mut caller, delays, &mut kept));
        Ok(Answer::new([("ns", nanos_each(elapsed, count))]))
    })
}

/// `random-cancel`: cancels all timeouts after the worker has taken them in. `worker_ns` is the CPU
/// time of the worker for removing them, `sum_ns` that of caller and worker.
pub(super) fn cancel<C: Competitor>(command: &Command) -> WorkloadResult {
    let count = command.get("count")?;
    let mut random = command.random();
    let delays = random.delays(count, LONG);
    with_timer::<C>(command, |timer| {
        let mut caller = timer.caller();
        let mut handles = fill(&mut caller, &delays);
        random.shuffle(&mut handles);
        wait_until_inserted(command.setup());

        let (before, calls) = (process::others_cpu(), process::this_cpu());
        // `drain` keeps the array, so that freeing it is outside of the measured time.
        let elapsed = timed(|| handles.drain(..).for_each(|handle| caller.cancel(handle)));
        let calls = process::this_cpu() - calls;
        wait_until_freed(command.setup());
        let worker = process::others_cpu().saturating_sub(before);
        let sum = nanos_each(calls + worker, count);
        let [ns, worker] = [elapsed, worker].map(|time| nanos_each(time, count));
        Ok(Answer::new([
            ("ns", ns),
            ("worker_ns", worker),
            ("sum_ns", sum),
        ]))
    })
}

/// `rearm`: moves the deadline of random pending timeouts to a minute from now, or of a single one.
/// Netty stores the time in a plain field, as its `IdleStateHandler` does; `replace_ns` is its
/// cancel and newTimeout instead.
pub(super) fn rearm<C: Competitor>(command: &Command) -> WorkloadResult {
    const IDLE: Duration = Duration::from_secs(60);

    let (count, resets) = (command.get("count")?, command.get("resets")?);
    let order = command.random().indices(resets, count);
    with_timer::<C>(command, |timer| {
        let mut caller = timer.caller();
        let mut handles = fill(&mut caller, &vec![IDLE; count]);
        wait_until_inserted(command.setup());

        let before = process::cpu();
        let elapsed = timed(|| {
            order
                .into_iter()
                .for_each(|index| caller.rearm(&mut handles[index], IDLE));
        });
        wait_until_freed(command.setup());
        let used = process::cpu() - before;
        handles.into_iter().for_each(|handle| caller.cancel(handle));
        Ok(Answer::new([
            ("ns", nanos_each(elapsed, resets)),
            ("cpu_ns", nanos_each(used, resets)),
        ]))
    })
}
