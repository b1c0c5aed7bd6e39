-- Conversations in order: a page of one is read off the index, however long it is.
-- oldest: 2

CREATE INDEX CONCURRENTLY tasks_of_conversation ON tasks (context_id, scope, state, status_at DESC, id);
