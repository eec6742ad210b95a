-- The state that the nodes share. All times are those of this database's clock, all durations are
-- microseconds. `@` stands for the schema.
--
-- A node keeps its plans, also those that were made while the tables were small. Then a plan that
-- reads a whole index of `job`, `run` or `slot` is as good as a search for each row. So statements
-- are written in such a way that they have no such plan:
--
-- - They join by `id = ANY (ARRAY[other.id])`, because there is no merge join or hash join with it.
-- - They ask `COALESCE((SELECT false ...), true)`, because `NOT EXISTS (...)` may become a join.
-- - A partial index can be read as a whole if its condition follows from the statement. So that of
--   `run_blocked_of_job` has a part that only the statement for this index has: `job > 0`, which
--   holds for all jobs.

-- Whether this is an object with whole numbers from 1 to 1000: without a fraction, which
-- `limits_of` cannot convert. The names are parts of an index, which has limits.
CREATE FUNCTION @are_limits(limits jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(limits) = 'object' THEN (
            SELECT count(*) <= 8 AND COALESCE(bool_and(octet_length(entry.key) BETWEEN 1 AND 255
                AND entry.value::text ~ '^([1-9][0-9]{0,2}|1000)$'), true)
            FROM jsonb_each(limits) AS entry)
        ELSE limits IS NULL END
$$;

-- The jobs and their next due times. The limits here hold for all callers of `put_jobs`: a job that
-- exceeds them would end one node after the other. No duration exceeds a century, so that its sums
-- with times stay in range.
CREATE TABLE @job (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- At most one unfinished job has this key. NULL: none. The index has limits.
    key            text UNIQUE CHECK (octet_length(key) <= 1000),
    handler        text NOT NULL CHECK (octet_length(handler) BETWEEN 1 AND 1000),
    payload        jsonb NOT NULL,
    -- As the nodes read it. (The stored size is no bound, because it may be compressed.) More than
    -- 16 MiB might not get through within a lease, on any node. The library has a lower limit;
    -- there are no spaces in its text, and numbers have exponents.
    payload_bytes  integer NOT NULL GENERATED ALWAYS AS (octet_length(payload::text)) STORED
        CONSTRAINT payload_too_large CHECK (payload_bytes <= 16 * 1024 * 1024),
    -- 'once', 'every 500ms', 'cron 0 30 3 * * *' (with seconds). A node reads many at a time.
    schedule       text NOT NULL CHECK (octet_length(schedule) <= 2000),
    -- The time zone of a cron pattern, in the names of the IANA database.
    time_zone      text NOT NULL CHECK (octet_length(time_zone) <= 255),
    -- Each run starts at a random time within this duration after it is due.
    jitter_us      bigint NOT NULL CHECK (jitter_us BETWEEN 0 AND 3162240000000000),
    -- The treatment of due times that had no node for too long.
    misfire        text NOT NULL CHECK (misfire IN ('skip', 'run once', 'run all')),
    -- The treatment of a run that is due while another run of the job is running.
    overlap        text NOT NULL CHECK (overlap IN ('allow', 'skip', 'wait')),
    -- The names that it shares with other jobs, and how many of their runs may be running:
    -- {"tenant-7": 1}.
    limits         jsonb CONSTRAINT invalid_limits CHECK (@are_limits(limits)),
    -- Of runs that are due, those with a higher one start first.
    priority       smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN -5 AND 5),
    -- How often a failed run is repeated, and after which pause: it doubles up to the maximum.
    retries        integer NOT NULL CHECK (retries >= 0),
    retry_first_us bigint NOT NULL CHECK (retry_first_us BETWEEN 0 AND 3162240000000000),
    retry_max_us   bigint NOT NULL CHECK (retry_max_us BETWEEN 0 AND 3162240000000000),
    -- NULL: no limit.
    timeout_us     bigint CHECK (timeout_us BETWEEN 1 AND 3162240000000000),
    -- A run that was interrupted more often is not repeated.
    max_interruptions integer NOT NULL DEFAULT 10 CHECK (max_interruptions >= 0),
    -- The start as it was given: after a delay, or at a time.
    delay_us       bigint CHECK (delay_us BETWEEN 0 AND 3162240000000000),
    given_start    timestamptz,
    -- The first due time of the schedule. A `next_run` before it is one that the schedule had
    -- before it was changed, and that no node has read.
    first_run      timestamptz NOT NULL CHECK (isfinite(first_run) AND first_run < '9999-12-30 00:00:00+00'),
    -- The first due time that is not claimed. NULL: there is none. The nodes cannot read
    -- times after 9999-12-30 22:00.
    next_run       timestamptz CHECK (isfinite(next_run) AND next_run < '9999-12-30 00:00:00+00'),
    enabled        boolean NOT NULL DEFAULT true,
    -- False: `first_run` is not a due time. The pattern has its first due time there or later, and
    -- a node computes it. (SQL cannot.)
    is_planned     boolean NOT NULL DEFAULT true,
    -- Whether the nodes are notified when it is due soon.
    notifies       boolean NOT NULL DEFAULT true,
    -- Why a node has disabled the job.
    disabled_reason        text
);
-- By handler, because a node has handlers for some jobs only. There may be many that are due and
-- wait for a node with their handler. By priority, because there may be many that are due: a node
-- reads one priority after the other.
CREATE INDEX job_due ON @job (handler, priority, next_run) WHERE enabled AND next_run IS NOT NULL AND is_planned;
CREATE INDEX job_unplanned ON @job (handler, next_run) WHERE enabled AND next_run IS NOT NULL AND NOT is_planned;

-- The limits of handlers.
CREATE TABLE @kind (
    handler text PRIMARY KEY,
    -- How many runs may be running. NULL: no limit.
    running integer CHECK (running BETWEEN 1 AND 1000),
    -- A run starts in each of these intervals, and this many at once. NULL: no limit.
    interval_us bigint CHECK (interval_us > 0),
    burst   integer NOT NULL DEFAULT 1 CHECK (burst BETWEEN 1 AND 100000),
    -- At most a century, so that its sums with times stay in range.
    CHECK (interval_us * burst::numeric <= 3162240000000000)
);
-- The limits of names that `limits` of jobs contain. For those that are not here, the numbers of the
-- jobs hold.
CREATE TABLE @named_limit (
    name    text PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 255),
    running integer NOT NULL CHECK (running BETWEEN 1 AND 1000)
);
-- The clocks of the rates of handlers: see `take_turns`. Only nodes write this table.
CREATE TABLE @pace (
    handler text PRIMARY KEY,
    planned timestamptz NOT NULL DEFAULT 'epoch',
    started timestamptz NOT NULL DEFAULT 'epoch'
);

-- The nodes. A row is deleted after other nodes have taken over all runs of a lost one. Ids are not
-- reused.
CREATE TABLE @node (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL,
    -- The longest time between two regular reads.
    heartbeat_us bigint NOT NULL DEFAULT 0,
    -- Whether it receives notifications.
    listens     boolean NOT NULL DEFAULT true,
    -- The handlers whose runs it executes. None: it is ending, or lost.
    handlers    text[] NOT NULL DEFAULT '{}',
    -- The run that it watches, or has watched last: see `1_interruptions.sql`.
    suspect     bigint,
    alive_until timestamptz NOT NULL CHECK (isfinite(alive_until) AND alive_until < '9999-12-30 00:00:00+00')
);

-- The runs and their results. While a run is claimed or running, its owner has a row in `node`.
CREATE TABLE @run (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job          bigint NOT NULL REFERENCES @job ON DELETE CASCADE,
    due          timestamptz NOT NULL,
    -- Not earlier: `due` and the jitter, or the time of a retry.
    start_at     timestamptz NOT NULL,
    handler      text NOT NULL,
    -- waiting: for any node. claimed: by the owner, until `start_at`. blocked: until it gets a
    -- place in `slot`, of the name `blocked_on`, or a turn.
    state        text NOT NULL CHECK (state IN
        ('waiting', 'claimed', 'running', 'blocked', 'done', 'failed', 'skipped', 'cancelled',
        'abandoned')),
    blocked_on   text,
    -- Whether it may start at `start_at` by the rate of its handler.
    has_turn     boolean NOT NULL DEFAULT false,
    priority     smallint NOT NULL DEFAULT 0,
    owner        bigint,
    -- The number of this execution: 1, plus the failures and the interruptions before it.
    attempt      integer NOT NULL DEFAULT 1,
    -- The number of nodes that were lost during the run. From 1 on, an execution may have been done
    -- partially or completely without a result.
    interrupted  integer NOT NULL DEFAULT 0,
    -- Of these interruptions, the ones that do not count for `max_interruptions`: see
    -- `1_interruptions.sql`.
    excused      integer NOT NULL DEFAULT 0,
    -- How often another node took over the run, whether it was running or only claimed.
    taken_over   integer NOT NULL DEFAULT 0,
    -- For a misfire: it stands for all due times before this one.
    misses_until timestamptz,
    -- Requested by `run_now` or `retry`, not by the schedule.
    is_manual    boolean NOT NULL DEFAULT false,
    -- Cancelled while it was running. It is not repeated, and ends as cancelled.
    is_cancelled boolean NOT NULL DEFAULT false,
    -- That of the job when the run started, if the job was replaced since then.
    payload      jsonb,
    payload_bytes integer GENERATED ALWAYS AS (octet_length(payload::text)) STORED,
    started      timestamptz,
    finished     timestamptz,
    output       jsonb,
    -- Why the last execution failed, or why the run was skipped.
    error        text,
    -- The last 20 executions that have failed: attempt, node, started, ended, error.
    failures     jsonb,
    -- A due time has one run, even if `next_run` was set back.
    UNIQUE (job, due),
    -- The nodes cannot read others.
    CHECK (LEAST(due, start_at, misses_until, started, finished) > '-infinity'
        AND GREATEST(due, start_at, misses_until, started, finished) < '9999-12-30 00:00:00+00'),
    CHECK (owner IS NOT NULL OR state NOT IN ('claimed', 'running')),
    CHECK ((blocked_on IS NOT NULL) = (state = 'blocked'))
);
-- With the handler: a node does not read those of lost nodes that it cannot execute.
CREATE INDEX run_owned ON @run (owner, handler) WHERE state IN ('claimed', 'running');
CREATE INDEX run_cancelled ON @run (owner) WHERE state = 'running' AND is_cancelled;
-- As `job_due`.
CREATE INDEX run_waiting ON @run (handler, priority, start_at) WHERE state = 'waiting';
CREATE INDEX run_blocked ON @run (blocked_on, handler, priority DESC, due, id) WHERE state = 'blocked';
CREATE INDEX run_blocked_of_job ON @run (job) WHERE state = 'blocked' AND job > 0;
CREATE INDEX run_finished ON @run (finished, id) WHERE finished IS NOT NULL;
-- For the page of failures. Only a failure writes it.
CREATE INDEX run_failed ON @run (finished, id) WHERE state IN ('failed', 'abandoned');

-- The places of runs whose number is limited. Only nodes write this table. Place 1 is also the lock
-- of its name: see `limits_of`. No foreign keys: a check of one would fail a whole batch if a job
-- is deleted meanwhile, and a place is not free before the execution of its run has ended.
CREATE TABLE @slot (
    name  text NOT NULL,
    place integer NOT NULL,
    -- An unfinished run. NULL: the place is free.
    run   bigint,
    -- The node that has started the run.
    node  bigint,
    PRIMARY KEY (name, place),
    CHECK (run IS NOT NULL OR place = 1)
);
CREATE INDEX slot_run ON @slot (run);

-- These are functions, because a statement that one client sends holds its locks only while the
-- server executes it. A node that is stopped between two statements of a transaction would hold
-- them. Each statement in a function sees what was committed before that statement.
--
-- An application may pause, replace or delete a job in a long transaction. A node must not wait for
-- its locks, because the other runs would wait too, and finally the lease of the node would end.
-- Therefore the functions of a node skip what is locked, and the node tries again later. A lock
-- that is taken between two of their statements is waited for, but not for long.

-- Claims runs for a node that is alive, at most `room`: those of lost nodes, unless only some
-- priorities are wanted, and then those without an owner that start within `ahead`. A run that
-- another client has locked is claimed later. Of those without an owner, it claims at most
-- `the_rooms` of each handler, and none if it takes over: that changes the rooms.
--
-- It returns also the runs that it takes over for any node, because they pause (`is_mine` is false).
--
-- The lock of the row of the node keeps others from taking its runs over, and does not delay the
-- renewal of its lease.
CREATE FUNCTION @claim_runs(the_node bigint, the_handlers text[], ahead bigint, room bigint, the_priority integer,
    the_rooms bigint[])
RETURNS TABLE (id bigint, job bigint, handler text, due timestamptz, start_at timestamptz, attempt integer,
    interrupted integer, excused integer, misses_until timestamptz, priority smallint, is_taken_over boolean, is_mine boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    horizon timestamptz := clock_timestamp() + ahead * interval '1 microsecond';
    lost bigint[];
    count bigint;
BEGIN
    PERFORM FROM @node node WHERE node.id = the_node AND node.alive_until > clock_timestamp() FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF the_priority <= -5 THEN
        -- A node that is claiming runs or taking over has locked its own row, and is skipped.
        SELECT array_agg(dead.id) INTO lost FROM (
            SELECT node.id FROM @node node
            WHERE node.alive_until <= clock_timestamp() AND node.id <> the_node FOR UPDATE SKIP LOCKED
        ) AS dead;
    END IF;
    IF lost IS NOT NULL THEN
        -- A new statement: it sees everything that the lost nodes wrote before they were locked. A run
        -- that starts after a pause waits for any node.
        RETURN QUERY
        WITH taken AS (
            UPDATE @run run
            SET owner = CASE WHEN left_over.pause IS NULL THEN the_node END,
                state = CASE WHEN left_over.pause IS NULL THEN 'claimed' ELSE 'waiting' END,
                start_at = COALESCE(clock_timestamp() + left_over.pause, run.start_at),
                taken_over = run.taken_over + 1,
                attempt = run.attempt + CASE run.state WHEN 'running' THEN 1 ELSE 0 END,
                interrupted = run.interrupted + CASE run.state WHEN 'running' THEN 1 ELSE 0 END,
                excused = run.excused + CASE WHEN left_over.counts THEN 0 ELSE 1 END
            FROM (
                SELECT owned.id, owned.counts, CASE WHEN owned.counts AND owned.state = 'running'
                    THEN @pause_of(owned.job, owned.interrupted - owned.excused + 1) END AS pause
                FROM (
                    SELECT run.id, run.job, run.state, run.interrupted, run.excused,
                        run.state <> 'running' OR @counts(run.id, run.owner) AS counts
                    FROM (
                        SELECT found.* FROM unnest(lost) AS dead (id), unnest(the_handlers) AS known (handler), LATERAL (
                            SELECT run.id, run.owner, run.state FROM @run run
                            WHERE run.owner = dead.id AND run.handler = known.handler
                                AND run.state IN ('claimed', 'running') OFFSET 0
                        ) AS found
                    -- No `=`: there is an index of owners, of which only these handlers are read.
                    ) AS found JOIN @run run ON run.id = ANY (ARRAY[found.id])
                        AND (run.owner, run.state) IS NOT DISTINCT FROM (found.owner, found.state)
                    ORDER BY run.priority DESC, run.start_at LIMIT room
                    FOR UPDATE OF run SKIP LOCKED
                ) AS owned
            ) AS left_over
            WHERE run.id = ANY (ARRAY[left_over.id])
            RETURNING run.*
        )
        SELECT taken.id, taken.job, taken.handler, taken.due, taken.start_at, taken.attempt, taken.interrupted,
            taken.excused, taken.misses_until, taken.priority, true, taken.state = 'claimed'
        FROM taken;
        GET DIAGNOSTICS count = ROW_COUNT;
        -- The runs of the others are for nodes with free capacity.
        DELETE FROM @node node WHERE node.id = ANY (lost) AND COALESCE((
            SELECT false FROM @run run WHERE run.owner = node.id AND run.state IN ('claimed', 'running') LIMIT 1), true);
        IF count > 0 THEN
            RETURN;
        END IF;
    END IF;
    -- Runs that were given back, or that are repeated, or that were requested. They are searched for
    -- each handler on its own, one priority after the other, and then locked until there are enough:
    -- more of them are found than needed, because other clients lock the first ones. First as many
    -- as each handler may have, and then the others. If these are locked instead of the first ones,
    -- only as many remain.
    --
    -- An application may lock many of those that are found of a handler. Then this handler is searched
    -- again for runs that are not locked, however many there are before. Only then, because this locks
    -- as many as the handler may have.
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT sorted.*, row_number() OVER () AS rank
        FROM (
            SELECT found.*, known.*, row_number() OVER each AS number
            FROM unnest(the_handlers, the_rooms) AS known (handler, most), LATERAL (
                SELECT found.* FROM generate_series(5, the_priority, -1) AS level (priority), LATERAL (
                    SELECT run.id, run.priority, run.start_at FROM @run run
                    WHERE run.state = 'waiting' AND run.handler = known.handler
                        AND run.priority = level.priority AND run.start_at <= horizon
                    ORDER BY run.start_at LIMIT 4 * LEAST(room, known.most)
                ) AS found
                LIMIT 4 * LEAST(room, known.most)
            ) AS found
            WINDOW each AS (PARTITION BY known.handler ORDER BY found.priority DESC, found.start_at)
            ORDER BY row_number() OVER each > known.most, found.priority DESC, found.start_at LIMIT 4 * room
        ) AS sorted
    ), first AS MATERIALIZED (
        -- No `=`: there is an index of those that wait.
        SELECT found.* FROM found JOIN @run run
            ON run.id = ANY (ARRAY[found.id]) AND run.state IS NOT DISTINCT FROM 'waiting'
        ORDER BY found.rank LIMIT room
        FOR UPDATE OF run SKIP LOCKED
    ), hidden AS MATERIALIZED (
        -- All that were found of these have been tried, and there may be more: the search of the
        -- handler found as many as it may, or those of others have left no place for them.
        SELECT known.*, locked.missing
        FROM unnest(the_handlers, the_rooms) AS known (handler, most), LATERAL (
            SELECT count(*) AS count, max(found.rank) AS last FROM found WHERE found.handler = known.handler
        ) AS own, LATERAL (
            -- More may be locked than the handler may have.
            SELECT LEAST(room, known.most) - count(*) AS missing FROM first WHERE first.handler = known.handler
        ) AS locked, (
            -- Those that are more than a handler may have are not claimed.
            SELECT COALESCE(sum(LEAST(taken.count, taken.most)), 0) >= room AS is_full,
                COALESCE(sum(taken.count), 0) >= room AS is_cut, max(taken.last) AS last
            FROM (
                SELECT first.most, count(*) AS count, max(first.rank) AS last FROM first GROUP BY first.handler, first.most
            ) AS taken
        ) AS tried
        WHERE locked.missing > 0 AND CASE WHEN own.count >= 4 * LEAST(room, known.most) THEN NOT tried.is_full OR own.last <= tried.last
            ELSE NOT tried.is_full AND (tried.is_cut OR (SELECT count(*) FROM found) >= 4 * room) END
    ), behind AS MATERIALIZED (
        SELECT again.*, hidden.handler, hidden.most FROM hidden, LATERAL (
            SELECT again.* FROM generate_series(5, the_priority, -1) AS level (priority), LATERAL (
                SELECT run.id, run.priority, run.start_at FROM @run run
                WHERE run.state = 'waiting' AND run.handler = hidden.handler
                    AND run.priority = level.priority AND run.start_at <= horizon
                    AND run.id <> ALL (ARRAY(SELECT first.id FROM first))
                ORDER BY run.start_at LIMIT hidden.missing
                FOR UPDATE SKIP LOCKED
            ) AS again
            LIMIT hidden.missing
        ) AS again
    )
    UPDATE @run run SET owner = the_node, state = 'claimed'
    FROM (
        SELECT placed.id FROM (
            SELECT locked.*, row_number() OVER (PARTITION BY locked.handler
                ORDER BY locked.priority DESC, locked.start_at) AS place
            FROM (
                SELECT first.id, first.priority, first.start_at, first.handler, first.most FROM first
                UNION ALL SELECT * FROM behind
            ) AS locked
        ) AS placed
        WHERE placed.place <= placed.most
        ORDER BY placed.priority DESC, placed.start_at LIMIT room
    ) AS waiting
    WHERE run.id = ANY (ARRAY[waiting.id])
    RETURNING run.id, run.job, run.handler, run.due, run.start_at, run.attempt, run.interrupted,
        run.excused, run.misses_until, run.priority, false, true;
END $$;

-- Starts runs that the node owns, as many as have payloads of `the_bytes` together, and at least
-- one. Returns those whose state has changed, those that are locked (state 'locked'), those whose
-- payloads do not fit ('postponed'), and those that may start a little later ('later', with the
-- time as `started`).
--
-- A run with a `verdict` must not be executed, and needs neither places nor a turn. The node writes
-- this verdict as its result, so that places that the run has are handed on.
CREATE FUNCTION @start_runs(the_node bigint, the_runs bigint[], the_bytes bigint)
RETURNS TABLE (id bigint, state text, payload jsonb, timeout_us bigint, retries integer,
    retry_first_us bigint, retry_max_us bigint, started timestamptz, verdict text)
LANGUAGE plpgsql SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    own bigint[];
    free_runs bigint[];
    postponed bigint[];
    limited bigint[];
    -- Runs that must not be executed, and why.
    judged bigint[];
    verdicts text[];
    -- Runs that do not get all of their places, and the names on which they wait.
    held_back bigint[] := '{}';
    full_names text[] := '{}';
    without_use bigint[];
    rated bigint[];
    -- Runs that their node tries to start again, because of their rate, and when.
    later bigint[] := '{}';
    later_times timestamptz[] := '{}';
    turnless bigint[];
    the_time timestamptz;
BEGIN
    SELECT COALESCE(array_agg(locked.id), '{}') INTO own FROM (
        SELECT run.id FROM @run run WHERE run.id = ANY (the_runs) ORDER BY run.id FOR UPDATE SKIP LOCKED
    ) AS locked;
    -- A new statement: it sees the jobs as they are now. A change of a job locks its runs first.
    SELECT COALESCE(array_agg(free.id) FILTER (WHERE free.fits), '{}'),
        COALESCE(array_agg(free.id) FILTER (WHERE NOT free.fits), '{}'),
        array_agg(free.id) FILTER (WHERE free.fits AND free.is_limited),
        array_agg(free.id) FILTER (WHERE free.fits AND free.is_rated),
        array_agg(free.id) FILTER (WHERE free.fits AND free.verdict IS NOT NULL),
        array_agg(free.verdict) FILTER (WHERE free.fits AND free.verdict IS NOT NULL)
    INTO free_runs, postponed, limited, rated, judged, verdicts FROM (
        SELECT run.id, run.verdict, run.verdict IS NULL AND run.is_limited AS is_limited,
            run.verdict IS NULL AND run.is_rated AS is_rated,
            row_number() OVER first = 1 OR sum(run.bytes) OVER first <= the_bytes AS fits
        FROM (
            SELECT run.id, run.start_at, COALESCE(run.payload_bytes, job.payload_bytes) AS bytes,
                run.owner = the_node AND run.state = 'claimed'
                    AND (job.overlap <> 'allow' OR job.limits IS NOT NULL OR kind.running IS NOT NULL)
                    AS is_limited,
                run.owner = the_node AND run.state = 'claimed' AND kind.interval_us IS NOT NULL AS is_rated,
                CASE WHEN run.is_cancelled THEN 'cancelled'
                    -- A repetition, because `cancel_runs` has cancelled the others.
                    WHEN NOT job.enabled AND job.disabled_reason IS NULL AND NOT run.is_manual THEN 'paused'
                    WHEN run.interrupted - run.excused > job.max_interruptions THEN 'abandoned' END AS verdict
            FROM @run run JOIN @job job ON job.id = ANY (ARRAY[run.job])
                LEFT JOIN @kind kind ON kind.handler = ANY (ARRAY[run.handler])
            WHERE run.id = ANY (own)
        ) AS run
        WINDOW first AS (ORDER BY run.start_at, run.id)
    ) AS free;

    IF limited IS NOT NULL THEN
        SELECT COALESCE(array_agg(waiting.run), '{}'), COALESCE(array_agg(waiting.name), '{}')
        INTO held_back, full_names FROM @take_places(the_node, limited) AS waiting;
    END IF;
    IF rated IS NOT NULL THEN
        INSERT INTO @pace AS pace (handler)
        SELECT DISTINCT run.handler FROM @run run WHERE run.id = ANY (rated) ORDER BY run.handler
        ON CONFLICT (handler) DO UPDATE SET started = pace.started;
        -- All of them start at the time that has been checked.
        the_time := clock_timestamp();
        SELECT array_agg(turn.run) FILTER (WHERE turn.again IS NULL),
            COALESCE(array_agg(turn.run) FILTER (WHERE turn.again IS NOT NULL), '{}'),
            COALESCE(array_agg(turn.again) FILTER (WHERE turn.again IS NOT NULL), '{}')
        INTO turnless, later, later_times
        FROM @take_turns(ARRAY(SELECT unnest(rated) EXCEPT SELECT unnest(held_back)), the_time) AS turn;
        held_back := held_back || COALESCE(turnless, '{}');
        full_names := full_names || ARRAY(SELECT 'rate ' || run.handler
            FROM unnest(turnless) WITH ORDINALITY AS turn (id, number) JOIN @run run ON run.id = ANY (ARRAY[turn.id])
            ORDER BY turn.number);
        -- It is not executing. If it is deleted meanwhile, `settle` finds that.
        UPDATE @slot slot SET node = NULL WHERE slot.run = ANY (later);
    ELSE
        the_time := clock_timestamp();
    END IF;

    RETURN QUERY
    WITH plan AS MATERIALIZED (
        SELECT mine.id, COALESCE(mine.payload, job.payload) AS payload, job.timeout_us, job.retries,
            job.retry_first_us, job.retry_max_us, judgement.verdict, waiting.name AS full_name,
            CASE WHEN waiting.name IS NULL THEN 'running'
                -- It was not executed completely, so it waits.
                WHEN mine.interrupted > 0 THEN 'blocked'
                WHEN job.overlap = 'skip' AND waiting.name = 'job ' || job.id THEN 'skipped'
                WHEN EXISTS (SELECT FROM @run other WHERE other.job = mine.job AND other.state = 'blocked'
                    AND other.job > 0 OFFSET 999) THEN 'skipped'
                ELSE 'blocked' END AS state,
            CASE WHEN job.overlap = 'skip' AND waiting.name = 'job ' || job.id
                THEN 'another run of the job was running' ELSE '1000 runs of the job were waiting' END AS why
        FROM @run mine JOIN @job job ON job.id = ANY (ARRAY[mine.job])
            LEFT JOIN unnest(judged, verdicts) AS judgement (run, verdict) ON judgement.run = mine.id
            LEFT JOIN unnest(held_back, full_names) AS waiting (run, name) ON waiting.run = mine.id
        WHERE mine.id = ANY (free_runs) AND mine.id <> ALL (later)
    )
    UPDATE @run run
    SET state = plan.state,
        owner = CASE plan.state WHEN 'blocked' THEN NULL ELSE run.owner END,
        blocked_on = CASE plan.state WHEN 'blocked' THEN plan.full_name END,
        has_turn = run.has_turn AND (plan.state <> 'blocked' OR plan.full_name NOT LIKE 'rate %'),
        started = CASE plan.state WHEN 'running' THEN the_time ELSE run.started END,
        finished = CASE plan.state WHEN 'skipped' THEN clock_timestamp() END,
        error = CASE plan.state WHEN 'skipped' THEN plan.why ELSE run.error END
    FROM plan
    -- No `=`: there is an index of owners.
    WHERE run.id = ANY (ARRAY[plan.id]) AND (run.owner, run.state) IS NOT DISTINCT FROM (the_node, 'claimed')
        AND EXISTS (SELECT FROM @node node WHERE node.id = the_node AND node.alive_until > clock_timestamp())
    RETURNING run.id, run.state, CASE WHEN plan.verdict IS NULL THEN plan.payload ELSE 'null' END,
        plan.timeout_us, plan.retries, plan.retry_first_us, plan.retry_max_us, run.started, plan.verdict;

    IF cardinality(free_runs) < cardinality(the_runs) THEN
        RETURN QUERY
        SELECT run.id, CASE WHEN run.id = ANY (postponed) THEN 'postponed' ELSE 'locked' END, NULL::jsonb,
            NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint, NULL::timestamptz, NULL
        FROM @run run
        WHERE run.id = ANY (the_runs) AND run.id <> ALL (free_runs) AND run.owner = the_node
            AND run.state = 'claimed';
    END IF;
    IF later <> '{}' THEN
        RETURN QUERY
        SELECT turn.id, 'later', NULL::jsonb, NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint, turn.again, NULL
        FROM unnest(later, later_times) AS turn (id, again) JOIN @run run ON run.id = ANY (ARRAY[turn.id])
        WHERE (run.owner, run.state) IS NOT DISTINCT FROM (the_node, 'claimed');
    END IF;

    -- Places that were handed to runs that do not start: blocked again, cancelled or deleted.
    SELECT array_agg(slot.run) INTO without_use FROM @slot slot
    WHERE slot.run = ANY (the_runs) AND COALESCE((
        SELECT run.state NOT IN ('waiting', 'claimed', 'running') FROM @run run WHERE run.id = slot.run), true);
    IF without_use IS NOT NULL THEN
        PERFORM @free_places(without_use, NULL, '{}');
    END IF;
END $$;

-- Writes the results of runs that the node has started. A run with a `retry` is repeated after this
-- duration: by this node, if that is at most `the_prefetch`, and otherwise by any. With the state
-- 'snoozed', that is the same attempt.
--
-- A run that was cancelled is not repeated, whatever the result is.
--
-- Hands the places on, for a handler that this node has: otherwise any node claims the run that
-- gets the place. Returns the runs whose results were written (state 'written', or 'cancelled'),
-- those that are locked ('locked'), those that the handler itself has ended as done ('completed'),
-- and those that the node has claimed.
CREATE FUNCTION @finish_runs(the_node bigint, the_prefetch bigint, the_runs bigint[], states text[],
    outputs jsonb[], errors text[], retries bigint[])
RETURNS TABLE (id bigint, state text, job bigint, handler text, due timestamptz, start_at timestamptz,
    attempt integer, interrupted integer, excused integer, misses_until timestamptz, priority smallint)
LANGUAGE plpgsql SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    free_runs bigint[];
    locked bigint[] := '{}';
    written bigint[];
    cancelled bigint[];
    claimed bigint[];
    holders bigint[];
    handlers text[];
BEGIN
    SELECT array_agg(slot.run) INTO holders FROM @slot slot WHERE slot.run = ANY (the_runs);
    IF holders IS NOT NULL THEN
        PERFORM FROM @slot slot WHERE slot.place = 1
            AND slot.name = ANY (ARRAY(SELECT held.name FROM @slot held WHERE held.run = ANY (the_runs)))
        ORDER BY slot.name FOR UPDATE;
    END IF;

    SELECT COALESCE(array_agg(free.id), '{}') INTO free_runs FROM (
        SELECT run.id FROM @run run WHERE run.id = ANY (the_runs) ORDER BY run.id FOR UPDATE SKIP LOCKED
    ) AS free;
    -- Before the places are handed on. A run that is deleted after this statement is returned as
    -- locked, and the next call hands on its places.
    IF cardinality(free_runs) < cardinality(the_runs) THEN
        locked := ARRAY(SELECT run.id FROM @run run
            WHERE run.id = ANY (the_runs) AND run.id <> ALL (free_runs) AND run.owner = the_node
                AND run.state = 'running');
    END IF;

    WITH result AS (
        UPDATE @run run
        SET state = CASE WHEN run.is_cancelled THEN 'cancelled' WHEN result.retry IS NULL THEN result.state
                WHEN result.retry <= the_prefetch THEN 'claimed' ELSE 'waiting' END,
            owner = CASE WHEN result.retry > the_prefetch AND NOT run.is_cancelled THEN NULL ELSE run.owner END,
            start_at = CASE WHEN result.retry IS NULL OR run.is_cancelled THEN run.start_at
                ELSE clock_timestamp() + result.retry * interval '1 microsecond' END,
            has_turn = false,
            attempt = run.attempt
                + CASE WHEN result.retry IS NULL OR run.is_cancelled OR result.state = 'snoozed' THEN 0 ELSE 1 END,
            finished = CASE WHEN result.retry IS NULL OR run.is_cancelled THEN clock_timestamp() END,
            output = result.output,
            error = result.error,
            failures = CASE WHEN result.error IS NULL THEN run.failures ELSE
                COALESCE(CASE WHEN jsonb_array_length(run.failures) < 20 THEN run.failures ELSE run.failures - 0 END, '[]')
                || jsonb_build_object('attempt', run.attempt, 'node', run.owner, 'started', run.started,
                    'ended', clock_timestamp(), 'error', left(result.error, 2000)) END
        FROM unnest(the_runs, states, outputs, errors, retries) AS result (id, state, output, error, retry)
        WHERE run.id = ANY (ARRAY[result.id]) AND result.id = ANY (free_runs)
            AND (run.owner, run.state) IS NOT DISTINCT FROM (the_node, 'running')
        RETURNING run.id, run.state
    )
    SELECT COALESCE(array_agg(result.id), '{}'),
        COALESCE(array_agg(result.id) FILTER (WHERE result.state = 'claimed'), '{}'),
        COALESCE(array_agg(result.id) FILTER (WHERE result.state = 'cancelled'), '{}')
    INTO written, claimed, cancelled FROM result;

    IF holders IS NOT NULL THEN
        -- Also those of runs that were deleted with their jobs, or were completed by their
        -- handlers.
        SELECT array_agg(holder) INTO holders FROM unnest(holders) AS holder
        WHERE holder = ANY (written) OR COALESCE((SELECT false FROM @run run
            WHERE run.id = holder AND run.state IN ('waiting', 'claimed', 'running')), true);
        -- None if the node is ending.
        SELECT array_agg(DISTINCT run.handler) INTO handlers FROM @run run
        WHERE run.id = ANY (the_runs) AND run.handler = ANY ((SELECT node.handlers FROM @node node
            WHERE node.id = the_node)::text[]);
        -- If it had none of these runs, other nodes may have found that it is lost and has no runs.
        -- A run that is claimed by a node without a row would never start.
        IF written = '{}' THEN
            PERFORM FROM @node node WHERE node.id = the_node FOR KEY SHARE SKIP LOCKED;
            IF NOT FOUND THEN
                handlers := '{}';
            END IF;
        END IF;
        claimed := claimed || @free_places(holders, the_node, handlers);
    END IF;

    RETURN QUERY SELECT outcome.id, outcome.state, NULL::bigint, NULL, NULL::timestamptz, NULL::timestamptz,
        NULL::integer, NULL::integer, NULL::integer, NULL::timestamptz, NULL::smallint
    FROM (
        SELECT done, CASE WHEN done = ANY (cancelled) THEN 'cancelled' ELSE 'written' END
        FROM unnest(written) AS done
        UNION ALL
        SELECT unwritten, 'locked' FROM unnest(locked) AS unwritten
        UNION ALL
        SELECT run.id, 'completed' FROM @run run
        WHERE run.id = ANY (the_runs) AND run.id <> ALL (written) AND run.id <> ALL (locked)
            AND run.owner = the_node AND run.state = 'done'
    ) AS outcome (id, state);
    RETURN QUERY SELECT run.id, run.state, run.job, run.handler, run.due, run.start_at, run.attempt,
        run.interrupted, run.excused, run.misses_until, run.priority
    FROM @run run WHERE run.id = ANY (claimed);
END $$;

-- Removes those of these runs that have ended, and their jobs that are finished and have no other
-- run. Its transaction is the only one that does so: if two removed the last two results of a job,
-- neither would know that there are no more. A search for such jobs would read all jobs whose
-- results are kept.
--
-- For the same reason, the results of a finished job remain if another transaction has locked it,
-- for example to repeat one of them. If `waits`, the jobs are locked first, in the order of their
-- keys, as `put_jobs` does.
CREATE FUNCTION @delete_runs(the_runs bigint[], waits boolean) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    removed bigint;
    jobs bigint[];
    finished_jobs bigint[];
    locked_jobs bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('hashed-wheel-job-scheduler clean @channel', 0));
    jobs := ARRAY(SELECT DISTINCT run.job FROM @run run WHERE run.id = ANY (the_runs));
    IF waits THEN
        PERFORM FROM @job job WHERE job.id = ANY (jobs) ORDER BY job.key, job.id FOR KEY SHARE;
    END IF;
    finished_jobs := ARRAY(SELECT job.id FROM @job job WHERE job.id = ANY (jobs) AND job.next_run IS NULL
        FOR UPDATE SKIP LOCKED);
    locked_jobs := ARRAY(SELECT job.id FROM @job job WHERE job.id = ANY (jobs) AND job.next_run IS NULL
        EXCEPT SELECT unnest(finished_jobs));
    DELETE FROM @run run
    WHERE run.id = ANY (the_runs) AND run.finished IS NOT NULL AND run.job <> ALL (locked_jobs);
    GET DIAGNOSTICS removed = ROW_COUNT;
    DELETE FROM @job job WHERE job.id = ANY (finished_jobs)
        AND COALESCE((SELECT false FROM @run run WHERE run.job = job.id LIMIT 1), true);
    RETURN removed;
END $$;

-- Removes results that are older than `age`, and jobs that are finished and have lost their last
-- one: `the_limit` results, or up to twice as many if other transactions have locked jobs. None, if
-- ten times as many older ones have such jobs. Returns the number of results.
CREATE FUNCTION @clean(age interval, the_limit bigint) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    -- An index is not searched for a time that may change from row to row.
    oldest timestamptz := clock_timestamp() - age;
    old bigint[];
    removed bigint := 0;
    hiding_jobs bigint[] := '{}';
BEGIN
    -- One node at a time: see `delete_runs`.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('hashed-wheel-job-scheduler clean @channel', 0)) THEN
        RETURN 0;
    END IF;
    FOR round IN 1 .. 10 LOOP
        old := ARRAY(SELECT run.id FROM @run run WHERE run.finished < oldest AND run.job <> ALL (hiding_jobs)
            ORDER BY run.finished LIMIT the_limit FOR UPDATE SKIP LOCKED);
        EXIT WHEN old = '{}';
        removed := removed + @delete_runs(old, false);
        EXIT WHEN removed >= the_limit;
        -- Another transaction has locked jobs, whose results hide the others.
        hiding_jobs := hiding_jobs || ARRAY(SELECT DISTINCT run.job FROM @run run WHERE run.id = ANY (old));
    END LOOP;
    RETURN removed;
END $$;
