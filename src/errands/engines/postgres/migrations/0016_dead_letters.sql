-- Dead letters, to count them.
-- oldest: 12

CREATE INDEX CONCURRENTLY pushes_dead ON pushes (agent) WHERE dead;
