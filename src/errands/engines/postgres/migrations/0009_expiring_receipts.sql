-- Receipts are deleted when their window has passed.
-- oldest: 2
-- What is there already, and what the release before writes, is kept for a week: longer than the usual window.

ALTER TABLE receipts ADD COLUMN expires_at bigint NOT NULL
    DEFAULT (extract(epoch FROM now()) * 1000)::bigint + 604800000;
