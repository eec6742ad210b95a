-- Interruptions: runs whose node was lost while they were running. A part of `1.sql`.
--
-- A run may be the cause: it ends its process. Then it would end one node after the other, and
-- interrupt all runs beside it. So an interruption counts, up to the `max_interruptions` of the
-- job. A run with at least two that count is a suspect:
--
-- - It starts after a pause, which doubles with each further interruption.
-- - It starts alone, and not in the first four seconds of a session, so that each process starts
--   others. For some time, its node starts no other run: it watches this one, whose number is in
--   `node.suspect`. If the node is lost then, the loss counts for the suspect only.
--
-- So a run that ends its process is found, and the runs beside it are excused.
--
-- | the node is lost           | the run it watches | other running runs | runs that have not started |
-- |----------------------------|--------------------|--------------------|----------------------------|
-- | it watches no run          |                    | counts             | does not count             |
-- | it watches a run           | counts             | excused            | does not count             |
-- | it could not renew         | excused            | excused            | does not count             |
-- | it has shut down in time   | excused            | excused            | does not count             |

-- Whether the loss of this node counts for a run that it was executing.
CREATE FUNCTION @counts(the_run bigint, the_node bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN COALESCE((SELECT node.suspect = the_run FROM @node node WHERE node.id = the_node), true);
END $$;

-- The pause of a run with this many interruptions that count. NULL: it starts at once, also if it
-- starts only to be abandoned. It is random, so that runs of the same node do not start together.
CREATE FUNCTION @pause_of(the_job bigint, interruptions integer) RETURNS interval
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT LEAST(interval '4 s' * power(2, LEAST(interruptions - 2, 10)), interval '1 hour') * (1 + random() / 2)
        FROM @job job WHERE job.id = the_job AND interruptions BETWEEN 2 AND job.max_interruptions);
END $$;
