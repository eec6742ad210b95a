-- Notifications, and what a node does after one. A part of `1.sql`.

-- Notifies the nodes with a handler, or all nodes, if any of them listens.
CREATE FUNCTION @notify(the_handler text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM @node node WHERE node.listens) THEN
        PERFORM pg_notify('@channel', the_handler);
    END IF;
END $$;

-- Notifications. A transaction that sends one holds a lock of the whole server during its commit,
-- so that such transactions commit one after the other. Therefore only one transaction for each
-- handler sends a notification at a time: the holder of the lock 'notify'. While it commits, other
-- transactions add jobs without a notification. They hold the lock 'commit' together, before they
-- look for the first lock and until their jobs are visible. A node that was notified reads until it
-- finds the second lock free.
--
-- At the end of the transaction, because it may add a job long before that.
-- With the rights of the owner of the tables, which the role of an application may not read.
CREATE FUNCTION @wake() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    due timestamptz;
    needed_after timestamptz;
BEGIN
    IF TG_TABLE_NAME = 'job' THEN
        due := NEW.next_run;
    ELSE
        due := NEW.start_at;
    END IF;
    -- Otherwise all nodes read before that. The second heartbeat is for a database that is slow. If
    -- no node listens, there is nobody to notify. (A node that is starting reads after it is here.)
    SELECT clock_timestamp() + 2 * max(node.heartbeat_us) * interval '1 microsecond'
    INTO needed_after FROM @node node WHERE node.listens;
    IF needed_after IS NULL OR due > needed_after THEN
        RETURN NULL;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('hashed-wheel-job-scheduler commit @channel', 0));
    IF pg_try_advisory_xact_lock(
        hashtextextended('hashed-wheel-job-scheduler notify @channel ' || NEW.handler, 0))
    THEN
        PERFORM pg_notify('@channel', NEW.handler);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER added AFTER INSERT ON @job DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.notifies AND NEW.enabled AND NEW.next_run IS NOT NULL) EXECUTE FUNCTION @wake();
-- Nodes only set `next_run` to later times.
CREATE CONSTRAINT TRIGGER changed AFTER UPDATE ON @job DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.notifies AND NEW.enabled AND NEW.next_run IS NOT NULL AND (NOT OLD.enabled
        OR OLD.next_run IS NULL OR NEW.next_run < OLD.next_run OR NEW.handler <> OLD.handler))
    EXECUTE FUNCTION @wake();
CREATE CONSTRAINT TRIGGER requested AFTER INSERT ON @run DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.is_manual) EXECUTE FUNCTION @wake();

-- What there is to do for a node, and whether there was no transaction that may add something
-- without a notification. Writes nothing.
CREATE FUNCTION @look(the_node bigint, the_handlers text[], the_prefetch bigint)
RETURNS TABLE (
    -- Runs that no node owns, or only a lost one; jobs that are due; jobs whose first due time is
    -- not computed.
    has_runs boolean, has_due boolean, has_unplanned boolean,
    -- Whether this node settles the places of limited runs: the first node that is alive.
    must_settle boolean, is_settled boolean,
    -- The runs of the node that were cancelled while it executes them.
    cancelled bigint[])
LANGUAGE plpgsql AS $$
DECLARE
    commits bigint := hashtextextended('hashed-wheel-job-scheduler commit @channel', 0);
    horizon timestamptz;
BEGIN
    is_settled := CASE WHEN pg_try_advisory_lock(commits) THEN pg_advisory_unlock(commits) ELSE false END;
    -- A new statement: it sees what was committed before the lock was free.
    horizon := clock_timestamp() + the_prefetch * interval '1 microsecond';
    has_due := EXISTS (SELECT FROM unnest(the_handlers) AS known (handler),
        generate_series(-5, 5) AS level (priority), LATERAL (
            SELECT FROM @job job
            WHERE job.enabled AND job.is_planned AND job.next_run <= horizon AND job.handler = known.handler
                AND job.priority = level.priority
            ORDER BY job.next_run LIMIT 1
        ) AS due);
    has_unplanned := EXISTS (SELECT FROM unnest(the_handlers) AS known (handler), LATERAL (
        SELECT FROM @job job
        WHERE job.enabled AND NOT job.is_planned AND job.next_run <= horizon AND job.handler = known.handler
        ORDER BY job.next_run LIMIT 1
    ) AS due);
    has_runs := EXISTS (SELECT FROM unnest(the_handlers) AS known (handler),
            generate_series(-5, 5) AS level (priority), LATERAL (
                SELECT FROM @run run
                WHERE run.state = 'waiting' AND run.start_at <= horizon AND run.handler = known.handler
                    AND run.priority = level.priority
                ORDER BY run.start_at LIMIT 1
            ) AS waiting)
        OR EXISTS (SELECT FROM @node node, unnest(the_handlers) AS known (handler), LATERAL (
            SELECT FROM @run run
            WHERE run.owner = node.id AND run.handler = known.handler AND run.state IN ('claimed', 'running') LIMIT 1
        ) AS left_over
        WHERE node.alive_until <= clock_timestamp())
        -- A lost node without runs is deleted.
        OR EXISTS (SELECT FROM @node node WHERE node.alive_until <= clock_timestamp() AND COALESCE((
            SELECT false FROM @run run WHERE run.owner = node.id AND run.state IN ('claimed', 'running') LIMIT 1), true));
    must_settle := (EXISTS (SELECT FROM @slot) OR EXISTS (SELECT FROM @pace))
        AND NOT EXISTS (SELECT FROM @node other
            WHERE other.id < the_node AND other.alive_until > clock_timestamp());
    cancelled := ARRAY(SELECT run.id FROM @run run
        WHERE run.owner = the_node AND run.state = 'running' AND run.is_cancelled);
    RETURN NEXT;
END $$;
