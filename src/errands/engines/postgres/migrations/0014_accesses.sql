-- Requests that the log of no task shows, for the audit trail.
-- oldest: 12

CREATE TABLE accesses (
    at   bigint NOT NULL,
    id   text   COLLATE "C" NOT NULL,
    -- `errands.model.log.AccessEntry` as JSON.
    data bytea  NOT NULL,
    PRIMARY KEY (at, id)
);
