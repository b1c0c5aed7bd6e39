-- Conversations in order: a page of one is read off the index, however long it is.

DROP INDEX tasks_of_context;
CREATE INDEX tasks_of_context ON tasks (context_id, tenant, owner, agent, status_at DESC, state);
