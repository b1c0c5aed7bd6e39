-- The first tables. Lower numbers belonged to versions that were not released. A change of the schema is a new file with
-- the next number, never an edit of this one.
-- oldest: 12
-- The line above names the oldest schema version whose code can still run on this one: how old and new replicas run side
-- by side. A migration that only adds keeps the number; one that takes something away raises it. An index on a table
-- that is in use belongs in a file of its own, as CREATE INDEX CONCURRENTLY: see docs/scaling.md.

-- Which migrations have been applied; the newest row is the version.
CREATE TABLE schema_versions (
    version    integer     PRIMARY KEY,
    oldest     integer     NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- Numbers of tasks. Taken in blocks, so there are gaps.
CREATE SEQUENCE task_numbers AS bigint;

-- One row per task: its head, field by field as in `errands.model.log.Head`, and its scope. The content is in `events`,
-- so that this row stays small however large the task grows.
CREATE TABLE tasks (
    id               text    COLLATE "C" NOT NULL PRIMARY KEY,
    -- Names the task in `events`: shorter than its id, and tasks that run at the same time lie side by side.
    no               bigint  NOT NULL,
    -- A hash of tenant, owner and agent, for indexes.
    scope            bigint  NOT NULL,
    tenant           text    COLLATE "C" NOT NULL,
    owner            text    COLLATE "C" NOT NULL,
    agent            text    COLLATE "C" NOT NULL,
    context_id       text    COLLATE "C" NOT NULL,
    version          integer NOT NULL,
    state            text    COLLATE "C" NOT NULL,
    attempt          integer NOT NULL,
    attempt_base     integer NOT NULL,
    given_back       integer NOT NULL,
    worker           text    COLLATE "C" NOT NULL,
    due_at           bigint,
    claimed          text    COLLATE "C" NOT NULL,
    unread           integer NOT NULL,
    cancel_requested boolean NOT NULL,
    direct           boolean NOT NULL,
    asks             text    COLLATE "C" NOT NULL,
    created_at       bigint  NOT NULL,
    updated_at       bigint  NOT NULL,
    status_at        bigint  NOT NULL,
    -- The snapshot holds the events up to this version; 0 means that there is no snapshot yet.
    folded           integer NOT NULL,
    -- The events up to this version are no longer kept.
    trimmed          integer NOT NULL,
    -- The process that has readers of this task, '*' when there are several, '' when there is none. A writer notifies
    -- the others only then.
    watcher          text    COLLATE "C" NOT NULL,
    -- Whether more than 1000 events are kept.
    is_long          boolean NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- No index has a column that a streamed chunk changes (`version`, `updated_at`): then PostgreSQL updates a row within its
-- page, without touching any index.


-- Only live tasks are in these two, so they do not grow with the number of ended tasks.
CREATE INDEX tasks_due ON tasks (agent, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX tasks_canceling ON tasks (worker) WHERE cancel_requested AND due_at IS NOT NULL;
-- Only tasks that wait for one user's answer are in this one.
CREATE INDEX tasks_asking ON tasks (status_at, id) WHERE asks <> '';
CREATE INDEX tasks_paused ON tasks (agent, status_at, created_at)
    WHERE state IN ('TASK_STATE_INPUT_REQUIRED', 'TASK_STATE_AUTH_REQUIRED') AND due_at IS NULL;
-- A listing walks one of these two once for each state and merges.
CREATE INDEX tasks_listed ON tasks (scope, state, status_at DESC, id);
CREATE INDEX tasks_of_context ON tasks (context_id, scope, state, status_at DESC, id);
CREATE INDEX tasks_ended ON tasks (state, status_at, id)
    WHERE state IN ('TASK_STATE_COMPLETED', 'TASK_STATE_FAILED', 'TASK_STATE_CANCELED', 'TASK_STATE_REJECTED');
CREATE INDEX tasks_long ON tasks (id) WHERE is_long;

-- The logs. Version 0 is the snapshot, of kind 'snapshot'.
CREATE TABLE events (
    task    bigint  NOT NULL,
    version integer NOT NULL,
    kind    text    COLLATE "C" NOT NULL,
    data    bytea   NOT NULL,
    -- The time of the commit.
    at      bigint  NOT NULL,
    -- The lease that was taken since the event before, as a JSON array: `errands.model.log.LeaseRecord`.
    lease   text,
    PRIMARY KEY (task, version)
);

-- Records are read by themselves.
CREATE INDEX events_of_run ON events (task, version) WHERE kind = 'record';

-- Deleted tasks whose events are not all removed yet: readers do not see them, and retention removes them in steps.
CREATE TABLE remains (
    task    bigint  PRIMARY KEY,
    -- Events up to this version may be left.
    version integer NOT NULL
);

-- Messages that were accepted. `key` is a hash of the scope and the message's digest. Receipts name their task by its
-- id, which is never used again, so those of a deleted task do no harm until they expire.
CREATE TABLE receipts (
    key        bytea  PRIMARY KEY,
    task_id    text   COLLATE "C" NOT NULL,
    at         bigint NOT NULL,
    expires_at bigint NOT NULL
);

-- Receipts lie in the order of their time, so an index of whole pages is enough.
CREATE INDEX receipts_by_expiry ON receipts USING brin (expires_at) WITH (autosummarize = on);

-- What agents remember about a conversation.
CREATE TABLE contexts (
    tenant     text   COLLATE "C" NOT NULL,
    owner      text   COLLATE "C" NOT NULL,
    agent      text   COLLATE "C" NOT NULL,
    context_id text   COLLATE "C" NOT NULL,
    value      bytea  NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant, owner, agent, context_id)
);

CREATE INDEX contexts_by_age ON contexts (updated_at);

-- How many tasks a scope has in a state: counting them would take longer the more there are. The number is the sum over
-- the shards; each process writes to shards of its own, so that processes do not wait for each other.
CREATE TABLE tallies (
    scope bigint  NOT NULL,
    state text    COLLATE "C" NOT NULL,
    shard integer NOT NULL,
    tasks bigint  NOT NULL,
    PRIMARY KEY (scope, state, shard)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- The last batch of each connection that writes: how a commit whose answer was lost is told from one that failed.
CREATE TABLE writers (
    process text        COLLATE "C" NOT NULL,
    lane    integer     NOT NULL,
    -- Written in the same transaction as the batch that it counts.
    batch   bigint      NOT NULL,
    at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (process, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- When retention was last applied, by whichever replica. One row at most.
CREATE TABLE sweeps (
    one boolean PRIMARY KEY CHECK (one),
    at  bigint  NOT NULL
);
