-- The outbox: the push configs of tasks, and how far the log of its task was delivered to each.
CREATE TABLE pushes (
    -- The number of the task, and the id of the config.
    task      INTEGER NOT NULL,
    id        TEXT    NOT NULL,
    -- The task's agent, and host and port of the webhook: what entries are claimed by.
    agent     TEXT    NOT NULL,
    host      TEXT    NOT NULL,
    -- `errands.model.log.PushConfig` as JSON.
    config    TEXT    NOT NULL,
    -- The others are those of `errands.model.log.OutboxEntry`.
    delivered INTEGER NOT NULL,
    due_at    INTEGER,
    claim     INTEGER NOT NULL DEFAULT 0,
    attempts  INTEGER NOT NULL DEFAULT 0,
    failed_at INTEGER,
    error     TEXT    NOT NULL DEFAULT '',
    dead      INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (task, id)
) WITHOUT ROWID;

-- Only entries with something to deliver are in this one.
CREATE INDEX pushes_due ON pushes (agent, host, due_at) WHERE due_at IS NOT NULL;

-- Configs end with their task, whichever statement deletes it.
CREATE TRIGGER tasks_deleted AFTER DELETE ON tasks BEGIN
    DELETE FROM pushes WHERE task = old.no;
END;
