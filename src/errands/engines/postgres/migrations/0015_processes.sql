-- The newest reports of the processes that use the store.
-- oldest: 12

CREATE TABLE processes (
    id   text   COLLATE "C" NOT NULL PRIMARY KEY,
    at   bigint NOT NULL,
    -- `errands.model.log.ProcessReport` as JSON.
    data bytea  NOT NULL
);
