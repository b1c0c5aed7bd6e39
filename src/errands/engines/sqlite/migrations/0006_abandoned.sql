-- Paused tasks that are not answered, and receipts whose window has passed: both are found by their age.

-- The conditions of both indexes are written with OR: SQLite evaluates them for every row it writes, and IN costs a
-- twentieth of a send.
CREATE INDEX tasks_paused ON tasks (agent, status_at, created_at)
    WHERE due_at IS NULL AND (state = 'TASK_STATE_INPUT_REQUIRED' OR state = 'TASK_STATE_AUTH_REQUIRED');

DROP INDEX tasks_ended;
CREATE INDEX tasks_ended ON tasks (state, updated_at)
    WHERE state = 'TASK_STATE_COMPLETED' OR state = 'TASK_STATE_FAILED'
        OR state = 'TASK_STATE_CANCELED' OR state = 'TASK_STATE_REJECTED';

-- Receipts name their task by its id, which is not used again, and go when their window has passed: what a deleted task
-- leaves is harmless, so that one index is enough. Those that are there already are kept for a week.
ALTER TABLE receipts RENAME TO old_receipts;
CREATE TABLE receipts (
    digest     BLOB    NOT NULL,
    task_id    TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (digest, task_id)
) WITHOUT ROWID;
INSERT INTO receipts SELECT digest, tasks.id, at, at + 604800000 FROM old_receipts JOIN tasks ON tasks.no = task;
DROP TABLE old_receipts;
CREATE INDEX receipts_by_expiry ON receipts (expires_at);
