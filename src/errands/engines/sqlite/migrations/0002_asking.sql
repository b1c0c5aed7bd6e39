-- Whose answer alone a paused task waits for: `errands.model.log.Head.asks`.
ALTER TABLE tasks ADD COLUMN asks TEXT NOT NULL DEFAULT '';

-- Only what waits is in it, so looking for it takes no longer when there are more tasks.
CREATE INDEX tasks_asking ON tasks (status_at, id, tenant, agent, asks) WHERE asks <> '';
