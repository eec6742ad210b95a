//! The Lua scripts, and their calls.
//!
//! A lock has four keys, all in the slot of its name on a cluster:
//!
//! | key | value |
//! |---|---|
//! | `{lock:NAME}` | the owner. It expires when the lease ends |
//! | `{lock:NAME}:token` | the last token. It expires a day after the clock has passed it |
//! | `{lock:NAME}:queue` | the waiting owners, a sorted set: the score is the time of arrival |
//! | `{lock:NAME}:seen` | per waiting owner, until when the queue keeps it without another attempt |
//!
//! The prefix of the client is before the brace, in all keys and channels. It contains no braces.
//!
//! Read-write locks and semaphores have the same keys, with `rwlock` and `semaphore` instead of
//! `lock`, but the first one is a set of holders, and there is a fifth one: see `shared.rs`.
//!
//! The name of an owner is `CLIENT:NUMBER`, and that of a client `HOLDER:RANDOM`. Messages for an
//! owner are published on the channel `lock-wake:CLIENT`. A message is `OWNER MILLISECONDS`, and is
//! only sent to waiting owners that can act on it: 0 means that the lock is free. More is the time
//! after which it may be: the lease of another owner ends, or the time of the owner before this one
//! to take it.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, ParsingError, Script, Value};

use crate::shared::{ENTER, LEAVE, RENEW_SHARED, SHARED, STATE_SHARED};

/// The common part of all scripts. `clock` returns milliseconds since 1970, and `limit` and
/// `is_alone` what the end of an owner's name says: see `shared.rs`.
const COMMON: &str = r"
    local time
    local function clock()
        time = time or redis.call('time')
        return time[1] * 1000 + math.floor(time[2] / 1000)
    end
    local function limit(owner)
        return tonumber(string.match(owner, '/(%d+)$') or 0)
    end
    local function is_alone(owner)
        return string.match(owner, '/w$')
    end
";

/// The queue, for several scripts.
const QUEUE: &str = r"
    local lock, token_key, queue, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
    -- The first waiting owner. Removes those that the queue no longer keeps, but not the caller.
    local function first()
        while true do
            local head = redis.call('zrange', queue, 0, 0)[1]
            if not head then return nil end
            local expires = tonumber(redis.call('hget', seen, head) or 0)
            if head == ARGV[1] or expires > clock() then return head, expires end
            redis.call('zrem', queue, head)
            redis.call('hdel', seen, head)
        end
    end
    local function client(owner)
        return string.match(owner, '^(.*):')
    end
    -- A client without permission to publish has to poll.
    local function tell(owner, milliseconds)
        local channel = string.match(lock, '^[^{]*') .. 'lock-wake:' .. client(owner)
        redis.pcall('publish', channel, owner .. ' ' .. milliseconds)
    end
    -- Tells a waiting owner that the lock is free, and limits its time to take it.
    local function offer(head, expires, claim)
        expires = math.min(expires, clock() + claim)
        redis.call('hset', seen, head, string.format('%.0f', expires))
        tell(head, 0)
        return expires
    end
    -- Tells the next waiting owner when the time of the first ones ends, which may have died. All
    -- owners of a client die together, so it tells the first one of another client, if there is one
    -- among the next 64.
    local function warn(count, expires)
        local waiting = redis.call('zrange', queue, 0, count + 63)
        local warned = waiting[count + 1]
        for i = count + 1, #waiting do
            if client(waiting[i]) ~= client(waiting[1]) then
                warned = waiting[i]
                break
            end
        end
        -- Not after each release: a message wakes the waiting caller. The field with an empty name has
        -- the last owner that was told, and the time at which it tries. It is removed with the queue.
        local told, at = string.match(redis.call('hget', seen, '') or '', '^(.*) (%d+)$')
        if not warned or told == warned and tonumber(at) * 2 > clock() + expires then return end
        redis.call('hset', seen, '', string.format('%s %.0f', warned, expires))
        tell(warned, math.max(expires - clock(), 1))
    end
    -- Offers a lock that one owner may hold. Returns when the time to take it ends.
    local function offer_to_first(head, expires, claim)
        expires = offer(head, expires, claim)
        warn(1, expires)
        return expires
    end
";

/// The common part of the scripts that acquire.
///
/// A token is the server's clock in microseconds, or the last token plus one if the clock is
/// behind. Therefore tokens increase even if Redis has lost its data. (Numbers in Lua have 53 bits:
/// 285 years of microseconds since 1970. A greater token has no successor, so there is an error.)
const TAKE: &str = r"
    -- Returns a token that is greater than all before it, or nothing and an error.
    local function next_token()
        clock()
        local now = time[1] * 1000000 + time[2]
        local token = math.max(now, (redis.call('get', token_key) or 0) + 1)
        if token >= 9007199254740992 then
            return nil, redis.error_reply('ERR the last token of the lock has no successor')
        end
        -- While the clock is behind, only this key makes tokens increase.
        local behind = math.floor((token - now) / 1000000)
        redis.call('set', token_key, string.format('%.0f', token), 'ex', 86400 + behind)
        return token
    end
    -- Adds the caller to the queue, or keeps it there for longer. Returns how many are before it.
    local function join(owner, keep)
        clock()
        redis.call('zadd', queue, 'nx', string.format('%.0f', time[1] * 1000000 + time[2]), owner)
        redis.call('hset', seen, owner, string.format('%.0f', clock() + keep))
        if redis.call('pttl', queue) < keep then
            redis.call('pexpire', queue, keep * 2)
            redis.call('pexpire', seen, keep * 2)
        end
        return redis.call('zrank', queue, owner)
    end
";

/// Takes a free lock, or joins the queue.
///
/// KEYS: the four. ARGV: the owner, the lease in milliseconds, 1 if callers may not overtake the
/// queue, the time for which the queue keeps the owner in milliseconds (0: it does not join), the
/// time in milliseconds in which the first waiting owner has to take a lock that is free.
/// Returns the token. Or it returns 0, the number of milliseconds after which the first waiting
/// owner may succeed (negative: unknown), and how many owners should try before this one.
///
/// A call that is repeated after a lost answer finds its own owner.
const LOCK: &str = r"
    local owner, lease, fair, keep, claim = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
    local holder = redis.call('get', lock)
    local head, reserved
    if not holder then head, reserved = first() end
    if not holder and (fair == '0' or not head or head == owner) then
        local token, no_token = next_token()
        if no_token then return no_token end
        redis.call('set', lock, owner, 'px', lease)
        if head then
            redis.call('zrem', queue, owner)
            redis.call('hdel', seen, owner)
            head = first()
            if head then tell(head, lease) end
        end
        return {token, 0, 0}
    end
    if holder == owner then
        redis.call('pexpire', lock, lease)
        return {tonumber(redis.call('get', token_key)), 0, 0}
    end
    local place = 0
    if keep > 0 then place = join(owner, keep) end
    if holder then return {0, redis.call('pttl', lock), place} end
    -- The first waiting owner may not know that the lock is free: its lease ended, Redis deleted
    -- it, or a release told an owner that has lost its place since.
    if reserved > clock() + claim then reserved = offer_to_first(head, reserved, claim) end
    return {0, reserved - clock(), 0}
";

/// Releases the lock, or leaves its queue, and wakes the first waiting owner.
///
/// KEYS: the four. ARGV: the owner, the time in milliseconds in which the first waiting owner has
/// to take a lock that is free. If it is later, it has lost its place. Returns 1: released, 0: the
/// lock has no owner, -1: it has another owner.
const RELEASE: &str = r"
    local owner, claim = ARGV[1], tonumber(ARGV[2])
    local holder = redis.call('get', lock)
    if holder == owner then
        redis.call('del', lock)
    else
        redis.call('zrem', queue, owner)
        redis.call('hdel', seen, owner)
    end
    local head, expires = first()
    if head and holder and holder ~= owner then
        tell(head, redis.call('pttl', lock))
    elseif head then
        offer_to_first(head, expires, claim)
    else
        redis.call('hdel', seen, '')
    end
    return holder == owner and 1 or holder and -1 or 0
";

/// Returns the state of a lock, and can end the hold.
///
/// KEYS: the four. ARGV: an empty text, because the caller is no owner; the time in milliseconds in
/// which the first waiting owner has to take the lock that this makes free, or -1 to leave the lock
/// as it is. Returns nothing if the lock has no owner. Otherwise it returns the owner, the rest of
/// its lease in milliseconds, its token (nothing if it has expired), and the length of the queue.
const STATE: &str = r"
    local holder, claim = redis.call('get', lock), tonumber(ARGV[2])
    if not holder then return nil end
    local token = redis.call('get', token_key)
    local state = {holder, redis.call('pttl', lock), token, redis.call('zcard', queue)}
    if claim >= 0 then
        redis.call('del', lock)
        local head, expires = first()
        if head then offer_to_first(head, expires, claim) end
    end
    return state
";

/// Renews several leases. It uses `pcall`: a key whose type another client has changed counts as
/// lost and does not affect the others. Other errors say nothing about the lock.
///
/// KEYS: the locks. ARGV: for each lock its owner and its lease in milliseconds. Returns for each
/// lock 1: renewed, 0: it has no owner, -1: it has another owner.
const RENEW: &str = r"
    local renewed = {}
    for i, lock in ipairs(KEYS) do
        local holder = redis.pcall('get', lock)
        if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE') then return holder end
        renewed[i] = holder == ARGV[2 * i - 1] and redis.call('pexpire', lock, ARGV[2 * i]) or holder and -1 or 0
    end
    return renewed
";

/// The kind of a name, and how an owner holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Lock,
    /// A read-write lock, for reading.
    Read,
    /// A read-write lock, for writing.
    Write,
    /// A permit of a semaphore that has this many.
    Permit(u32),
}

impl Kind {
    /// Returns the first part of the keys. Names of different families do not affect each other.
    fn family(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Read | Self::Write => "rwlock",
            Self::Permit(_) => "semaphore",
        }
    }

    /// Returns whether an owner with this name holds it this way.
    pub(crate) fn is_of(self, owner: &str) -> bool {
        owner.ends_with(&self.mark())
    }

    /// Returns the end of the names of its owners.
    fn mark(self) -> String {
        match self {
            Self::Lock => String::new(),
            Self::Read => format!("/{}", u32::MAX),
            Self::Write => "/w".to_owned(),
            Self::Permit(permits) => format!("/{}", permits.saturating_sub(1)),
        }
    }
}

/// The keys of a lock, a read-write lock or a semaphore.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) lock: String,
    token: String,
    queue: String,
    seen: String,
    /// Only for what several owners may hold.
    tokens: String,
    pub(crate) kind: Kind,
}

impl Keys {
    /// The part in braces decides the slot on a cluster. It is never empty, whatever the name is.
    pub(crate) fn new(prefix: &str, kind: Kind, name: &str) -> Self {
        let lock = format!("{prefix}{{{}:{name}}}", kind.family());
        let [token, queue, seen, tokens] =
            ["token", "queue", "seen", "tokens"].map(|part| format!("{lock}:{part}"));
        Self {
            lock,
            token,
            queue,
            seen,
            tokens,
            kind,
        }
    }

    /// Returns the name of the owner with this number.
    pub(crate) fn owner(&self, client: &str, number: u64) -> Arc<str> {
        format!("{client}:{number}{}", self.kind.mark()).into()
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.kind != Kind::Lock
    }

    fn all(&self) -> Vec<&str> {
        let all = [
            &self.lock,
            &self.token,
            &self.queue,
            &self.seen,
            &self.tokens,
        ];
        all.into_iter()
            .take(if self.is_shared() { 5 } else { 4 })
            .map(|key| &**key)
            .collect()
    }

    /// Returns the keys that a renewal extends.
    fn renewed(&self) -> impl Iterator<Item = &str> {
        iter::once(&*self.lock).chain(self.is_shared().then_some(&*self.tokens))
    }
}

/// Returns the channel of the messages for a client's waiting owners.
pub(crate) fn channel(prefix: &str, client: &str) -> String {
    format!("{prefix}lock-wake:{client}")
}

/// A request for the lock. Times are in milliseconds.
pub(crate) struct Request<'a> {
    pub(crate) owner: &'a str,
    pub(crate) lease: u64,
    pub(crate) fair: bool,
    /// For how long the queue keeps the owner. 0: it does not join.
    pub(crate) keep: u64,
    /// How long the first of the queue has time to take a free lock.
    pub(crate) claim: Duration,
}

/// The answer to a request for the lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted {
        token: u64,
    },
    Busy {
        /// After which time the first waiting owner may succeed, in milliseconds. `None`: unknown.
        wait: Option<u64>,
        /// How many owners should try before this one.
        place: u64,
    },
}

impl FromRedisValue for Answer {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let (token, wait, place): (u64, i64, i64) = redis::from_redis_value(value)?;
        Ok(match token {
            0 => Self::Busy {
                wait: wait.try_into().ok(),
                place: place.try_into().unwrap_or(0),
            },
            token => Self::Granted { token },
        })
    }
}

/// Which owner of a lock a renewal or a release has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The caller.
    Caller,
    NoOwner,
    OtherOwner,
}

impl FromRedisValue for Found {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        Ok(match redis::from_redis_value::<i64>(value)? {
            1 => Self::Caller,
            0 => Self::NoOwner,
            _ => Self::OtherOwner,
        })
    }
}

/// The text of a script, and its hash, by which Redis finds it.
struct Code {
    text: String,
    hash: String,
}

impl Code {
    fn new(text: String) -> Self {
        let hash = Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// A call of a script.
pub(crate) struct Call<'a> {
    code: &'a Code,
    keys: Vec<&'a str>,
    arguments: Vec<String>,
}

impl Call<'_> {
    /// Returns the command for a server that knows the script.
    pub(crate) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.code.hash)
    }

    /// Returns the command for a server that does not know the script. After it, the server does.
    pub(crate) fn by_text(&self) -> Cmd {
        self.command("EVAL", &self.code.text)
    }

    fn command(&self, name: &str, code: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command
            .arg(code)
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(&self.arguments);
        command
    }
}

/// The scripts of a client.
pub(crate) struct Scripts {
    lock: Code,
    release: Code,
    enter: Code,
    leave: Code,
    renew: Code,
    renew_shared: Code,
    state: Code,
    state_shared: Code,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self {
            lock: Code::new(format!("{COMMON}{QUEUE}{TAKE}{LOCK}")),
            release: Code::new(format!("{COMMON}{QUEUE}{RELEASE}")),
            enter: Code::new(format!("{COMMON}{QUEUE}{TAKE}{SHARED}{ENTER}")),
            leave: Code::new(format!("{COMMON}{QUEUE}{SHARED}{LEAVE}")),
            renew: Code::new(RENEW.to_owned()),
            renew_shared: Code::new(format!("{COMMON}{RENEW_SHARED}")),
            state: Code::new(format!("{COMMON}{QUEUE}{STATE}")),
            state_shared: Code::new(format!("{COMMON}{QUEUE}{SHARED}{STATE_SHARED}")),
        }
    }

    pub(crate) fn lock<'a>(&'a self, keys: &'a Keys, request: &Request<'_>) -> Call<'a> {
        let Request {
            owner,
            lease,
            fair,
            keep,
            claim,
        } = *request;
        let numbers = [lease, u64::from(fair), keep, claim.as_millis() as u64];
        let arguments = iter::once(owner.to_owned())
            .chain(numbers.map(|number| number.to_string()))
            .collect();
        let code = if keys.is_shared() {
            &self.enter
        } else {
            &self.lock
        };
        Call {
            code,
            keys: keys.all(),
            arguments,
        }
    }

    pub(crate) fn release<'a>(&'a self, keys: &'a Keys, owner: &str, claim: Duration) -> Call<'a> {
        let arguments = vec![owner.to_owned(), claim.as_millis().to_string()];
        let code = if keys.is_shared() {
            &self.leave
        } else {
            &self.release
        };
        Call {
            code,
            keys: keys.all(),
            arguments,
        }
    }

    /// If there is a time to claim the lock, the script ends the hold.
    pub(crate) fn state<'a>(&'a self, keys: &'a Keys, claim: Option<Duration>) -> Call<'a> {
        let claim = claim.map_or_else(|| "-1".to_owned(), |claim| claim.as_millis().to_string());
        Call {
            code: &self.state,
            keys: keys.all(),
            arguments: vec![String::new(), claim],
        }
    }

    /// If there is a token, the script ends the hold with it. Waiting owners have the time `claim`
    /// to enter.
    pub(crate) fn state_shared<'a>(
        &'a self,
        keys: &'a Keys,
        token: Option<u64>,
        claim: Duration,
    ) -> Call<'a> {
        let token = token.map(|token| token.to_string()).unwrap_or_default();
        let arguments = vec![String::new(), token, claim.as_millis().to_string()];
        Call {
            code: &self.state_shared,
            keys: keys.all(),
            arguments,
        }
    }

    /// Takes the key, the owner and the lease in milliseconds of each lock. They are of one kind.
    pub(crate) fn renew<'a>(&'a self, locks: &[(&'a Keys, &str, u64)]) -> Call<'a> {
        let code = if locks.iter().any(|(keys, ..)| keys.is_shared()) {
            &self.renew_shared
        } else {
            &self.renew
        };
        let keys = locks
            .iter()
            .flat_map(|&(keys, ..)| keys.renewed())
            .collect();
        // A lease of 0 would delete the lock.
        let arguments = locks
            .iter()
            .flat_map(|&(_, owner, lease)| [owner.to_owned(), lease.max(1).to_string()]);
        Call {
            code,
            keys,
            arguments: arguments.collect(),
        }
    }
}
