-- Finds the paused tasks that nobody answers.
-- oldest: 2

CREATE INDEX CONCURRENTLY tasks_paused ON tasks (agent, status_at, created_at)
    WHERE state IN ('TASK_STATE_INPUT_REQUIRED', 'TASK_STATE_AUTH_REQUIRED') AND due_at IS NULL;
