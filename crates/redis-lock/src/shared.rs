//! The Lua scripts of what several owners may hold at the same time: read-write locks and
//! semaphores.
//!
//! The first key of `scripts.rs` is a sorted set here: the *holders*, each with the end of its
//! lease by the clock of Redis. A fifth key, `{…}:tokens`, is a hash with the token of each holder.
//! It is only for the state, and expires with the set. The last token, the queue and its messages
//! are those of a lock.
//!
//! The name of an owner is `CLIENT:NUMBER/LIMIT`. The *limit* is how many others may hold it when
//! this owner enters. A writer has the letter `w` instead. Its limit is 0, and it is *alone*: no
//! other owner enters as long as it holds.
//!
//! | owner | limit | text |
//! |---|---|---|
//! | a writer | 0 | `w` |
//! | a reader | 4294967295 | `4294967295` |
//! | a caller of a semaphore that has n permits, in the opinion of this caller | n − 1 | `n − 1` |
//!
//! The caller of a semaphore with one permit is not alone: a caller that knows of more permits
//! enters while it holds.
//!
//! Why there are never too many holders: a script is executed alone. Each script first removes the
//! holders whose leases have ended. It adds an owner only if it *fits*: there are at most as many
//! holders as its limit, and none of them is alone. So a writer enters only without holders, and
//! afterwards no owner fits. An owner with n permits enters only as the n-th holder at most. A
//! renewal changes the end of a lease that has not ended, and adds no owner.
//!
//! Why writers do not starve: no owner overtakes a waiting one with a smaller limit. So no reader
//! enters while a writer is the first of the queue. With the fair option, an owner overtakes only
//! those that fit together with it. A writer that has died does not try again, and loses its place
//! after a lease.
//!
//! Why all are woken: after each change, a script tells the first waiting owners that fit together,
//! or if there are none, it tells the first one when enough leases end. In case they have died, it
//! also tells the next one when their time to enter ends; again after each change, because the one
//! that was told may have left.

/// The common part of the scripts but that of renewals.
pub(crate) const SHARED: &str = r"
    local holders, tokens = lock, KEYS[5]
    -- The number of waiting owners that are examined. Those behind them are told by these.
    local MANY = 64
    -- The number of holders, and whether one of them is alone.
    local held, is_closed
    local function look()
        local first = redis.call('zrange', holders, 0, 0, 'withscores')
        while first[2] and tonumber(first[2]) <= clock() do
            -- Lua limits the number of arguments.
            local ended = redis.call('zrangebyscore', holders, '-inf', clock(), 'limit', 0, 1000)
            redis.call('zrem', holders, unpack(ended))
            redis.call('hdel', tokens, unpack(ended))
            first = redis.call('zrange', holders, 0, 0, 'withscores')
        end
        held = redis.call('zcard', holders)
        is_closed = held > 0 and is_alone(first[1])
    end
    local function fits(owner)
        return not is_closed and held <= limit(owner)
    end
    -- The time in milliseconds after which enough leases have ended for the owner to fit.
    -- Negative: unknown.
    local function wait(owner)
        local last = is_closed and 0 or math.max(held - limit(owner), 1) - 1
        local ends = redis.call('zrange', holders, last, last, 'withscores')[2]
        return ends and ends - clock() or -1
    end
    -- Tells the first waiting owners that fit together. `again`: also those that were told before.
    local function wake(claim, again)
        local head = first()
        if not head then return redis.call('hdel', seen, '') end
        if not fits(head) then return tell(head, wait(head)) end
        local waiting, others = redis.call('zrange', queue, 0, MANY - 1), held
        local all_expire = redis.call('hmget', seen, unpack(waiting))
        local count, last = 0, nil
        for i, owner in ipairs(waiting) do
            if others > limit(owner) then break end
            local expires = tonumber(all_expire[i] or 0)
            if again or expires > clock() + claim then expires = offer(owner, expires, claim) end
            count, others, last = i, others + 1, expires
            if is_alone(owner) then break end
        end
        if last then warn(count, last) end
    end
";

/// Enters, or joins the queue.
///
/// KEYS: the five. ARGV as for a lock, and the same answer. `is_in` is a call that is repeated
/// after a lost answer. It gets another token, because no caller has seen the first one.
pub(crate) const ENTER: &str = r"
    local owner, lease, fair, keep, claim = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
    -- Whether the owner fits, and takes nothing from those that wait.
    local function passes()
        local head = first()
        if not fits(owner) then return false end
        if not head or head == owner then return true end
        if fair == '0' then return limit(owner) <= limit(head) end
        local waiting, others = redis.call('zrange', queue, 0, MANY - 1), held
        for _, before in ipairs(waiting) do
            if before == owner then return others <= limit(owner) end
            if others > limit(before) or is_alone(before) then return false end
            others = others + 1
        end
        return #waiting < MANY and others <= limit(owner)
    end
    look()
    local is_in = held > 0 and redis.call('zscore', holders, owner)
    if is_in or passes() then
        local token, no_token = next_token()
        if no_token then return no_token end
        redis.call('zadd', holders, string.format('%.0f', clock() + 1 + lease), owner)
        local rest = math.max(redis.call('pttl', holders), lease + 1)
        redis.call('pexpire', holders, rest)
        redis.call('hset', tokens, owner, string.format('%.0f', token))
        redis.call('pexpire', tokens, rest)
        if redis.call('zrem', queue, owner) == 1 then redis.call('hdel', seen, owner) end
        look()
        wake(claim, false)
        return {token, 0, 0}
    end
    local place = 0
    if keep > 0 then place = join(owner, keep) end
    local head, reserved = first()
    if not head or not fits(head) then
        local after = wait(head or owner)
        -- It only waits for the first one, which may have died and then loses its place.
        if head and fits(owner) then after = math.min(after, reserved - clock()) end
        return {0, after, place}
    end
    -- The first waiting owner may not know that it may enter: leases ended, or a release told an
    -- owner that has lost its place since.
    wake(claim, false)
    return {0, math.min(reserved, clock() + claim) - clock(), 0}
";

/// Leaves, as a holder or in the queue, and wakes waiting owners.
///
/// KEYS: the five. ARGV as for the release of a lock. Returns 1: it was a holder, 0: it was none,
/// -1: it was none, and others hold so much that it does not fit.
pub(crate) const LEAVE: &str = r"
    local owner, claim = ARGV[1], tonumber(ARGV[2])
    look()
    local was_in = redis.call('zrem', holders, owner) == 1
    redis.call('hdel', tokens, owner)
    redis.call('zrem', queue, owner)
    redis.call('hdel', seen, owner)
    look()
    wake(claim, was_in)
    return was_in and 1 or fits(owner) and 0 or -1
";

/// Returns the state, and can end the hold of one holder.
///
/// KEYS: the five. ARGV: an empty text, because the caller is no owner; the token of the hold that
/// ends, or an empty text; the time in milliseconds in which waiting owners have to enter after it.
/// Returns the length of the queue before, and the holders, or only the one whose hold has ended.
/// For each it returns the owner, the rest of its lease in milliseconds, and its token.
pub(crate) const STATE_SHARED: &str = r"
    local wanted, claim = ARGV[2], tonumber(ARGV[3])
    look()
    local waiting, found = redis.call('zcard', queue), {}
    local all = redis.call('zrange', holders, 0, -1, 'withscores')
    for i = 1, #all, 2 do
        local token = redis.call('hget', tokens, all[i])
        if wanted == '' or wanted == token then
            found[#found + 1] = {all[i], all[i + 1] - clock(), token}
        end
    end
    if wanted ~= '' and found[1] then
        redis.call('zrem', holders, found[1][1])
        redis.call('hdel', tokens, found[1][1])
        look()
        wake(claim, true)
    end
    return {waiting, found}
";

/// Renews several leases, like the script for locks. It extends each key first: Redis without
/// memory executes that, and everything after it.
///
/// KEYS: the sets of holders, each before its tokens. ARGV: for each set an owner and its lease in
/// milliseconds. Returns for each 1: renewed, 0: it is no holder, -1: it is none, and others hold
/// so much that it does not fit.
pub(crate) const RENEW_SHARED: &str = r"
    local renewed = {}
    for i = 1, #KEYS / 2 do
        local holders, tokens, owner, lease = KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i - 1], ARGV[2 * i]
        local ends = redis.pcall('zscore', holders, owner)
        if type(ends) == 'table' then
            if not string.find(ends.err, 'WRONGTYPE') then return ends end
            renewed[i] = -1
        elseif ends and tonumber(ends) > clock() then
            redis.call('pexpire', holders, math.max(redis.call('pttl', holders), lease + 1))
            redis.call('pexpire', tokens, redis.call('pttl', holders))
            redis.call('zadd', holders, 'xx', string.format('%.0f', clock() + 1 + lease), owner)
            renewed[i] = 1
        else
            local other = redis.call('zrange', holders, 0, 0)[1]
            local is_full = other and (is_alone(other) or redis.call('zcard', holders) > limit(owner))
            renewed[i] = is_full and -1 or 0
        end
    end
    return renewed
";
