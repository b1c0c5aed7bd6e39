-- Retention by state: ended tasks are found by their state and age, and applied once however many replicas there are.
-- oldest: 2
-- The release before finds what it may delete by the new index, too; it only has to sort it.

CREATE INDEX tasks_ended_by_state ON tasks (state, updated_at, id)
    WHERE state IN ('TASK_STATE_COMPLETED', 'TASK_STATE_FAILED', 'TASK_STATE_CANCELED', 'TASK_STATE_REJECTED');

DROP INDEX tasks_ended;

-- When retention was last applied, by whichever replica. One row at most.
CREATE TABLE sweeps (
    one boolean PRIMARY KEY CHECK (one),
    at  bigint  NOT NULL
);
