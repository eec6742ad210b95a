//! The Lua scripts: the one protocol of locks, read-write locks and semaphores.
//!
//! Each has four keys, all in the slot of its name on a cluster. FAMILY is `lock`, `rwlock` or
//! `semaphore`:
//!
//! | key | value |
//! |---|---|
//! | `{FAMILY:NAME}` | the *holders*, a sorted set: the score is the end of the lease by the clock of Redis. It expires with the last lease |
//! | `{FAMILY:NAME}:tokens` | the token of each holder, and in the field with an empty name the last token. It expires a day after the clock has passed it |
//! | `{FAMILY:NAME}:queue` | the waiting owners, a sorted set: the score is the time of arrival |
//! | `{FAMILY:NAME}:seen` | per waiting owner, until when the queue keeps it without another attempt |
//!
//! The prefix of the client is before the brace, in all keys and channels. It contains no braces.
//!
//! The name of an owner is `CLIENT:NUMBER/LIMIT`, and that of a client `HOLDER:RANDOM`. The *limit*
//! is how many others may hold it when this owner enters. An owner that is *alone* has the letter
//! `w` instead. Its limit is 0, and no other owner enters as long as it holds.
//!
//! | owner | limit | text |
//! |---|---|---|
//! | of a lock; a writer | 0 | `w` |
//! | a reader | 4294967295 | `4294967295` |
//! | a caller of a semaphore that has n permits, in the opinion of this caller | n − 1 | `n − 1` |
//!
//! The caller of a semaphore with one permit is not alone: a caller that knows of more permits
//! enters while it holds.
//!
//! Messages for an owner are published on the channel `lock-wake:CLIENT`. A message is
//! `OWNER MILLISECONDS`, and is only sent to waiting owners that can act on it: 0 means that it can
//! enter. More is the time after which it may be able to: the lease of another owner ends, or the
//! time of the owner before this one to enter.
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
//! Why the dead leave the queue: the first waiting owner, if the queue no longer keeps it, is removed
//! by each script. The others are removed by those that ask again: the owner behind them, or the
//! first one if there is none.
//!
//! Why all are woken: after each change, a script tells the first waiting owners that fit together,
//! or if there are none, it tells the first one when enough leases end. In case they have died, it
//! also tells the next one when their time to enter ends; again after each change, because the one
//! that was told may have left.

/// The common part of all scripts. `clock` returns milliseconds since 1970.
pub(crate) const COMMON: &str = r"
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

/// The holders and the queue, for all scripts but that of renewals.
pub(crate) const HOUSE: &str = r"
    local holders, tokens, queue, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
    -- The number of waiting owners that are examined. Those behind them are told by these.
    local MANY = 64
    -- Returns whether there were any.
    local function remove(set, hash, ...)
        return redis.call('zrem', set, ...) > 0 and redis.call('hdel', hash, ...)
    end
    -- The number of holders, the one whose lease ends first, the end of that, and whether it is alone.
    local held, holder, ends, is_closed
    local function look()
        holder, ends = unpack(redis.call('zrange', holders, 0, 0, 'withscores'))
        if holder and tonumber(ends) <= clock() then
            -- Lua limits the number of arguments.
            local ended = redis.call('zrangebyscore', holders, '-inf', clock(), 'limit', 0, 1000)
            remove(holders, tokens, unpack(ended))
            return look()
        end
        is_closed = holder and is_alone(holder)
        held = is_closed and 1 or holder and redis.call('zcard', holders) or 0
    end
    local function fits(owner)
        return not is_closed and held <= limit(owner)
    end
    -- The time in milliseconds after which enough leases have ended for an owner that does not fit.
    local function wait(owner)
        local last = is_closed and 0 or held - limit(owner) - 1
        return (last > 0 and redis.call('zrange', holders, last, last, 'withscores')[2] or ends) - clock()
    end
    -- Until when the queue keeps an owner. Removes one that it no longer keeps.
    local function kept(owner)
        local expires = tonumber(redis.call('hget', seen, owner) or 0)
        if expires > clock() then return expires end
        remove(queue, seen, owner)
    end
    -- The first waiting owner that the queue keeps, and until when. Not removed: the caller.
    local function first()
        local head = redis.call('zrange', queue, 0, 0)[1]
        local expires = not head or head == ARGV[1] or kept(head)
        if not expires then return first() end
        return head, expires
    end
    local function client(owner)
        return string.match(owner, '^(.*):')
    end
    -- A client without permission to publish has to poll.
    local function tell(owner, milliseconds)
        local channel = string.match(holders, '^[^{]*') .. 'lock-wake:' .. client(owner)
        redis.pcall('publish', channel, owner .. ' ' .. milliseconds)
    end
    -- Tells the first waiting owners that fit together, and limits their time to enter. `again`: also
    -- those that were told before. `head`: the first one, if it is known.
    local function wake(claim, again, head)
        head = head or first()
        -- Nothing is kept for a queue that is empty, or that Redis has lost.
        if not head then return redis.call('pexpire', seen, 0) end
        if not fits(head) then return tell(head, wait(head)) end
        local waiting, count = redis.call('zrange', queue, 0, 2 * MANY - 1), 1
        while count < MANY and not is_alone(head) and waiting[count + 1]
            and held + count <= limit(waiting[count + 1]) do count = count + 1 end
        local kept, expires = redis.call('hmget', seen, '', unpack(waiting, 1, count)), nil
        for i = 1, count do
            expires = tonumber(kept[i + 1] or 0)
            if again or expires > clock() + claim then
                expires = math.min(expires, clock() + claim)
                redis.call('hset', seen, waiting[i], string.format('%.0f', expires))
                tell(waiting[i], 0)
            end
        end
        -- Tells the next one when the time of these ends, which may have died. All owners of a client
        -- die together, so it tells the first one of another client, if there is one among the next.
        local behind = count + 1
        while waiting[behind] and client(waiting[behind]) == client(head) do behind = behind + 1 end
        local warned = waiting[behind] or waiting[count + 1]
        -- Not after each release: a message wakes the waiting caller. The field with an empty name has
        -- the last owner that was told, and the time at which it tries. It is removed with the queue.
        local told, at = string.match(kept[1] or '', '^(.*) (%d+)$')
        if not warned or told == warned and tonumber(at) * 2 > clock() + expires then return end
        redis.call('hset', seen, '', string.format('%s %.0f', warned, expires))
        tell(warned, math.max(expires - clock(), 1))
    end
";

/// Enters, or joins the queue.
///
/// KEYS: the four. ARGV: the owner, the lease in milliseconds, 1 if callers may not overtake the
/// queue, the time for which the queue keeps the owner in milliseconds (0: it does not join), the
/// time in milliseconds in which the first waiting owners have to enter when they fit.
/// Returns the token. Or it returns 0, the number of milliseconds after which the first waiting
/// owner may succeed, and how many owners should try before this one.
///
/// A token is the server's clock in microseconds, or the last token plus one if the clock is
/// behind. Therefore tokens increase even if Redis has lost its data. (Numbers in Lua have 53 bits:
/// 285 years of microseconds since 1970. A greater token has no successor, so there is an error.)
///
/// `is_in` is a call that is repeated after a lost answer. It gets another token, because no caller
/// has seen the first one.
pub(crate) const ENTER: &str = r"
    local owner, lease, fair, keep, claim = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
    look()
    local is_in = holder == owner or held > 1 and redis.call('zscore', holders, owner)
    local head, reserved
    if is_in or fits(owner) then head, reserved = first() end
    -- Whether the owner fits, and takes nothing from those that wait.
    local function passes()
        if not fits(owner) then return false end
        if not head or head == owner then return true end
        if fair == '0' then return limit(owner) <= limit(head) end
        if limit(owner) == 0 then return false end
        local waiting, others = redis.call('zrange', queue, 0, MANY - 1), held
        for _, before in ipairs(waiting) do
            if before == owner then return others <= limit(owner) end
            if others > limit(before) or is_alone(before) then return false end
            others = others + 1
        end
        return #waiting < MANY and others <= limit(owner)
    end
    if is_in or passes() then
        clock()
        local now = time[1] * 1000000 + time[2]
        local token = math.max(now, (redis.call('hget', tokens, '') or 0) + 1)
        if token >= 9007199254740992 then
            return redis.error_reply('ERR the last token of the lock has no successor')
        end
        local text = string.format('%.0f', token)
        -- First: Redis without memory refuses it, and nothing after it.
        local till = clock() + 1 + lease
        redis.call('zadd', holders, string.format('%.0f', till), owner)
        redis.call('pexpire', holders, math.max(held > 0 and redis.call('pttl', holders) or 0, lease + 1))
        -- The last holders may have expired with their key, before a script took their tokens.
        if held == 0 then redis.call('pexpire', tokens, 0) end
        redis.call('hset', tokens, '', text, owner, text)
        -- While the clock is behind, only this key makes tokens increase.
        local behind = math.floor((token - now) / 1000000)
        redis.call('pexpire', tokens, (86400 + behind) * 1000)
        if head then
            remove(queue, seen, owner)
            held, is_closed, ends = held + (is_in and 0 or 1), is_alone(owner), math.min(ends or till, till)
            wake(claim, false)
        end
        return {token, 0, 0}
    end
    local place = 0
    if keep > 0 then
        redis.call('hset', seen, owner, string.format('%.0f', clock() + keep))
        place = redis.call('zrank', queue, owner)
        local is_clean = not place
        local arrival = string.format('%.0f', time[1] * 1000000 + time[2])
        place = place or redis.call('zadd', queue, arrival, owner) and redis.call('zrank', queue, owner)
        if redis.call('pttl', queue) < keep then
            redis.call('pexpire', queue, keep * 2)
            redis.call('pexpire', seen, keep * 2)
        end
        -- Owners that have died behind others may never be the first. So each caller that asks again
        -- removes those right before it, and the first one those at the end.
        while not is_clean do
            local other = redis.call('zrange', queue, place - 1, place - 1)[1]
            is_clean = other == owner or kept(other)
            if not is_clean and place > 0 then place = place - 1 end
        end
    end
    if not (head or is_closed) then head, reserved = first() end
    if not head or not fits(head) then
        local after = wait(head or owner)
        -- It only waits for the first one, which may have died and then loses its place.
        if head and fits(owner) then after = math.min(after, reserved - clock()) end
        return {0, after, place}
    end
    -- The first waiting owner may not know that it may enter: leases ended, Redis deleted them, or a
    -- release told an owner that has lost its place since.
    -- One that was told is the only one that fits if it is alone.
    if reserved > clock() + claim or not is_alone(head) then wake(claim, false, head) end
    return {0, math.min(reserved, clock() + claim) - clock(), 0}
";

/// Leaves, as a holder or in the queue, and wakes waiting owners.
///
/// KEYS: the four. ARGV: the owner, the time in milliseconds in which the first waiting owners have
/// to enter when they fit. If they are later, they have lost their places. Returns 1: it was a
/// holder, 0: it was none, -1: it was none, and others hold so much that it does not fit.
pub(crate) const LEAVE: &str = r"
    local owner, claim = ARGV[1], tonumber(ARGV[2])
    local was_in = remove(holders, tokens, owner)
    if not was_in then remove(queue, seen, owner) end
    -- Nobody else was in with an owner that is alone.
    if was_in and is_alone(owner) then held = 0 else look() end
    wake(claim, was_in)
    return was_in and 1 or fits(owner) and 0 or -1
";

/// Returns the state, and can end the hold of one holder.
///
/// KEYS: the four. ARGV: an empty text, because the caller is no owner; the token of the hold that
/// ends, `*` for any, or an empty text; the time in milliseconds in which waiting owners have to
/// enter after it. Returns the length of the queue before, and the holders, or only the one whose
/// hold has ended. For each it returns the owner, the rest of its lease in milliseconds, and its
/// token.
pub(crate) const STATE: &str = r"
    local wanted, claim = ARGV[2], tonumber(ARGV[3])
    look()
    local waiting, found = redis.call('zcard', queue), {}
    local all = redis.call('zrange', holders, 0, -1, 'withscores')
    for i = 1, #all, 2 do
        local token = redis.call('hget', tokens, all[i])
        if wanted == '' or wanted == '*' or wanted == token then
            found[#found + 1] = {all[i], all[i + 1] - clock(), token}
        end
    end
    if wanted ~= '' and found[1] then
        remove(holders, tokens, found[1][1])
        look()
        wake(claim, true)
    end
    return {waiting, found}
";

/// Renews several leases. It uses `pcall`: a key whose type another client has changed counts as
/// lost and does not affect the others. Other errors say nothing about the lock. It extends each
/// set first: Redis without memory executes that, and everything after it.
///
/// KEYS: the sets of holders: one key for each lock, because Redis executes no call with several
/// while a slot of a cluster moves. ARGV: for each set an owner and its lease in milliseconds.
/// Returns for each 1: renewed, 0: it is no holder, -1: it is none, and others hold so much that it
/// does not fit.
pub(crate) const RENEW: &str = r"
    local renewed = {}
    for i, holders in ipairs(KEYS) do
        local owner, lease = ARGV[2 * i - 1], ARGV[2 * i]
        local ends = redis.pcall('zscore', holders, owner)
        if type(ends) == 'table' then
            if not string.find(ends.err, 'WRONGTYPE') then return ends end
            renewed[i] = -1
        elseif ends and tonumber(ends) > clock() then
            redis.call('pexpire', holders, math.max(redis.call('pttl', holders), lease + 1))
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
