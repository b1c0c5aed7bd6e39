-- The first tables. Lower numbers belonged to versions that were not released. A change of the schema is a new file with
-- the next number, never an edit of this one.

-- One row per task: its head, field by field as in `errands.model.log.Head`, and its scope. The content is in `events`,
-- so that this row stays small however large the task grows.
CREATE TABLE tasks (
    -- Counted up in the order of creation, so that tasks that run at the same time lie side by side on disk.
    no               INTEGER PRIMARY KEY,
    id               TEXT    NOT NULL UNIQUE,
    tenant           TEXT    NOT NULL,
    owner            TEXT    NOT NULL,
    agent            TEXT    NOT NULL,
    context_id       TEXT    NOT NULL,
    version          INTEGER NOT NULL,
    state            TEXT    NOT NULL,
    attempt          INTEGER NOT NULL,
    attempt_base     INTEGER NOT NULL,
    given_back       INTEGER NOT NULL,
    worker           TEXT    NOT NULL,
    due_at           INTEGER,
    claimed          TEXT    NOT NULL,
    unread           INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL,
    direct           INTEGER NOT NULL,
    asks             TEXT    NOT NULL,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    status_at        INTEGER NOT NULL,
    -- The snapshot holds the events up to this version; 0 means that there is no snapshot yet.
    folded           INTEGER NOT NULL,
    -- The events up to this version are no longer kept.
    trimmed          INTEGER NOT NULL
);

-- Only live tasks are in these two, so they do not grow with the number of ended tasks.
CREATE INDEX tasks_due ON tasks (agent, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX tasks_canceling ON tasks (worker) WHERE cancel_requested = 1 AND due_at IS NOT NULL;
-- Only tasks that wait for one user's answer are in this one.
CREATE INDEX tasks_asking ON tasks (status_at, id, tenant, agent, asks) WHERE asks <> '';
-- A page of a listing is read off one of these two, however many tasks there are.
CREATE INDEX tasks_listed ON tasks (tenant, owner, agent, status_at DESC, state);
CREATE INDEX tasks_of_context ON tasks (context_id, tenant, owner, agent, status_at DESC, state);
-- The conditions of the last two are written with OR: SQLite evaluates them for every row that it writes, and IN costs a
-- twentieth of a send.
CREATE INDEX tasks_paused ON tasks (agent, status_at, created_at)
    WHERE due_at IS NULL AND (state = 'TASK_STATE_INPUT_REQUIRED' OR state = 'TASK_STATE_AUTH_REQUIRED');
CREATE INDEX tasks_ended ON tasks (state, updated_at)
    WHERE state = 'TASK_STATE_COMPLETED' OR state = 'TASK_STATE_FAILED'
        OR state = 'TASK_STATE_CANCELED' OR state = 'TASK_STATE_REJECTED';

-- The logs. `place` is `tasks.no << 28 | version`: a log is one run of a single b-tree, without an index beside it.
-- Version 0 is the snapshot, of kind 'snapshot'.
CREATE TABLE events (
    place INTEGER PRIMARY KEY,
    kind  TEXT    NOT NULL,
    data  BLOB    NOT NULL,
    -- The time of the commit.
    at    INTEGER NOT NULL,
    -- The lease that was taken since the event before, as a JSON array: `errands.model.log.LeaseRecord`.
    lease TEXT
);

-- Deleted tasks whose events are not all removed yet: readers do not see them, and retention removes them in steps.
CREATE TABLE remains (
    task    INTEGER PRIMARY KEY,
    -- Events up to this version may be left.
    version INTEGER NOT NULL
);

-- Messages that were accepted. A digest may stand here more than once: for other scopes, or when it had expired. Receipts
-- name their task by its id, which is never used again, so those of a deleted task do no harm until they expire.
CREATE TABLE receipts (
    digest     BLOB    NOT NULL,
    task_id    TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (digest, task_id)
) WITHOUT ROWID;

CREATE INDEX receipts_by_expiry ON receipts (expires_at);

-- What agents remember about a conversation.
CREATE TABLE contexts (
    tenant     TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    agent      TEXT    NOT NULL,
    context_id TEXT    NOT NULL,
    value      BLOB    NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, owner, agent, context_id)
) WITHOUT ROWID;

CREATE INDEX contexts_by_age ON contexts (updated_at);

-- When retention was last applied, by whichever process. One row at most.
CREATE TABLE sweeps (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    at  INTEGER NOT NULL
);
