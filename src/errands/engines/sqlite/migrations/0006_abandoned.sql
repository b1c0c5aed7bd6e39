-- Paused tasks that nobody answers, and receipts whose window has passed: both are found by their age.

CREATE INDEX tasks_paused ON tasks (agent, status_at, created_at)
    WHERE state IN ('TASK_STATE_INPUT_REQUIRED', 'TASK_STATE_AUTH_REQUIRED') AND due_at IS NULL;

-- When the window of a receipt has passed. What is there already is kept for a week, longer than the usual window.
ALTER TABLE receipts ADD COLUMN expires_at INTEGER;
UPDATE receipts SET expires_at = at + 604800000;
CREATE INDEX receipts_by_expiry ON receipts (expires_at);
