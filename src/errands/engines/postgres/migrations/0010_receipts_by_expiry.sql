-- Finds the receipts whose window has passed. They lie in the order of their time, so an index of whole pages is enough.
-- oldest: 2

CREATE INDEX CONCURRENTLY receipts_by_expiry ON receipts USING brin (expires_at) WITH (autosummarize = on);
