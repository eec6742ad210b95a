-- Rates: how many runs of a handler start in a time, on all nodes together. A part of `1.sql`.
--
-- This is the generic cell rate algorithm. With the interval T (a period divided by the number of
-- its runs) and the burst B, a clock of the handler says when the next run would start if all runs
-- were evenly spaced. A run conforms from B - 1 intervals before that time on, and moves the clock
-- by T, at least to T after its own time. So B + k further starts take at least (k + 1) * T.
--
-- There are two such clocks. `started` is that of the starts, and each start checks it, while its
-- node holds the lock of the row: it is the proof. `planned` is that of the turns: of runs that do
-- not conform, one after the other gets a turn, as long as it is near. The others are blocked on
-- the name 'rate send-mail', in the order of priorities and due times, and no node reads them.
--
-- | event                          | a run without a turn              | a run with a turn            |
-- |--------------------------------|-----------------------------------|------------------------------|
-- | start, it conforms             | starts, if none is blocked before | starts                       |
-- | start, it does not conform     | blocked                           | its node tries again: within |
-- |                                |                                   | a second, otherwise blocked  |
-- | `settle`, each heartbeat       | the first ones get turns          |                              |
-- | end, retry, repeated by hand   |                                   | loses its turn               |
-- | its node is lost               |                                   | keeps it                     |

-- Returns those of these runs that may not start now, and when their node tries again. NULL: they
-- are blocked. The caller has locked the rows of their handlers.
CREATE FUNCTION @take_turns(the_runs bigint[], the_time timestamptz) RETURNS TABLE (run bigint, again timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    paced record;
    candidate record;
    has_blocked boolean;
    step interval;
    slack interval;
    may_start timestamptz;
    next_planned timestamptz;
    next_started timestamptz;
    later bigint;
BEGIN
    FOR paced IN
        SELECT kind.handler, kind.interval_us, kind.burst, pace.planned, pace.started
        FROM @kind kind JOIN @pace pace ON pace.handler = kind.handler
        WHERE kind.interval_us IS NOT NULL
            AND kind.handler IN (SELECT run.handler FROM @run run WHERE run.id = ANY (the_runs))
    LOOP
        step := paced.interval_us * interval '1 microsecond';
        slack := (paced.burst - 1) * step;
        next_planned := paced.planned;
        -- It is never further ahead, unless the rate was lower before.
        next_started := LEAST(paced.started, the_time + paced.burst * step);
        later := 0;
        has_blocked := EXISTS (SELECT FROM @run run
            WHERE run.state = 'blocked' AND run.blocked_on = 'rate ' || paced.handler);
        FOR candidate IN
            SELECT run.id, run.has_turn FROM @run run
            WHERE run.id = ANY (the_runs) AND run.handler = paced.handler
            ORDER BY run.has_turn DESC, run.priority DESC, run.start_at, run.id
        LOOP
            may_start := next_started - slack;
            IF candidate.has_turn THEN
                IF may_start > the_time THEN
                    may_start := may_start + later * step;
                    later := later + 1;
                    RETURN QUERY SELECT candidate.id,
                        CASE WHEN may_start < the_time + interval '1 second' THEN may_start END;
                    CONTINUE;
                END IF;
            ELSE
                IF has_blocked OR GREATEST(may_start, next_planned - slack) > the_time THEN
                    has_blocked := true;
                    RETURN QUERY SELECT candidate.id, NULL::timestamptz;
                    CONTINUE;
                END IF;
                next_planned := GREATEST(next_planned, the_time) + step;
            END IF;
            next_started := GREATEST(next_started, the_time) + step;
        END LOOP;
        UPDATE @pace pace SET planned = next_planned, started = next_started
        WHERE pace.handler = paced.handler;
    END LOOP;
END $$;

-- Gives turns to blocked runs, until `ahead`. If the rate was removed, all of them may start. At most
-- a number of runs in a call, of handlers in a random order: the rest is for the next call.
CREATE FUNCTION @give_turns(ahead interval) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    paced record;
    step interval;
    first timestamptz;
    latest timestamptz;
    base timestamptz;
    count bigint;
    given bigint;
    all_given bigint := 0;
BEGIN
    FOR paced IN
        SELECT pace.handler, pace.planned, pace.started, kind.interval_us, kind.burst, clock_timestamp() AS now
        FROM @pace pace LEFT JOIN @kind kind ON kind.handler = pace.handler AND kind.interval_us IS NOT NULL
        ORDER BY random() FOR UPDATE OF pace SKIP LOCKED
    LOOP
        EXIT WHEN all_given >= 2000;
        IF paced.interval_us IS NULL THEN
            count := 1000;
            step := interval '0';
            first := paced.now;
        ELSE
            step := paced.interval_us * interval '1 microsecond';
            -- They are never further ahead, unless the rate was lower before, or the clock was set back.
            -- This is stored: otherwise it would move on with the clock, and no run would get a turn.
            latest := paced.now + paced.burst * step;
            IF paced.planned > latest + ahead OR paced.started > latest THEN
                paced.planned := LEAST(paced.planned, latest + ahead);
                paced.started := LEAST(paced.started, latest);
                UPDATE @pace pace SET planned = paced.planned, started = paced.started
                WHERE pace.handler = paced.handler;
            END IF;
            base := GREATEST(paced.planned, paced.started, paced.now);
            first := base - (paced.burst - 1) * step;
            count := LEAST(2000, GREATEST(0, 1 + floor(extract(epoch FROM paced.now + ahead - first)
                / extract(epoch FROM step))));
        END IF;
        IF NOT @is_served(paced.handler) THEN
            -- They would only be read by each node.
            count := 0;
        END IF;
        WITH next AS (
            SELECT blocked.id, row_number() OVER (ORDER BY blocked.priority DESC, blocked.due, blocked.id) AS number
            FROM (
                SELECT run.id, run.priority, run.due FROM @run run
                WHERE run.state = 'blocked' AND run.blocked_on = 'rate ' || paced.handler
                    AND run.handler = paced.handler
                ORDER BY run.priority DESC, run.due, run.id LIMIT count FOR UPDATE SKIP LOCKED
            ) AS blocked
        )
        UPDATE @run run SET state = 'waiting', blocked_on = NULL, has_turn = true,
            start_at = GREATEST(run.start_at, first + (next.number - 1) * step)
        FROM next WHERE run.id = ANY (ARRAY[next.id]);
        GET DIAGNOSTICS given = ROW_COUNT;
        IF given > 0 THEN
            all_given := all_given + given;
            UPDATE @pace pace SET planned = base + given * step
            WHERE pace.handler = paced.handler AND paced.interval_us IS NOT NULL;
        ELSIF paced.interval_us IS NULL THEN
            -- Not while an application has locked the blocked ones: nothing else would start them.
            DELETE FROM @pace pace WHERE pace.handler = paced.handler AND NOT EXISTS (SELECT FROM @run run
                WHERE run.state = 'blocked' AND run.blocked_on = 'rate ' || paced.handler);
        END IF;
    END LOOP;
    IF all_given > 0 THEN
        PERFORM @notify('');
    END IF;
END $$;
