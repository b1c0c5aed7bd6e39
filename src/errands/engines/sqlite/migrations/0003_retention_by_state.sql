-- Retention by state: ended tasks are found by their state and age, and one process at a time looks for them.

DROP INDEX tasks_ended;
CREATE INDEX tasks_ended ON tasks (state, updated_at)
    WHERE state IN ('TASK_STATE_COMPLETED', 'TASK_STATE_FAILED', 'TASK_STATE_CANCELED', 'TASK_STATE_REJECTED');

-- When retention was last applied, by whichever process. One row at most.
CREATE TABLE sweeps (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    at  INTEGER NOT NULL
);
