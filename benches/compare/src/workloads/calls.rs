//! Costs of the callers.

use std::hint::{black_box, spin_loop};
use std::iter::repeat;
use std::mem;
use std::ops::Range;
use std::slice;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use super::{WorkloadResult, nanos_each};
use crate::allocations;
use crate::command::{Answer, Command};
use crate::competitors::{Caller, Competitor};
use crate::process;
use crate::session::{LONG, Session, fill, start, wait_until_freed, wait_until_inserted};
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
pub(super) fn schedule<C: Competitor>(session: &mut Session<C>, command: &Command) -> WorkloadResult {
    let count = command.get("count")?;
    let delays = command.random().delays(count, LONG);
    let timer = session.take_warm_timer(command, count);
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
pub(super) fn schedule_and_cancel<C: Competitor>(
    session: &mut Session<C>,
    command: &Command,
) -> WorkloadResult {
    let count = command.get("count")?;
    let timer = session.take_timer(command);
    let mut caller = timer.caller();
    let start = Instant::now();
    for _ in 0..count {
        pair(&mut caller);
    }
    let elapsed = start.elapsed();
    drop(caller);
    session.return_timer(command, timer);
    Ok(Answer::new([("ns", nanos_each(elapsed, count))]))
}

/// W2s.
pub(super) fn steady<C: Competitor>(session: &mut Session<C>, command: &Command) -> WorkloadResult {
    /// The number of pairs per reading of the clock, so that its cost is negligible.
    const BATCH: usize = 1_000;

    let seconds = command.seconds()?;
    let timer = session.take_timer(command);
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
    session.return_timer(command, timer);
    Ok(Answer::new([("ns", nanos_each(used, pairs)), ("pairs", pairs as f64)]))
}

/// W2b.
pub(super) fn cancel<C: Competitor>(session: &mut Session<C>, command: &Command) -> WorkloadResult {
    let count = command.get("count")?;
    let mut random = command.random();
    let delays = random.delays(count, LONG);
    let timer = session.take_timer(command);
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
    session.return_timer(command, timer);
    Ok(Answer::new([("ns", nanos_each(elapsed, count)), ("worker_ns", nanos_each(worker, count))]))
}

/// Runs `work` on one thread per element of `prepared`, with the timer at the same position. The
/// threads start at the same time.
///
/// They spin for a while before the start, so that the kernel distributes them over the cores.
/// Netty's child does the same.
///
/// Returns the time from the start of the first thread to the end of the last one. The results of
/// `work` are dropped after that, so that dropping them is outside of the measured time.
fn run_concurrently<'a, C, P, R>(
    timers: impl IntoIterator<Item = &'a C>,
    prepared: Vec<P>,
    work: impl Fn(&mut C::Caller<'_>, P) -> R + Sync,
) -> Duration
where
    C: Competitor + 'a,
    P: Send,
{
    const SPIN_TIME: Duration = Duration::from_millis(20);

    let size = prepared.len();
    let (ready, end) = (&AtomicUsize::new(0), &Barrier::new(size));
    let work = &work;
    let run = move |timer: &C, part| {
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
        let parts = timers.into_iter().zip(prepared);
        let threads: Vec<_> = parts.map(|(timer, part)| scope.spawn(move || run(timer, part))).collect();
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
pub(super) fn schedule_concurrently<C: Competitor>(
    session: &mut Session<C>,
    command: &Command,
) -> WorkloadResult {
    let (count, threads) = (command.get("count")?, command.get("threads")?);
    let each = count.div_ceil(threads);
    let mut random = command.random();
    let prepared = (0..threads).map(|_| (random.delays(each, LONG), HandleSink::new::<C>(each))).collect();
    let timer = session.take_warm_timer(command, count);
    let time = run_concurrently(repeat(&timer), prepared, |caller, (delays, mut handles)| {
        for &delay in &delays {
            handles.push::<C>(caller.schedule(delay, Task::count()));
        }
        (delays, handles)
    });
    timer.stop();
    Ok(Answer::new([("mops", millions_per_second(each * threads, time))]))
}

/// Schedules a timeout per delay, on one timer after the other, and cancels the timeout that was
/// scheduled 64 timeouts earlier. The number of timers is a power of two and at most 64, so that
/// both timeouts are of the same timer.
fn mix<D: Caller>(callers: &mut [D], delays: &[Duration]) {
    const WINDOW: usize = 64;

    let mask = callers.len() - 1;
    let mut window: [Option<D::Handle>; WINDOW] = [const { None }; WINDOW];
    for (index, &delay) in delays.iter().enumerate() {
        let caller = &mut callers[index & mask];
        let handle = caller.schedule(delay, Task::count());
        if let Some(old) = window[index % WINDOW].replace(handle) {
            caller.cancel(old);
        }
    }
    for (index, handle) in window.into_iter().enumerate() {
        handle.into_iter().for_each(|handle| callers[index & mask].cancel(handle));
    }
}

/// Runs `mix` on one thread per timer.
fn mix_concurrently<'a, C: Competitor + 'a>(
    timers: impl IntoIterator<Item = &'a C>,
    delays: Vec<Vec<Duration>>,
) -> Duration {
    run_concurrently(timers, delays, |caller, delays| {
        mix(slice::from_mut(caller), &delays);
        delays
    })
}

/// MIX.
pub(super) fn mixed<C: Competitor>(session: &mut Session<C>, command: &Command) -> WorkloadResult {
    let (count, threads) = (command.get("count")?, command.get("threads")?);
    let each = count.div_ceil(threads);
    let mut random = command.random();
    let delays = (0..threads).map(|_| random.delays(each, LONG)).collect();
    let timer = session.take_timer(command);
    let time = mix_concurrently(repeat(&timer), delays);
    session.return_timer(command, timer);
    Ok(Answer::new([("mops", millions_per_second(each * threads, time))]))
}

/// SCALE. Compares two threads on one timer with one thread, and with two threads that have a timer
/// each.
pub(super) fn scaling<C: Competitor>(session: &mut Session<C>, command: &Command) -> WorkloadResult {
    let count = command.get("count")?;
    let mut random = command.random();
    let mut delays = |threads| (0..threads).map(|_| random.delays(count / threads, LONG)).collect::<Vec<_>>();
    let (alone, pair) = (delays(1), delays(2));
    let (timer, second) = (session.take_timer(command), start::<C>(command.setup()));
    let throughput = |timers: &[&C], delays: &[Vec<Duration>]| {
        millions_per_second(count, mix_concurrently(timers.iter().copied(), delays.to_vec()))
    };
    // The second timer is new, so this brings both into the same state.
    throughput(&[&timer, &second], &pair);
    let one = throughput(&[&timer], &alone);
    let shared = throughput(&[&timer, &timer], &pair);
    let own = throughput(&[&timer, &second], &pair);
    second.stop();
    session.return_timer(command, timer);
    let (per_own, per_one) = (shared / own, shared / one);
    Ok(Answer::new([
        ("one", one),
        ("shared", shared),
        ("own", own),
        ("shared_per_own", per_own),
        ("shared_per_one", per_one),
    ]))
}

/// TIMERS. Compares one thread that uses several timers in turn with one that uses one timer.
pub(super) fn several_timers<C: Competitor>(session: &mut Session<C>, command: &Command) -> WorkloadResult {
    let (count, timers) = (command.get("count")?, command.get("timers")?);
    let delays = command.random().delays(count, LONG);
    let timer = session.take_timer(command);
    let others: Vec<C> = (1..timers).map(|_| start(command.setup())).collect();
    let cost = |others: &[C]| {
        let mut callers: Vec<_> = [&timer].into_iter().chain(others).map(C::caller).collect();
        let (start, before) = (Instant::now(), allocations::of_this_thread());
        mix(&mut callers, &delays);
        let elapsed = start.elapsed();
        let allocations = allocations::of_this_thread() - before;
        (nanos_each(elapsed, count), allocations as f64 / count as f64)
    };
    // The other timers are new, so this brings all into the same state.
    cost(&others);
    let (one, _) = cost(&[]);
    let (several, allocations) = cost(&others);
    others.into_iter().for_each(C::stop);
    session.return_timer(command, timer);
    Ok(Answer::new([
        ("one_ns", one),
        ("ns", several),
        ("ratio", several / one),
        ("allocations", allocations),
    ]))
}

/// W9.
pub(super) fn rearm<C: Competitor>(session: &mut Session<C>, command: &Command) -> WorkloadResult {
    const IDLE: Duration = Duration::from_secs(60);

    let (count, resets) = (command.get("count")?, command.get("resets")?);
    let order = command.random().indices(resets, count);
    let timer = session.take_timer(command);
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
    session.return_timer(command, timer);
    Ok(Answer::new([("ns", nanos_each(elapsed, resets)), ("cpu_ns", nanos_each(used, resets))]))
}

/// W10.
pub(super) fn replace_among_pending<C: Competitor>(
    session: &mut Session<C>,
    command: &Command,
) -> WorkloadResult {
    Ok(Answer::new([("ns", replacement_cost(session, command, command.get("pending")?)?)]))
}

/// GROWTH. Compares W10 with many and with few pending timeouts.
pub(super) fn growth<C: Competitor>(session: &mut Session<C>, command: &Command) -> WorkloadResult {
    let few = replacement_cost(session, command, command.get("few")?)?;
    let many = replacement_cost(session, command, command.get("many")?)?;
    Ok(Answer::new([("few_ns", few), ("many_ns", many), ("ratio", many / few)]))
}

/// Returns the nanoseconds to schedule a timeout and to cancel another one while others are
/// pending.
fn replacement_cost<C: Competitor>(
    session: &mut Session<C>,
    command: &Command,
    pending: usize,
) -> Result<f64, String> {
    const WINDOW: usize = 1_000;
    /// Delays in milliseconds of the other pending timeouts. They are so long that none expires
    /// before the measurement ends.
    const LATER: Range<u64> = 300_000..360_000;

    let count = command.get("count")?;
    let mut random = command.random();
    let pending = random.delays(pending.saturating_sub(WINDOW), LATER);
    let (first, delays) = (random.delays(WINDOW, LONG), random.delays(count, LONG));
    let indices = random.indices(count, WINDOW);
    let timer = session.take_timer(command);
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
    Ok(nanos_each(elapsed, count))
}
