//! Costs of the callers.

use std::hint::{black_box, spin_loop};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use super::{WorkloadResult, nanos_each};
use crate::command::{Answer, Command};
use crate::competitors::{Caller, Competitor};
use crate::process;
use crate::session::{self, LONG, fill, timed, wait_until_freed, wait_until_inserted, with_timer};
use crate::task::Task;

const HALF_A_MINUTE: Duration = Duration::from_secs(30);

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

fn pairs(caller: &mut impl Caller, count: usize) {
    for _ in 0..count {
        let handle = black_box(caller.schedule(HALF_A_MINUTE, Task::count()));
        caller.cancel(handle);
    }
}

/// `schedule-cancel`: each timeout is cancelled before the next one is scheduled.
pub(super) fn schedule_and_cancel<C: Competitor>(command: &Command) -> WorkloadResult {
    let count = command.get("count")?;
    with_timer::<C>(command, |timer| {
        let mut caller = timer.caller();
        let elapsed = timed(|| pairs(&mut caller, count));
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

/// Runs `work` on one thread per element of `prepared`. The threads start at the same time.
///
/// They spin for a while before the start, so that the kernel distributes them over the cores.
/// Netty's child does the same.
///
/// Returns the time from the start of the first thread to the end of the last one. The results of
/// `work` are dropped after that, so that dropping them is outside of the measured time.
fn run_concurrently<C: Competitor, P: Send, R>(
    timer: &C,
    prepared: Vec<P>,
    work: impl Fn(&mut C::Caller<'_>, P) -> R + Sync,
) -> Duration {
    const SPIN_TIME: Duration = Duration::from_millis(20);

    let size = prepared.len();
    let (ready, end) = (&AtomicUsize::new(0), &Barrier::new(size));
    let work = &work;
    let run = move |part| {
        let mut caller = timer.caller();
        ready.fetch_add(1, SeqCst);
        while ready.load(SeqCst) <= size {
            spin_loop();
        }
        let start = Instant::now();
        let result = work(&mut caller, part);
        let stop = Instant::now();
        end.wait();
        drop(result);
        (start, stop)
    };
    let times: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = prepared
            .into_iter()
            .map(|part| scope.spawn(move || run(part)))
            .collect();
        while ready.load(SeqCst) < size {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(SPIN_TIME);
        ready.fetch_add(1, SeqCst);
        threads
            .into_iter()
            .map(|thread| thread.join().expect("the thread has not panicked"))
            .collect()
    });
    let first = times.iter().map(|(start, _)| *start).min();
    let last = times.iter().map(|(_, stop)| *stop).max();
    first
        .zip(last)
        .map_or(Duration::ZERO, |(first, last)| last - first)
}

fn millions_per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64() / 1e6
}

/// `concurrent-schedule`: as `schedule`, on one timer from threads that start at the same time.
pub(super) fn schedule_concurrently<C: Competitor>(command: &Command) -> WorkloadResult {
    let (count, threads) = (command.get("count")?, command.get("threads")?);
    let each = count.div_ceil(threads);
    let mut random = command.random();
    let prepared = (0..threads)
        .map(|_| (random.delays(each, LONG), session::kept::<C>(each)))
        .collect();
    with_timer::<C>(command, |timer| {
        let time = run_concurrently(timer, prepared, |caller, (delays, mut kept)| {
            session::schedule::<C>(caller, delays.iter().copied(), &mut kept);
            (delays, kept)
        });
        Ok(Answer::new([(
            "mops",
            millions_per_second(each * threads, time),
        )]))
    })
}

/// `mixed`: each thread schedules a timeout per delay, and cancels the timeout that it scheduled 64
/// timeouts earlier.
pub(super) fn mixed<C: Competitor>(command: &Command) -> WorkloadResult {
    const WINDOW: usize = 64;

    let (count, threads) = (command.get("count")?, command.get("threads")?);
    let each = count.div_ceil(threads);
    let mut random = command.random();
    let delays = (0..threads).map(|_| random.delays(each, LONG)).collect();
    with_timer::<C>(command, |timer| {
        let time = run_concurrently(timer, delays, |caller, delays: Vec<Duration>| {
            let mut window: [Option<C::Handle>; WINDOW] = [const { None }; WINDOW];
            for (index, &delay) in delays.iter().enumerate() {
                let handle = caller.schedule(delay, Task::count());
                if let Some(old) = window[index % WINDOW].replace(handle) {
                    caller.cancel(old);
                }
            }
            window
                .into_iter()
                .flatten()
                .for_each(|handle| caller.cancel(handle));
            delays
        });
        Ok(Answer::new([(
            "mops",
            millions_per_second(each * threads, time),
        )]))
    })
}

/// `sleep`, `timeout-ready`, `timeout-pending`: the drop of a future that was polled once ends its
/// timeout.
pub(super) fn futures<C: Competitor>(
    command: &Command,
    poll_and_drop: impl Fn(&C::Caller<'_>, Duration) + Sync,
) -> WorkloadResult {
    let (count, threads) = (command.get("count")?, command.get("threads")?);
    let each = count.div_ceil(threads);
    with_timer::<C>(command, |timer| {
        let time = run_concurrently(timer, vec![(); threads], |caller, ()| {
            (0..each).for_each(|_| poll_and_drop(caller, HALF_A_MINUTE));
        });
        Ok(Answer::new([(
            "mops",
            millions_per_second(each * threads, time),
        )]))
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
