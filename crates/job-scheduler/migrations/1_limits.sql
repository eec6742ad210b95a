-- Limits: at most a number of runs with the same name are running, on all nodes together.
--
-- The name is that of a job whose runs must not overlap ('job 17', with one place), that of a
-- handler ('kind send-mail'), or one that jobs share ('key tenant-7'). A run needs a place of each
-- of its names. It takes all of them when it starts, or none. The primary key of `slot` makes a
-- place unique, and a run that has not got its rows does not start.
--
-- | event                          | places                                                           |
-- |--------------------------------|------------------------------------------------------------------|
-- | start, all places are free     | taken                                                            |
-- | start, a name has none         | blocked on this name; what it had been handed is handed on       |
-- | end, retry                     | handed to the first blocked run of each name, or free            |
-- | takeover, adoption             | kept: the run is running, or starts again                        |
-- | given back before its start    | kept by the run, which waits for another node                    |
-- | no node can start it again     | handed on by `settle`: the run takes places when it starts       |
-- | pause after an interruption    | the same                                                         |
-- | cancelled or deleted before it | handed on by the node that had claimed the run, or by `settle`   |
-- | deleted while it is running    | kept until the end of the execution, or of its node              |
-- | completed by its handler       | handed on when the handler ends, or by `settle`                  |
-- | a limit grows or ends          | `settle` hands the new places to blocked runs                    |
-- | a limit falls                  | a run that was handed a higher place needs another one to start  |
--
-- The row of place 1 is also the lock of its name. It exists while a place is taken or a run is
-- blocked on the name. A node locks the names of a statement in their order, and waits only for
-- other nodes there: applications never lock these rows. A run becomes blocked while its node holds
-- this lock, and the node that frees a place needs the lock before it looks for blocked runs.
-- Therefore no run whose handler a node has stays blocked while a place of its name is free, with
-- these exceptions: a transaction of an application has locked the run, or has cancelled the run
-- that held the place; a limit has grown; or a node with the handler has started. `settle` finds
-- them within a heartbeat.
--
-- A run whose handler no node has would keep the others of its names waiting until such a node is
-- back. So `pass_on` hands it no place, and `settle` takes its places: if it waits for any node, or
-- if its node is lost. That is decided while the row of the node is locked, as for a takeover, and
-- the run is marked as interrupted. It takes places again when it starts, like a new one.

-- The limits of these runs.
CREATE FUNCTION @limits_of(the_runs bigint[]) RETURNS TABLE (run bigint, name text, places integer)
LANGUAGE sql STABLE AS $$
    SELECT run.id, limited.name, limited.places
    FROM @run run JOIN @job job ON job.id = ANY (ARRAY[run.job])
        LEFT JOIN @kind kind ON kind.handler = ANY (ARRAY[run.handler]),
        LATERAL (
            SELECT 'job ' || job.id, 1 WHERE job.overlap <> 'allow'
            UNION ALL
            SELECT 'kind ' || kind.handler, kind.running WHERE kind.running IS NOT NULL
            UNION ALL
            SELECT 'key ' || entry.key, COALESCE((SELECT named.running FROM @named_limit named
                WHERE named.name = entry.key), entry.value::integer)
            FROM jsonb_each_text(job.limits) AS entry
        ) AS limited (name, places)
    WHERE run.id = ANY (the_runs)
$$;

-- Takes places for runs that the node starts, in the order of priorities and due times. Locks
-- their names.
-- Returns the runs that have to wait, each with the name on which it waits: of those without a free
-- place, the one with the fewest places.
CREATE FUNCTION @take_places(the_node bigint, the_runs bigint[]) RETURNS TABLE (run bigint, name text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    candidate record;
    full_name text;
    used jsonb := '{}';
    takers bigint[] := '{}';
    taken text[] := '{}';
BEGIN
    INSERT INTO @slot AS slot (name, place)
    SELECT DISTINCT needed.name, 1 FROM @limits_of(the_runs) AS needed ORDER BY needed.name
    ON CONFLICT (name, place) DO UPDATE SET run = slot.run;
    -- Places that they were handed before the limit has fallen.
    DELETE FROM @slot slot USING @limits_of(the_runs) AS needed
    WHERE slot.run = ANY (ARRAY[needed.run]) AND slot.name = needed.name AND slot.place > needed.places;

    FOR candidate IN
        WITH needed AS MATERIALIZED (
            SELECT needed.* FROM @limits_of(the_runs) AS needed
        ), free AS (
            SELECT wanted.name, wanted.places, wanted.places - count(slot.run) AS count
            FROM (SELECT DISTINCT needed.name, needed.places FROM needed) AS wanted
                LEFT JOIN @slot slot ON slot.name = ANY (ARRAY[wanted.name])
            GROUP BY wanted.name, wanted.places
        )
        SELECT run.id, array_agg(needed.name ORDER BY needed.places, needed.name) AS names,
            array_agg(free.count ORDER BY needed.places, needed.name) AS free
        FROM needed JOIN @run run ON run.id = ANY (ARRAY[needed.run])
            JOIN free ON free.name = needed.name AND free.places = needed.places
        -- Not those that it was handed.
        WHERE COALESCE((SELECT false FROM @slot slot WHERE slot.run = run.id AND slot.name = needed.name
            AND slot.place <= needed.places LIMIT 1), true)
        GROUP BY run.id ORDER BY run.priority DESC, run.due, run.id
    LOOP
        full_name := NULL;
        FOR n IN 1 .. cardinality(candidate.names) LOOP
            IF candidate.free[n] <= COALESCE((used ->> candidate.names[n])::integer, 0) THEN
                full_name := candidate.names[n];
                EXIT;
            END IF;
        END LOOP;
        IF full_name IS NULL THEN
            FOR n IN 1 .. cardinality(candidate.names) LOOP
                takers := takers || candidate.id;
                taken := taken || candidate.names[n];
                used := used || jsonb_build_object(candidate.names[n],
                    1 + COALESCE((used ->> candidate.names[n])::integer, 0));
            END LOOP;
        ELSE
            RETURN QUERY SELECT candidate.id, full_name;
        END IF;
    END LOOP;

    -- The first ones get the first places.
    WITH taker AS (
        SELECT pair.run, pair.name, row_number() OVER (PARTITION BY pair.name ORDER BY pair.number) AS number
        FROM unnest(takers, taken) WITH ORDINALITY AS pair (run, name, number)
    ), free AS (
        SELECT named.name, each.place, row_number() OVER (PARTITION BY named.name ORDER BY each.place) AS number
        FROM (
            SELECT taker.name, count(*) + (SELECT count(slot.run) FROM @slot slot WHERE slot.name = taker.name)
                AS last
            FROM taker GROUP BY taker.name
        ) AS named, generate_series(1, named.last) AS each (place)
        WHERE (SELECT slot.run FROM @slot slot
            WHERE slot.name = named.name AND slot.place = each.place) IS NULL
    )
    INSERT INTO @slot AS slot (name, place, run)
    SELECT taker.name, free.place, taker.run FROM taker JOIN free USING (name, number)
    ORDER BY taker.name, free.place
    ON CONFLICT (name, place) DO UPDATE SET run = excluded.run WHERE slot.run IS NULL;

    UPDATE @slot slot SET node = the_node
    WHERE slot.run = ANY (the_runs) AND slot.node IS DISTINCT FROM the_node;

    -- The proof does not depend on the numbers above: without its rows, a run does not start.
    RETURN QUERY
    SELECT DISTINCT ON (needed.run) needed.run, needed.name FROM @limits_of(takers) AS needed
    WHERE COALESCE((SELECT false FROM @slot slot WHERE slot.run = needed.run AND slot.name = needed.name
        AND slot.place BETWEEN 1 AND needed.places LIMIT 1), true);
END $$;

-- Frees the places of these runs, and hands them to runs that are blocked. Those with one of these
-- handlers are claimed for the node, and returned. The others wait for any node.
CREATE FUNCTION @free_places(the_runs bigint[], the_node bigint, the_handlers text[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    names text[];
BEGIN
    SELECT array_agg(named.name) INTO names FROM (
        SELECT slot.name FROM @slot slot WHERE slot.place = 1
            AND slot.name = ANY (ARRAY(SELECT held.name FROM @slot held WHERE held.run = ANY (the_runs)))
        ORDER BY slot.name FOR UPDATE SKIP LOCKED
    ) AS named;
    IF names IS NULL THEN
        RETURN '{}';
    END IF;
    DELETE FROM @slot slot WHERE slot.run = ANY (the_runs) AND slot.place > 1 AND slot.name = ANY (names);
    UPDATE @slot slot SET run = NULL, node = NULL
    WHERE slot.run = ANY (the_runs) AND slot.place = 1 AND slot.name = ANY (names);
    RETURN @pass_on(names, the_node, the_handlers);
END $$;

-- Hands the free places of these names to the runs that are blocked on them, in the order of
-- priorities and due times. The caller has locked the names. Runs whose handlers no node has are
-- passed over.
--
-- A run that also needs a place of another name, which has none, is moved to that name: otherwise
-- it would take the place, find that, and hand it on. These are limited, because there may be many.
--
-- The first run shows how many places are free. Then as many runs are read and changed at once, so
-- that the time grows with their number, and not faster.
CREATE FUNCTION @pass_on(the_names text[], the_node bigint, the_handlers text[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    the_name text;
    heir record;
    candidates bigint[];
    free_places integer[];
    taken integer;
    -- Those that are handed places, and these places. NULL: the run does not need it any more.
    heirs bigint[];
    places integer[];
    moves integer;
    -- How many runs are read next.
    room integer;
    -- Of all names, and of one: a backlog of one name must not delay the others. The rest is for
    -- the next call.
    handed integer := 0;
    of_this_name integer;
    served text[] := ARRAY(
        SELECT unnest(node.handlers) FROM @node node WHERE node.alive_until > clock_timestamp()
        UNION SELECT unnest(the_handlers));
    claimed bigint[] := '{}';
    more bigint[];
    has_waiting boolean := false;
BEGIN
    FOREACH the_name IN ARRAY the_names LOOP
        moves := 0;
        of_this_name := 0;
        room := 1;
        WHILE room > 0 AND (handed < 1000 OR of_this_name < 10) LOOP
            -- For each handler on its own, in the order of an index, so that those without a node
            -- are not read.
            SELECT array_agg(first.id ORDER BY first.priority DESC, first.due, first.id) INTO candidates FROM (
                SELECT found.* FROM unnest(served) AS known (handler), LATERAL (
                    SELECT run.id, run.priority, run.due FROM @run run
                    WHERE run.state = 'blocked' AND run.blocked_on = the_name AND run.handler = known.handler
                    ORDER BY run.priority DESC, run.due, run.id LIMIT room FOR UPDATE SKIP LOCKED
                ) AS found
                ORDER BY found.priority DESC, found.due, found.id LIMIT room
            ) AS first;
            EXIT WHEN candidates IS NULL;
            SELECT count(slot.run) INTO taken FROM @slot slot WHERE slot.name = the_name;
            free_places := ARRAY(
                SELECT generate_series(1, (SELECT max(needed.places) FROM @limits_of(candidates) AS needed
                    WHERE needed.name = the_name))
                EXCEPT SELECT slot.place FROM @slot slot WHERE slot.name = the_name AND slot.run IS NOT NULL
                ORDER BY 1 LIMIT room);
            heirs := '{}';
            places := '{}';
            FOR heir IN
                WITH needed AS MATERIALIZED (
                    SELECT needed.* FROM @limits_of(candidates) AS needed
                ), used AS MATERIALIZED (
                    SELECT wanted.name, count(slot.run) AS count
                    FROM (SELECT DISTINCT needed.name FROM needed WHERE needed.name <> the_name) AS wanted
                        LEFT JOIN @slot slot ON slot.name = ANY (ARRAY[wanted.name])
                    GROUP BY wanted.name
                )
                SELECT candidate.id, this.places, EXISTS (SELECT FROM needed JOIN used USING (name)
                    WHERE needed.run = candidate.id AND needed.places <= used.count) AS waits
                FROM unnest(candidates) WITH ORDINALITY AS candidate (id, number)
                    LEFT JOIN needed AS this ON this.run = candidate.id AND this.name = the_name
                ORDER BY candidate.number
            LOOP
                room := LEAST(100, heir.places - taken);
                IF heir.places <= taken OR heir.places < free_places[1] THEN
                    -- A limit that has become lower has more of them.
                    room := 0;
                    EXIT;
                END IF;
                IF heir.waits AND moves < 16 AND @move_on(heir.id, the_name) THEN
                    moves := moves + 1;
                    CONTINUE;
                END IF;
                heirs := heirs || heir.id;
                IF heir.places IS NULL THEN
                    -- It does not need it any more.
                    places := places || NULL::integer;
                    room := 100;
                ELSE
                    places := places || free_places[1];
                    free_places := free_places[2:];
                    taken := taken + 1;
                    room := LEAST(100, heir.places - taken);
                END IF;
                handed := handed + 1;
                of_this_name := of_this_name + 1;
                EXIT WHEN handed >= 1000 AND of_this_name >= 10;
            END LOOP;

            INSERT INTO @slot AS slot (name, place, run)
            SELECT the_name, pair.place, pair.run FROM unnest(heirs, places) AS pair (run, place)
            WHERE pair.place IS NOT NULL ORDER BY pair.place
            ON CONFLICT (name, place) DO UPDATE SET run = excluded.run WHERE slot.run IS NULL;
            WITH changed AS (
                UPDATE @run run
                SET state = CASE WHEN run.handler = ANY (the_handlers) THEN 'claimed' ELSE 'waiting' END,
                    owner = CASE WHEN run.handler = ANY (the_handlers) THEN the_node END, blocked_on = NULL
                WHERE run.id = ANY (heirs)
                RETURNING run.id, run.state
            )
            SELECT array_agg(changed.id) FILTER (WHERE changed.state = 'claimed'),
                has_waiting OR COALESCE(bool_or(changed.state = 'waiting'), false)
            INTO more, has_waiting FROM changed;
            claimed := claimed || COALESCE(more, '{}');
        END LOOP;
        DELETE FROM @slot slot WHERE slot.name = the_name AND slot.place = 1 AND slot.run IS NULL
            AND NOT EXISTS (SELECT FROM @slot other WHERE other.name = the_name AND other.place > 1)
            AND NOT EXISTS (SELECT FROM @run run WHERE run.state = 'blocked' AND run.blocked_on = the_name);
    END LOOP;
    IF has_waiting THEN
        PERFORM @notify('');
    END IF;
    RETURN claimed;
END $$;

-- Moves a blocked run to another of its names, which has no free place.
CREATE FUNCTION @move_on(the_run bigint, the_name text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    other text := @full_name(the_run, the_name);
BEGIN
    PERFORM FROM @slot slot WHERE slot.name = other AND slot.place = 1 FOR UPDATE SKIP LOCKED;
    -- Again, because now no node frees one of its places.
    IF NOT FOUND OR @full_name(the_run, the_name) IS DISTINCT FROM other THEN
        RETURN false;
    END IF;
    UPDATE @run run SET blocked_on = other WHERE run.id = the_run;
    RETURN true;
END $$;

-- Returns a name of a blocked run, other than `the_name`, that has no free place. A run of a job
-- that must not overlap and does not wait is not moved to it: it is skipped when it starts, unless
-- it was interrupted.
-- PL/pgSQL keeps its plan; SQL would make one for each call.
CREATE FUNCTION @full_name(the_run bigint, the_name text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT needed.name
        FROM @run run JOIN @job job ON job.id = ANY (ARRAY[run.job]), @limits_of(ARRAY[the_run]) AS needed
        WHERE run.id = the_run AND needed.name <> the_name
            AND (job.overlap <> 'skip' OR run.interrupted > 0 OR needed.name <> 'job ' || job.id)
            AND needed.places <= (SELECT count(slot.run) FROM @slot slot WHERE slot.name = needed.name)
        ORDER BY needed.places, needed.name LIMIT 1);
END $$;

-- Whether a node that is alive has this handler.
CREATE FUNCTION @is_served(the_handler text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM @node node
        WHERE the_handler = ANY (node.handlers) AND node.alive_until > clock_timestamp());
END $$;

-- Hands on the places that no node hands on, and gives turns to runs that wait for them, until
-- `ahead`. One node calls it at each heartbeat, if there are places or rates. Each call reads about
-- `the_limit` places, of the names that follow `after`, and returns the last one. An empty one: there
-- are no more. With a limit of zero it only returns the next name, which is passed over.
CREATE FUNCTION @settle(ahead interval, after text DEFAULT '', the_limit bigint DEFAULT 1000) RETURNS text
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    lost bigint[];
    unused bigint[];
    names text[];
    count bigint;
    last text;
BEGIN
    SELECT count(*), COALESCE(max(part.name), '') INTO count, last FROM (
        SELECT slot.name FROM @slot slot WHERE slot.name > after ORDER BY slot.name, slot.place LIMIT GREATEST(the_limit, 1)
    ) AS part;
    IF the_limit = 0 THEN
        RETURN last;
    END IF;
    -- A node that is renewing its lease, or taking over, has locked its row.
    SELECT COALESCE(array_agg(dead.id), '{}') INTO lost FROM (
        SELECT node.id FROM @node node WHERE node.alive_until <= clock_timestamp() FOR UPDATE SKIP LOCKED
    ) AS dead;
    -- A renewal that waits for the lock checks the lease again, because the row has changed.
    UPDATE @node node SET handlers = '{}' WHERE node.id = ANY (lost) AND node.handlers <> '{}';
    -- A new statement: it sees everything that they wrote before they were locked.
    UPDATE @run run
    SET state = 'waiting', owner = NULL, taken_over = run.taken_over + 1,
        attempt = run.attempt + CASE run.state WHEN 'running' THEN 1 ELSE 0 END,
        interrupted = run.interrupted + CASE run.state WHEN 'running' THEN 1 ELSE 0 END,
        excused = run.excused + CASE WHEN left_over.counts THEN 0 ELSE 1 END,
        start_at = COALESCE(clock_timestamp() + CASE WHEN left_over.counts AND run.state = 'running'
            THEN @pause_of(run.job, run.interrupted - run.excused + 1) END, run.start_at)
    FROM (
        SELECT run.id, run.state <> 'running' OR @counts(run.id, run.owner) AS counts
        FROM @slot slot JOIN @run run ON run.id = ANY (ARRAY[slot.run])
        WHERE slot.name > after AND slot.name <= last
            AND (run.owner = ANY (lost)) AND run.state IN ('claimed', 'running')
            AND NOT @is_served(run.handler)
        FOR UPDATE OF run SKIP LOCKED
    ) AS left_over
    WHERE run.id = ANY (ARRAY[left_over.id]);

    -- While these runs are locked, no node claims or starts them, and they are not repeated by
    -- hand.
    SELECT COALESCE(array_agg(locked.id), '{}') INTO unused FROM (
        SELECT run.id FROM @slot slot JOIN @run run ON run.id = ANY (ARRAY[slot.run])
        WHERE slot.name > after AND slot.name <= last AND CASE run.state WHEN 'waiting' THEN NOT @is_served(run.handler) OR run.start_at > clock_timestamp() + ahead
            ELSE run.state NOT IN ('claimed', 'running') END
        FOR UPDATE OF run SKIP LOCKED
    ) AS locked;
    -- A run that was deleted may still be executing on its node.
    unused := unused || ARRAY(
        SELECT slot.run FROM @slot slot
        WHERE slot.name > after AND slot.name <= last AND slot.run IS NOT NULL
            AND COALESCE((SELECT false FROM @run run WHERE run.id = slot.run), true)
            AND COALESCE((SELECT node.id = ANY (lost) FROM @node node WHERE node.id = slot.node), true));
    IF unused <> '{}' THEN
        PERFORM @free_places(unused, NULL, '{}');
    END IF;

    SELECT array_agg(named.name) INTO names FROM (
        SELECT slot.name FROM @slot slot
        WHERE slot.place = 1 AND slot.name = ANY (ARRAY(
            SELECT lock.name FROM @slot lock LEFT JOIN LATERAL (
                -- Any of them: `pass_on` chooses.
                SELECT run.id FROM @run run WHERE run.state = 'blocked' AND run.blocked_on = lock.name LIMIT 1
            ) AS one ON true
            WHERE lock.name > after AND lock.name <= last AND lock.place = 1 AND CASE WHEN one.id IS NULL THEN lock.run IS NULL
                ELSE NOT EXISTS (SELECT FROM @limits_of(ARRAY[one.id]) AS needed
                    WHERE needed.name = lock.name AND needed.places <= (SELECT count(slot.run)
                        FROM @slot slot WHERE slot.name = lock.name)) END
        ))
        ORDER BY slot.name FOR UPDATE SKIP LOCKED
    ) AS named;
    IF names IS NOT NULL THEN
        PERFORM @pass_on(names, NULL, '{}');
    END IF;
    IF after = '' THEN
        -- With the first part, whatever the others take.
        PERFORM @give_turns(ahead);
    END IF;
    RETURN CASE WHEN count < the_limit THEN '' ELSE last END;
END $$;
