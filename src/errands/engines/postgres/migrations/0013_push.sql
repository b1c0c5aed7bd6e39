-- The outbox: the push configs of tasks, and how far the log of its task was delivered to each.
-- oldest: 12

-- The ids of the task's push configs as a JSON array, '' without any.
ALTER TABLE tasks ADD COLUMN pushes text COLLATE "C" NOT NULL DEFAULT '';

CREATE TABLE pushes (
    task_id   text    COLLATE "C" NOT NULL,
    -- The id of the config.
    id        text    COLLATE "C" NOT NULL,
    -- The task's agent, and host and port of the webhook: what entries are claimed by.
    agent     text    COLLATE "C" NOT NULL,
    host      text    COLLATE "C" NOT NULL,
    -- `errands.model.log.PushConfig` as JSON.
    config    text    COLLATE "C" NOT NULL,
    -- The others are those of `errands.model.log.OutboxEntry`.
    delivered integer NOT NULL,
    due_at    bigint,
    claim     bigint  NOT NULL DEFAULT 0,
    attempts  integer NOT NULL DEFAULT 0,
    failed_at bigint,
    error     text    NOT NULL DEFAULT '',
    dead      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (task_id, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);

-- Only entries with something to deliver are in this one.
CREATE INDEX pushes_due ON pushes (agent, host, due_at) WHERE due_at IS NOT NULL;
