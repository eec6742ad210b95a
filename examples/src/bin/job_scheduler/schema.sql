-- What the schedulers share. All times are by this database's clock, and no other clock counts.

-- What is to be done, and when next.
CREATE TABLE job (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task     text NOT NULL,
    -- 'once', 'every 500ms', 'cron 0 30 3 * * *' (with seconds; UTC, so that no hour is there twice or left out).
    schedule text NOT NULL,
    -- What becomes of what fell due when there was no scheduler for too long.
    misfire  text NOT NULL DEFAULT 'fire once' CHECK (misfire IN ('fire once', 'skip')),
    -- The first due time that nobody has claimed. None: never again.
    next_run timestamptz CHECK (isfinite(next_run)),
    enabled  boolean NOT NULL DEFAULT true,
    -- Why a scheduler has disabled it.
    trouble  text
);
CREATE INDEX job_next_run ON job (next_run) WHERE enabled;

-- Who is alive. A row goes when somebody else has taken over what its scheduler had; ids are not used again.
CREATE TABLE scheduler (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    alive_until timestamptz NOT NULL
);

-- What fell due, and what became of it. As long as it is claimed or running, there is a scheduler that is its owner.
CREATE TABLE run (
    job          bigint NOT NULL REFERENCES job,
    due          timestamptz NOT NULL,
    state        text NOT NULL CHECK (state IN ('claimed', 'running', 'done', 'failed', 'skipped')),
    owner        bigint NOT NULL,
    -- 1, and one more for each runner that was lost half way: from 2 on, it may have been done more than once.
    attempt      integer NOT NULL DEFAULT 1,
    -- How often another scheduler took it over, whether it was running or only claimed.
    taken_over   integer NOT NULL DEFAULT 0,
    -- Of a misfire: it stands for all that fell due before this.
    misses_until timestamptz,
    started      timestamptz,
    finished     timestamptz,
    result       text,
    PRIMARY KEY (job, due)
);
CREATE INDEX run_unfinished ON run (owner) WHERE state IN ('claimed', 'running');
