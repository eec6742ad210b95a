-- The state that the schedulers share. All times are those of this database's clock.

-- The jobs and their next due times.
CREATE TABLE job (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task     text NOT NULL,
    -- 'once', 'every 500ms', 'cron 0 30 3 * * *' (with seconds; in UTC, so that no hour is repeated or missing).
    schedule text NOT NULL,
    -- What happens to due times that had no scheduler for too long.
    misfire  text NOT NULL DEFAULT 'fire once' CHECK (misfire IN ('fire once', 'skip')),
    -- The first due time that is not claimed. NULL: there is none.
    next_run timestamptz CHECK (isfinite(next_run)),
    enabled  boolean NOT NULL DEFAULT true,
    -- Why a scheduler has disabled the job.
    trouble  text
);
CREATE INDEX job_next_run ON job (next_run) WHERE enabled;

-- The schedulers. A row is deleted after other schedulers have taken over all runs of a lost one. Ids are not reused.
CREATE TABLE scheduler (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    alive_until timestamptz NOT NULL
);

-- The runs and their results. While a run is claimed or running, its owner has a row in `scheduler`.
CREATE TABLE run (
    job          bigint NOT NULL REFERENCES job,
    due          timestamptz NOT NULL,
    state        text NOT NULL CHECK (state IN ('claimed', 'running', 'done', 'failed', 'skipped')),
    owner        bigint NOT NULL,
    -- 1, plus the number of schedulers that were lost during the run. From 2 on, it may have been done more than once.
    attempt      integer NOT NULL DEFAULT 1,
    -- How often another scheduler took over the run, whether it was running or only claimed.
    taken_over   integer NOT NULL DEFAULT 0,
    -- For a misfire: it stands for all due times before this one.
    misses_until timestamptz,
    started      timestamptz,
    finished     timestamptz,
    result       text,
    PRIMARY KEY (job, due)
);
CREATE INDEX run_unfinished ON run (owner) WHERE state IN ('claimed', 'running');
