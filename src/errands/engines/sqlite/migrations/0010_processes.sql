-- The newest reports of the processes that use the store.
CREATE TABLE processes (
    id   TEXT    NOT NULL PRIMARY KEY,
    at   INTEGER NOT NULL,
    -- `errands.model.log.ProcessReport` as JSON.
    data BLOB    NOT NULL
);

-- Dead letters, to count them.
CREATE INDEX pushes_dead ON pushes (agent) WHERE dead;
