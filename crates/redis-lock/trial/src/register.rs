//! The resource that locks, read-write locks and semaphores protect: a register of their holds.
//!
//! The accesses of all processes have increasing numbers. A hold is confirmed from its first access
//! to its last one after which its holder found that it still held. So it is known when it was
//! held, even if its process was killed or stopped then.

use std::collections::HashMap;
use std::ops::Range;

use redis::{Client, Commands, Connection, RedisResult, Script};

/// KEYS: the register. ARGV: the hold, and its confirmed accesses, or nothing. Returns the number
/// of this access.
const ACCESS: &str = r"
    if ARGV[2] ~= '' then redis.call('hset', KEYS[1], ARGV[1], ARGV[2]) end
    return redis.call('hincrby', KEYS[1], 'accesses', 1)
";

/// The kind of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Permit,
    Lock,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Permit, Self::Lock];
}

/// The register, as a process uses it.
pub(crate) struct Register {
    connection: Connection,
    key: String,
    access: Script,
}

impl Register {
    pub(crate) fn new(url: &str, name: &str) -> RedisResult<Self> {
        Ok(Self {
            connection: Client::open(url)?.get_connection()?,
            key: key(name),
            access: Script::new(ACCESS),
        })
    }

    /// Starts the accesses of a hold.
    pub(crate) fn hold(&mut self, kind: Kind, token: u64) -> Accesses<'_> {
        Accesses {
            register: self,
            hold: format!("{kind:?} {token}"),
            first: None,
            confirmed: String::new(),
        }
    }
}

/// The accesses of a hold.
pub(crate) struct Accesses<'a> {
    register: &'a mut Register,
    hold: String,
    first: Option<u64>,
    confirmed: String,
}

impl Accesses<'_> {
    /// Makes an access, and confirms it if `is_held` returns `Ok` afterwards.
    pub(crate) fn access<E: From<redis::RedisError>>(
        &mut self,
        is_held: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let Register {
            connection,
            key,
            access,
        } = &mut *self.register;
        let number: u64 = access
            .key(&*key)
            .arg(&self.hold)
            .arg(&self.confirmed)
            .invoke(connection)?;
        is_held()?;
        let first = *self.first.get_or_insert(number);
        self.confirmed = format!("{first} {number}");
        Ok(())
    }
}

/// A hold, from its first to its last confirmed access.
struct Hold {
    kind: Kind,
    token: u64,
    first: u64,
    last: u64,
}

/// The findings of a check of the register.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) reads: usize,
    pub(crate) writes: usize,
    pub(crate) permits: usize,
    pub(crate) locks: usize,
    /// How many held at the same time, at most.
    pub(crate) most_readers: usize,
    pub(crate) most_permits: usize,
    pub(crate) most_locks: usize,
    /// How many holds overlapped a write.
    pub(crate) with_a_writer: usize,
    /// Tokens that are less than those of holds that had ended before: of locks, and of reads and
    /// writes if one of them is a write.
    pub(crate) old_tokens: Vec<u64>,
}

impl Findings {
    /// Reads the register and deletes it. Ignores holds during these accesses.
    pub(crate) fn take(
        name: &str,
        redis: &mut Connection,
        ignored: Range<u64>,
    ) -> RedisResult<Self> {
        let fields: HashMap<String, String> = redis.hgetall(key(name))?;
        let () = redis.del(key(name))?;
        let mut holds: Vec<_> = fields
            .iter()
            .filter_map(|(hold, accesses)| parse(hold, accesses))
            .collect();
        holds.retain(|hold| hold.last < ignored.start || hold.first >= ignored.end);
        holds.sort_by_key(|hold| hold.first);
        let mut findings = Self::default();
        let (mut active, mut greatest, mut greatest_write, mut greatest_lock) =
            (Vec::<&Hold>::new(), 0, 0, 0);
        for hold in &holds {
            active.retain(|other| other.last >= hold.first);
            let count = |kind| 1 + active.iter().filter(|other| other.kind == kind).count();
            let is_write = |other: &&&Hold| other.kind == Kind::Write;
            let is_read = |other: &&&Hold| other.kind == Kind::Read;
            match hold.kind {
                Kind::Permit => {
                    findings.permits += 1;
                    findings.most_permits = findings.most_permits.max(count(Kind::Permit));
                }
                Kind::Lock => {
                    findings.locks += 1;
                    findings.most_locks = findings.most_locks.max(count(Kind::Lock));
                    findings
                        .old_tokens
                        .extend((hold.token < greatest_lock).then_some(hold.token));
                    greatest_lock = greatest_lock.max(hold.token);
                }
                Kind::Read => {
                    findings.reads += 1;
                    findings.most_readers = findings.most_readers.max(count(Kind::Read));
                    findings.with_a_writer += active.iter().filter(is_write).count();
                    findings
                        .old_tokens
                        .extend((hold.token < greatest_write).then_some(hold.token));
                }
                Kind::Write => {
                    findings.writes += 1;
                    findings.with_a_writer += active
                        .iter()
                        .filter(|other| is_read(other) || is_write(other))
                        .count();
                    findings
                        .old_tokens
                        .extend((hold.token < greatest).then_some(hold.token));
                    greatest_write = greatest_write.max(hold.token);
                }
            }
            if matches!(hold.kind, Kind::Read | Kind::Write) {
                greatest = greatest.max(hold.token);
            }
            active.push(hold);
        }
        Ok(findings)
    }
}

/// Returns the number of accesses so far.
pub(crate) fn accesses(name: &str, redis: &mut Connection) -> RedisResult<u64> {
    redis.hget(key(name), "accesses")
}

fn parse(hold: &str, accesses: &str) -> Option<Hold> {
    let (kind, token) = hold.split_once(' ')?;
    let kind = Kind::ALL
        .into_iter()
        .find(|known| format!("{known:?}") == kind)?;
    let (first, last) = accesses.split_once(' ')?;
    Some(Hold {
        kind,
        token: token.parse().ok()?,
        first: first.parse().ok()?,
        last: last.parse().ok()?,
    })
}

fn key(name: &str) -> String {
    format!("register:{name}")
}
