-- Requests that the log of no task shows, for the audit trail.
CREATE TABLE accesses (
    at   INTEGER NOT NULL,
    id   TEXT    NOT NULL,
    -- `errands.model.log.AccessEntry` as JSON.
    data BLOB    NOT NULL,
    PRIMARY KEY (at, id)
) WITHOUT ROWID;
