//! What callers pay.

use std::hint::black_box;
use std::mem;
use std::ops::Range;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::{Answered, each};
use crate::command::{Answer, Command};
use crate::competitors::{Caller, Competitor};
use crate::process;
use crate::session::{LONG, Session, fill, recover, settle};
use crate::task::Task;

const HALF_A_MINUTE: Duration = Duration::from_secs(30);

/// Where a handle is dropped the timeout is to stay pending.
struct Dropped<H>(Vec<H>);

impl<H> Dropped<H> {
    fn new<C: Competitor<Handle = H>>(count: usize) -> Self {
        Self(Vec::with_capacity(if C::HANDLE_IS_TIMEOUT { count } else { 0 }))
    }

    fn take<C: Competitor<Handle = H>>(&mut self, handle: H) {
        if C::HANDLE_IS_TIMEOUT {
            self.0.push(handle);
        }
    }
}

/// W1.
pub(super) fn schedule<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answered {
    let count = command.get("count")?;
    let delays = command.random().delays(count, LONG);
    let timer = session.take_warm(command, count);
    let mut caller = timer.caller();
    let mut dropped = Dropped::new::<C>(count);
    let start = Instant::now();
    for delay in delays {
        dropped.take::<C>(caller.schedule(delay, Task::count()));
    }
    let elapsed = start.elapsed();
    drop((dropped, caller));
    timer.stop();
    Ok(Answer::new([("ns", each(elapsed, count))]))
}

fn pair(caller: &mut impl Caller) {
    let handle = black_box(caller.schedule(HALF_A_MINUTE, Task::count()));
    caller.cancel(handle);
}

/// W2.
pub(super) fn schedule_and_cancel<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answered {
    let count = command.get("count")?;
    let timer = session.take(command);
    let mut caller = timer.caller();
    let start = Instant::now();
    for _ in 0..count {
        pair(&mut caller);
    }
    let elapsed = start.elapsed();
    drop(caller);
    session.give_back(command, timer);
    Ok(Answer::new([("ns", each(elapsed, count))]))
}

/// W2s.
pub(super) fn steady<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answered {
    /// So that a look at the clock costs nothing.
    const LOT: usize = 1_000;

    let seconds = command.seconds()?;
    let timer = session.take(command);
    let mut caller = timer.caller();
    let (start, before) = (Instant::now(), process::cpu());
    let mut pairs = 0;
    while start.elapsed() < seconds {
        for _ in 0..LOT {
            pair(&mut caller);
        }
        pairs += LOT;
    }
    let used = process::cpu() - before;
    drop(caller);
    session.give_back(command, timer);
    Ok(Answer::new([("ns", each(used, pairs)), ("pairs", pairs as f64)]))
}

/// W2b.
pub(super) fn cancel<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answered {
    let count = command.get("count")?;
    let mut random = command.random();
    let delays = random.delays(count, LONG);
    let timer = session.take(command);
    let mut caller = timer.caller();
    let mut handles = fill(&mut caller, &delays);
    random.shuffle(&mut handles);
    settle(command.setup());

    let (start, before) = (Instant::now(), process::others_cpu());
    // The array itself is given back outside of the time.
    for handle in handles.drain(..) {
        caller.cancel(handle);
    }
    let elapsed = start.elapsed();
    recover(command.setup());
    let worker = process::others_cpu().saturating_sub(before);
    drop(caller);
    session.give_back(command, timer);
    Ok(Answer::new([("ns", each(elapsed, count)), ("worker_ns", each(worker, count))]))
}

/// Runs `work` on so many threads that begin together; says how long it was from the first one's start to the last one's
/// end. What `work` returns is dropped after that, and so is `prepare`'s part.
fn together<C, P, R>(
    timer: &C,
    prepared: Vec<P>,
    work: impl Fn(&mut C::Caller<'_>, P) -> R + Sync,
) -> Duration
where
    C: Competitor,
    P: Send,
{
    let (begin, end) = (&Barrier::new(prepared.len()), &Barrier::new(prepared.len()));
    let work = &work;
    let run = move |part| {
        let mut caller = timer.caller();
        begin.wait();
        let start = Instant::now();
        let rest = work(&mut caller, part);
        let stop = Instant::now();
        end.wait();
        drop(rest);
        (start, stop)
    };
    let times: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = prepared.into_iter().map(|part| scope.spawn(move || run(part))).collect();
        threads.into_iter().map(|thread| thread.join().expect("its panic has been reported")).collect()
    });
    let first = times.iter().map(|(start, _)| *start).min();
    let last = times.iter().map(|(_, stop)| *stop).max();
    first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first)
}

fn million_per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64() / 1e6
}

/// W3.
pub(super) fn schedule_together<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answered {
    let (count, threads) = (command.get("count")?, command.get("threads")?);
    let each = count.div_ceil(threads);
    let mut random = command.random();
    let delays = (0..threads).map(|_| (random.delays(each, LONG), Dropped::new::<C>(each))).collect();
    let timer = session.take_warm(command, count);
    let time = together(&timer, delays, |caller, (delays, mut dropped)| {
        for &delay in &delays {
            dropped.take::<C>(caller.schedule(delay, Task::count()));
        }
        (delays, dropped)
    });
    timer.stop();
    Ok(Answer::new([("mops", million_per_second(each * threads, time))]))
}

/// MIX.
pub(super) fn mixed<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answered {
    const WINDOW: usize = 64;

    let (count, threads) = (command.get("count")?, command.get("threads")?);
    let each = count.div_ceil(threads);
    let mut random = command.random();
    let delays = (0..threads).map(|_| random.delays(each, LONG)).collect();
    let timer = session.take(command);
    let time = together(&timer, delays, |caller, delays| {
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
    session.give_back(command, timer);
    Ok(Answer::new([("mops", million_per_second(each * threads, time))]))
}

/// W9.
pub(super) fn rearm<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answered {
    const IDLE: Duration = Duration::from_secs(60);

    let (count, resets) = (command.get("count")?, command.get("resets")?);
    let order = command.random().indices(resets, count);
    let timer = session.take(command);
    let mut caller = timer.caller();
    let mut handles = fill(&mut caller, &vec![IDLE; count]);
    settle(command.setup());

    let (start, before) = (Instant::now(), process::cpu());
    for index in order {
        caller.rearm(&mut handles[index], IDLE);
    }
    let elapsed = start.elapsed();
    recover(command.setup());
    let used = process::cpu() - before;
    handles.into_iter().for_each(|handle| caller.cancel(handle));
    drop(caller);
    session.give_back(command, timer);
    Ok(Answer::new([("ns", each(elapsed, resets)), ("cpu_ns", each(used, resets))]))
}

/// W10.
pub(super) fn among_many<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answered {
    const WINDOW: usize = 1_000;
    /// In milliseconds: none of them is due before the end, however long it takes to schedule them.
    const LATER: Range<u64> = 300_000..360_000;

    let (count, pending) = (command.get("count")?, command.get("pending")?);
    let mut random = command.random();
    let pending = random.delays(pending.saturating_sub(WINDOW), LATER);
    let (first, delays) = (random.delays(WINDOW, LONG), random.delays(count, LONG));
    let places = random.indices(count, WINDOW);
    let timer = session.take(command);
    let mut caller = timer.caller();
    let rest = fill(&mut caller, &pending);
    let mut window = fill(&mut caller, &first);
    settle(command.setup());

    let start = Instant::now();
    for (place, delay) in places.into_iter().zip(delays) {
        let handle = caller.schedule(delay, Task::count());
        caller.cancel(mem::replace(&mut window[place], handle));
    }
    let elapsed = start.elapsed();
    drop((rest, window, caller));
    timer.stop();
    Ok(Answer::new([("ns", each(elapsed, count))]))
}
