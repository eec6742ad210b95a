//! What one process does with locks, and what its renewals make of it.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use indicatif::HumanCount;
use redis::Commands;

use crate::lock::{self, Guard, LockError, LockManager, Lost};
use crate::redis_server::{RedisServer, connect};
use crate::trial::{Calls, Outcome, PATIENCE, Trial};

/// Quick pairs of lock and unlock.
const PAIRS: u32 = 1_000;

/// So many locks are held at a time.
const LOCKS: u32 = 300;

/// A renewal that is with Redis when the lock is given back is over by then.
const ON_ITS_WAY: Duration = Duration::from_millis(100);

const TAKEN: &str = "somebody has a lock that nobody knows";

fn timer() -> HashedWheelTimer {
    HashedWheelTimer::new(Duration::from_millis(10), 512)
}

pub(crate) fn run(trial: &mut Trial<'_>) -> Outcome {
    let timer = timer();
    let locks = trial.locks(&timer)?;
    for part in [entered_again, quick_pairs, many_locks, taken_away] {
        patiently(trial, |trial| part(trial, &locks, &timer))?;
    }
    Ok(())
}

/// Does it once more where Redis, or the whole machine, stood still meanwhile.
fn patiently(trial: &mut Trial<'_>, mut part: impl FnMut(&mut Trial<'_>) -> Outcome) -> Outcome {
    let begin = Instant::now();
    while let Err(error) = part(trial) {
        let stood_still = match error.downcast_ref() {
            Some(LockError::Redis(error)) => error.is_timeout(),
            Some(LockError::Lost(how)) => matches!(how, Lost::RanOut(_)),
            _ => false,
        };
        if !stood_still || begin.elapsed() > PATIENCE {
            return Err(error);
        }
        println!("             once more, for {error}");
        // What Redis has done late is over by then.
        thread::sleep(trial.options.lease * 2);
    }
    Ok(())
}

fn entered_again(trial: &mut Trial<'_>, locks: &LockManager, _: &HashedWheelTimer) -> Outcome {
    let name = format!("{}-again", trial.name);
    let [owner, other] = [locks.get(&name), locks.get(&name)];
    let guards = [owner.try_lock()?, owner.try_lock()?, owner.try_lock()?];
    let entered = guards.iter().flatten().count();
    let mut others = Vec::new();
    for guard in guards.into_iter().flatten() {
        others.push(other.try_lock()?.is_some());
        guard.unlock()?;
    }
    others.push(other.try_lock()?.is_some());
    println!("re-entrant   an owner was in {entered} times; another one got in after its last unlock");
    trial.verdict.expect(entered == 3, format!("an owner could enter {entered} times of 3"));
    trial.verdict.expect(
        others == [false, false, false, true],
        format!("another owner got in, before each of three unlocks and after them: {others:?}"),
    );
    Ok(())
}

fn quick_pairs(trial: &mut Trial<'_>, locks: &LockManager, timer: &HashedWheelTimer) -> Outcome {
    let lock = locks.get(&format!("{}-quick", trial.name));
    let begin = Instant::now();
    for _ in 0..PAIRS {
        lock.try_lock()?.ok_or(TAKEN)?.unlock()?;
    }
    let took = begin.elapsed();

    let begin = Instant::now();
    let kept = lock.try_lock()?.ok_or(TAKEN)?;
    let pending = timer.pending_timeouts();
    let third = trial.third();
    let Calls { leases, .. } = trial.calls_within(third * 9 / 2)?;
    let time = begin.elapsed();
    kept.unlock()?;
    println!(
        "quick pairs  {} of lock and unlock in {took:.2?}; then one lock, kept for {time:.2?}: {pending} timeout \
         pending, {leases} renewals",
        HumanCount(PAIRS.into())
    );
    // Unless the machine stood still for one of them.
    let least = if time < third * 11 / 2 { 3 } else { 1 };
    let most = time.div_duration_f64(third) as u64;
    trial.verdict.expect(pending == 1, format!("{pending} timeouts were pending for one lock"));
    trial.verdict.expect(
        (least..=most).contains(&leases),
        format!("one lock was renewed {leases} times in {time:.2?}, and not {least} to {most} times"),
    );

    thread::sleep(ON_ITS_WAY);
    let time = third * 3;
    let Calls { scripts, .. } = trial.calls_within(time)?;
    let pending = timer.pending_timeouts();
    println!("             unlocked: {pending} timeouts pending, {scripts} calls in {time:.2?}");
    trial.verdict.expect(
        (pending, scripts) == (0, 0),
        format!("after the unlock there were {pending} timeouts and {scripts} calls"),
    );
    Ok(())
}

fn many_locks(trial: &mut Trial<'_>, locks: &LockManager, timer: &HashedWheelTimer) -> Outcome {
    let locks: Vec<_> = (0..LOCKS).map(|number| locks.get(&format!("{}-{number}", trial.name))).collect();
    let guards: Result<Vec<_>, _> = locks.iter().map(|lock| lock.try_lock()).collect();
    let guards: Vec<_> = guards?.into_iter().flatten().collect();
    let time = trial.third() * 4;
    let Calls { scripts, leases } = trial.calls_within(time)?;
    let held = guards.iter().filter(|guard| guard.check().is_ok()).count();
    println!(
        "batches      {} locks, {held} of them kept for {time:.2?}: {} renewals in {scripts} calls",
        guards.len(),
        HumanCount(leases)
    );
    let unlocked = guards.into_iter().filter_map(|guard| guard.unlock().err());
    let robbed = unlocked.filter(|error| matches!(error, LockError::Lost(Lost::Gone))).count();
    let pending = timer.pending_timeouts();
    trial.verdict.expect(
        leases >= held as u64 && leases >= 2 * scripts,
        format!("{leases} renewals, with {held} of {LOCKS} locks kept, took {scripts} calls"),
    );
    trial.verdict.expect(robbed == 0, format!("{robbed} of {LOCKS} locks were lost within their lease"));
    trial.verdict.expect(pending == 0, format!("{pending} timeouts were left of {LOCKS} locks"));
    Ok(())
}

/// Somebody deletes the lock, and somebody else takes it.
fn taken_away(trial: &mut Trial<'_>, locks: &LockManager, timer: &HashedWheelTimer) -> Outcome {
    let name = format!("{}-taken", trial.name);
    let (lock, key) = (locks.get(&name), lock::key(&name));
    let guard = lock.try_lock()?.ok_or(TAKEN)?;
    let theirs = (PATIENCE * 2).as_millis() as i64;
    let () = redis::pipe()
        .atomic()
        .del(&key)
        .hset(&key, "somebody else", 1)
        .pexpire(&key, theirs)
        .ignore()
        .query(&mut trial.redis)?;
    let (later, lost) = until_lost(&guard)?;
    let (pending, unlocked) = (timer.pending_timeouts(), guard.unlock());
    let (is_theirs, left): (bool, i64) =
        (trial.redis.hexists(&key, "somebody else")?, trial.redis.pttl(&key)?);
    let () = trial.redis.del(&key)?;
    if !matches!(lost, LockError::Lost(Lost::Gone)) {
        return Err(lost.into());
    }
    println!("taken away   by somebody else; its holder knew {later:.2?} later: {lost}");
    if let Err(error @ LockError::Redis(_)) = unlocked {
        return Err(error.into());
    }
    trial.verdict.expect(pending == 0, "a lock that was taken away was renewed");
    trial.verdict.expect(
        matches!(unlocked, Err(LockError::Lost(_))),
        format!("to unlock a lock that was taken away came to {unlocked:?}"),
    );
    trial.verdict.expect(is_theirs, "somebody else's lock was unlocked");
    trial.verdict.expect(left > theirs / 2, format!("of somebody else's {theirs} ms {left} were left"));
    Ok(())
}

/// How long it took until the holder knew how it was lost.
fn until_lost(guard: &Guard<'_>) -> Result<(Duration, LockError), Box<dyn Error>> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if let Err(lost) = guard.check() {
            return Ok((begin.elapsed(), lost));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err("nobody told the holder that its lock is lost".into())
}

/// Redis comes back with nothing while a lock is held.
pub(crate) fn lost_data(trial: &mut Trial<'_>, server: &mut RedisServer) -> Outcome {
    patiently(trial, |trial| lose_data(trial, server))
}

fn lose_data(trial: &mut Trial<'_>, server: &mut RedisServer) -> Outcome {
    let timer = timer();
    let lock = trial.locks(&timer)?.get(&format!("{}-data", trial.name));
    let guard = lock.try_lock()?.ok_or(TAKEN)?;
    let token = guard.token();
    server.kill()?;
    server.lose_data()?;
    server.start_again()?;
    trial.redis = connect(&trial.url)?;
    let (later, lost) = until_lost(&guard)?;
    println!("lost data    Redis came back with none; the holder of a lock knew {later:.2?} later: {lost}");

    let time = trial.third() * 2;
    let Calls { scripts, .. } = trial.calls_within(time)?;
    let (pending, unlocked) = (timer.pending_timeouts(), guard.unlock());
    if let Err(error @ LockError::Redis(_)) = unlocked {
        return Err(error.into());
    }
    let again = lock.try_lock()?.ok_or(TAKEN)?;
    println!(
        "             {pending} timeouts pending, {scripts} calls in {time:.2?}; and it could take the lock again"
    );
    trial.verdict.expect(
        (pending, scripts) == (0, 0),
        format!("for a lock that was lost there were {pending} timeouts and {scripts} calls"),
    );
    trial.verdict.expect(
        matches!(unlocked, Err(LockError::Lost(_))),
        format!("to unlock a lock that was lost came to {unlocked:?}"),
    );
    trial.verdict.expect(again.token() > token, "tokens began anew with the data");
    Ok(())
}
