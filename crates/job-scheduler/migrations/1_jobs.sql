-- Jobs: what applications add and change. A part of `1.sql`.

-- Cancels the runs of a job that have not started. Due times that were only read ahead are planned
-- again later: it is as if they had not been read. So is the run of a one-off job that is blocked,
-- because it would have no other one. The caller has locked the row of the job.
CREATE FUNCTION @cancel_runs(the_job bigint) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    -- In the order of numbers, as other functions lock them.
    PERFORM FROM @run run WHERE run.job = the_job AND run.state IN ('claimed', 'waiting', 'blocked')
    ORDER BY run.id FOR UPDATE;
    WITH unread AS (
        DELETE FROM @run run USING @job job
        WHERE job.id = the_job AND run.job = the_job
            AND (run.state IN ('claimed', 'waiting') OR run.state = 'blocked' AND job.schedule = 'once')
            AND run.attempt = 1 AND run.started IS NULL AND NOT run.is_manual
        RETURNING run.due
    )
    UPDATE @job job SET next_run = LEAST(job.next_run, (SELECT min(unread.due) FROM unread))
    WHERE job.id = the_job;

    UPDATE @run run SET state = 'cancelled', blocked_on = NULL, finished = clock_timestamp()
    WHERE run.job = the_job AND run.state IN ('claimed', 'waiting', 'blocked');
END $$;

-- Adds jobs, or finds the unfinished jobs with the same keys. Each entry of the array has the
-- columns of a job, and three more: `number`, by which the caller recognizes the result, `delay_us`
-- or `given_start`, and `replaces`. With the latter, an unfinished job is changed if its definition
-- differs. A finished job loses its key to the new one.
--
-- A job that is only found is not locked, because then its due times would wait for the end of the
-- caller's transaction. Keys are inserted and locked in their order, so that two calls do not wait
-- for each other.
--
-- An application needs no right on the tables: this runs with the rights of their owner.
CREATE FUNCTION @put_jobs(the_jobs jsonb) RETURNS TABLE (number bigint, id bigint, outcome text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    ids regclass := pg_get_serial_sequence('@job', 'id');
    present timestamptz := clock_timestamp();
    -- The entries that are not stored. Some of them change an unfinished job.
    rest jsonb[] := ARRAY(SELECT jsonb_array_elements(the_jobs));
    entry jsonb;
    sorted jsonb[];
    numbers bigint[];
    new_ids bigint[];
BEGIN
    LOOP
        WITH wanted AS MATERIALIZED (
            SELECT nextval(ids) AS new_id, entry.entry, (entry.entry ->> 'number')::bigint AS number, job.*
            FROM unnest(rest) AS entry (entry), jsonb_populate_record(NULL::@job, entry.entry) AS job
        ), added AS (
            INSERT INTO @job AS job (id, key, handler, payload, schedule, time_zone, jitter_us, misfire,
                overlap, retries, retry_first_us, retry_max_us, timeout_us, max_interruptions, delay_us,
                given_start, first_run, next_run, is_planned, notifies, limits, priority)
            OVERRIDING SYSTEM VALUE
            SELECT wanted.new_id, wanted.key, wanted.handler, COALESCE(wanted.payload, 'null'),
                wanted.schedule, wanted.time_zone, wanted.jitter_us, wanted.misfire, wanted.overlap,
                wanted.retries, wanted.retry_first_us, wanted.retry_max_us, wanted.timeout_us,
                wanted.max_interruptions, wanted.delay_us, wanted.given_start, start.due, start.due,
                wanted.is_planned, wanted.notifies, wanted.limits, wanted.priority
            FROM wanted, @first_run(wanted.first_run, wanted.delay_us, present) AS start (due)
            ORDER BY wanted.key, wanted.number
            ON CONFLICT (key) DO NOTHING
            RETURNING job.id
        )
        SELECT array_agg(wanted.number) FILTER (WHERE added.id IS NOT NULL),
            array_agg(wanted.new_id) FILTER (WHERE added.id IS NOT NULL),
            array_agg(wanted.entry ORDER BY wanted.key, wanted.number) FILTER (WHERE added.id IS NULL)
        INTO numbers, new_ids, sorted FROM wanted LEFT JOIN added ON added.id = wanted.new_id;
        RETURN QUERY SELECT added.number, added.id, 'added'
        FROM unnest(numbers, new_ids) AS added (number, id);

        rest := '{}';
        FOREACH entry IN ARRAY COALESCE(sorted, '{}') LOOP
            RETURN QUERY SELECT (entry ->> 'number')::bigint, changed.id, changed.outcome
            FROM @change_job(jsonb_populate_record(NULL::@job, entry), (entry ->> 'replaces')::boolean, present)
                AS changed;
            IF NOT FOUND THEN
                rest := rest || entry;
            END IF;
        END LOOP;
        EXIT WHEN rest = '{}';
    END LOOP;
END $$;
-- Only roles that may add jobs. See docs/sql.md.
REVOKE ALL ON FUNCTION @put_jobs FROM PUBLIC;

-- One-off jobs and fixed rates are due now, or after a delay, by this clock.
CREATE FUNCTION @first_run(first_run timestamptz, the_delay bigint, present timestamptz)
RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
    SELECT COALESCE(first_run, present + the_delay * interval '1 microsecond')
$$;

-- Finds the unfinished job with the key of `wanted`, and changes it if `replaces`. Returns nothing
-- if there is none: then no job has this key any more.
CREATE FUNCTION @change_job(wanted @job, replaces boolean, present timestamptz)
RETURNS TABLE (id bigint, outcome text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found_id bigint;
    old @job%ROWTYPE;
    first timestamptz := @first_run(wanted.first_run, wanted.delay_us, present);
    next_due timestamptz := first;
    keeps_due_times boolean;
    has_waiting boolean;
BEGIN
    wanted.payload := COALESCE(wanted.payload, 'null');
    SELECT job.id INTO found_id FROM @job job
    WHERE job.key = wanted.key AND @is_unfinished(job.id, job.next_run) AND (NOT replaces
        OR job.disabled_reason IS NULL AND @has_schedule(job, wanted)
        AND (job.handler, job.payload, job.jitter_us, job.misfire, job.overlap, job.retries,
            job.retry_first_us, job.retry_max_us, job.timeout_us, job.max_interruptions, job.notifies,
            job.limits, job.priority)
        IS NOT DISTINCT FROM (wanted.handler, wanted.payload, wanted.jitter_us, wanted.misfire,
            wanted.overlap, wanted.retries, wanted.retry_first_us, wanted.retry_max_us,
            wanted.timeout_us, wanted.max_interruptions, wanted.notifies, wanted.limits, wanted.priority));
    IF FOUND THEN
        RETURN QUERY SELECT found_id, 'found';
        RETURN;
    END IF;
    SELECT job.* INTO old FROM @job job WHERE job.key = wanted.key FOR UPDATE;
    IF NOT FOUND THEN
        -- It was deleted, or has lost its key, meanwhile.
        RETURN;
    END IF;
    found_id := old.id;
    -- A new statement: it sees what was committed before the row was locked.
    PERFORM FROM @job job WHERE job.id = found_id AND @is_unfinished(job.id, job.next_run);
    IF NOT FOUND THEN
        -- Not the same job again: a due time that it has had would get no run.
        UPDATE @job job SET key = NULL WHERE job.id = found_id;
        RETURN;
    END IF;
    IF NOT replaces THEN
        RETURN QUERY SELECT found_id, 'found';
        RETURN;
    END IF;

    -- No node starts or ends one of its runs until the end of this transaction.
    PERFORM FROM @run run
    WHERE run.job = found_id AND run.state IN ('waiting', 'claimed', 'running', 'blocked')
    ORDER BY run.id FOR UPDATE;
    -- If they are interrupted or fail, they are repeated as they were.
    UPDATE @run run SET payload = old.payload
    WHERE run.job = found_id AND run.state = 'running' AND run.payload IS NULL;

    keeps_due_times := @has_schedule(old, wanted)
        AND (old.next_run IS NOT NULL OR EXISTS (SELECT FROM @run run
            WHERE run.job = found_id AND run.state IN ('waiting', 'claimed', 'blocked')));
    IF keeps_due_times THEN
        -- The others start as the job is now. Their node may have no handler for that, and the
        -- other handler may have other limits.
        first := old.first_run;
        next_due := old.next_run;
        wanted.is_planned := old.is_planned;
        UPDATE @run run
        SET handler = wanted.handler, owner = NULL, state = 'waiting', blocked_on = NULL, has_turn = false
        WHERE run.job = found_id AND run.state IN ('waiting', 'claimed', 'blocked')
            AND run.payload IS NULL AND run.handler <> wanted.handler;
        has_waiting := FOUND;
        -- They may need other places.
        UPDATE @run run SET state = 'waiting', blocked_on = NULL
        WHERE run.job = found_id AND run.state = 'blocked'
            AND (old.limits, old.overlap) IS DISTINCT FROM (wanted.limits, wanted.overlap);
        IF has_waiting OR FOUND THEN
            PERFORM @notify('');
        END IF;
        UPDATE @run run SET priority = wanted.priority
        WHERE run.job = found_id AND run.state IN ('waiting', 'claimed', 'blocked')
            AND run.priority <> wanted.priority;
    ELSE
        PERFORM @cancel_runs(found_id);
        IF wanted.schedule = 'once' THEN
            -- A due time has one run, and a one-off job needs one.
            WHILE EXISTS (SELECT FROM @run run WHERE run.job = found_id AND run.due = next_due) LOOP
                next_due := next_due + interval '1 microsecond';
            END LOOP;
        ELSE
            -- A due time that was missed remains.
            SELECT LEAST(first, job.next_run) INTO next_due FROM @job job
            WHERE job.id = found_id AND job.next_run <= clock_timestamp();
            next_due := COALESCE(next_due, first);
        END IF;
    END IF;
    -- A paused job stays paused. A node disables a job whose schedule is invalid.
    UPDATE @job job
    SET handler = wanted.handler, payload = wanted.payload, schedule = wanted.schedule,
        time_zone = wanted.time_zone, jitter_us = wanted.jitter_us, misfire = wanted.misfire,
        overlap = wanted.overlap, retries = wanted.retries, retry_first_us = wanted.retry_first_us,
        retry_max_us = wanted.retry_max_us, timeout_us = wanted.timeout_us,
        max_interruptions = wanted.max_interruptions, notifies = wanted.notifies, limits = wanted.limits,
        priority = wanted.priority,
        delay_us = wanted.delay_us, given_start = wanted.given_start, first_run = first,
        next_run = next_due, is_planned = wanted.is_planned,
        enabled = job.enabled OR job.disabled_reason IS NOT NULL, disabled_reason = NULL
    WHERE job.id = found_id;
    RETURN QUERY SELECT found_id, 'replaced';
END $$;

-- Whether a job has the schedule of another, with the start as it was given: a delay, or a time.
CREATE FUNCTION @has_schedule(job @job, wanted @job) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT (job.schedule, job.time_zone, job.delay_us, job.given_start)
        IS NOT DISTINCT FROM (wanted.schedule, wanted.time_zone, wanted.delay_us, wanted.given_start)
$$;

-- A duration in microseconds. `what` names it in an error.
CREATE FUNCTION @micros(what text, duration interval) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT extract(epoch FROM duration) BETWEEN 0 AND 100 * 366 * 86400::bigint THEN
        RAISE EXCEPTION '% of %: must be from zero to a century', what, duration USING ERRCODE = '22023';
    END IF;
    RETURN extract(epoch FROM duration) * 1000000;
END $$;

-- Adds a job, as `NewJob` and `Jobs::enqueue` of the library do: with the same options, defaults
-- and limits. Documented in docs/sql.md. New arguments get a default and are added at the end.
--
-- An application needs no right on the tables: this runs with the rights of their owner.
CREATE FUNCTION @add_job(kind text, payload jsonb DEFAULT 'null', due timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL, key text DEFAULT NULL, every interval DEFAULT NULL,
    cron text DEFAULT NULL, time_zone text DEFAULT 'UTC', replace_existing boolean DEFAULT false,
    jitter interval DEFAULT '0', misfire text DEFAULT 'run once', overlap text DEFAULT 'allow',
    retries integer DEFAULT 0, retry_first interval DEFAULT '0', retry_max interval DEFAULT '0',
    timeout interval DEFAULT NULL, max_interruptions integer DEFAULT 10, notify boolean DEFAULT true,
    limits jsonb DEFAULT NULL, priority integer DEFAULT 0)
RETURNS TABLE (job bigint, outcome text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong text;
    schedule text := 'once';
    period bigint;
BEGIN
    wrong := CASE
        WHEN kind IS NULL OR octet_length(kind) NOT BETWEEN 1 AND 1000
            THEN 'kind: the name of a handler must have from 1 to 1000 bytes'
        WHEN octet_length(payload::text) > 4 * 1024 * 1024
            THEN format('payload: has %s bytes, must be at most %s', octet_length(payload::text), 4 * 1024 * 1024)
        -- A shorter one has fewer levels.
        WHEN octet_length(payload::text) >= 128 AND EXISTS (
                SELECT FROM jsonb_path_query(payload, '$.**{127}.type()') AS inner_type
                WHERE inner_type IN ('"array"', '"object"'))
            THEN 'payload: must have at most 127 levels'
        WHEN octet_length(key) > 1000 THEN 'key: must have at most 1000 bytes'
        WHEN due IS NOT NULL AND delay IS NOT NULL THEN 'due and delay: give only one of them'
        WHEN due < '0001-01-01 00:00:00+00' OR due >= '6000-01-01 00:00:00+00'
            THEN format('due: %s must be from the year 1 to the year 5999', due)
        WHEN every IS NOT NULL AND cron IS NOT NULL THEN 'every and cron: give only one of them'
        WHEN date_part('year', every) <> 0 OR date_part('month', every) <> 0
            THEN format('every: %s has no fixed length, use cron', every)
        WHEN every < '1 millisecond' THEN format('every: %s must be at least 1 millisecond', every)
        WHEN octet_length(cron) > 1900 THEN 'cron: must have at most 1900 bytes'
        WHEN array_length(regexp_split_to_array(btrim(cron), '[[:space:]]+'), 1) NOT BETWEEN 6 AND 7
            THEN format('cron: ''%s'' must have 6 or 7 fields: second, minute, hour, day of the month, '
                'month, day of the week, and optionally the year', cron)
        WHEN misfire NOT IN ('skip', 'run once', 'run all')
            THEN format('misfire: ''%s'' must be ''skip'', ''run once'' or ''run all''', misfire)
        WHEN overlap NOT IN ('allow', 'skip', 'wait')
            THEN format('overlap: ''%s'' must be ''allow'', ''skip'' or ''wait''', overlap)
        WHEN retries < 0 THEN 'retries: must be at least 0'
        WHEN timeout < '1 millisecond' THEN format('timeout: %s must be at least 1 millisecond', timeout)
        WHEN max_interruptions < 0 THEN 'max_interruptions: must be at least 0'
        WHEN num_nulls(time_zone, replace_existing, jitter, misfire, overlap, retries, retry_first,
            retry_max, max_interruptions, notify, priority) > 0
            THEN 'only payload, due, delay, key, every, cron, timeout and limits may be NULL'
        WHEN priority NOT BETWEEN -5 AND 5 THEN format('priority: %s must be from -5 to 5', priority)
        WHEN NOT @are_limits(limits)
            THEN format('limits: %s must be an object of names with whole numbers from 1 to 1000: at most 8 names, '
                'with 1 to 255 bytes', limits)
    END;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = '22023';
    END IF;
    IF every IS NOT NULL THEN
        period := @micros('every', every);
        schedule := CASE WHEN period % 1000000 = 0 THEN format('every %ss', period / 1000000)
            WHEN period % 1000 = 0 THEN format('every %sms', period / 1000)
            ELSE format('every %sus', period) END;
    ELSIF cron IS NOT NULL THEN
        schedule := 'cron ' || regexp_replace(btrim(cron), '[[:space:]]+', ' ', 'g');
        -- Fails if there is no such zone.
        PERFORM clock_timestamp() AT TIME ZONE time_zone;
    END IF;
    RETURN QUERY SELECT put.id, put.outcome FROM @put_jobs(jsonb_build_array(jsonb_build_object(
        'number', 1, 'key', key, 'handler', kind, 'payload', payload, 'schedule', schedule,
        'time_zone', time_zone, 'jitter_us', @micros('jitter', jitter), 'misfire', misfire,
        'overlap', overlap, 'retries', retries, 'retry_first_us', @micros('retry_first', retry_first),
        'retry_max_us', @micros('retry_max', retry_max), 'timeout_us', @micros('timeout', timeout),
        'max_interruptions', max_interruptions, 'notifies', notify, 'limits', limits, 'priority', priority, 'first_run', due, 'given_start', due,
        'delay_us', CASE WHEN due IS NULL THEN COALESCE(@micros('delay', delay), 0) END,
        -- A node computes the first time that matches the pattern.
        'is_planned', cron IS NULL, 'replaces', replace_existing))) AS put;
END $$;
REVOKE ALL ON FUNCTION @add_job FROM PUBLIC;

-- Whether a job has a due time, or runs that have not ended.
CREATE FUNCTION @is_unfinished(the_job bigint, next_run timestamptz) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT next_run IS NOT NULL OR EXISTS (SELECT FROM @run run WHERE run.job = the_job
        AND run.state IN ('waiting', 'claimed', 'running', 'blocked'))
$$;
