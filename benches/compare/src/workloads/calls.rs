//! Costs of the callers.

use std::hint::{black_box, spin_loop};
use std::mem;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use super::{WorkloadResult, nanos_each};
use crate::command::{Answer, Command};
use crate::competitors::{Caller, Competitor};
use crate::process;
use crate::session::{LONG, fill, start, start_warm, wait_until_freed, wait_until_inserted};
use crate::task::Task;

const HALF_A_MINUTE: Duration = Duration::from_secs(30);

/// Drops handles without cancelling their timeouts: keeps a handle if dropping it would cancel the
/// timeout.
struct HandleSink<H>(Vec<H>);

impl<H> HandleSink<H> {
    fn new<C: Competitor<Handle = H>>(count: usize) -> Self {
        Self(Vec::with_capacity(if C::DROP_CANCELS { count } else { 0 }))
    }

    fn push<C: Competitor<Handle = H>>(&mut self, handle: H) {
        if C::DROP_CANCELS {
            self.0.push(handle);
        }
    }
}

/// W1.
pub(super) fn schedule<C: Competitor>(command: &Command) -> WorkloadResult {
    let count = command.get("count")?;
    let delays = command.random().delays(count, LONG);
    let timer = start_warm::<C>(command, count);
    let mut caller = timer.caller();
    let mut handles = HandleSink::new::<C>(count);
    let start = Instant::now();
    for delay in delays {
        handles.push::<C>(caller.schedule(delay, Task::count()));
    }
    let elapsed = start.elapsed();
    drop((handles, caller));
    timer.stop();
    Ok(Answer::new([("ns", nanos_each(elapsed, count))]))
}

fn pair(caller: &mut impl Caller) {
    let handle = black_box(caller.schedule(HALF_A_MINUTE, Task::count()));
    caller.cancel(handle);
}

/// W2.
pub(super) fn schedule_and_cancel<C: Competitor>(command: &Command) -> WorkloadResult {
    let count = command.get("count")?;
    let timer = start::<C>(command);
    let mut caller = timer.caller();
    let start = Instant::now();
    for _ in 0..count {
        pair(&mut caller);
    }
    let elapsed = start.elapsed();
    drop(caller);
    timer.stop();
    Ok(Answer::new([("ns", nanos_each(elapsed, count))]))
}

/// W2s.
pub(super) fn steady<C: Competitor>(command: &Command) -> WorkloadResult {
    /// The number of pairs per reading of the clock, so that its cost is negligible.
    const BATCH: usize = 1_000;

    let seconds = command.seconds()?;
    let timer = start::<C>(command);
    let mut caller = timer.caller();
    let (start, before) = (Instant::now(), process::cpu());
    let mut pairs = 0;
    while start.elapsed() < seconds {
        for _ in 0..BATCH {
            pair(&mut caller);
        }
        pairs += BATCH;
    }
    let used = process::cpu() - before;
    drop(caller);
    timer.stop();
    Ok(Answer::new([("ns", nanos_each(used, pairs)), ("pairs", pairs as f64)]))
}

/// W2b.
pub(super) fn cancel<C: Competitor>(command: &Command) -> WorkloadResult {
    let count = command.get("count")?;
    let mut random = command.random();
    let delays = random.delays(count, LONG);
    let timer = start::<C>(command);
    let mut caller = timer.caller();
    let mut handles = fill(&mut caller, &delays);
    random.shuffle(&mut handles);
    wait_until_inserted(command.setup());

    let (start, before) = (Instant::now(), process::others_cpu());
    // `drain` keeps the array, so that freeing it is outside of the measured time.
    for handle in handles.drain(..) {
        caller.cancel(handle);
    }
    let elapsed = start.elapsed();
    wait_until_freed(command.setup());
    let worker = process::others_cpu().saturating_sub(before);
    drop(caller);
    timer.stop();
    Ok(Answer::new([("ns", nanos_each(elapsed, count)), ("worker_ns", nanos_each(worker, count))]))
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
        let threads: Vec<_> = prepared.into_iter().map(|part| scope.spawn(move || run(part))).collect();
        while ready.load(SeqCst) < size {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(SPIN_TIME);
        ready.fetch_add(1, SeqCst);
        threads.into_iter().map(|thread| thread.join().expect("the thread has not panicked")).collect()
    });
    let first = times.iter().map(|(start, _)| *start).min();
    let last = times.iter().map(|(_, stop)| *stop).max();
    first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first)
}

fn millions_per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64() / 1e6
}

/// W3.
pub(super) fn schedule_concurrently<C: Competitor>(command: &Command) -> WorkloadResult {
    let (count, threads) = (command.get("count")?, command.get("threads")?);
    let each = count.div_ceil(threads);
    let mut random = command.random();
    let prepared = (0..threads).map(|_| (random.delays(each, LONG), HandleSink::new::<C>(each))).collect();
    let timer = start_warm::<C>(command, count);
    let time = run_concurrently(&timer, prepared, |caller, (delays, mut handles)| {
        for &delay in &delays {
            handles.push::<C>(caller.schedule(delay, Task::count()));
        }
        (delays, handles)
    });
    timer.stop();
    Ok(Answer::new([("mops", millions_per_second(each * threads, time))]))
}

/// MIX. Each thread schedules a timeout per delay, and cancels the timeout that it scheduled 64
/// timeouts earlier.
pub(super) fn mixed<C: Competitor>(command: &Command) -> WorkloadResult {
    const WINDOW: usize = 64;

    let (count, threads) = (command.get("count")?, command.get("threads")?);
    let each = count.div_ceil(threads);
    let mut random = command.random();
    let delays = (0..threads).map(|_| random.delays(each, LONG)).collect();
    let timer = start::<C>(command);
    let time = run_concurrently(&timer, delays, |caller, delays: Vec<Duration>| {
        let mut window: [Option<C::Handle>; WINDOW] = [const { None }; WINDOW];
        for (index, &delay) in delays.iter().enumerate() {
            let handle = caller.schedule(delay, Task::count());
            if let Some(old) = window[index % WINDOW].replace(handle) {
                caller.cancel(old);
            }
        }
        window.into_iter().flatten().for_each(|handle| caller.cancel(handle));
        delays
    });
    timer.stop();
    Ok(Answer::new([("mops", millions_per_second(each * threads, time))]))
}

/// W9.
pub(super) fn rearm<C: Competitor>(command: &Command) -> WorkloadResult {
    const IDLE: Duration = Duration::from_secs(60);

    let (count, resets) = (command.get("count")?, command.get("resets")?);
    let order = command.random().indices(resets, count);
    let timer = start::<C>(command);
    let mut caller = timer.caller();
    let mut handles = fill(&mut caller, &vec![IDLE; count]);
    wait_until_inserted(command.setup());

    let (start, before) = (Instant::now(), process::cpu());
    for index in order {
        caller.rearm(&mut handles[index], IDLE);
    }
    let elapsed = start.elapsed();
    wait_until_freed(command.setup());
    let used = process::cpu() - before;
    handles.into_iter().for_each(|handle| caller.cancel(handle));
    drop(caller);
    timer.stop();
    Ok(Answer::new([("ns", nanos_each(elapsed, resets)), ("cpu_ns", nanos_each(used, resets))]))
}

/// W10.
pub(super) fn replace_among_pending<C: Competitor>(command: &Command) -> WorkloadResult {
    const WINDOW: usize = 1_000;
    /// Delays in milliseconds of the other pending timeouts. They are so long that none expires
    /// before the measurement ends.
    const LATER: Range<u64> = 300_000..360_000;

    let count = command.get("count")?;
    let mut random = command.random();
    let pending = random.delays(command.get("pending")?.saturating_sub(WINDOW), LATER);
    let (first, delays) = (random.delays(WINDOW, LONG), random.delays(count, LONG));
    let indices = random.indices(count, WINDOW);
    let timer = start::<C>(command);
    let mut caller = timer.caller();
    let others = fill(&mut caller, &pending);
    let mut window = fill(&mut caller, &first);
    wait_until_inserted(command.setup());

    let start = Instant::now();
    for (index, delay) in indices.into_iter().zip(delays) {
        let handle = caller.schedule(delay, Task::count());
        caller.cancel(mem::replace(&mut window[index], handle));
    }
    let elapsed = start.elapsed();
    drop((others, window, caller));
    timer.stop();
    Ok(Answer::new([("ns", nanos_each(elapsed, count))]))
}
