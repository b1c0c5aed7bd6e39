-- The tables of version 1. A change of the schema is a new file with the next number, never an edit of this one.

-- One row per task: its head, field by field as in `errands.model.log.Head`, and whose it is. The content is in
-- `events`, so that this row stays small however large the task grows.
CREATE TABLE tasks (
    -- Counted up in the order of creation, so that tasks which run at the same time lie side by side on disk.
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
    worker           TEXT    NOT NULL,
    due_at           INTEGER,
    unread           INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL,
    direct           INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    status_at        INTEGER NOT NULL,
    -- The snapshot holds the events up to this version; 0 means there is none yet.
    folded           INTEGER NOT NULL,
    -- The events up to this version are no longer kept.
    trimmed          INTEGER NOT NULL
);

CREATE INDEX tasks_due ON tasks (agent, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX tasks_canceling ON tasks (worker) WHERE cancel_requested = 1 AND due_at IS NOT NULL;
CREATE INDEX tasks_listed ON tasks (tenant, owner, agent, status_at DESC, state);
CREATE INDEX tasks_of_context ON tasks (context_id);
CREATE INDEX tasks_ended ON tasks (updated_at, state)
    WHERE state IN ('TASK_STATE_COMPLETED', 'TASK_STATE_FAILED', 'TASK_STATE_CANCELED', 'TASK_STATE_REJECTED');

-- The logs. `place` is `tasks.no << 28 | version`: a log is one run of a single b-tree, without an index beside it.
-- Version 0 is the snapshot, of kind 'snapshot'.
CREATE TABLE events (
    place INTEGER PRIMARY KEY,
    kind  TEXT NOT NULL,
    data  BLOB NOT NULL
);

-- Messages that were accepted. A digest may stand here more than once: for other scopes, or when it had expired.
CREATE TABLE receipts (
    digest BLOB    NOT NULL,
    task   INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (digest, task)
) WITHOUT ROWID;

CREATE INDEX receipts_of_task ON receipts (task);

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
