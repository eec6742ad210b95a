-- Single runs: users cancel and retry them, handlers complete them. A part of `1.sql`.

-- Cancels a run. Returns what that means: 'cancelled' if it had not started, and has ended now;
-- 'requested' if it is running; 'ended' if it had ended before; NULL if there is no such run.
--
-- A run that is running is marked, and remains running. Its node finds the mark at its next beat,
-- and is notified so that it beats at once. `finish_runs` writes that the run was cancelled, and if
-- the node is lost, `start_runs` has the verdict of the next one. So the mark takes effect whatever
-- the node does, and however the two race:
--
--     the node              this function           the run
--     starts it             then marks it           running, marked
--     does not start it     after it has ended it   cancelled
--     writes the result     then finds that         as the node has written
--     writes the result     after the mark          cancelled
--     is lost               before or after         cancelled by the next node
--
-- The places of the run are not touched, because this may be a long transaction. Its node hands
-- them on when it does not start the run, or `settle` does.
CREATE FUNCTION @cancel_run(the_run bigint) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found_run @run%ROWTYPE;
BEGIN
    SELECT run.* INTO found_run FROM @run run WHERE run.id = the_run FOR UPDATE;
    IF found_run.state = 'running' THEN
        UPDATE @run run SET is_cancelled = true WHERE run.id = the_run;
        IF EXISTS (SELECT FROM @node node WHERE node.id = found_run.owner AND node.listens) THEN
            PERFORM pg_notify('@channel_cancel', found_run.owner::text);
        END IF;
        RETURN 'requested';
    END IF;
    IF found_run.state IN ('waiting', 'claimed', 'blocked') THEN
        UPDATE @run run SET state = 'cancelled', blocked_on = NULL, finished = clock_timestamp()
        WHERE run.id = the_run;
    END IF;
    RETURN CASE WHEN found_run.finished IS NULL AND found_run.id IS NOT NULL THEN 'cancelled'
        WHEN found_run.id IS NOT NULL THEN 'ended' END;
END $$;

-- Repeats a run that has failed, or was cancelled or abandoned. Returns false if there is no such
-- run. The job is locked first, because a replacement may be about to change the handler, and a new
-- job with the same key may be about to take the key of a finished one.
CREATE FUNCTION @retry_run(the_run bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    the_job bigint;
    the_handler text;
BEGIN
    SELECT run.job INTO the_job FROM @run run WHERE run.id = the_run;
    SELECT job.handler INTO the_handler FROM @job job WHERE job.id = the_job FOR KEY SHARE;
    UPDATE @run run
    SET state = 'waiting', owner = NULL, start_at = clock_timestamp(), finished = NULL, output = NULL,
        handler = CASE WHEN run.payload IS NULL THEN the_handler ELSE run.handler END,
        -- Not if this attempt has not started, or was not executed.
        attempt = run.attempt + CASE WHEN run.state = 'abandoned' OR run.started IS NULL
            OR run.started < run.start_at THEN 0 ELSE 1 END,
        excused = run.interrupted, is_cancelled = false, has_turn = false, is_manual = true
    WHERE run.id = the_run AND run.state IN ('failed', 'cancelled', 'abandoned') AND the_handler IS NOT NULL
    RETURNING run.handler INTO the_handler;
    IF FOUND THEN
        PERFORM @notify(the_handler);
        RETURN true;
    END IF;
    RETURN false;
END $$;

-- Ends an execution as done, in the transaction of its work. Returns false if it is not the last
-- execution of the run, or the run was cancelled or has ended: then the transaction must not
-- commit.
--
-- `started` is different for each execution of a run. (An attempt may be executed again.) The node
-- of the execution needs no lease: the row of the run decides. All others that could end the run or
-- repeat it update this row with a condition on its state, as this function does. So one of them is
-- first, and the others find that:
--
--     this transaction      another one             the work and the result
--     commits               takes the run over      are stored; it is not taken over, as it is done
--     commits               writes a result         are stored; the other result is not written
--     calls this            has taken it over       are not stored: false
--     calls this            has cancelled it        are not stored: false
--     rolls back            any                     are not stored; the run remains as it was
--
-- The node hands the places on when the handler has ended, and `settle` if that takes longer than a
-- heartbeat, or if the node is lost before.
CREATE FUNCTION @complete_run(the_run bigint, the_attempt integer, the_start timestamptz, the_output jsonb)
RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    UPDATE @run run SET state = 'done', finished = clock_timestamp(), output = the_output, error = NULL
    WHERE run.id = the_run AND run.state = 'running' AND run.attempt = the_attempt
        AND run.started = the_start AND NOT run.is_cancelled;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    RETURN true;
END $$;
