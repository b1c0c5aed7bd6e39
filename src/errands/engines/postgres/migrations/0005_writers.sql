-- What each connection that writes has written last: how a commit whose answer was lost is told from one that failed.
-- oldest: 2

CREATE TABLE writers (
    process text        COLLATE "C" NOT NULL,
    lane    integer     NOT NULL,
    -- Written in the same transaction as the batch it counts.
    batch   bigint      NOT NULL,
    at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (process, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
