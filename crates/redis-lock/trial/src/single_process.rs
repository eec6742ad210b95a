//! Tests of the locks in one process, and of the renewals that they cause.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::redis_server::{RedisServer, connect};
use indicatif::HumanCount;
use redis::Commands;
use redis_lock::blocking::{Guard, Lock, LockClient};
use redis_lock::{LockError, Loss};

use crate::trial::{Calls, Outcome, PATIENCE, Trial, key};

/// The number of quick pairs of lock and unlock.
const PAIRS: u32 = 1_000;

/// The number of locks that are held at the same time.
const LOCKS: u32 = 300;

/// A renewal that was sent to Redis before the unlock has been processed after this time.
const IN_FLIGHT: Duration = Duration::from_millis(100);

const UNEXPECTEDLY_LOCKED: &str = "another client has a lock with a new name";

fn timer() -> HashedWheelTimer {
    HashedWheelTimer::new(Duration::from_millis(10), 512)
}

pub(crate) fn run(trial: &mut Trial<'_>) -> Outcome {
    let timer = timer();
    let locks = trial.locks(&timer)?;
    for test in [reentrant, quick_pairs, many_locks, taken_away] {
        retry_after_stalls(trial, |trial| test(trial, &locks, &timer))?;
    }
    Ok(())
}

/// Repeats a test if Redis or the whole machine stalled during it.
fn retry_after_stalls(
    trial: &mut Trial<'_>,
    mut test: impl FnMut(&mut Trial<'_>) -> Outcome,
) -> Outcome {
    let begin = Instant::now();
    while let Err(error) = test(trial) {
        let has_stalled = match error.downcast_ref() {
            Some(LockError::Redis(error)) => error.is_timeout(),
            Some(LockError::Lost(how)) => matches!(how, Loss::LeaseEnded(_)),
            _ => false,
        };
        // A busy machine stalls often, and a call may take a sixth of the lease.
        if !has_stalled || begin.elapsed() > PATIENCE * 3 {
            return Err(error);
        }
        println!("             repeated: {error}");
        // Calls that Redis has processed late are over by then.
        thread::sleep(trial.options.lease * 2);
    }
    Ok(())
}

fn reentrant(trial: &mut Trial<'_>, locks: &LockClient, _: &HashedWheelTimer) -> Outcome {
    let [mut owner, mut other] = [(); 2].map(|()| trial.lock(locks, "again"));
    let guards = [owner.try_lock()?, owner.try_lock()?, owner.try_lock()?];
    let entered = guards.iter().flatten().count();
    let mut others = Vec::new();
    for guard in guards.into_iter().flatten() {
        others.push(other.try_lock()?.is_some());
        guard.unlock()?;
    }
    others.push(other.try_lock()?.is_some());
    println!(
        "re-entrant   an owner held the lock {entered} times; another owner got it after the last unlock"
    );
    trial.verdict.expect(
        entered == 3,
        format!("an owner could take its lock {entered} times instead of 3"),
    );
    trial.verdict.expect(
        others == [false, false, false, true],
        format!("whether another owner got the lock before each of three unlocks and after them: {others:?}"),
    );
    Ok(())
}

fn quick_pairs(trial: &mut Trial<'_>, locks: &LockClient, timer: &HashedWheelTimer) -> Outcome {
    let mut lock = trial.lock(locks, "quick");
    let begin = Instant::now();
    for _ in 0..PAIRS {
        lock.try_lock()?.ok_or(UNEXPECTEDLY_LOCKED)?.unlock()?;
    }
    let took = begin.elapsed();

    let begin = Instant::now();
    let kept = lock.try_lock()?.ok_or(UNEXPECTEDLY_LOCKED)?;
    let pending = timer.pending_timeouts();
    let third = trial.third();
    let Calls { leases, .. } = trial.calls_within(third * 9 / 2)?;
    let time = begin.elapsed();
    kept.unlock()?;
    println!(
        "quick pairs  {} of lock and unlock in {took:.2?}; then one lock, held for {time:.2?}: {pending} timeouts \
         pending, {leases} renewals",
        HumanCount(PAIRS.into())
    );
    // Fewer renewals are permitted if the machine stalled during one of them.
    let min = if time < third * 11 / 2 { 3 } else { 1 };
    let max = time.div_duration_f64(third) as u64;
    // One for the renewal, one for the end of the lease.
    trial.verdict.expect(
        pending == 2,
        format!("{pending} timeouts were pending for one lock"),
    );
    trial.verdict.expect(
        (min..=max).contains(&leases),
        format!(
            "one lock was renewed {leases} times in {time:.2?} instead of {min} to {max} times"
        ),
    );

    thread::sleep(IN_FLIGHT);
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

fn many_locks(trial: &mut Trial<'_>, locks: &LockClient, timer: &HashedWheelTimer) -> Outcome {
    let mut locks: Vec<_> = (0..LOCKS)
        .map(|number| trial.lock(locks, &number.to_string()))
        .collect();
    let guards: Result<Vec<_>, _> = locks.iter_mut().map(Lock::try_lock).collect();
    let guards: Vec<_> = guards?.into_iter().flatten().collect();
    let time = trial.third() * 4;
    let Calls { scripts, leases } = trial.calls_within(time)?;
    let held = guards.iter().filter(|guard| guard.check().is_ok()).count();
    println!(
        "batches      {} locks, {held} of them held for {time:.2?}: {} renewals in {scripts} calls",
        guards.len(),
        HumanCount(leases)
    );
    let unlocked = guards.into_iter().filter_map(|guard| guard.unlock().err());
    let lost_early = unlocked
        .filter(|error| matches!(error, LockError::Lost(Loss::NoOwner | Loss::OtherOwner)))
        .count();
    let pending = settled(trial, timer);
    trial.verdict.expect(
        leases >= held as u64 && leases >= 2 * scripts,
        format!(
            "{leases} renewals took {scripts} calls; {held} of {LOCKS} locks were held to the end"
        ),
    );
    trial.verdict.expect(
        lost_early == 0,
        format!("{lost_early} of {LOCKS} locks were lost during their lease"),
    );
    trial.verdict.expect(
        pending == 0,
        format!("{LOCKS} locks left {pending} timeouts"),
    );
    Ok(())
}

/// Another client deletes the lock and takes it.
fn taken_away(trial: &mut Trial<'_>, locks: &LockClient, timer: &HashedWheelTimer) -> Outcome {
    let mut lock = trial.lock(locks, "taken");
    let key = key(lock.name());
    let guard = lock.try_lock()?.ok_or(UNEXPECTEDLY_LOCKED)?;
    let their_lease = (PATIENCE * 2).as_millis() as i64;
    let () = redis::pipe()
        .atomic()
        .del(&key)
        .zadd(&key, "another client:0/w", 1e15)
        .pexpire(&key, their_lease)
        .ignore()
        .query(&mut trial.redis)?;
    let (later, lost) = until_lost(&guard)?;
    let (pending, unlocked) = (settled(trial, timer), guard.unlock());
    let (is_still_theirs, left): (bool, i64) = (
        trial.redis.zrange::<_, [String; 1]>(&key, 0, -1)? == ["another client:0/w"],
        trial.redis.pttl(&key)?,
    );
    let () = trial.redis.del(&key)?;
    if !matches!(lost, LockError::Lost(Loss::OtherOwner)) {
        return Err(lost.into());
    }
    println!("taken away   by another client; the holder detected it {later:.2?} later: {lost}");
    if let Err(error @ LockError::Redis(_)) = unlocked {
        return Err(error.into());
    }
    trial
        .verdict
        .expect(pending == 0, "a lock that was taken away was renewed");
    trial.verdict.expect(
        matches!(unlocked, Err(LockError::Lost(_))),
        format!("the unlock of a lock that was taken away returned {unlocked:?}"),
    );
    trial
        .verdict
        .expect(is_still_theirs, "the lock of another owner was unlocked");
    trial.verdict.expect(
        left > their_lease / 2,
        format!("the other owner's lease has {left}ms of {their_lease}ms left"),
    );
    Ok(())
}

/// Returns the number of timeouts, after calls that were in flight have ended. A lock that is still
/// renewed has one throughout.
fn settled(trial: &Trial<'_>, timer: &HashedWheelTimer) -> usize {
    let begin = Instant::now();
    while timer.pending_timeouts() > 0 && begin.elapsed() < trial.options.lease {
        thread::sleep(Duration::from_millis(5));
    }
    timer.pending_timeouts()
}

/// Returns the time until the holder detected the loss, and the reason.
fn until_lost(guard: &Guard) -> Result<(Duration, LockError), Box<dyn Error>> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if let Err(lost) = guard.check() {
            return Ok((begin.elapsed(), lost));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err("the holder did not detect that its lock is lost".into())
}

/// Redis restarts without data while a lock is held.
pub(crate) fn lost_data(trial: &mut Trial<'_>, server: &mut RedisServer) -> Outcome {
    retry_after_stalls(trial, |trial| lose_data(trial, server))
}

fn lose_data(trial: &mut Trial<'_>, server: &mut RedisServer) -> Outcome {
    let timer = timer();
    let locks = trial.locks(&timer)?;
    let mut lock = trial.lock(&locks, "data");
    let guard = lock.try_lock()?.ok_or(UNEXPECTEDLY_LOCKED)?;
    let token = guard.token();
    server.kill()?;
    server.lose_data()?;
    server.restart()?;
    trial.redis = connect(&trial.servers.url)?;
    let (later, lost) = until_lost(&guard)?;
    println!(
        "lost data    Redis restarted without data; the holder of a lock detected it {later:.2?} later: {lost}"
    );

    let time = trial.third() * 2;
    let Calls { scripts, .. } = trial.calls_within(time)?;
    let (pending, unlocked) = (timer.pending_timeouts(), guard.unlock());
    if let Err(error @ LockError::Redis(_)) = unlocked {
        return Err(error.into());
    }
    let again = lock.try_lock()?.ok_or(UNEXPECTEDLY_LOCKED)?;
    println!(
        "             {pending} timeouts pending, {scripts} calls in {time:.2?}; the lock could be taken again"
    );
    trial.verdict.expect(
        (pending, scripts) == (0, 0),
        format!("a lock that was lost caused {pending} timeouts and {scripts} calls"),
    );
    trial.verdict.expect(
        matches!(unlocked, Err(LockError::Lost(_))),
        format!("the unlock of a lock that was lost returned {unlocked:?}"),
    );
    trial.verdict.expect(
        again.token() > token,
        "the tokens restarted after the loss of data",
    );
    Ok(())
}
